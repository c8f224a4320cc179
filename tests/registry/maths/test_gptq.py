"""Proves: GPTQ is Algorithm 1 of Frantar et al. 2022, makes outputs better than rounding to the nearest, and is that
where inputs are not correlated."""

import pytest
import torch
from torch import Tensor

from registry.maths.gptq import Grid, gptq, inverse_factor, nearest, output_size


def drawn(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return a matrix, and the Gram of correlated inputs."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(200, columns, generator=draw) @ torch.randn(columns, columns, generator=draw)
    return torch.randn(rows, columns, generator=draw), inputs.double().T @ inputs.double()


INT4, INT8 = Grid.integers(4), Grid.integers(8)


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (8, 32)])
def test_gptq_is_algorithm_1(bits: int, group: int) -> None:
    weight, gram = drawn(6, 128)
    made = gptq(weight, inverse_factor(gram), Grid.integers(bits), group, torch.float32)
    damped = gram + 0.01 * gram.diagonal().mean() * torch.eye(128, dtype=torch.float64)
    factor = torch.linalg.cholesky(torch.linalg.inv(damped)).T  # lower of the inverse; its transpose is upper
    assert torch.allclose(factor.T @ factor, torch.linalg.inv(damped))
    rest = weight.double()
    for column in range(128):
        scale = made.scales[:, column // group].double()
        exact, rounded = rest[:, column] / scale, made.numbers[:, column].double()
        nearest_one = exact.round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        tied = (exact - exact.floor() - 0.5).abs() < 1e-3  # float32 may round it to the other side
        assert torch.equal(rounded[~tied], nearest_one[~tied])
        assert ((rounded - exact).abs() < 0.501)[tied].all()
        error = (rest[:, column] - rounded * scale) / factor[column, column]
        for later in range(column, 128):
            rest[:, later] -= error * factor[column, later]


@pytest.mark.parametrize("grid", [INT4, INT8])
def test_outputs_are_better_than_to_the_nearest(grid: Grid) -> None:
    weight, gram = drawn(32, 128, seed=1)
    plain, better = (
        nearest(weight, grid, 32, torch.float32),
        gptq(weight, inverse_factor(gram), grid, 32, torch.float32),
    )
    error = output_size(weight - better.weights, gram)
    assert error < 0.8 * output_size(weight - plain.weights, gram) < output_size(weight, gram)
    change = (weight - better.weights).double()
    assert error == pytest.approx(float((change @ gram @ change.T).trace()), rel=1e-4)  # products are in float32


def test_where_inputs_are_not_correlated_it_rounds_to_the_nearest() -> None:
    weight, _ = drawn(8, 64)
    plain = nearest(weight, INT4, 32, torch.float16)
    made = gptq(weight, inverse_factor(torch.eye(64, dtype=torch.float64)), INT4, 32, torch.float16)
    assert torch.equal(made.numbers, plain.numbers)
    assert torch.equal(made.scales, plain.scales)
    assert plain.scales.dtype == torch.float16


def test_a_weight_is_off_by_half_a_step_at_most_and_powers_in_a_group_are_exact() -> None:
    weight, _ = drawn(8, 64)
    made = nearest(weight, INT8, 32, torch.float32)
    step = made.scales.repeat_interleave(32, dim=1)
    inside = weight.abs() < 127 * step
    assert ((weight - made.weights).abs() <= step * 0.5001)[inside].all()
    sparse = torch.zeros(4, 64)
    sparse[torch.arange(4), torch.arange(4) * 9] = torch.tensor([1.0, -2.0, 0.0, 2**-10])
    assert torch.equal(nearest(sparse, INT4, 32, torch.float32).weights, sparse)


def test_float8_is_the_nearest_of_its_numbers_and_a_row_s_largest_weight_may_be_its_largest() -> None:
    weight, _ = drawn(6, 96)
    made = nearest(weight, Grid.float8(), 96, torch.float32)
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    every = every[every.isfinite()].unique()
    away = ((weight / made.scales).double()[..., None] - every).abs()
    found = made.numbers.double()
    assert torch.equal(away.gather(-1, torch.searchsorted(every, found)[..., None])[..., 0], away.amin(dim=-1))
    assert made.scales.shape == (6, 1)
    assert (found.abs().amax(dim=1) >= 0.7 * 448).all()
    assert float((weight - made.weights).norm() / weight.norm()) < 0.03
