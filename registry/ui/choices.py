"""What the composer asks for beside the experts: from a page's query to a recipe, and to the words of a command."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from registry.errors import InvalidInputError

if TYPE_CHECKING:
    from registry.composition import EnsembleRecipe, Recipe

MOE, DENSE, ENSEMBLE = "moe", "dense", "ensemble"
_OF_ALL = frozenset({MOE, DENSE, ENSEMBLE})
_OF_TRUNKS = frozenset({MOE, DENSE})
_OF_MIXTURES = frozenset({MOE})


def _text(text: str) -> str:
    return text


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _lam(text: str) -> float | str:
    return text if text == "auto" else _real(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _switch(text: str) -> bool:
    return text == "1"


@dataclass(frozen=True)
class Choice:
    """One field of the form.

    Attributes:
        name: in the query, in a recipe, and with `--` on the command line.
        label: beside the field.
        help: below it.
        to: for which outputs there is such an option.
        read: makes its value; ValueError where the text is none.
        options: the values to choose from; empty where any may be typed, None for a switch.
        default: as text; empty where the program decides.
        more: it is among those that few need.
        kind: of the value, for the message where it is none.
    """

    name: str
    label: str
    help: str
    to: frozenset[str]
    read: Callable[[str], Any] = _text
    options: tuple[str, ...] | None = ()
    default: str = ""
    more: bool = False
    kind: str = "text"

    @property
    def option(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}"


CHOICES = (
    Choice("to", "Make", "a sparse mixture, one dense model, or an ensemble of whole models", _OF_ALL,
           options=(MOE, DENSE, ENSEMBLE), default=MOE),
    Choice("trunk", "Trunk", "how what is not in an MLP is combined", _OF_TRUNKS,
           options=("regmean", "mean", "base", "ties", "dare", "task-arithmetic"), default="regmean"),
    Choice("router", "Router", "how each layer’s gate is solved", _OF_MIXTURES,
           options=("ridge", "domain-embedding", "random"), default="ridge"),
    Choice("top_k", "Experts per token", "2 if empty; of an ensemble all", frozenset({MOE, ENSEMBLE}),
           _count, kind="a whole number"),
    Choice("routing", "Routing", "what an ensemble’s weights follow from", frozenset({ENSEMBLE}),
           options=("posterior", "perplexity", "task-vector"), default="posterior"),
    Choice("lam", "Ridge strength", "a number, or auto: of least held-out error", _OF_MIXTURES, _lam,
           default="0.01", more=True, kind="a number or auto"),
    Choice("temperature", "Temperature", "divides the router’s logits; 0.05 if empty", frozenset({MOE, ENSEMBLE}),
           _real, more=True, kind="a number"),
    Choice("balance", "Balance", "tokens: whoever has more text counts no more", _OF_TRUNKS,
           options=("none", "tokens"), default="none", more=True),
    Choice("refine", "Refining passes", "of kept tokens through the composed model", _OF_MIXTURES, _count,
           default="0", more=True, kind="a whole number"),
    Choice("dtype", "Written in", "the members’ own if empty", _OF_ALL,
           options=("", "bfloat16", "float16", "float32"), more=True),
    Choice("base", "Base model", "where the recipe needs one; the only one if empty", _OF_ALL, more=True),
    Choice("normalize", "Unit router columns", "as in the DUME paper", _OF_MIXTURES, _switch, None, more=True),
    Choice("refine_mlp", "Refit MLPs", "and linear maps, on kept tokens", _OF_MIXTURES, _switch, None, more=True),
    Choice("remote_code", "Modelling file", "carries any family; loads with trust_remote_code", _OF_MIXTURES,
           _switch, None, more=True),
)  # fmt: skip
"""The fields, in the form's order."""


@dataclass(frozen=True)
class Choices:
    """What was chosen: name → text, of the fields that are there."""

    texts: Mapping[str, str]

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> "Choices":
        """Return what a query says; what is not there stays at its default."""
        return cls({one.name: query.get(one.name, one.default).strip()[:100] for one in CHOICES})

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> "Choices | None":
        """Return the choices that make a composition, or None where the form cannot say them."""
        recipe = {"to": MOE} | document["recipe"]
        texts = {}
        for one in CHOICES:
            value = recipe.get(one.name)
            if value is not None and recipe["to"] in one.to:
                texts[one.name] = ("1" if value else "") if one.options is None else _written(value)
        try:
            choices = cls.of_query(texts)
            same = choices.recipe().document([str(one["name"]) for one in document["members"]]) == document["recipe"]
        except InvalidInputError:
            return None
        return choices if same and "parent" not in document else None

    @property
    def to(self) -> str:
        """What is made."""
        return self.texts["to"]

    @property
    def query(self) -> dict[str, str]:
        """What is not at its default, for an address."""
        return {one.name: self.texts[one.name] for one in CHOICES if self.texts[one.name] != one.default}

    @property
    def applying(self) -> list[Choice]:
        """The fields that have a part in what is made."""
        return [one for one in CHOICES if self.to in one.to]

    @property
    def base(self) -> str | None:
        """The base model that was named."""
        return self.texts["base"] or None

    def recipe(self) -> "Recipe | EnsembleRecipe":
        """Return the recipe.

        Raises:
            InvalidInputError: a text is no value of its field, or there is no such recipe.
        """
        from registry.composition import EnsembleRecipe, Recipe

        if self.to not in _OF_ALL:
            raise InvalidInputError(f"to {self.to!r} is none of {MOE}, {DENSE}, {ENSEMBLE}", "choose one of them")
        values: dict[str, Any] = {}
        for one in self.applying:
            if (text := self.texts[one.name]) == "" or one.name == "base":
                continue
            try:
                values[one.name] = one.read(text)
            except ValueError:
                raise InvalidInputError(f"{one.label}: {text!r} is not {one.kind}", "correct it in the form") from None
        if self.to == ENSEMBLE:
            return EnsembleRecipe(**{name: value for name, value in values.items() if name != "to"})
        if self.to == DENSE and values["trunk"] == "base":
            raise InvalidInputError(
                "a dense model with the trunk of the base is the base model itself", "choose another trunk"
            )
        if values.pop("remote_code", False):
            values["host"] = "remote-code"
        return Recipe(**values)

    def words(self) -> list[str]:
        """Return the options of `reg compose` that say the same."""
        words = []
        for one in self.applying:
            text = self.texts[one.name]
            if text in (one.default, ""):
                continue
            words += [one.option] if one.options is None else [one.option, text]
        return words


def _written(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
