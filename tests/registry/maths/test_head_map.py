"""Proves: a head map is the weighted least-squares map between two heads, cut to a rank where it matters least."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from registry.maths.context.head_map import RIDGE, HeadSums
from tests.registry.maths.drawn import normal

V, H = 60, 12
Heads = tuple[Tensor, Tensor, Tensor]


def heads() -> Heads:
    """Return two heads and the shares of tokens."""
    shared, share = normal(V, H), normal(V, seed=2).abs() ** 4
    return shared, shared + 0.3 * normal(V, H, seed=1), share / share.sum()


def solved(shared: Tensor, own: Tensor, share: Tensor, rank: int, rows: int = V) -> Tensor:
    sums = HeadSums(H)
    for start in range(0, V, rows):
        part = slice(start, start + rows)
        sums.add(shared[part], own[part], share[part])
    left, right = sums.solve(rank)
    assert left.shape == (H, rank)
    assert right.shape == (rank, H)
    return left @ right


def problem(given: Heads, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the centred rows, what the ridge adds to their Gram, and the centred target, of weighted least squares."""
    shared, _, share = given
    x = shared - share @ shared
    ridge = RIDGE * (x.T @ (share[:, None] * x)).diagonal().mean() * torch.eye(H, dtype=torch.float64)
    return x, ridge, target - share @ target


def least_squares(given: Heads, target: Tensor) -> Tensor:
    """Return the solution of the normal equations."""
    (x, ridge, y), share = problem(given, target), given[2]
    solution: Tensor = torch.linalg.solve(x.T @ (share[:, None] * x) + ridge, x.T @ (torch.diag(share) @ y))
    return solution


def error(found: Tensor, given: Heads) -> float:
    """Return the weighted square of what is left of the difference, and of the map's size as the ridge counts it."""
    x, ridge, y = problem(given, given[1] - given[0])
    left = (given[2][:, None] * (y - x @ found).square()).sum()
    return float(left + ridge[0, 0] * found.square().sum())


@pytest.mark.parametrize("rows", [V, 7])
def test_full_rank_is_the_least_squares_solution(rows: int) -> None:
    given = heads()
    found = solved(*given, rank=H, rows=rows)
    # two orders of the same sums
    assert torch.allclose(found, least_squares(given, given[1] - given[0]), rtol=1e-9, atol=1e-12)
    assert torch.equal(found, solved(*given, rank=H, rows=rows))


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_a_lower_rank_is_the_best_of_its_rank(rank: int) -> None:
    given = heads()
    found = solved(*given, rank=rank)
    assert int(torch.linalg.matrix_rank(found)) == rank
    full = solved(*given, rank=H)
    plain_u, plain_s, plain_v = torch.linalg.svd(full)
    unweighted = (plain_u[:, :rank] * plain_s[:rank]) @ plain_v[:rank]
    assert error(found, given) < error(unweighted, given)
    for seed in range(20):  # alternating least squares from anywhere finds nothing better
        right = normal(rank, H, seed=seed)
        projected = full @ torch.linalg.pinv(right) @ right
        assert error(found, given) <= error(projected, given)


@pytest.mark.parametrize("rank", [3, H])
def test_one_token_gives_no_map(rank: int) -> None:
    shared, own, _ = heads()
    share = torch.zeros(V, dtype=torch.float64)
    share[3] = 1.0
    found = solved(shared, own, share, rank)
    assert float(found.abs().max()) < 1e-12 or not found.any()
    assert bool(torch.isfinite(found).all())


def test_the_shift_of_an_affine_map_is_the_least_squares_solution() -> None:
    shared, own, share = given = heads()
    shift, linear, affine = normal(V, seed=3), HeadSums(H), HeadSums(H)
    for part in (slice(0, 25), slice(25, V)):
        for sums in (linear, affine):
            sums.add(shared[part], own[part], share[part])
        affine.add_shift(shared[part], shift[part], share[part])
    again = deepcopy(linear)
    matrix, found = affine.affine()
    assert torch.equal(matrix, linear.solve(H)[0])
    assert torch.allclose(found, least_squares(given, shift), rtol=1e-9, atol=1e-12)  # two orders of the same sums
    assert not again.affine()[1].any()
