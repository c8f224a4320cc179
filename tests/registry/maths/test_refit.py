"""Proves: a refitted map is the ridge solution of least squares over the raw activations, towards a given map."""

import pytest
import torch

from registry.maths.products import ROWS, filled_up
from registry.maths.refit import RUN, Factor, LeastSquares

INPUTS, OUTPUTS = 12, 7


def activations(seed: int, tokens: int, inputs: int = INPUTS, outputs: int = OUTPUTS) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.empty(tokens, inputs).normal_(generator=draw) + torch.empty(inputs).normal_(generator=draw)
    return x.double(), torch.empty(tokens, outputs).normal_(generator=draw).double()


def a_map(seed: int, outputs: int = OUTPUTS, inputs: int = INPUTS) -> torch.Tensor:
    return torch.empty(outputs, inputs).normal_(generator=torch.Generator().manual_seed(seed))


def summed(parts: list[tuple[torch.Tensor, ...]], weights: list[float]) -> LeastSquares:
    total = LeastSquares.zero(INPUTS, OUTPUTS)
    for (x, y), weight in zip(parts, weights, strict=True):
        total.add(x, y, weight)
    return total


@pytest.mark.parametrize("ridge", [1e-4, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.25, 3.0]])
def test_equals_least_squares_over_the_activations(ridge: float, weights: list[float]) -> None:
    parts, towards = [activations(1, 40), activations(2, 25)], a_map(3)
    solution = summed(parts, weights).solve(towards, ridge)
    # one tall problem: √w (x W ᵀ − y), and √r (Wᵀ − W₀ᵀ)
    rows = torch.cat([x.double() * w**0.5 for (x, _), w in zip(parts, weights, strict=True)])
    targets = torch.cat([y.double() * w**0.5 for (_, y), w in zip(parts, weights, strict=True)])
    root = (ridge * rows.square().sum() / INPUTS).sqrt()
    rows = torch.cat([rows, root * torch.eye(INPUTS, dtype=torch.float64)])
    reference = torch.linalg.lstsq(rows, torch.cat([targets, root * towards.double().T])).solution.T
    assert solution.dtype == torch.float64
    assert torch.allclose(solution, reference, rtol=0, atol=1e-10)


def test_finds_a_map_that_fits_all_tokens() -> None:
    x, _ = activations(1, 200)
    true = a_map(2)
    total = LeastSquares.zero(INPUTS, OUTPUTS)
    total.add(x.double(), x.double() @ true.double().T)
    assert torch.allclose(total.solve(torch.zeros(OUTPUTS, INPUTS), 0.0), true.double(), rtol=0, atol=1e-10)
    assert torch.allclose(total.solve(true, 10.0), true.double(), rtol=0, atol=1e-10)


def test_without_news_the_map_stays() -> None:
    towards = a_map(1)
    x, _ = activations(2, 50)
    x[:, 3] = 0  # an input that no token shows
    total = LeastSquares.zero(INPUTS, OUTPUTS)
    total.add(x, torch.zeros(50, OUTPUTS))
    solution = total.solve(towards, 1e-2)
    assert torch.allclose(solution[:, 3], towards[:, 3].double(), rtol=0, atol=1e-12)
    assert not torch.allclose(solution, towards.double(), atol=0.1)


def test_sums_add_up() -> None:
    parts = [activations(1, 30), activations(2, 20)]
    together, apart = summed(parts, [1.0, 1.0]), summed(parts[:1], [1.0]) + summed(parts[1:], [1.0])
    assert torch.equal(together.gram, apart.gram)
    assert torch.equal(together.cross, apart.cross)


def test_mapped_targets_are_targets_that_were_mapped() -> None:
    x, y = activations(1, 60)
    weight, towards = a_map(2, 20, OUTPUTS), a_map(3, 20)
    narrow, wide = LeastSquares.zero(INPUTS, OUTPUTS), LeastSquares.zero(INPUTS, 20)
    narrow.add(x, y)
    wide.add(x, y.double() @ weight.double().T)
    assert torch.allclose(narrow.mapped(weight).solve(towards), wide.solve(towards), rtol=0, atol=1e-10)


