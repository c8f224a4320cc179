"""The recipe of a composition: what is made, and the options of its methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.composition.found import OUTPUTS, ROUTERS, TRUNKS
from registry.composition.method import Router, Target, Trunk
from registry.composition.option import OptionKind, Problem
from registry.composition.recipe.fields import (
    FIELDS,
    default,
    first_problem,
    obstacle,
    options_of,
    removed,
    resolved,
    target_of,
)
from registry.composition.recipe.shared_options import TRUNK_OPTIONS
from registry.errors import CheckpointError, InvalidInputError
from registry.io.untrusted import (
    DIGEST,
    NUMBER,
    NUMBERS,
    OBJECT,
    SWITCH,
    TEXT,
    WHOLE,
    Kind,
    check_written,
    fields,
    maybe,
)
from registry.names.suggest import suggest
from store.digest import json_digest

DOCUMENT_FORMAT = 1
"""The format of a composition's document, of which its digest is a function."""


@dataclass(frozen=True)
class CoefficientFit:
    """Record of a fit; a composition by these coefficients is made without it, and without the text.

    Attributes:
        members: the digest of the members and the base model that they were fitted for: `fitted_members`.
        data: the digest of the windows of text.
        tokens: their tokens, those that were held out included.
        seed: of the choice of windows and their order.
        before: the loss on held-out windows in nats per token with equal coefficients.
        after: the same with the fitted ones.
    """

    members: str
    data: str
    tokens: int
    steps: int
    batch_size: int
    seq_len: int
    lr: float
    seed: int
    device: str
    before: float
    after: float

    @classmethod
    def from_document(cls, document: object, where: str) -> CoefficientFit:
        """Read an untrusted record (CheckpointError: a key or value is not what this program writes)."""
        kinds = {"int": WHOLE, "float": NUMBER, "str": TEXT}
        own = {name: kinds[kind] for name, kind in cls.__annotations__.items()}
        given = fields(document, own | {"members": DIGEST, "data": DIGEST}, where)
        losses = given["lr"], given["before"], given["after"]
        if not given["device"].isidentifier() or not all(math.isfinite(loss) and loss >= 0 for loss in losses):
            raise CheckpointError(f"{where} is not the record of a fit", "copy the file again")
        return cls(**given)


def fitted_members(members: Iterable[tuple[str, str]], base: str) -> str:
    """Return the digest of members, (name, content digest) each, and of the content digest of their base model."""
    return json_digest([sorted(map(list, members)), base])


