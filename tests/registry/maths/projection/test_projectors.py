"""Proves: projectors between tables, and the router of sequences, are the least squares that their definitions say."""

import pytest
import torch

from registry.maths.projection.projectors import HeadGram, TableSums
from registry.maths.projection.sequence_router import SequenceSums

V, SHARED, OWN = 40, 7, 5


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def projector(shared: torch.Tensor, own: torch.Tensor, counts: torch.Tensor, lam: float = 0.0) -> torch.Tensor:
    sums = TableSums(shared.shape[1], own.shape[1])
    for start in range(0, len(shared), 16):
        rows = slice(start, start + 16)
        sums.add(shared[rows], own[rows], counts[rows])
    return sums.solve(lam)


@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_a_member_reads_the_ridge_solution_of_its_embedding(lam: float) -> None:
    # MergeME §3.2, the projector in front of a member: argmin_P Σ_v c_v ‖E_v P − E_{i,v}‖² + r ‖P‖², column by column
    # the solution of its normal equations, in plain loops.
    shared, own = random(V, SHARED, seed=1), random(V, OWN, seed=2)
    counts = torch.arange(V, dtype=torch.float64) % 4  # a quarter of the tokens is never used
    mean = sum(float(counts[v] * shared[v, a] ** 2) for v in range(V) for a in range(SHARED)) / SHARED
    left, right = torch.zeros(SHARED, SHARED).double(), torch.zeros(SHARED, OWN).double()
    for v in range(V):
        for a in range(SHARED):
            for b in range(SHARED):
                left[a, b] += counts[v] * shared[v, a] * shared[v, b]
            for j in range(OWN):
                right[a, j] += counts[v] * shared[v, a] * own[v, j]
    for a in range(SHARED):
        left[a, a] += lam * mean
    expected = torch.linalg.solve(left, right)
    assert torch.allclose(projector(shared, own, counts, lam), expected, rtol=1e-10, atol=1e-12)


def test_equal_embeddings_are_projected_onto_themselves() -> None:
    shared = random(V, SHARED, seed=1)
    found = projector(shared, shared, torch.ones(V, dtype=torch.float64))
    assert torch.allclose(found, torch.eye(SHARED, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("rank", [OWN, 2])
def test_no_map_in_front_of_the_shared_head_is_nearer_to_the_members_own(rank: int) -> None:
    # MergeME §3.2, the projector behind a member: argmin_R ‖K^{1/2} (H R − s H_i) G^{1/2}‖_F for the Gram G of its own
    # last hidden states, of full rank or not. The loss is written out as Σ_v Σ_t k_v ((H R x_t)_v − s (H_i x_t)_v)².
    shared, own, states, scale = random(V, SHARED, seed=1), random(V, OWN, seed=2), random(9, OWN, seed=3), 0.25
    states[:, rank:] = 0.0
    weights = torch.arange(V, dtype=torch.float64) % 4 + 0.1

    def loss(projector: torch.Tensor) -> float:
        total = 0.0
        for state in states:
            for v in range(V):
                total += float(weights[v]) * float(shared[v] @ projector @ state - scale * own[v] @ state) ** 2
        return total

    found = projector(shared, own, weights) * scale
    gram, weighted = states.T @ states, shared.T * weights
    assert torch.allclose(weighted @ shared @ found @ gram, scale * weighted @ own @ gram, atol=1e-10)
    least = loss(found)
    for seed in range(5):
        step = 1e-3 * random(SHARED, OWN, seed=10 + seed)
        assert loss(found + step) > least
        assert loss(found - step) > least


def test_a_head_in_the_span_of_the_shared_one_is_met_exactly() -> None:
    shared, inner = random(V, SHARED, seed=1), random(SHARED, OWN, seed=2)
    assert torch.allclose(projector(shared, shared @ inner, torch.ones(V, dtype=torch.float64)), inner, atol=1e-12)


def test_tables_that_determine_nothing_are_refused_without_a_ridge() -> None:
    with pytest.raises(ValueError, match="singular"):
        projector(torch.zeros(V, SHARED).double(), random(V, OWN, seed=2), torch.ones(V, dtype=torch.float64))


@pytest.mark.parametrize(("size", "expected"), [(0.0, SHARED - 1), (1e-7, SHARED - 1), (1e-4, SHARED)])
def test_rank_is_counted_by_singular_values(size: float, expected: int) -> None:
    head = random(V, SHARED, seed=1)
    head[:, -1] = head[:, 0] + size * head[:, -1]
    gram = HeadGram(SHARED)
    gram.add(head)
    assert gram.rank() == expected


def test_nothing_of_a_head_has_rank_0() -> None:
    gram = HeadGram(SHARED)
    gram.add(torch.zeros(V, SHARED, dtype=torch.float64))
    assert gram.rank() == 0


def test_the_router_of_sequences_is_ridge_regression_on_the_members_windows() -> None:
    # DUME eq. 6 and 7 with the mean embeddings of windows in the place of activations: each member's windows count
    # 1/n_i, the target of a window is 1 for its member and 0 for the others.
    windows = [random(4, SHARED, seed=1), random(9, SHARED, seed=2) + 1.0, random(1, SHARED, seed=3)]
    left, right = torch.zeros(SHARED, SHARED).double(), torch.zeros(SHARED, 3).double()
    for member, means in enumerate(windows):
        for mean in means:
            for a in range(SHARED):
                for b in range(SHARED):
                    left[a, b] += mean[a] * mean[b] / len(means)
                right[a, member] += mean[a] / len(means)
    strength = 0.1 * sum(float(left[a, a]) for a in range(SHARED)) / SHARED
    for a in range(SHARED):
        left[a, a] += strength
    sums = SequenceSums(SHARED)
    for means in windows:
        for part in means.split(4):
            sums.add(part)
        sums.close_member()
    assert torch.allclose(sums.solve(0.1), torch.linalg.solve(left, right).T, rtol=1e-10, atol=1e-12)


def test_windows_that_determine_nothing_are_refused_without_a_ridge() -> None:
    sums = SequenceSums(SHARED)
    sums.add(torch.zeros(2, SHARED, dtype=torch.float64))
    sums.close_member()
    with pytest.raises(ValueError, match="not positive definite"):
        sums.solve(0.0)