def test_does_not_depend_on_the_number_of_threads_and_leaves_the_sums() -> None:
    total = summed([activations(1, 500)], [1.0])
    before, threads, solutions = total.gram.clone(), torch.get_num_threads(), []
    try:
        for number in (1, 2, 4):
            torch.set_num_threads(number)
            solutions.append(total.solve(a_map(2)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(solutions[0], solutions[1])
    assert torch.equal(solutions[0], solutions[2])
    assert torch.equal(total.gram, before)


def test_what_cannot_be_solved_or_counted_is_refused() -> None:
    x, y = activations(1, 5)
    total = LeastSquares.zero(INPUTS, OUTPUTS)
    with pytest.raises(ValueError, match="not positive definite"):
        total.solve(a_map(1))
    total.add(x, y)
    with pytest.raises(ValueError, match="not positive definite"):
        total.solve(a_map(1), 0.0)
    with pytest.raises(ValueError, match=r"a map of shape \[7, 11\] does not go with \[7, 12\]"):
        total.solve(a_map(1, inputs=11))
    with pytest.raises(ValueError, match="NaN or infinite"):
        total.add(x.masked_fill(x > 0, float("inf")), y)
    with pytest.raises(ValueError, match="NaN or infinite"):
        total.add(x, y.masked_fill(y > 0, float("nan")))
    with pytest.raises(ValueError, match=r"do not go with a map of shape \[7, 12\]"):
        total.add(x[:, 1:], y)
    with pytest.raises(ValueError, match="must be positive"):
        total.add(x, y, 0.0)
    with pytest.raises(ValueError, match=r"Gram of shape \[12, 12\] does not go with \[7, 11\]"):
        LeastSquares(total.gram, total.cross[:, 1:])


def test_products_of_runs_are_near_enough_to_those_in_float64() -> None:
    """Relative to √(G_ii G_jj), which bounds an entry: over many runs, with inputs far from zero."""
    tokens = 3 * RUN + 100
    x, y = activations(1, tokens)
    found, wide = LeastSquares.zero(INPUTS, OUTPUTS), LeastSquares.zero(INPUTS, OUTPUTS)
    found.add(x.float(), y.float(), 0.7)
    wide.add(x, y, 0.7)
    inputs, outputs = wide.gram.diagonal().sqrt(), (0.7 * y.double().square().sum(dim=0)).sqrt()
    assert float(((found.gram - wide.gram) / inputs[:, None] / inputs).abs().max()) < 1e-5
    assert float(((found.cross - wide.cross) / outputs[:, None] / inputs).abs().max()) < 1e-5
    towards = a_map(3)
    assert torch.allclose(found.solve(towards), wide.solve(towards), rtol=0, atol=1e-5)


def test_the_gram_is_whole_however_many_tiles_it_has() -> None:
    x, y = activations(1, 50, 900)
    total = LeastSquares.zero(900, OUTPUTS)
    total.add(x.double(), y.double())
    assert torch.allclose(total.gram, x.double().T @ x.double(), rtol=0, atol=1e-9)


def test_one_factor_solves_every_map_of_its_inputs() -> None:
    """The rows of a map depend on no other row, so they can be solved apart."""
    x, y = activations(1, 60)
    total, towards = LeastSquares.zero(INPUTS, OUTPUTS), a_map(2)
    total.add(x, y)
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
    total = LeastSquares.zero(INPUTS, OUTPUTS)
    total.add(x, y)
    assert torch.allclose(total.gram, x.T @ x, rtol=0, atol=1e-10)
    assert torch.allclose(total.cross, y.T @ x, rtol=0, atol=1e-10)
