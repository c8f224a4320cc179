"""Proves: held-out error and accuracy of a ridge strength, from statistics alone, are those of the tokens."""

import math

import pytest
import torch

from registry.maths.lam import LamCurve, lam_curve, lam_grid
from registry.maths.router.ridge import ridge
from registry.maths.statistics import Statistics
from tests.registry.maths.drawn import normal, refused, with_threads

HIDDEN = 16
SCALE = 12
SCALES = torch.full((HIDDEN,), SCALE, dtype=torch.int16)


def tokens(seed: int, fold: int, count: int = 120) -> torch.Tensor:
    """Return Gaussian rows of member `seed`, in steps of 2^-12."""
    rows = normal(count, HIDDEN, seed=1000 * fold + seed) + 0.5 * normal(HIDDEN, seed=seed)
    rounded: torch.Tensor = torch.round(rows * 2**SCALE) / 2**SCALE
    return rounded


def of(x: torch.Tensor) -> Statistics:
    return Statistics.of(x, SCALES, bits=20)


def some(members: int = 3, folds: int = 2, count: int = 120) -> list[list[Statistics]]:
    return [[of(tokens(e, k, count)) for k in range(folds)] for e in range(members)]


@pytest.mark.parametrize("number", [2, 3])
def test_error_is_that_of_the_tokens(number: int) -> None:
    weights = [1.0, 0.5, 3.0]
    x = [[tokens(e, k, 40 + 30 * e + 7 * k) for k in range(number)] for e in range(3)]
    grid = [1e-4, 0.1, 10.0, 1e4]
    curve = lam_curve([[of(rows) for rows in member] for member in x], weights, grid)
    assert curve.lams == tuple(grid)
    for lam, error in zip(curve.lams, curve.errors, strict=True):
        total = count = 0.0
        for k in range(number):
            rest = [torch.cat([rows for j, rows in enumerate(member) if j != k]) for member in x]
            gate = ridge([of(rows) for rows in rest], weights, lam, normalize=False)
            for e, weight in enumerate(weights):
                target = torch.eye(3, dtype=torch.float64)[e]
                total += weight * float((x[e][k] @ gate.T - target).square().sum())
                count += weight * len(x[e][k])
        assert error == pytest.approx(total / count, rel=1e-9)


@pytest.mark.check(after=3)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("members", [2, 4])
def test_accuracy_is_that_of_gaussian_tokens(members: int, normalize: bool) -> None:
    x = [[tokens(e, k, 20_000) for k in range(2)] for e in range(members)]
    folds = [[of(rows) for rows in member] for member in x]
    curve = lam_curve(folds, [1.0] * members, [1.0, 1e5], normalize)
    for lam, accuracy in zip(curve.lams, curve.accuracies, strict=True):
        right = 0.0
        for k in range(2):
            gate = ridge([member[1 - k] for member in folds], [1.0] * members, lam, normalize)
            right += sum(float(((x[e][k] @ gate.T).argmax(1) == e).double().mean()) for e in range(members))
        assert 1.2 / members < right / (2 * members) < 0.99
        assert accuracy == pytest.approx(right / (2 * members), abs=0.01)


def test_order_of_members_and_of_folds_does_not_matter() -> None:
    folds, weights = some(4, 3, count=25), [1.0, 2.0, 0.3, 1.0]
    curve = lam_curve(folds, weights)
    order = [2, 0, 3, 1]
    for other in (
        lam_curve([folds[e] for e in order], [weights[e] for e in order]),
        lam_curve([member[::-1] for member in folds], weights),
    ):
        assert other.lams == curve.lams
        assert other.best == curve.best
        assert other.errors == pytest.approx(curve.errors, rel=1e-9)
        assert other.accuracies == pytest.approx(curve.accuracies, abs=1e-9)


def test_grid_is_powers_of_ten_about_the_mean_diagonal() -> None:
    assert lam_grid(2.0) == (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
    assert lam_grid(40_000.0) == tuple(float(f"1e{n}") for n in range(-4, 9))
    folds = some()
    mean = sum(float(one.gram.diagonal().mean()) for member in folds for one in member)
    assert lam_curve(folds, [1.0] * 3).lams == lam_grid(mean)
    assert lam_curve(folds, [1.0] * 3, [5.0, 1.0, 5.0]).lams == (1.0, 5.0)


def test_fewer_tokens_than_channels_and_dead_channels_still_get_a_curve() -> None:
    folds = [[of(tokens(e, k, 5) * torch.linspace(0, 1, HIDDEN).round()) for k in range(2)] for e in range(3)]
    curve = lam_curve(folds, [1.0] * 3)
    assert all(math.isfinite(value) for value in (*curve.errors, *curve.accuracies))


def test_does_not_depend_on_the_number_of_threads() -> None:
    folds = some(5, 2)
    one, *others = with_threads(lambda: lam_curve(folds, [1.0] * 5))
    assert all(other == one for other in others)


def test_of_equal_errors_the_largest_strength_is_best() -> None:
    curve = LamCurve((0.1, 1.0, 10.0), (0.3, 0.2, 0.2), (0.5, 0.7, 0.6))
    assert curve.best == curve.document()["best"] == 10.0


def test_what_has_no_curve_is_refused() -> None:
    folds = some()
    refused("1 weights do not go with 3 members", lam_curve, folds, [1.0])
    refused("do not go with 0 members", lam_curve, [], [])
    refused("members have 1 folds", lam_curve, [member[:1] for member in folds], [1.0] * 3)
    refused("members have 1, 2 folds", lam_curve, [folds[0], folds[1][:1]], [1.0] * 2)
    refused("a fold has no tokens", lam_curve, [*folds[:2], [folds[2][0], Statistics.zero(SCALES)]], [1.0] * 3)
    for grid in ([], [0.0], [math.inf]):
        refused("finite and more than 0", lam_curve, folds, [1.0] * 3, grid)
    nothing = of(torch.zeros(4, HIDDEN, dtype=torch.float64))
    refused("the mean diagonal of the summed Gram is 0", lam_curve, [[nothing, nothing]], [1.0])
    refused("a router column is zero", lam_curve, [*folds[:2], [nothing, nothing]], [1.0] * 3)
