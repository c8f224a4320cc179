"""The composer's form: from a page's query to a recipe, and to the words of a command."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from registry.composition.found import OUTPUTS, ROUTERS, TRUNKS
from registry.composition.option import Option, OptionKind
from registry.composition.recipe.fields import FIELDS, default, obstacle
from registry.composition.recipe.recipe import Recipe
from registry.errors import InvalidInputError
from registry.methods.ensemble.output import ROUTINGS
from registry.report.score_words import unbroken

BASE = Option(
    "base",
    OptionKind.TEXT,
    "The base model.",
    "NAME[@V]",
    FIELDS["to"].outputs,
    label="Base model",
    note="the model that the experts were trained from, where the recipe needs it; by default the only one",
    advanced=True,
)
"""What the form asks for beside the fields of a recipe."""

CHOICES = (*(one for one in FIELDS.values() if one.label), BASE)  # the fields of the form, in its order

OPTIONS: dict[str, Mapping[str, str]] = {
    "to": {name: one.choice for name, one in OUTPUTS.items()},
    "routing": {name: f"{one.words} ({name})" for name, one in ROUTINGS.items()},
    "trunk": {name: f"{name}: {unbroken(one.choice or one.words)}" for name, one in TRUNKS.items()},
    "router": {name: f"{name}: {one.choice or one.words}" for name, one in ROUTERS.items()},
}
"""Field → its values in words."""

_BASICS = ("to", "routing", "trunk", "router", "top_k")
_ADVANCED = {
    "Trunk options": ("combine", "balance", "base"),
    "Router options": ("context_window", "vocabulary", "lam", "normalize", "gating", "temperature", "mixing"),
    "Refinement": ("refine",),
    "Output": ("rank", "no_base_member", "lead", "dtype", "remote_code"),
}

BASICS = tuple(one for one in CHOICES if one.name in _BASICS)  # the fields that the form always shows
GROUPS = {
    group: tuple(one for name in names for one in CHOICES if one.name == name) for group, names in _ADVANCED.items()
}
"""Group of the form → its fields; groups are folded until one of their fields is changed."""

_LONGEST = 100


def default_text(field: Option) -> str:
    """Return what an untouched field of the form holds; empty where the program decides."""
    if field.kind is OptionKind.SWITCH or field.default is None or field.default_with:
        return ""
    return _written(field.default)


def select_values(field: Option) -> tuple[str, ...]:
    """Return the values to choose from; none where any may be typed."""
    return ("", *field.choices) if field.choices and not default_text(field) else field.choices


def _read(field: Option, text: str) -> Any:
    """Return the value of a field whose text is not empty; the recipe checks its range."""
    if field.kind is OptionKind.SWITCH:
        return text == "1"
    if field.kind is OptionKind.WHOLE and text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    with suppress(ValueError):
        if field.kind is OptionKind.NUMBER and math.isfinite(number := float(text)):
            return number
    if field.kind in (OptionKind.WHOLE, OptionKind.NUMBER):
        raise InvalidInputError(f"{field.label}: {text!r} is not {field.kind.value}", "correct it in the form")
    return text


@dataclass(frozen=True)
class Choices:
    """The texts of the form: name → text of every field."""

    texts: Mapping[str, str]

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Choices:
        """Return the choices of a query; a field that is not there stays at its default."""
        return cls({one.name: query.get(one.name, default_text(one)).strip()[:_LONGEST] for one in CHOICES})

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Choices | None:
        """Return the choices that make a composition, without defaults; None where the form has no fields for them."""
        names = [str(one["name"]) for one in document["members"]]

        def makes_it(choices: Choices) -> bool:
            with suppress(InvalidInputError):
                return bool(choices.recipe().document(names) == document["recipe"])
            return False

        recipe = {"to": OUTPUTS.default.name} | document["recipe"]
        texts = {}
        for one in CHOICES:
            value = recipe.get(one.name)
            if value is not None and recipe["to"] in one.outputs:
                texts[one.name] = ("1" if value else "") if one.kind is OptionKind.SWITCH else _written(value)
        choices = cls.of_query(texts)
        if {"parent", "from_base"} & document.keys() or not makes_it(choices):
            return None
        for name in choices.query:
            shorter = cls.of_query({other: text for other, text in choices.query.items() if other != name})
            choices = shorter if makes_it(shorter) else choices
        return choices

    @property
    def to(self) -> str:
        """The output."""
        return self.texts["to"]

    @property
    def with_base(self) -> bool:
        """Tell whether base models are offered as experts: with what is asked for first, no statistics are needed.

        Of a mixture that is the router, of a dense model and of an ensemble that shares a trunk the trunk method.
        """
        router, trunk = ROUTERS.get(self.texts["router"]), TRUNKS.get(self.texts["trunk"])
        if self.to in FIELDS["router"].outputs:
            return router is not None and router.statistics is None
        if trunk is None:
            return default("trunk", self.to) is None and self.to in FIELDS["trunk"].outputs
        return not trunk.needs_inputs

    @property
    def query(self) -> dict[str, str]:
        """The fields that are not at their defaults, for an address."""
        return {one.name: self.texts[one.name] for one in CHOICES if self.texts[one.name] != default_text(one)}

    @property
    def applying(self) -> list[Option]:
        """The fields that have a part in what is made."""
        return [one for one in CHOICES if obstacle(one, self.texts) is None]

    @property
    def base(self) -> str | None:
        """The base model, where one is named."""
        return self.texts["base"] or None

    def recipe(self) -> Recipe:
        """Return the recipe (InvalidInputError: a text is no value of its field, or fields contradict each other)."""
        if problem := FIELDS["to"].problem(self.to):
            raise InvalidInputError(*problem)
        applying = [one for one in self.applying if one is not BASE and self.texts[one.name]]
        return Recipe.of_fields({one.name: _read(one, self.texts[one.name]) for one in applying})

    def words(self) -> list[str]:
        """Return the options of `reg compose` that make the same."""
        words = []
        for one in self.applying:
            text = self.texts[one.name]
            if text and text != default_text(one):
                words += [one.option] if one.kind is OptionKind.SWITCH else [one.option, text]
        return words


def _written(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
