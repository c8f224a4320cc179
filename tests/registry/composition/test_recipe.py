"""Proves: a recipe that makes no sense is refused, and its document spells every default out."""

from typing import Any

import pytest

from registry import Recipe
from registry.errors import InvalidInputError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trunk": "median"}, "trunk method 'median' is not one of regmean, mean, base, ties, dare, task-arithmetic"),
        ({"router": "prompts"}, "router method 'prompts' is not one of context, ridge"),
        ({"lam": -1.0}, "lam is -1.0, it must be a finite number, 0 or more"),
        ({"lam": float("nan")}, "lam is nan, it must be a finite number, 0 or more"),
        ({"temperature": 0.0}, "temperature is 0.0, it must be a finite number, more than 0"),
        ({"temperature": float("inf")}, "temperature is inf, it must be a finite number, more than 0"),
        ({"weights": {"code": 0.0}}, "the weight of code is 0.0, it must be a finite number, more than 0"),
        ({"weights": {"code": float("nan")}}, "the weight of code is nan"),
        ({"dtype": "int8"}, "dtype 'int8' is not one of bfloat16, float16, float32"),
        ({"to": "sparse"}, "output 'sparse' is not one of moe, dense"),
        ({"balance": "documents"}, "balance 'documents' is not one of none, tokens"),
        ({"token_weight": "loss"}, "token weight 'loss' is not one of none, advantage"),
        ({"trunk_options": {"density": 0.5}}, "trunk method 'regmean' has no option 'density'"),
        ({"trunk": "mean", "trunk_options": {"alpha": 0.5}}, "trunk method 'mean' has no option 'alpha'"),
        ({"trunk_options": {"alpha": 1.5}}, "alpha is 1.5, it must be a finite number from 0 to 1"),
        ({"trunk_options": {"alpha": float("nan")}}, "alpha is nan, it must be a finite number from 0 to 1"),
        (
            {"trunk": "ties", "trunk_options": {"density": 0.0}},
            "density is 0.0, it must be a finite number from 0.001",
        ),
        (
            {"trunk": "dare", "trunk_options": {"scale": 11.0}},
            "scale is 11.0, it must be a finite number from -10",
        ),
        ({"lam": "best"}, "lam is 'best', it must be a finite number, 0 or more, or auto"),
        ({"top_k": 0}, "top-k is 0, it must be a whole number, 1 or more"),
        ({"top_k": True}, "top-k is True, it must be a whole number, 1 or more"),
        ({"device": ""}, "device is '', it must be printable text"),
        ({"seed": 2**60}, "seed is 1152921504606846976, it must be a whole number"),
        ({"trunk_options": {"lam": 0.5}}, "trunk method 'regmean' has no option 'lam'"),
        ({"to": "ensemble"}, "output 'ensemble' is not one of moe, dense"),
        ({"refine": -1}, "refine is -1, it must be a whole number from 0 to 8"),
        ({"refine": 9}, "refine is 9, it must be a whole number from 0 to 8"),
        ({"to": "dense", "refine": 1}, "there is nothing to refine in a composition to dense: it has no router"),
        ({"to": "dense", "refine_mlp": True}, "there is nothing to refine in a composition to dense"),
        ({"bias": {"code": 1.0}}, "bias has no part in router method 'context'"),
        ({"lam": "auto"}, "router method 'context' is not solved from the experts' own statistics, which lam 'auto'"),
        (
            {"token_weight": "advantage"},
            "is not solved from the experts' own statistics, which token weight 'advantage'",
        ),
        ({"refine": 1}, "router method 'context' is made from counts of tokens, which no pass through a model"),
        ({"router": "random", "bias": {"code": 1.0}}, "bias has no part in router method 'random'"),
        ({"router": "domain-embedding", "refine": 1}, "takes features of the base model, not of a refined one"),
        ({"router": "domain-embedding", "refine_mlp": True}, "takes features of the base model, not of a refined"),
        (
            {"router": "ridge", "refine_mlp": True, "token_weight": "advantage"},
            "a refit weighs no tokens, and token weight 'advantage'",
        ),
        ({"router": "ridge", "refine_trunk": True, "token_weight": "advantage"}, "a refit weighs no tokens, and token"),
        ({"refine_trunk": True, "refine_mlp": True}, "--refine-mlp solves the trunk again too, towards the experts"),
        ({"refine_trunk": True, "trunk": "mean"}, "RegMean's equations again, and trunk method 'mean' has none"),
        ({"refine_trunk": True, "router": "domain-embedding"}, "takes features of the base model, not of a refined"),
        ({"refine_trunk": True, "to": "dense"}, "there is nothing to refine in a composition to dense"),
        ({"refine_trunk": 1}, "refine_trunk is 1, it must be true or false"),
        ({"trunk": "ties", "combine": "average"}, "combine 'average' is not one of mean, sum"),
        ({"combine": "sum"}, "combine has no part in trunk method 'regmean'"),
        ({"trunk": "task-arithmetic", "combine": "sum"}, "combine has no part in trunk method 'task-arithmetic'"),
        ({"trunk": "mean", "to": "dense", "combine": "sum"}, "combine has no part in trunk method 'mean'"),
        ({"router": "ridge", "gating": "softmax"}, "gating 'softmax' is not one of topk-softmax, softmax-topk"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        Recipe(**changes)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 3}, "top-k is 3, it must be from 1 to 2, the number of members"),
        ({"weights": {"law": 2.0}}, "there is a weight for law, which is not a member"),
        (
            {"router": "domain-embedding", "bias": {"law": 2.0}},
            "there is a bias for law, which is not a member",
        ),
    ],
)
def test_what_does_not_fit_the_members_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        Recipe(**changes).check_members(["code", "math"])
    assert caught.value.hint


