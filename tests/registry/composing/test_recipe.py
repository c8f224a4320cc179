"""Proves: a recipe that makes no sense is refused, and its document spells every default out."""

from typing import Any

import pytest

from registry import Recipe
from registry.errors import InvalidInputError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trunk": "median"}, "trunk method 'median' is none of regmean, mean, base, ties, dare, task-arithmetic"),
        ({"router": "prompts"}, "router method 'prompts' is none of ridge"),
        ({"lam": -1.0}, "lam is -1.0, it must be finite and 0 or more"),
        ({"lam": float("nan")}, "lam is nan, it must be finite and 0 or more"),
        ({"temperature": 0.0}, "temperature is 0.0, it must be finite and more than 0"),
        ({"temperature": float("inf")}, "temperature is inf, it must be finite and more than 0"),
        ({"weights": {"code": 0.0}}, "the weight of code is 0.0, it must be finite and more than 0"),
        ({"weights": {"code": float("nan")}}, "the weight of code is nan"),
        ({"dtype": "int8"}, "dtype 'int8' is none of bfloat16, float16, float32"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        Recipe(**changes)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 0}, "top-k is 0, it must be from 1 to 2, the number of members"),
        ({"top_k": 3}, "top-k is 3, it must be from 1 to 2, the number of members"),
        ({"weights": {"law": 2.0}}, "there is a weight or bias for law, which is no member"),
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
        "router": "ridge",
        "lam": 0.01,
        "normalize": False,
        "top_k": 2,
        "temperature": 0.05,
        "token_weight": "none",
        "refine": 0,
        "refine_mlp": False,
        "weights": {"code": 1.0, "math": 2.0},
        "balance": "none",
        "dtype": None,
    }
