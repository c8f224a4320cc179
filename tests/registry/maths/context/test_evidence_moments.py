"""Proves: the predicted choice by context is the share of drawn texts, and what texts have in common bounds it."""

import pytest
import torch
from torch import Tensor

from registry.maths.context import evidence_moments
from registry.maths.context.evidence import token_evidence
from registry.maths.context.evidence_moments import EvidenceMoments
from registry.maths.context.prefix import prefix_means

TOKENS, EXPERTS, TEXTS = 60, 3, 4000
WINDOWS = {"whole": torch.ones(64), "recent": torch.exp(-torch.arange(64) / 12)}


def experts() -> tuple[Tensor, Tensor]:
    """Return p_e and ℓ of experts whose texts differ a little."""
    generator = torch.Generator().manual_seed(3)
    draws = torch.rand((TOKENS, EXPERTS), generator=generator, dtype=torch.float64) + 0.5
    counts = [(column * 100).long() for column in draws.T]
    shares = torch.stack([each.double() / each.sum() for each in counts], dim=1)
    return shares, token_evidence(counts)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [16, 64])
def test_independent_tokens_go_where_predicted(window: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_moments, "ALIKE", 0.0)
    shares, evidence = experts()
    weights = WINDOWS[window][:length].double()
    predicted = EvidenceMoments.of(shares, evidence).confusion(weights)
    generator = torch.Generator().manual_seed(4)
    for expert in range(EXPERTS):
        ids = torch.multinomial(shares[:, expert], TEXTS * length, replacement=True, generator=generator)
        means = prefix_means(ids.view(TEXTS, length), torch.ones(TEXTS, length, dtype=torch.bool), evidence, weights)
        counted = torch.bincount(means[:, -1].argmax(dim=-1), minlength=EXPERTS) / TEXTS
        assert torch.allclose(predicted[expert], counted.double(), atol=0.03)


def test_subject_of_a_text_bounds_what_more_of_it_tells() -> None:
    shares, evidence = experts()
    moments = EvidenceMoments.of(shares, evidence)
    lengths = [2**power for power in range(13)]
    accuracy = [float(moments.confusion(torch.ones(length)).diag().mean()) for length in lengths]
    assert accuracy == sorted(accuracy)
    assert accuracy[-1] < 0.95
    assert accuracy[-1] - accuracy[-3] < 0.01
    assert torch.allclose(moments.confusion(torch.ones(8)).sum(dim=1), torch.ones(EXPERTS, dtype=torch.float64))


def test_two_experts_are_mistaken_as_the_confusion_says() -> None:
    shares, evidence = experts()
    moments, weights = EvidenceMoments.of(shares[:, :2], evidence[:, :2]), torch.ones(8)
    confusion = moments.confusion(weights)
    assert moments.mistaken(0, 1, weights) == pytest.approx(float(confusion[0, 1]), abs=1e-9)
    assert moments.mistaken(1, 0, weights) == pytest.approx(float(confusion[1, 0]), abs=1e-9)


def test_equal_experts_share_their_texts() -> None:
    shares, evidence = experts()
    same = [0, 0]
    moments = EvidenceMoments.of(shares[:, same], evidence[:, same])
    assert moments.mistaken(0, 1, torch.ones(4)) == 0.5
    assert torch.equal(moments.confusion(torch.ones(4)), torch.full((2, 2), 0.5, dtype=torch.float64))


def test_order_of_experts_does_not_matter() -> None:
    shares, evidence = experts()
    order = [2, 0, 1]
    confusion = EvidenceMoments.of(shares, evidence).confusion(torch.ones(8))
    turned = EvidenceMoments.of(shares[:, order], evidence[:, order]).confusion(torch.ones(8))
    assert torch.allclose(turned, confusion[order][:, order], atol=1e-3)
