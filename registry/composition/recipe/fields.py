"""The fields of a recipe: the options of all methods, each once, and their checks, alone and together.

`FIELDS` drives the checks of `Recipe`, the options of the commands that compose, the form of the web pages, recipe
files and their JSON Schema, and the table of docs/methods.md. Nothing here loads torch.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from registry.composition.found import OUTPUTS, ROUTERS, TRUNKS, Lazy
from registry.composition.method import Method, Target
from registry.composition.option import Option, OptionKind, Problem
from registry.composition.recipe.shared_options import FIRST, TO, TRUNK_OPTIONS
from registry.errors import InvalidInputError

METHODS_OF: Mapping[str, Mapping[str, Method]] = {"trunk": TRUNKS, "router": ROUTERS}
"""Field whose values are methods → these."""


def _merged() -> dict[str, Option]:
    """Return the fields. Options of one name are one field: it has a part in every output and method that has it."""
    merged: dict[str, Option] = {}
    for output in OUTPUTS.values():
        at = 0  # behind all options of the output so far
        for one, of, method in _declared(output):
            known = merged.get(one.name)
            if known is None:
                names = [*[*merged][:at], one.name, *[*merged][at:]]
                merged[one.name] = replace(one, outputs=(output.name,))
                merged = {name: merged[name] for name in names}
            else:
                _check_same(known, one, output)
                merged[one.name] = _joined(known, one, output.name)
            if of and method:
                merged[one.name] = _with_method(merged[one.name], one, of, method.name)
            at = max(at, [*merged].index(one.name) + 1)
    for method in (*OUTPUTS.values(), *TRUNKS.values(), *ROUTERS.values()):
        for name, usual in method.defaults.items():
            merged[name] = replace(merged[name], default_with={**merged[name].default_with, method.name: usual})
    clauses = "; ".join(f"{name}, {one.clause}" for name, one in OUTPUTS.items())
    with_code = listed((name for name, one in OUTPUTS.items() if one.needs_code), "and")
    every = replace(
        TO,
        outputs=(*OUTPUTS,),
        choices=(*OUTPUTS,),
        default=OUTPUTS.default.name,
        help=TO.help.replace("{choices}", f"{clauses}; {with_code} load with trust_remote_code=True"),
        note="; ".join(f"{one.called}: {one.note}" for one in OUTPUTS.values()),
    )
    return {"to": every} | {name: _described(one) for name, one in merged.items()}


def _declared(output: Target) -> Iterator[tuple[Option, str, Method | None]]:
    """Yield the options of an output: each trunk's after `trunk`, each router's after `router`, with whose they are."""
    for one in output.options:
        methods = METHODS_OF.get(one.name, {})
        if methods and not one.choices:
            one = replace(
                one, choices=(*methods,), default=next(iter(methods)) if one.default == FIRST else one.default
            )
        yield one, "", None
        for method in methods.values():
            for option in method.options:
                is_number = one.name == "trunk" and option.kind is OptionKind.NUMBER
                yield replace(option, group=TRUNK_OPTIONS) if is_number else option, one.name, method


def _check_same(known: Option, one: Option, output: Target) -> None:
    if (known.kind, known.limits, known.group) != (one.kind, one.limits, one.group):
        raise InvalidInputError(
            f"option {one.name} of {output.name} has other values than the option of that name: {one.words}, and it "
            f"must be {known.words}",
            "give it another name",
        )


def _joined(known: Option, one: Option, output: str) -> Option:
    usual, unset = dict(known.default_with), dict(known.unset_with)
    if output not in known.outputs and (one.default, one.unset) != (known.default, known.unset):
        usual[output], unset[output] = one.default, one.unset
    return replace(
        known,
        outputs=tuple(dict.fromkeys((*known.outputs, output))),
        only_with={**known.only_with, **one.only_with},
        or_with=known.or_with or one.or_with,
        default_with=usual,
        unset_with=unset,
    )


def _with_method(field: Option, one: Option, of: str, method: str) -> Option:
    methods = tuple(dict.fromkeys((*field.only_with.get(of, ()), method)))
    usual = {**field.default_with} if one.default == field.default else {**field.default_with, method: one.default}
    return replace(field, only_with={**field.only_with, of: methods}, default_with=usual)


def _described(field: Option) -> Option:
    text = field.help.replace("{choices}", listed(field.choices)) if field.choices else field.help
    methods = [method for of in METHODS_OF for method in field.only_with.get(of, ())]
    if text[0].islower() and methods:
        text = f"For {listed(methods, 'and')}: {text}"
    return replace(field, help=text, note=field.note.replace("{default}", field.default_text))


def listed(words: Iterable[str], last: str = "or") -> str:
    """Return words as a list in a sentence: `a, b or c`."""
    *others, final = words
    return f"{', '.join(others)} {last} {final}" if others else final


FIELDS: Mapping[str, Option] = Lazy(_merged)
"""Name → field, in the order of the command line's help; merged from the methods when it is first read."""


