"""Options of sparse mixtures, and refinements: which a recipe asks for, and why some routers have none."""

from registry.composition.method import Settings
from registry.composition.option import Limits, Option, OptionKind, Problem

TOPK_SOFTMAX, SOFTMAX_TOPK = "topk-softmax", "softmax-topk"
"""Weights of a token's experts: the softmax over the k largest logits, or the k largest of the softmax over all."""

GATING = Option(
    "gating", OptionKind.CHOICE,
    "Weights of a token's experts: topk-softmax, softmax over their logits, so that they add up to 1; softmax-topk, "
    "softmax over all experts' logits, the largest as they are.", "HOW", default=TOPK_SOFTMAX,
    choices=(TOPK_SOFTMAX, SOFTMAX_TOPK), label="Gating",
    note="how a token’s experts are weighted: with topk-softmax adding up to 1, with softmax-topk less", advanced=True,
    is_later=True,
)  # fmt: skip

LAM = Option(
    "lam", OptionKind.NUMBER, "Ridge strength, with hetero relative.", "X", default=0.01, limits=Limits(0.0),
    label="Ridge strength", note="how much the router’s least squares is damped", advanced=True,
)  # fmt: skip

NORMALIZE = Option(
    "normalize", OptionKind.SWITCH,
    "Give router columns unit length, as the DUME paper does, or leave them as they are solved.", "", default=False,
    label="Unit router columns", advanced=True,
    note="gives the router equally long columns for all experts, as the DUME paper does",
)  # fmt: skip

BIAS = Option(
    "bias", OptionKind.BY_MEMBER,
    "What is added to a member's logits: of domain-embedding as far as linear routers can, of anchored exactly and 0 "
    "or less.", "A=B,…", default={}, unset="0", usual=0.0, advanced=True,
)  # fmt: skip


SOLVES_AGAIN = "ridge"
"""The router that passes through the composed model solve again."""

PAPER: Settings = {"top_k": 1, "normalize": True}
"""Routers as in the DUME paper, but that the one expert's weight is 1."""


def without_refinement(router: str, why: str) -> Problem:
    """Return the problem of passes that a router method does not take."""
    return Problem(
        ("refine", "router"), f"router method {router!r} {why}", f"drop --refine, or choose --router {SOLVES_AGAIN}"
    )
