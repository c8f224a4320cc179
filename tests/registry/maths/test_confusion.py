"""Proves: the predicted confusion of Gaussian tokens is what routing them gives, whatever the order of experts."""

import math

import pytest
import torch

from registry.maths.confusion import predicted_confusion
from registry.maths.router.ridge import ridge
from registry.maths.statistics import Statistics

HIDDEN = 12
SCALES = torch.full((HIDDEN,), 12, dtype=torch.int16)


def tokens(seed: int, count: int = 20_000, apart: float = 0.6) -> torch.Tensor:
    """Return Gaussian rows with a mean and a covariance of their own."""
    draw = torch.Generator().manual_seed(seed)
    mix = torch.eye(HIDDEN) + 0.3 * torch.empty(HIDDEN, HIDDEN).normal_(generator=draw)
    centre = apart * torch.empty(HIDDEN).normal_(generator=draw)
    return torch.empty(count, HIDDEN).normal_(generator=draw) @ mix * 0.7 + centre


@pytest.mark.check(after=7)
@pytest.mark.parametrize("experts", [2, 3, 5, 8])
@pytest.mark.parametrize("normalize", [True, False])
def test_equals_what_routing_gaussian_tokens_gives(experts: int, normalize: bool) -> None:
    rows = [tokens(seed) for seed in range(experts)]
    statistics = [Statistics.of(x, SCALES) for x in rows]
    gate = ridge(statistics, [1.0] * experts, 0.1, normalize)
    predicted = predicted_confusion(gate, iter(statistics))
    counted = torch.stack([torch.bincount((x.double() @ gate.T).argmax(1), minlength=experts) / len(x) for x in rows])
    assert 1.2 / experts < counted.diagonal().mean() < 0.98  # neither chance nor perfect
    assert (predicted - counted).abs().max() < 0.01
    assert torch.allclose(predicted.sum(1), torch.ones(experts, dtype=torch.float64), rtol=0, atol=1e-12)


def test_two_experts_follow_the_exact_formula() -> None:
    statistics = [Statistics.of(tokens(seed, 500), SCALES) for seed in (1, 2)]
    gate = ridge(statistics, [1.0, 1.0], 0.1)
    for row, of in zip(predicted_confusion(gate, statistics), statistics, strict=True):
        mean = of.moment / of.count
        across = gate[0] - gate[1]
        sigma = math.sqrt(across @ (of.gram / of.count - torch.outer(mean, mean)) @ across)
        assert row[0].item() == pytest.approx(
            0.5 * math.erfc(-(across @ mean).item() / sigma / math.sqrt(2)), abs=1e-12
        )


def test_order_permutes_rows_and_columns() -> None:
    statistics = [Statistics.of(tokens(seed, 500), SCALES) for seed in range(5)]
    gate = ridge(statistics, [1.0] * 5, 0.1)
    order = [3, 0, 4, 1, 2]
    turned = predicted_confusion(gate[order], [statistics[e] for e in order])
    assert torch.allclose(turned, predicted_confusion(gate, statistics)[order][:, order], rtol=0, atol=1e-9)


def test_scale_of_router_and_number_of_tokens_do_not_matter() -> None:
    statistics = [Statistics.of(tokens(seed, 500), SCALES) for seed in range(4)]
    gate = ridge(statistics, [1.0] * 4, 0.1)
    twice = [one + one for one in statistics]
    assert torch.allclose(
        predicted_confusion(3 * gate, twice), predicted_confusion(gate, statistics), rtol=0, atol=1e-9
    )


def test_equal_rows_share_and_one_expert_gets_all() -> None:
    of = Statistics.of(tokens(1, 500), SCALES)
    gate = ridge([of, Statistics.of(tokens(2, 500), SCALES)], [1.0, 1.0], 0.1)
    assert predicted_confusion(gate[:1], [of]).tolist() == [[1.0]]
    assert predicted_confusion(gate[[0, 0]], [of, of]).tolist() == [[0.5, 0.5]] * 2


def test_tokens_that_do_not_vary_go_to_one_expert() -> None:
    fixed = [Statistics.of(torch.eye(HIDDEN)[e].expand(8, HIDDEN), SCALES) for e in range(3)]
    gate = torch.eye(HIDDEN, dtype=torch.float64)[:3]
    assert torch.equal(predicted_confusion(gate, fixed), torch.eye(3, dtype=torch.float64))


def test_does_not_depend_on_threads_nor_on_the_random_state() -> None:
    statistics = [Statistics.of(tokens(seed, 500), SCALES) for seed in range(4)]
    gate = ridge(statistics, [1.0] * 4, 0.1)
    torch.manual_seed(1)
    first, after = predicted_confusion(gate, statistics), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 1)
        assert torch.equal(predicted_confusion(gate, statistics), first)
    finally:
        torch.set_num_threads(before)


def test_what_has_no_confusion_is_refused() -> None:
    of = Statistics.of(tokens(1, 50), SCALES)
    gate = torch.eye(HIDDEN, dtype=torch.float64)[:2]
    with pytest.raises(ValueError, match="statistics of 1 experts do not go with a router of 2"):
        predicted_confusion(gate, [of])
    with pytest.raises(ValueError, match="without tokens"):
        predicted_confusion(gate, [of, Statistics.zero(SCALES)])


def test_a_bias_shifts_logits() -> None:
    rows = [tokens(seed, 4000) for seed in range(3)]
    statistics = [Statistics.of(x, SCALES) for x in rows]
    gate, bias = ridge(statistics, [1.0] * 3, 0.1, False), torch.tensor([0.0, -0.4, -0.1], dtype=torch.float64)
    predicted = predicted_confusion(gate, statistics, bias)
    counted = torch.stack([torch.bincount((x.double() @ gate.T + bias).argmax(1), minlength=3) / len(x) for x in rows])
    assert (predicted - counted).abs().max() < 0.02
    assert (predicted - predicted_confusion(gate, statistics)).abs().max() > 0.1
    assert torch.allclose(predicted_confusion(gate, statistics, bias + 3.0), predicted, rtol=0, atol=1e-9)
    assert predicted_confusion(gate, statistics, bias * 1e6)[:, 1:].max() == 0