class Recipe:
    """The output that is made of experts, and how: `Recipe(to="ensemble", routing="perplexity")`.

    Every option of `reg compose` that says how is a keyword and an attribute, with `_` for `-`: `Recipe(trunk="mean",
    top_k=1).top_k` is 1. Attributes that were not given are at their defaults; those that have no part are None, or
    empty where they hold numbers by member. docs/methods.md lists them. Recipes are equal if all of these are.

    Args:
        to: the output; the mixture by default.
        trunk_options: numbers of the trunk method, where they are not at its defaults.
        fit: what coefficients were fitted for and on; None where they were not.

    Raises:
        InvalidInputError: there is no such output or option, a value is not what its option holds, it has no part in
            what is made, or options contradict each other.
    """

    to: str
    trunk_options: Mapping[str, float]
    fit: CoefficientFit | None

    def __init__(
        self,
        *,
        to: str | None = None,
        trunk_options: Mapping[str, float] | None = None,
        fit: CoefficientFit | None = None,
        **values: Any,
    ) -> None:
        output = OUTPUTS.default if to is None else OUTPUTS.named(to)
        for name in values:
            if name not in FIELDS or FIELDS[name].group:
                raise InvalidInputError(
                    f"a recipe has no option {name!r}{suggest(name, FIELDS)}", "reg help compose lists the options"
                )
        given = {name: value for name, value in values.items() if value is not None}
        if problem := first_problem({"to": output.name, **given}, trunk_options, is_fitted=fit is not None):
            raise problem.error()
        values = {"to": output.name, **given}  # what has no part and is at its default is left out
        given = {name: value for name, value in given.items() if obstacle(FIELDS[name], values) is None}
        own = {"to": output.name, TRUNK_OPTIONS: dict(trunk_options or {}), "fit": fit, "_given": given}
        vars(self).update(own)

    @classmethod
    def of_fields(cls, values: Mapping[str, Any], fit: CoefficientFit | None = None) -> Recipe:
        """Return the recipe of fields as command lines and forms give them, trunk options too; others are at defaults.

        `fit` is that of its coefficients; it is dropped where it has none.

        (InvalidInputError: as the class does, or nobody wants what they make.)
        """
        if problem := target_of(values).unwanted(values):
            raise problem.error()
        own: dict[str, Any] = {}
        options: dict[str, float] = {}
        for name, value in values.items():
            one = FIELDS[name]
            if one.stands_for is not None:
                own |= [one.stands_for] if value else []
            elif one.group:
                options[name] = value
            else:
                own[name] = value
        return cls(**own, trunk_options=options, fit=fit if own.get("coefficients") else None)

    @classmethod
    def from_document(cls, document: object, names: Sequence[str], *, host: str = "") -> Recipe:
        """Read the `recipe` of a `composition.json`, which may come from anywhere.

        Raises:
            CheckpointError: a key is unknown or missing, or a value is not what this program writes.
            InvalidInputError: the values make no recipe.
        """
        where = "the recipe"
        kinds: dict[str, Kind] = {name: maybe(one.document_kind) for name, one in FIELDS.items() if not one.group}
        earlier = {name: unasked for name, (unasked, _) in removed().items() if name not in FIELDS}
        kinds |= {name: SWITCH if isinstance(unasked, bool) else TEXT for name, unasked in earlier.items()}
        kinds |= {TRUNK_OPTIONS: NUMBERS, "computed": OBJECT, "fit": OBJECT}
        given = fields(document, kinds, where, optional=kinds)
        if given.get("to") not in OUTPUTS:
            raise CheckpointError(
                f"{where} makes {str(given.get('to'))[:80]!r}, which is not one of {', '.join(OUTPUTS)}",
                "install the package that has this output, in the version that it was composed with",
            )
        output = OUTPUTS[given["to"]]
        computed = fields(given.get("computed", {}), COMPUTED_KINDS, f"{where}, computed", optional=COMPUTED_KINDS)
        own = {name: value for name, value in given.items() if name not in ("computed", *earlier)}
        if "fit" in own:
            own["fit"] = CoefficientFit.from_document(own["fit"], f"{where}, fit")
        if "device" in computed:
            own["device"] = computed["device"]
        recipe = cls(**output.fields_of_document(own, host))
        check_written(given, recipe.document(names), where)
        return recipe

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in FIELDS or FIELDS[name].group:
            raise AttributeError(f"a recipe has no option {name!r}")
        if name in self._given:
            return self._given[name]
        return self.default(name)

    def default(self, name: str) -> Any:
        """Return what an option is where it is not given; None, or no numbers by member, where it has no part."""
        if self.to in FIELDS[name].outputs:
            return resolved(name, {one: value for one, value in self.given.items() if one != name})
        return {} if FIELDS[name].kind is OptionKind.BY_MEMBER else None

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were given, with the output; without numbers of the trunk method."""
        return {"to": self.to, **self._given}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that have a part in it, as `of_fields` takes them, in the order of `FIELDS`.

        Fields that the program decides on are left out: None, and empty numbers by member.
        """
        numbers = self.trunk_options
        values = {name: numbers.get(name) if one.group else getattr(self, name) for name, one in FIELDS.items()}
        return {
            name: value
            for name, value in values.items()
            if value not in (None, {}) and FIELDS[name].stands_for is None and obstacle(FIELDS[name], values) is None
        }

    @property
    def output(self) -> Target:
        """The output that it makes, as recipes know it."""
        return OUTPUTS[self.to]

    @property
    def trunk_method(self) -> Trunk | None:
        """The method that makes the trunk; None where members keep their own."""
        return TRUNKS[self.trunk] if self.trunk else None

    @property
    def router_method(self) -> Router | None:
        """The method that makes the routers; None where there are none."""
        return ROUTERS[self.router] if self.router else None

    @property
    def method_options(self) -> dict[str, float]:
        """All numbers of the trunk method that have a part beside coefficients."""
        if self.coefficients or not self.trunk:
            return {}
        return {**options_of(self.trunk), **{name: float(value) for name, value in self.trunk_options.items()}}

    @property
    def needs_base(self) -> bool:
        """The base model takes part."""
        return self.output.needs_base(self.given)

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the recipe as `composition.json` holds it, every default spelled out."""
        return self.output.document(self, names)

    def problem_of_members(self, names: Sequence[str]) -> Problem | None:
        """Return what is wrong with the recipe for members of these names, or None."""
        for field, value in self._given.items():
            called = FIELDS[field].called
            if FIELDS[field].kind is OptionKind.BY_MEMBER and (strangers := sorted(set(value) - set(names))):
                message = f"there is a {called} for {', '.join(strangers)}, which is not a member"
                return Problem((field,), message, f"members are: {', '.join(names)}")
        if self.coefficients and (missing := [name for name in names if name not in self.coefficients]):
            every = (f"{name}={self.coefficients.get(name, 0):g}" for name in names)
            return Problem(
                ("coefficients",),
                f"there is no coefficient for {', '.join(missing)}, and every member needs one",
                f"give one, 0 to leave the task vector out: --coefficients {','.join(every)}",
            )
        return self.output.problem_of_members(self, names)

    def replace(self, **values: Any) -> Recipe:
        """Return the recipe with other values, None for the default; what has no part beside them is dropped."""
        to = values.get("to") or self.to
        numbers = values.pop(TRUNK_OPTIONS, None)
        merged = self.given | values | {"to": to}
        kept = {
            name: value for name, value in merged.items() if name in values or obstacle(FIELDS[name], merged) is None
        }
        if numbers is None:
            numbers = {name: x for name, x in self.trunk_options.items() if obstacle(FIELDS[name], kept) is None}
        fit = values.pop("fit", self.fit if kept.get("coefficients") else None)
        return Recipe(**{name: value for name, value in kept.items() if name != "fit"}, trunk_options=numbers, fit=fit)

    def of_members(self, names: Sequence[str]) -> Recipe:
        """Return the recipe without numbers of members that are not among `names`, and with at most so many experts."""
        values = {
            name: {one: number for one, number in value.items() if one in names}
            for name, value in self._given.items()
            if FIELDS[name].kind is OptionKind.BY_MEMBER
        }
        if self.top_k is not None:
            values["top_k"] = min(self.top_k, len(names))
        return self.replace(**values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Recipe):
            return NotImplemented
        return (self.to, self.fit, self.device) == (other.to, other.fit, other.device) and (
            self.method_options == other.method_options
            and {name: getattr(self, name) for name in _compared(self.to)}
            == {name: getattr(other, name) for name in _compared(self.to)}
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.given.items() if value != default(name, self.to) or name == "to"}
        shown |= {TRUNK_OPTIONS: self.trunk_options} if self.trunk_options else {}
        shown |= {"fit": self.fit} if self.fit else {}
        return f"Recipe({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a recipe does not change: recipe.replace(…) returns another")


COMPUTED_KINDS = {
    "batch_size": WHOLE,
    "device": Kind("a kind of device", lambda value: isinstance(value, str) and value.isidentifier()),
}
"""Key of a recipe's `computed` → what it holds."""


def _compared(to: str) -> list[str]:
    return [name for name, one in FIELDS.items() if to in one.outputs and not one.group and one.stands_for is None]


def overlay(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with others over them; what has no part beside these is dropped.

    Of a recipe that is turned into an output whose members keep their own trunks, unless asked to share one, the trunk
    is dropped too.
    """
    to = over.get("to")
    if to and to != values.get("to") and default("trunk", str(to)) is None:
        values = {name: value for name, value in values.items() if name != "trunk"}
    merged = {**values, **over}
    for name, value in over.items():
        if (short := FIELDS[name].stands_for) and value:
            merged.pop(short[0], None)
    return {name: value for name, value in merged.items() if name in over or obstacle(FIELDS[name], merged) is None}