def test_defaults_are_spelled_out() -> None:
    assert Recipe().document(["code", "math"]) == Recipe(weights={"math": 1.0}).document(["code", "math"])
    assert Recipe(weights={"math": 2.0}).document(["code", "math"]) == {
        "to": "moe",
        "trunk": "regmean",
        "trunk_options": {"alpha": 1.0},
        "router": "context",
        "context_window": 64.0,
        "vocabulary": "mapped",
        "top_k": 1,
        "temperature": 0.05,
        "token_weight": "none",
        "refine": 0,
        "refine_mlp": False,
        "weights": {"code": 1.0, "math": 2.0},
        "balance": "none",
        "dtype": None,
    }


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"to": "dense"}, {"to", "trunk", "trunk_options", "weights", "balance", "dtype"}),
        ({"router": "random"}, {"seed", "normalize", "router", "top_k", "token_weight", "refine", "refine_mlp"}),
        ({"router": "domain-embedding"}, {"lam", "bias", "normalize", "computed"}),
        ({}, {"context_window", "vocabulary"}),
        ({"refine_mlp": True}, {"context_window", "vocabulary", "computed"}),
        ({"refine_trunk": True}, {"context_window", "vocabulary", "computed", "refine_trunk"}),
        ({"router": "ridge"}, {"lam", "normalize"}),
        ({"router": "ridge", "gating": "softmax-topk"}, {"lam", "normalize", "gating"}),
        ({"to": "dense", "trunk": "ties", "combine": "sum"}, {"combine"}),
        ({"router": "ridge", "refine": 1}, {"lam", "normalize", "computed"}),
        ({"router": "ridge", "refine_mlp": True}, {"lam", "normalize", "computed"}),
        ({"router": "ridge", "token_weight": "advantage"}, {"lam", "normalize", "computed"}),
    ],
)
def test_document_has_what_has_a_part(changes: dict[str, Any], keys: set[str]) -> None:
    """Options of other methods leave no trace, so that recipes which make the same bytes have one digest."""
    found = Recipe(**changes).document(["code"])
    assert keys <= set(found)
    assert set(found) - keys <= {
        "to", "trunk", "trunk_options", "router", "top_k", "temperature", "token_weight", "refine", "refine_mlp",
        "weights", "balance", "dtype",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, False),
        ({"trunk": "ties"}, True),
        ({"router": "domain-embedding"}, True),
        ({"router": "ridge", "token_weight": "advantage"}, True),
        ({"router": "domain-embedding", "to": "dense"}, False),
    ],
)
def test_base_is_needed_where_it_has_a_part(changes: dict[str, Any], needed: bool) -> None:
    assert Recipe(**changes).needs_base is needed
