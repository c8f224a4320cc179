"""Proves: projectors between tables, and the router of sequences, are the least squares that their definitions say."""

import pytest
import torch

from registry.maths.projection import head_rank, sequence_router, table_map
from tests.registry.maths.drawn import normal, refused

V, SHARED, OWN = 40, 7, 5


def solution(rows: torch.Tensor, weights: torch.Tensor, targets: torch.Tensor, lam: float) -> torch.Tensor:
    """Return argmin_P Σ_v w_v ‖rows_v P − targets_v‖² + r ‖P‖² from its normal equations, in plain loops.

    r is lam times the mean of the diagonal.
    """
    left, right = torch.zeros(SHARED, SHARED).double(), torch.zeros(SHARED, targets.shape[1]).double()
    for row, weight, target in zip(rows, weights, targets, strict=True):
        for a in range(SHARED):
            for b in range(SHARED):
                left[a, b] += weight * row[a] * row[b]
            for j in range(targets.shape[1]):
                right[a, j] += weight * row[a] * target[j]
    strength = lam * sum(float(left[a, a]) for a in range(SHARED)) / SHARED
    for a in range(SHARED):
        left[a, a] += strength
    found: torch.Tensor = torch.linalg.solve(left, right)
    return found


def projector(shared: torch.Tensor, own: torch.Tensor, counts: torch.Tensor, lam: float = 0.0) -> torch.Tensor:
    blocks = zip(shared.split(16), own.split(16), counts.split(16), strict=True)
    return table_map(blocks, (shared.shape[1], own.shape[1]), lam)


@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_a_member_reads_the_ridge_solution_of_its_embedding(lam: float) -> None:
    # Ours, for MergeME §3.2's projector in front of a member: argmin_P Σ_v c_v ‖E_v P − E_{i,v}‖² + r ‖P‖².
    shared, own = normal(V, SHARED, seed=1), normal(V, OWN, seed=2)
    counts = torch.arange(V, dtype=torch.float64) % 4  # a quarter of the tokens is never used
    expected = solution(shared, counts, own, lam)
    assert torch.allclose(projector(shared, own, counts, lam), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rank", [OWN, 2])
def test_no_map_in_front_of_the_shared_head_is_nearer_to_the_members_own(rank: int) -> None:
    # Ours, for MergeME §3.2's projector behind a member: argmin_R ‖K^{1/2} (H R − s H_i) G^{1/2}‖_F for the Gram G of
    # its own last hidden states, of full rank or not. The loss is Σ_v Σ_t k_v ((H R x_t)_v − s (H_i x_t)_v)².
    shared, own, states, scale = normal(V, SHARED, seed=1), normal(V, OWN, seed=2), normal(9, OWN, seed=3), 0.25
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
        step = 1e-3 * normal(SHARED, OWN, seed=10 + seed)
        assert loss(found + step) > least
        assert loss(found - step) > least


def test_tables_and_windows_that_determine_nothing_are_refused_without_a_ridge() -> None:
    nothing = torch.zeros(V, SHARED).double()
    refused("singular", projector, nothing, normal(V, OWN, seed=2), torch.ones(V, dtype=torch.float64))
    refused("not positive definite", sequence_router, [[nothing]], SHARED, 0.0)


@pytest.mark.parametrize(("size", "expected"), [(0.0, SHARED - 1), (1e-7, SHARED - 1), (1e-4, SHARED)])
def test_rank_is_counted_by_singular_values(size: float, expected: int) -> None:
    head = normal(V, SHARED, seed=1)
    head[:, -1] = head[:, 0] + size * head[:, -1]
    assert (head_rank(head), head_rank(0 * head)) == (expected, 0)


def test_the_router_of_sequences_is_ridge_regression_on_the_members_windows() -> None:
    # DUME eq. 6 and 7 with the mean embeddings of windows in the place of activations: each member's windows count
    # 1/n_i, the target of a window is 1 for its member and 0 for the others.
    windows = [normal(4, SHARED, seed=1), normal(9, SHARED, seed=2) + 1.0, normal(1, SHARED, seed=3)]
    counts = torch.tensor([len(means) for means in windows])
    targets = torch.eye(3).double().repeat_interleave(counts, dim=0)
    found = sequence_router([means.split(4) for means in windows], SHARED, 0.1)
    weights = (1 / counts.double()).repeat_interleave(counts)
    expected = solution(torch.cat(windows), weights, targets, 0.1)
    assert torch.allclose(found, expected.T, rtol=1e-10, atol=1e-12)
