"""Proves: a refitted map is the ridge solution of least squares over the raw activations, towards a given map."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from registry.maths.products import ROWS, filled_up
from registry.maths.refit import RUN, Factor, LeastSquares
from tests.registry.maths.drawn import normal, refused, with_threads

INPUTS, OUTPUTS = 12, 7


def activations(seed: int, tokens: int, inputs: int = INPUTS) -> tuple[Tensor, Tensor]:
    x = normal(tokens, inputs, seed=seed) + normal(inputs, seed=seed + 100)
    return x, normal(tokens, OUTPUTS, seed=seed + 200)


def a_map(seed: int, outputs: int = OUTPUTS, inputs: int = INPUTS) -> Tensor:
    return normal(outputs, inputs, seed=seed, dtype=torch.float32)


def summed(*parts: tuple[Tensor, Tensor], weights: Sequence[float] = (1.0, 1.0)) -> LeastSquares:
    total = LeastSquares.zero(parts[0][0].shape[1], OUTPUTS)
    for (x, y), weight in zip(parts, weights, strict=False):
        total.add(x, y, weight)
    return total


@pytest.mark.parametrize("ridge", [0.0, 1e-4, 1.0, 1e3])
@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.25, 3.0]])
def test_equals_least_squares_over_the_activations(ridge: float, weights: list[float]) -> None:
    parts, towards = [activations(1, 40), activations(2, 25)], a_map(3)
    solution = summed(*parts, weights=weights).solve(towards, ridge)
    # one tall problem: √w (x W ᵀ − y), and √r (Wᵀ − W₀ᵀ)
    rows = torch.cat([x * w**0.5 for (x, _), w in zip(parts, weights, strict=True)])
    targets = torch.cat([y * w**0.5 for (_, y), w in zip(parts, weights, strict=True)])
    root = (ridge * rows.square().sum() / INPUTS).sqrt()
    rows = torch.cat([rows, root * torch.eye(INPUTS, dtype=torch.float64)])
    reference = torch.linalg.lstsq(rows, torch.cat([targets, root * towards.double().T])).solution.T
    assert solution.dtype == torch.float64
    assert torch.allclose(solution, reference, rtol=0, atol=1e-10)


def test_sums_add_up() -> None:
    parts = [activations(1, 30), activations(2, 20)]
    together, apart = summed(*parts), summed(parts[0]) + summed(parts[1])
    assert torch.equal(together.gram, apart.gram)
    assert torch.equal(together.cross, apart.cross)


def test_mapped_targets_are_targets_that_were_mapped() -> None:
    x, y = activations(1, 60)
    weight, towards, wide = a_map(2, 20, OUTPUTS), a_map(3, 20), LeastSquares.zero(INPUTS, 20)
    wide.add(x, y @ weight.double().T)
    assert torch.allclose(summed((x, y)).mapped(weight).solve(towards), wide.solve(towards), rtol=0, atol=1e-10)


def test_does_not_depend_on_the_number_of_threads_and_leaves_the_sums() -> None:
    total = summed(activations(1, 500))
    before = total.gram.clone()
    one, *others = with_threads(lambda: total.solve(a_map(2)))
    assert all(torch.equal(other, one) for other in others)
    assert torch.equal(total.gram, before)


def test_what_cannot_be_solved_or_counted_is_refused() -> None:
    x, y = activations(1, 5)
    total = LeastSquares.zero(INPUTS, OUTPUTS)
    refused("not positive definite", total.solve, a_map(1))
    total.add(x, y)
    refused("not positive definite", total.solve, a_map(1), 0.0)
    refused(r"a map of shape \[7, 11\] does not go with \[7, 12\]", total.solve, a_map(1, inputs=11))
    refused("NaN or infinite", total.add, x.masked_fill(x > 0, float("inf")), y)
    refused("NaN or infinite", total.add, x, y.masked_fill(y > 0, float("nan")))
    refused(r"do not go with a map of shape \[7, 12\]", total.add, x[:, 1:], y)
    refused("must be positive", total.add, x, y, 0.0)
    with pytest.raises(ValueError, match=r"Gram of shape \[12, 12\] does not go with \[7, 11\]"):
        LeastSquares(total.gram, total.cross[:, 1:])


def test_products_of_runs_are_near_enough_to_those_in_float64() -> None:
    """Relative to √(G_ii G_jj), which bounds an entry: over many runs, with inputs far from zero."""
    x, y = activations(1, 3 * RUN + 100)
    found, wide = (summed((x.to(dtype), y.to(dtype)), weights=[0.7]) for dtype in (torch.float32, torch.float64))
    inputs, outputs = wide.gram.diagonal().sqrt(), (0.7 * y.square().sum(dim=0)).sqrt()
    assert float(((found.gram - wide.gram) / inputs[:, None] / inputs).abs().max()) < 1e-5
    assert float(((found.cross - wide.cross) / outputs[:, None] / inputs).abs().max()) < 1e-5
    assert torch.allclose(found.solve(a_map(3)), wide.solve(a_map(3)), rtol=0, atol=1e-5)


def test_the_gram_is_whole_however_many_tiles_it_has() -> None:
    x, y = activations(1, 50, 900)
    assert torch.allclose(summed((x, y)).gram, x.T @ x, rtol=0, atol=1e-9)


def test_one_factor_solves_every_map_of_its_inputs() -> None:
    """The rows of a map depend on no other row, so they can be solved apart."""
    total, towards = summed(activations(1, 60)), a_map(2)
    factor, before = Factor(total.gram), total.gram
    parts = [factor.solve(total.cross[rows], towards[rows]) for rows in (slice(0, 3), slice(3, OUTPUTS))]
    assert torch.allclose(torch.cat(parts), total.solve(towards), rtol=0, atol=1e-12)
    assert torch.equal(total.gram, before)


@pytest.mark.parametrize("tokens", [1, ROWS - 1, ROWS, ROWS + 1])
def test_rows_of_zeros_change_no_sum(tokens: int) -> None:
    x, y = activations(1, tokens)
    assert len(filled_up(x)) % ROWS == 0
    assert torch.equal(filled_up(x)[:tokens], x)
    assert not filled_up(x)[tokens:].any()
    total = summed((x, y))
    assert torch.allclose(total.gram, x.T @ x, rtol=0, atol=1e-10)
    assert torch.allclose(total.cross, y.T @ x, rtol=0, atol=1e-10)
