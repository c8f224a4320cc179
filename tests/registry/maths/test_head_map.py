"""Proves: a head map is the weighted least-squares map between two heads, cut to a rank where it matters least."""

from copy import deepcopy

import pytest
import torch

from registry.maths.context.head_map import RIDGE, HeadSums

V, H = 60, 12


def heads(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return two heads and the shares of tokens, float64."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn((V, H), generator=generator, dtype=torch.float64)
    own = shared + 0.3 * torch.randn((V, H), generator=generator, dtype=torch.float64)
    share = torch.rand(V, generator=generator, dtype=torch.float64) ** 4
    return shared, own, share / share.sum()


def solved(shared: torch.Tensor, own: torch.Tensor, share: torch.Tensor, rank: int, rows: int = V) -> torch.Tensor:
    sums = HeadSums(shared.shape[1])
    for start in range(0, len(shared), rows):
        part = slice(start, start + rows)
        sums.add(shared[part], own[part], share[part])
    left, right = sums.solve(rank)
    assert left.shape == (H, rank)
    assert right.shape == (rank, H)
    return left @ right


def centred(shared: torch.Tensor, own: torch.Tensor, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, d = shared, own - shared
    return x - share @ x, d - share @ d


def error(found: torch.Tensor, given: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> float:
    """Return the weighted square of what is left of the difference, and of the map's size as the ridge counts it."""
    (x, d), share = centred(*given), given[2]
    gram = x.T @ (share[:, None] * x)
    left = (share[:, None] * (d - x @ found).square()).sum()
    return float(left + RIDGE * gram.diagonal().mean() * found.square().sum())


def test_full_rank_is_the_least_squares_solution() -> None:
    given = heads()
    (x, d), share = centred(*given), given[2]
    gram = x.T @ (share[:, None] * x)
    expected = torch.linalg.solve(
        gram + RIDGE * gram.diagonal().mean() * torch.eye(H, dtype=torch.float64), x.T @ (share[:, None] * d)
    )
    found = solved(*given, rank=H)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)  # two orders of the same sums
    for seed in range(5):
        shift = 1e-3 * torch.randn((H, H), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert error(found + shift, given) > error(found, given)


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
        right = torch.randn((rank, H), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        projected = full @ torch.linalg.pinv(right) @ right
        assert error(found, given) <= error(projected, given)


def test_what_all_logits_have_in_common_is_no_difference() -> None:
    shared, own, share = heads()
    moved = own + torch.randn(H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(solved(shared, moved, share, H), solved(shared, own, share, H), rtol=1e-9, atol=1e-11)
    assert float(solved(shared, shared, share, H).abs().max()) == 0.0


def test_a_map_of_the_head_is_found() -> None:
    shared, _, share = heads()
    true = 0.2 * torch.randn((H, H), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = solved(shared, shared + shared @ true, share, H)
    assert float((found - true).norm() / true.norm()) < 0.1  # the ridge shrinks it


def test_tokens_count_as_often_as_they_were_used() -> None:
    shared, own, share = heads()
    unused = share.clone()
    unused[::2] = 0.0
    unused /= unused.sum()
    other = own.clone()
    other[::2] += 5.0  # tokens that the expert never used
    assert torch.equal(solved(shared, other, unused, H), solved(shared, own, unused, H))


def test_blocks_of_rows_add_up() -> None:
    given = heads()
    assert torch.allclose(solved(*given, rank=H, rows=7), solved(*given, rank=H), rtol=1e-9, atol=1e-12)
    again = [solved(*given, rank=4, rows=7) for _ in range(2)]
    assert torch.equal(*again)


@pytest.mark.parametrize("rank", [3, H])
def test_one_token_gives_no_map(rank: int) -> None:
    shared, own, _ = heads()
    share = torch.zeros(V, dtype=torch.float64)
    share[3] = 1.0
    found = solved(shared, own, share, rank)
    assert float(found.abs().max()) < 1e-12 or not found.any()
    assert bool(torch.isfinite(found).all())


def test_the_shift_of_an_affine_map_is_the_least_squares_solution() -> None:
    shared, own, share = heads()
    shift = torch.randn(V, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    sums = HeadSums(H)
    for part in (slice(0, 25), slice(25, V)):
        sums.add(shared[part], own[part], share[part])
        sums.add_shift(shared[part], shift[part], share[part])
    again = deepcopy(sums)
    matrix, found = sums.affine()
    assert torch.equal(matrix, again.solve(H)[0])
    x, d = centred(shared, own, share)[0], shift - share @ shift
    gram = x.T @ (share[:, None] * x)
    expected = torch.linalg.solve(
        gram + RIDGE * gram.diagonal().mean() * torch.eye(H, dtype=torch.float64), x.T @ (share * d)
    )
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)  # two orders of the same sums


def test_maps_without_a_shift_are_linear() -> None:
    shared, own, share = heads()
    sums = HeadSums(H)
    sums.add(shared, own, share)
    assert not sums.affine()[1].any()


def test_of_centred_rows_maps_ignore_what_all_channels_have_in_common() -> None:
    shared, own, share = heads()
    shared, own = (rows - rows.mean(dim=1, keepdim=True) for rows in (shared, own))
    found = solved(shared, own, share, H)
    assert float(found.sum(dim=0).abs().max()) < 1e-12
    assert float(found.sum(dim=1).abs().max()) < 1e-12
