"""Proves: the predicted confusion of Gaussian tokens is what routing them gives, whatever the order of experts.

What is foretold of a composed model's routing holds where the marks of experts' own weights are gone.
"""

import math

import pytest
import torch
from torch import Tensor

from registry.maths.confusion import composed_confusion, predicted_confusion
from registry.maths.statistics import Statistics
from tests.registry.maths.drawn import refused, ridge, with_threads

HIDDEN, QUIET = 12, 8
SCALES, WIDE_SCALES = (torch.full((size,), 12, dtype=torch.int16) for size in (HIDDEN, 2 * QUIET))
ORDER = [2, 0, 3, 1]


def tokens(seed: int, count: int = 20_000) -> Tensor:
    """Return Gaussian rows with a mean and a covariance of their own."""
    draw = torch.Generator().manual_seed(seed)
    mix = torch.eye(HIDDEN) + 0.3 * torch.empty(HIDDEN, HIDDEN).normal_(generator=draw)
    centre = 0.6 * torch.empty(HIDDEN).normal_(generator=draw)
    return torch.empty(count, HIDDEN).normal_(generator=draw) @ mix * 0.7 + centre


def marked(seed: int, mark: float, count: int = 20_000) -> Tensor:
    """Return Gaussian rows: text in the first channels, and in the others, which hardly vary, a mark of the expert."""
    draw = torch.Generator().manual_seed(seed)
    mix = torch.eye(QUIET) + 0.3 * torch.empty(QUIET, QUIET).normal_(generator=draw)
    centre = 0.5 * torch.empty(QUIET).normal_(generator=draw)
    quiet = mark * 0.02 * torch.empty(QUIET).normal_(generator=draw)
    text = torch.empty(count, QUIET).normal_(generator=draw) @ mix * 0.7 + centre
    return torch.cat([text, 0.02 * torch.empty(count, QUIET).normal_(generator=draw) + quiet], dim=1)


def some(*seeds: int) -> tuple[list[Statistics], Tensor]:
    """Return the statistics of some experts, and their router."""
    statistics = [Statistics.of(tokens(seed, 500), SCALES) for seed in seeds]
    return statistics, ridge(statistics, [1.0] * len(seeds), 0.1)


def counted(rows: list[Tensor], gate: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Return the share of each expert's tokens that goes to each."""
    chosen = [(x.double() @ gate.T + bias).argmax(1) for x in rows]
    return torch.stack([torch.bincount(of, minlength=len(gate)) / len(of) for of in chosen])


def near(one: Tensor, other: Tensor, atol: float = 1e-9) -> bool:
    return torch.allclose(one, other, rtol=0, atol=atol)


@pytest.mark.parametrize("experts", [2, 5, 8])
@pytest.mark.parametrize("normalize", [True, False])
def test_equals_what_routing_gaussian_tokens_gives(experts: int, normalize: bool) -> None:
    rows = [tokens(seed) for seed in range(experts)]
    statistics = [Statistics.of(x, SCALES) for x in rows]
    gate = ridge(statistics, [1.0] * experts, 0.1, normalize)
    predicted, found = predicted_confusion(gate, iter(statistics)), counted(rows, gate)
    assert 1.2 / experts < found.diagonal().mean() < 0.98  # neither chance nor perfect
    assert (predicted - found).abs().max() < 0.01
    assert near(predicted.sum(1), torch.ones(experts, dtype=torch.float64), 1e-12)


def test_two_experts_follow_the_exact_formula() -> None:
    statistics, gate = some(1, 2)
    for row, of in zip(predicted_confusion(gate, statistics), statistics, strict=True):
        mean = of.moment / of.count
        across = gate[0] - gate[1]
        sigma = math.sqrt(across @ (of.gram / of.count - torch.outer(mean, mean)) @ across)
        expected = 0.5 * math.erfc(-(across @ mean).item() / sigma / math.sqrt(2))
        assert row[0].item() == pytest.approx(expected, abs=1e-12)


def test_order_permutes_rows_and_columns_and_scale_and_number_of_tokens_do_not_matter() -> None:
    statistics, gate = some(0, 1, 2, 3)
    found = predicted_confusion(gate, statistics)
    assert near(predicted_confusion(gate[ORDER], [statistics[e] for e in ORDER]), found[ORDER][:, ORDER])
    assert near(predicted_confusion(3 * gate, [one + one for one in statistics]), found)
    own, weights = [Statistics.of(marked(seed, 1.0, 500), WIDE_SCALES) for seed in range(4)], [1.0, 2.0, 1.0, 0.5]
    for normalize in (True, False):
        turned = composed_confusion([own[e] for e in ORDER], [weights[e] for e in ORDER], 0.1, normalize)
        assert near(turned, composed_confusion(own, weights, 0.1, normalize)[ORDER][:, ORDER], 1e-8)


def test_equal_rows_share_and_tokens_that_do_not_vary_go_to_one_expert() -> None:
    statistics, gate = some(1, 2)
    of = statistics[0]
    assert predicted_confusion(gate[:1], [of]).tolist() == [[1.0]]
    assert predicted_confusion(gate[[0, 0]], [of, of]).tolist() == [[0.5, 0.5]] * 2
    fixed = [Statistics.of(torch.eye(HIDDEN)[e].expand(8, HIDDEN), SCALES) for e in range(3)]
    assert torch.equal(predicted_confusion(torch.eye(HIDDEN).double()[:3], fixed), torch.eye(3, dtype=torch.float64))


def test_does_not_depend_on_threads_nor_on_the_random_state() -> None:
    statistics, gate = some(0, 1, 2, 3)
    torch.manual_seed(1)
    one, *others = with_threads(lambda: predicted_confusion(gate, statistics))
    after = torch.rand(1)
    assert all(torch.equal(other, one) for other in others)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)


