"""Proves: straight-through routing is top-k forward and a softmax backward; balance is 1 at best; whitening whitens."""

import pytest
import torch

from registry.maths.router_training import balance_loss, straight_through, whitener

LOGITS = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("top_k", "candidates"), [(1, 2), (1, 5), (2, 2), (2, 4)])
def test_straight_through_is_top_k_forward_and_softmax_backward(top_k: int, candidates: int) -> None:
    logits = LOGITS.clone().requires_grad_()
    weights, chosen = straight_through(logits, top_k, candidates, 0.5)
    largest, expected = LOGITS.topk(candidates)
    assert torch.equal(chosen, expected)
    assert torch.allclose(weights[:, :top_k], largest[:, :top_k].softmax(-1), atol=1e-6)
    assert bool((weights[:, top_k:] == 0).all())
    pull = torch.randn(50, candidates, generator=torch.Generator().manual_seed(1))
    (found,) = torch.autograd.grad((weights * pull).sum(), logits)
    soft = LOGITS.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(((soft.topk(candidates)[0] / 0.5).softmax(-1) * pull).sum(), soft)
    assert torch.equal(found, wanted)
    assert bool((found != 0).any())


def test_a_share_of_the_softmax_over_all_has_a_gradient_at_one_expert() -> None:
    """DUME eq. 4 at k = 1: the weight is p_c of the chosen expert c, and ∂p_c / ∂logit_e = p_c ([e = c] − p_e)."""
    logits = LOGITS.clone().requires_grad_()
    weights, chosen = straight_through(logits, 1, 1, 1.0, renormalize=False)
    (found,) = torch.autograd.grad(weights.sum(), logits)
    p = LOGITS.softmax(dim=-1).tolist()
    for row, c, weight, gradient in zip(p, chosen.flatten().tolist(), weights.flatten().tolist(), found, strict=True):
        assert (c, weight) == (row.index(max(row)), pytest.approx(max(row), rel=1e-5))
        expected = [row[c] * ((e == c) - row[e]) for e in range(5)]
        assert gradient.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_balance_is_one_at_best_and_pulls_towards_it() -> None:
    even = torch.eye(5).repeat(10, 1) * 20
    weights, chosen = straight_through(even, 1, 2, 1.0)
    assert balance_loss(even, weights, chosen).item() == pytest.approx(1.0, abs=1e-5)
    one = torch.zeros(50, 5)
    one[:, 3] = 8
    logits = one.requires_grad_()
    loss = balance_loss(logits, *straight_through(logits, 1, 2, 1.0))
    assert loss.item() == pytest.approx(5.0, abs=0.02)
    assert bool((torch.autograd.grad(loss, logits)[0][:, 3] > 0).all())


def test_whitened_inputs_have_unit_second_moments() -> None:
    scale = torch.logspace(-2, 2, 6, dtype=torch.float64)
    x = torch.randn(400, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * scale
    gram = x.T @ x / len(x)
    white = x @ whitener(gram, 0.0).T
    assert torch.allclose(white.T @ white / len(x), torch.eye(6, dtype=torch.float64), atol=1e-8)
    for bad in (torch.full((2, 2), torch.nan), -torch.eye(2), torch.zeros(2, 2)):
        with pytest.raises(ValueError, match="not finite and positive"):
            whitener(bad, 1e-3)
