"""Proves: what is foretold of a composed model's routing holds where the marks of experts' own weights are gone."""

import pytest
import torch

from registry.maths.confusion import composed_confusion, predicted_confusion
from registry.maths.router.ridge import ridge
from registry.maths.statistics import Statistics

HIDDEN, QUIET = 16, 8
SCALES = torch.full((HIDDEN,), 12, dtype=torch.int16)


def tokens(seed: int, mark: float, count: int = 20_000) -> torch.Tensor:
    """Return Gaussian rows: text in the first channels, and in the others, which hardly vary, a mark of the expert."""
    draw = torch.Generator().manual_seed(seed)
    mix = torch.eye(QUIET) + 0.3 * torch.empty(QUIET, QUIET).normal_(generator=draw)
    centre = 0.5 * torch.empty(QUIET).normal_(generator=draw)
    quiet = mark * 0.02 * torch.empty(HIDDEN - QUIET).normal_(generator=draw)
    text = torch.empty(count, QUIET).normal_(generator=draw) @ mix * 0.7 + centre
    rest = 0.02 * torch.empty(count, HIDDEN - QUIET).normal_(generator=draw) + quiet
    return torch.cat([text, rest], dim=1)


def test_marks_of_weights_are_not_taken_for_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.maths.confusion.SPREAD", 1.0)  # these spread no wider
    own = [Statistics.of(tokens(seed, 1.0), SCALES) for seed in range(4)]
    composed = [tokens(seed, 0.0).double() for seed in range(4)]
    text_alone = ridge([Statistics.of(x.float(), SCALES) for x in composed], [1.0] * 4, 0.1, False)
    counted = torch.stack([torch.bincount((x @ text_alone.T).argmax(1), minlength=4) / len(x) for x in composed])
    naive = predicted_confusion(ridge(own, [1.0] * 4, 0.1, False), own)
    foretold = composed_confusion(own, [1.0] * 4, 0.1, False)
    assert naive.diagonal().mean() > counted.diagonal().mean() + 0.1
    assert (foretold - counted).abs().max() < 0.01
    assert torch.allclose(foretold.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("normalize", [True, False])
def test_order_permutes_rows_and_columns(normalize: bool) -> None:
    own = [Statistics.of(tokens(seed, 1.0, 500), SCALES) for seed in range(4)]
    order, weights = [2, 0, 3, 1], [1.0, 2.0, 1.0, 0.5]
    turned = composed_confusion([own[e] for e in order], [weights[e] for e in order], 0.1, normalize)
    assert torch.allclose(turned, composed_confusion(own, weights, 0.1, normalize)[order][:, order], atol=1e-8, rtol=0)


def test_an_expert_with_few_tokens_is_drowned_and_weights_save_it() -> None:
    own = [Statistics.of(tokens(seed, 0.0, count), SCALES) for seed, count in ((0, 20_000), (1, 100))]
    alone, saved = (composed_confusion(own, [1.0, weight], 0.1, False) for weight in (1.0, 200.0))
    assert alone[1, 1] + 0.1 < saved[1, 1]
    assert alone[0, 0] > saved[0, 0]


def test_what_cannot_be_foretold_is_refused() -> None:
    own = [Statistics.of(tokens(seed, 0.0, 50), SCALES) for seed in range(2)]
    with pytest.raises(ValueError, match="1 weights do not go"):
        composed_confusion(own, [1.0], 0.1)
    with pytest.raises(ValueError, match="without tokens"):
        composed_confusion([own[0], Statistics.zero(SCALES)], [1.0, 1.0], 0.1)
    still = Statistics.of(torch.zeros(5, HIDDEN), SCALES)
    with pytest.raises(ValueError, match="do not vary"):
        composed_confusion([still, still], [1.0, 1.0], 0.1)
