"""Proves: a recipe that makes no sense is refused, and its document spells every default out."""

from typing import Any

import pytest

from registry import Recipe
from registry.errors import InvalidInputError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trunk": "median"}, "trunk method 'median' is not one of regmean, mean, base, ties, dare, task-arithmetic"),
        ({"lam": float("nan")}, "lam is nan, it must be a finite number, 0 or more"),
        ({"weights": {"code": 0.0}}, "the weight of code is 0.0, it must be a finite number, more than 0"),
        ({"to": "ensembles"}, "output 'ensembles' is not one of moe, dense, ensemble, hetero, simoe, adapters"),
        ({"trunk": "mean", "trunk_options": {"alpha": 0.5}}, "trunk method 'mean' has no option 'alpha'"),
        ({"trunk_options": {"lam": 0.5}}, "trunk method 'regmean' has no option 'lam'"),
        ({"trunk_options": {"alpha": float("nan")}}, "alpha is nan, it must be a finite number from 0 to 1"),
        ({"to": "dense", "refine": 1}, "refine has no part in output 'dense'"),
        ({"bias": {"code": 1.0}}, "bias has no part in router method 'context'"),
        ({"combine": "sum"}, "combine has no part in trunk method 'regmean'"),
        ({"lam": "auto"}, "lam is 'auto', it must be a finite number"),
        ({"refine": 1}, "router method 'context' is made from counts of tokens, which no pass through a model"),
        ({"router": "domain-embedding", "refine": 1}, "takes features of the base model, not of a refined"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        Recipe(**changes)
    assert caught.value.hint


def test_what_does_not_fit_the_members_is_refused() -> None:
    for changes, message in (
        ({"top_k": 3}, "top-k is 3, it must be from 1 to 2, the number of members"),
        ({"weights": {"law": 2.0}}, "there is a weight for law, which is not a member"),
        ({"router": "domain-embedding", "bias": {"law": 2.0}}, "there is a bias for law, which is not a member"),
    ):
        recipe = Recipe(**changes)
        problem = recipe.problem_of_members(["code", "math"])
        assert problem is not None
        assert problem.message.startswith(message)
        assert problem.hint


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


def test_further_keys_are_there_only_where_they_say_something() -> None:
    """Recipes that make the same bytes have one digest; for all other keys: test_recipe_fields.py."""
    for changes, more in (
        ({"router": "ridge", "refine": 1}, {"computed"}),
        ({"router": "ridge", "gating": "softmax-topk"}, {"gating"}),
        ({"to": "dense", "trunk": "ties", "combine": "sum"}, {"combine"}),
    ):
        plain = {name: value for name, value in changes.items() if name in ("router", "to")}
        found, usual = (Recipe(**values).document(["code"]) for values in (changes, plain))
        assert found.keys() - usual.keys() == more
    assert "computed" in Recipe(router="domain-embedding").document(["code"])
