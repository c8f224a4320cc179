"""Proves: the one description of each recipe field agrees with the methods, the recipes and the rest of the program."""

import itertools
import pickle
import subprocess
import sys
from typing import Any

import pytest

from registry import Recipe
from registry.composition import recipe_schema
from registry.composition.found import OUTPUTS, ROUTERS, TRUNKS
from registry.composition.option import Option, OptionKind
from registry.composition.recipe.fields import FIELDS, obstacle, options_of, removed
from registry.composition.recipe.recipe import overlay
from registry.composition.recipe.shared_options import TRUNK_OPTIONS
from registry.composition.recipe_file import KEYS
from registry.errors import InvalidInputError
from registry.io.dtypes import WEIGHT_DTYPES
from registry.methods.ensemble.output import ROUTINGS

MOE, DENSE, ENSEMBLE, HETERO, SIMOE, ADAPTERS = OUTPUTS

NUMBERS = [one for one in FIELDS.values() if one.kind in (OptionKind.NUMBER, OptionKind.WHOLE)]


def test_choices_are_the_methods_that_exist_and_fields_are_described_for_people() -> None:
    assert FIELDS["trunk"].choices == tuple(TRUNKS)
    assert sorted(FIELDS["router"].choices) == sorted(ROUTERS)
    assert FIELDS["routing"].choices == tuple(ROUTINGS)
    assert FIELDS["to"].choices == ("moe", "dense", "ensemble", "hetero", "simoe", "adapters")
    assert FIELDS["dtype"].choices == WEIGHT_DTYPES
    for one in FIELDS.values():
        assert bool(one.choices) == (one.kind is OptionKind.CHOICE)
        assert one.default is None or not one.choices or one.default in one.choices
        assert one.help.endswith("."), one.name
        assert one.default_text, one.name
        assert bool(one.label) == bool(one.note), one.name


def test_options_have_a_part_with_the_methods_that_have_them() -> None:
    for name, trunk in TRUNKS.items():
        assert {*options_of(name)} == {one.name for one in trunk.options if one.kind is OptionKind.NUMBER}
    for of, methods in (("router", ROUTERS), ("trunk", TRUNKS)):
        options = {one.name for method in methods.values() for one in method.options}
        for field, (name, method) in itertools.product(options, methods.items()):
            has_a_part = obstacle(FIELDS[field], {of: name}) is None
            assert has_a_part == (field in {one.name for one in method.options}), (field, name)


def test_attributes_of_recipes_are_the_fields_of_their_outputs() -> None:
    for output in OUTPUTS:
        recipe = Recipe(to=output)
        for one in FIELDS.values():
            if not one.group and output not in one.outputs:
                assert getattr(recipe, one.name) in (None, {}), one.name
        with pytest.raises(AttributeError, match="nosuch"):
            _ = recipe.nosuch
        with pytest.raises(AttributeError, match="does not change"):
            recipe.dtype = "float16"