def test_a_bias_shifts_logits() -> None:
    rows = [tokens(seed, 4000) for seed in range(3)]
    statistics = [Statistics.of(x, SCALES) for x in rows]
    gate, bias = ridge(statistics, [1.0] * 3, 0.1, False), torch.tensor([0.0, -0.4, -0.1], dtype=torch.float64)
    predicted = predicted_confusion(gate, statistics, bias)
    assert (predicted - counted(rows, gate, bias)).abs().max() < 0.02
    assert (predicted - predicted_confusion(gate, statistics)).abs().max() > 0.1
    assert near(predicted_confusion(gate, statistics, bias + 3.0), predicted)
    assert predicted_confusion(gate, statistics, bias * 1e6)[:, 1:].max() == 0


def test_marks_of_weights_are_not_taken_for_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.maths.confusion.SPREAD", 1.0)  # these spread no wider
    own = [Statistics.of(marked(seed, 1.0), WIDE_SCALES) for seed in range(4)]
    composed = [marked(seed, 0.0) for seed in range(4)]
    text_alone = ridge([Statistics.of(x, WIDE_SCALES) for x in composed], [1.0] * 4, 0.1, False)
    found = counted(composed, text_alone)
    naive = predicted_confusion(ridge(own, [1.0] * 4, 0.1, False), own)
    foretold = composed_confusion(own, [1.0] * 4, 0.1, False)
    assert naive.diagonal().mean() > found.diagonal().mean() + 0.1
    assert (foretold - found).abs().max() < 0.01
    assert near(foretold.sum(1), torch.ones(4, dtype=torch.float64))


def test_an_expert_with_few_tokens_is_drowned_and_weights_save_it() -> None:
    own = [Statistics.of(marked(seed, 0.0, count), WIDE_SCALES) for seed, count in ((0, 20_000), (1, 100))]
    alone, saved = (composed_confusion(own, [1.0, weight], 0.1, False) for weight in (1.0, 200.0))
    assert alone[1, 1] + 0.1 < saved[1, 1]
    assert alone[0, 0] > saved[0, 0]


def test_what_has_no_confusion_is_refused() -> None:
    (of, _), gate = some(1, 2)
    empty, still = Statistics.zero(SCALES), Statistics.of(torch.zeros(5, HIDDEN), SCALES)
    refused("statistics of 1 experts do not go with a router of 2", predicted_confusion, gate, [of])
    refused("without tokens", predicted_confusion, gate, [of, empty])
    refused("1 weights do not go", composed_confusion, [of, of], [1.0], 0.1)
    refused("without tokens", composed_confusion, [of, empty], [1.0, 1.0], 0.1)
    refused("do not vary", composed_confusion, [still, still], [1.0, 1.0], 0.1)