def target_of(values: Mapping[str, Any]) -> Target:
    """Return what fields of a recipe make."""
    return OUTPUTS.get(values.get("to") or "", OUTPUTS.default)


def removed() -> dict[str, tuple[Any, Any]]:
    """Return key of earlier recipes → a value that is still read there, and the one that asked for what was removed."""
    return {name: pair for output in OUTPUTS.values() for name, pair in output.removed.items()}


def default(name: str, *methods: str | None) -> Any:
    """Return the default of a field beside an output and methods: a copy where it is a mapping; of no field, None.

    Fields that only earlier recipes have are at the value that asks for nothing.
    """
    if name not in FIELDS:
        return removed().get(name, (None, None))[0]
    usual = FIELDS[name].default_with
    found = next((usual[one] for one in methods if one and one in usual), FIELDS[name].default)
    return dict(found) if isinstance(found, Mapping) else found


def resolved(name: str, values: Mapping[str, Any]) -> Any:
    """Return the value of a field beside others: what is given, else its default beside their methods."""
    if values.get(name) is not None:
        return values[name]
    output = str(values.get("to") or OUTPUTS.default.name)
    if name == "to":
        return output
    if name in METHODS_OF:
        return default(name, output)
    methods = (resolved(of, values) for of in METHODS_OF if output in FIELDS[of].outputs)
    return default(name, output, *methods)


def options_of(trunk: str) -> dict[str, float]:
    """Return the numbers of a trunk method and their defaults."""
    names = [one.name for one in TRUNKS[trunk].options] if trunk in TRUNKS else []
    return {name: default(name, trunk) for name in FIELDS if name in names and FIELDS[name].group}