def test_what_has_no_part_is_refused_and_replacing_drops_it() -> None:
    for values, message in (
        ({"to": "dense", "router": "ridge"}, "router has no part in output 'dense'"),
        ({"lam": 0.5}, "lam has no part in router method 'context'"),
        ({"nosuch": 1}, "a recipe has no option 'nosuch'"),
        ({"trunk_option": {}}, "a recipe has no option 'trunk_option'"),
        ({"alpha": 0.5}, "a recipe has no option 'alpha'"),
        ({"to": "mo"}, "output 'mo' is not one of moe, dense, ensemble, hetero, simoe, adapters; did you mean 'moe'"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            Recipe(**values)
    assert Recipe(to="dense", router="context").router is None  # its default, which has no part here
    ridge = Recipe(router="ridge", lam=0.5, trunk="ties", trunk_options={"density": 0.5})
    assert ridge.replace(router="context") == Recipe(trunk="ties", trunk_options={"density": 0.5})
    assert ridge.replace(trunk="mean") == Recipe(router="ridge", lam=0.5, trunk="mean")
    assert ridge.replace(to="dense") == Recipe(to="dense", trunk="ties", trunk_options={"density": 0.5})
    assert ridge.replace(lam=None) == ridge.replace(lam=0.01)
    assert pickle.loads(pickle.dumps(ridge)) == ridge


def test_defaults_of_recipes_are_those_of_the_fields() -> None:
    others = ENSEMBLE, HETERO, SIMOE, ADAPTERS
    for recipe, output in ((Recipe(), MOE), (Recipe(to=DENSE), DENSE), *((Recipe(to=one), one) for one in others)):
        for one in FIELDS.values():
            if output in one.outputs and not one.group and one.stands_for is None and one.name != "to":
                assert getattr(recipe, one.name) == one.default_with.get(output, one.default), one.name


def every_choice() -> list[dict[str, Any]]:
    moe = itertools.product(FIELDS["trunk"].choices, FIELDS["router"].choices)
    return [
        *({"to": MOE, "trunk": trunk, "router": router} for trunk, router in moe),
        *({"to": DENSE, "trunk": trunk} for trunk in FIELDS["trunk"].choices if trunk != "base"),
        *({"to": ENSEMBLE, "routing": routing} for routing in FIELDS["routing"].choices),
        *({"to": ENSEMBLE, "routing": "perplexity", "trunk": trunk} for trunk in FIELDS["trunk"].choices),
        {"to": HETERO},
        {"to": SIMOE},
        {"to": ADAPTERS},
    ]


@pytest.mark.parametrize("values", every_choice(), ids=str)
def test_base_model_is_needed_where_the_recipe_says_so(values: dict[str, Any]) -> None:
    try:
        recipe = Recipe.of_fields(values)
    except InvalidInputError:
        assert values["router"] == "anchored"
        return
    assert recipe.output.needs_base(values) == recipe.needs_base
    document = recipe.document(["a"])
    for one in FIELDS.values():
        holder = document.get(one.group, {}) if one.group else document
        if one.name in ("host", "device", "remote_code", "combine", "gating", "mixing"):
            continue  # the last three only where they are not at their defaults
        if one.name == "trunk" and values["to"] == ENSEMBLE:  # only where given
            assert holder.get("trunk") == values.get("trunk")
            continue
        given = [("bias", "router", "anchored"), ("top_k", "to", "adapters")]
        if one.name in ("coefficients", "lead", "max_bytes", "no_base_member", "rank") or any(
            one.name == name and values.get(of) == value for name, of, value in given
        ):
            continue  # only where given
        has_a_part = obstacle(one, values) is None
        assert (holder.get(one.name) is not None or one.name == "dtype") == has_a_part, one.name


@pytest.mark.parametrize("one", NUMBERS, ids=lambda one: one.name)
def test_numbers_are_held_to_their_limits(one: Option) -> None:
    def wrong(value: Any) -> bool:
        return one.problem(value) is not None

    step = 1 if one.kind is OptionKind.WHOLE else 1e-6
    least, most = one.limits.least, one.limits.most
    if least > float("-inf"):
        lowest = int(least) if one.kind is OptionKind.WHOLE else least
        assert wrong(lowest) == one.limits.above
        assert not wrong(lowest + step)
        assert wrong(lowest - step)
    if most < float("inf"):
        highest = int(most) if one.kind is OptionKind.WHOLE else most
        assert not wrong(highest)
        assert wrong(highest + step)
    for value in (float("nan"), float("inf"), 10**400, True, "1"):
        assert wrong(value), value
    assert wrong("auto")
    assert one.kind is not OptionKind.WHOLE or wrong(1.5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("normalize", 1, "normalize is 1, it must be true or false"),
        ("weights", {1: 2.0}, "weights is {1: 2.0}, it must be numbers by member"),
        ("weights", {"a": "2"}, "the weight of a is '2', it must be a finite number, more than 0"),
        ("bias", {"a": float("inf")}, "the bias of a is inf, it must be a finite number"),
        ("device", "x" * 101, "device is 'x"),
        ("host", "a\nb", "host is 'a\\nb', it must be printable text of at most 100 characters"),
        ("trunk", "men", "trunk method 'men' is not one of regmean, mean, base, ties, dare, task-arithmetic; did you"),
        ("trunk", None, "trunk method None is not one of"),
        ("seed", 2**60, "seed is 1152921504606846976, it must be a whole number"),
    ],
)
def test_values_of_another_kind_are_refused(name: str, value: Any, message: str) -> None:
    problem = FIELDS[name].problem(value)
    assert problem is not None
    assert problem[0].startswith(message)
    assert problem[1]


def test_files_and_their_schema_have_every_field() -> None:
    properties = recipe_schema()["properties"]
    assert {*properties} == {*KEYS, *removed()}
    options = {one.name for one in FIELDS.values() if one.group == TRUNK_OPTIONS}
    shorthand = {one.name for one in FIELDS.values() if one.stands_for}
    assert {*properties[TRUNK_OPTIONS]["properties"]} == options
    beside = {"experts", "base", "from_base", "computed", "fit", TRUNK_OPTIONS}
    assert {*KEYS} == {*FIELDS} - options - shorthand | beside


def test_fields_that_win_drop_what_has_no_part_beside_them() -> None:
    random: dict[str, Any] = {"router": "random", "seed": 3, "temperature": 0.1}
    ties: dict[str, Any] = {"trunk": "ties", "density": 0.5}
    assert overlay(ties | random, {"trunk": "mean"}) == {"trunk": "mean"} | random
    assert overlay(ties | random, {"router": "ridge"}) == ties | {"router": "ridge", "temperature": 0.1}
    assert overlay(ties | random, {"to": "ensemble"}) == {"to": "ensemble", "temperature": 0.1}
    assert overlay({"host": "mixtral"}, {"remote_code": True}) == {"remote_code": True}
    assert overlay({"lam": 1.0}, {"lam": 2.0}) == {"lam": 2.0}
    dense = ties | {"to": "dense", "weights": {"a": 2.0}}
    assert overlay(dense, {"to": "ensemble"}) == {"to": "ensemble", "weights": {"a": 2.0}}
    assert overlay(dense, {"to": "ensemble", "trunk": "ties"}) == dense | {"to": "ensemble"}
    shared = ties | {"to": "ensemble"}
    assert overlay(shared, {"routing": "perplexity"}) == shared | {"routing": "perplexity"}


def test_values_make_the_recipe_that_they_come_from() -> None:
    for recipe in (
        Recipe(),
        Recipe(trunk="ties", trunk_options={"density": 0.5}, weights={"a": 2.0}, top_k=1, host="mixtral"),
        Recipe(router="domain-embedding", bias={"a": 1.0}, device="cpu"),
        Recipe(to="dense", dtype="bfloat16"),
        Recipe(to="ensemble", routing="task-vector", routing_tokens=8, trunk="ties", trunk_options={"density": 0.5}),
        Recipe(to="ensemble", routing="prompt-perplexity", routing_tokens=0, mixing="logits"),
        Recipe(to="simoe", dtype="float16"),
    ):
        assert Recipe.of_fields(recipe.fields) == recipe
    made = Recipe.of_fields({"remote_code": True})
    assert made.host == "remote-code"


def test_fields_load_neither_torch_nor_a_database() -> None:
    script = (
        "import sys, registry.composition.recipe.fields, registry.composition.recipe.fields\n"
        "print([name for name in ('torch', 'transformers', 'sqlalchemy', 'numpy', 'yaml') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