def chosen(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a recipe's document that say what it makes, and those that differ from their defaults."""
    methods = [str(recipe.get(of)) for of in ("to", *METHODS_OF)]
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        if key == TRUNK_OPTIONS:
            found |= {name: one for name, one in value.items() if one != default(name, *methods)}
        elif value is not None and (key in _ALWAYS or value != default(key, *methods)):
            found[key] = value
    return found


_ALWAYS = ("to", "routing", "trunk", "router", "lam", "top_k")
"""Fields that say what a composition is, at their defaults too."""


def obstacle(one: Option, values: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return the field, and its value, because of which `one` has no part in a recipe; None where it has one.

    The value is None where that field is not given, and stands for no method there. Fields that are not among `values`
    are at their defaults.
    """
    output = values.get("to") or OUTPUTS.default.name
    if output not in one.outputs:
        return "to", output
    if any(values.get(other) and output in FIELDS[other].outputs for other in one.or_with):
        return None
    for other, methods in one.only_with.items():
        method = values.get(other) or default(other, output)
        if output in FIELDS[other].outputs and method not in methods:
            return other, method
    return None


FROM_BASE = "from_base"
"""Key of recipe files and documents with the number of copies of the base model that are the experts."""
LEAST_COPIES, MOST_COPIES = 2, 1024


def first_problem(
    values: Mapping[str, Any], trunk_options: Mapping[str, Any] | None = None, *, is_fitted: bool = False
) -> Problem | None:
    """Return the first problem of a recipe, with the record of a fit if `is_fitted`; other fields are at defaults."""
    trunk_options = trunk_options or {}
    if not isinstance(trunk_options, Mapping):
        return Problem((TRUNK_OPTIONS,), f"{TRUNK_OPTIONS} must be numbers by name", "such as: {'alpha': 0.9}")
    for name, value in values.items():
        if found := FIELDS[name].problem(value):
            return Problem((name,), *found)
    for name, value in trunk_options.items():
        if name not in FIELDS or not FIELDS[name].group:
            return _no_option(name, values)
        if misfit := misplaced(name, values):
            return misfit
        if found := FIELDS[name].problem(value):
            return Problem((name,), *found)
    for name, value in values.items():
        if value != default(name, str(values.get("to"))) and (misfit := misplaced(name, values)):
            return misfit
    every = {name: resolved(name, values) for name in FIELDS}
    output = OUTPUTS[every["to"]]
    methods = (found.get(every[of]) for of, found in METHODS_OF.items() if output.name in FIELDS[of].outputs)
    for method in (output, *methods):
        if method is not None and (problem := method.problem({**every, TRUNK_OPTIONS: trunk_options})):
            return problem
    if is_fitted and not values.get("coefficients"):
        return Problem(("fit",), "there is the record of a fit, and no coefficients", "drop fit, or give both")
    if is_fitted and not output.is_fitted:
        return Problem(
            ("fit",),
            f"coefficients are fitted for one dense model, and this recipe makes {output.words}",
            "drop fit, and keep the coefficients",
        )
    return None


def misplaced(name: str, values: Mapping[str, Any]) -> Problem | None:
    """Return the problem that a field has no part in a recipe, or None where it has one."""
    one = FIELDS[name]
    if (found := obstacle(one, values)) is None:
        return None
    other, method = found
    if one.group and other == "trunk" and method is not None:
        return _no_option(name, values)
    message = f"{one.key} has no part in {FIELDS[other].called} {method!r}" if method else without_trunk(one.key)
    allowed = one.outputs if other == "to" else one.only_with[other]
    return Problem((name, other), message, f"drop it, or choose {other}={allowed[0]!r}")


def without_trunk(called: str) -> str:
    """Return the message that something has no part in an ensemble whose members do not share a trunk."""
    return f"{called} has no part in an ensemble whose members keep their own trunks"


def problem_of_copies(count: object, values: Mapping[str, Any]) -> Problem | None:
    """Return the problem with a composition whose experts are copies of one base model, or None.

    Fields that are not among `values` are those of copies, or at their defaults.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not LEAST_COPIES <= count <= MOST_COPIES:
        return Problem(
            (FROM_BASE,),
            f"the number of copies of the base model is {str(count)[:20]}, it must be from {LEAST_COPIES} to "
            f"{MOST_COPIES:,}",
            "such as --from-base 4",
        )
    output = target_of(values)
    return output.problem_of_copies(count, {**(output.copies or {}), **values})


def of_copies() -> dict[str, Any]:
    """Return fields of a composition whose experts are copies of one base model, where nothing else is asked for."""
    return dict(OUTPUTS.default.copies or {})


def _no_option(name: str, values: Mapping[str, Any]) -> Problem:
    trunk = str(values.get("trunk") or FIELDS["trunk"].default)
    listed = ", ".join(options_of(trunk)) or "none"
    fields = (name, "trunk") if name in FIELDS else (TRUNK_OPTIONS,)
    return Problem(fields, f"trunk method {trunk!r} has no option {name!r}", f"its options are: {listed}")
