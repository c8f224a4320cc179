"""The recipe of members of different architectures in one model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from registry.composition.recipe.recipe_fields import ENSEMBLE, FIELDS, HETERO, default
from registry.errors import InvalidInputError
from registry.io.schema import check_written, fields, maybe
from registry.methods.ensemble.recipe import EnsembleRecipe

_KINDS = {name: FIELDS[name].document_kind for name in ("to", "top_k", "temperature", "routing_tokens", "lam", "dtype")}
_KINDS |= {"lead": maybe(FIELDS["lead"].document_kind)}
"""Key of a document → what it holds."""


@dataclass(frozen=True)
class HeteroRecipe(EnsembleRecipe):
    """Lead, router and their parameters, of members that share an embedding and a head.

    Of an ensemble's fields, `routing`, `weights` and `mixing` have no part: the weights are those of the sequence.

    Attributes:
        top_k: members kept for a sequence, from 1 to the number of members; None for 1.
        temperature: > 0; divides the router's scores, which lie about 1 for a text of the member and 0 for others.
        routing_tokens: how many first tokens decide; 0 stands for the tokens of the model's first call, which is the
            prompt in generation; such a model has no perplexity of its own.
        lam: ridge strength of input projectors and router, relative to the mean of the diagonal of their Grams.
        lead: the member whose embedding and head all share; None for the one with the largest hidden size, the first by
            name of several.
    """

    temperature: float = default("temperature", HETERO)
    lam: float = default("lam", HETERO)
    lead: str | None = default("lead")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, one in FIELDS.items():
            given = getattr(self, name, None)
            if HETERO not in one.outputs and ENSEMBLE in one.outputs and given and given != default(name, ENSEMBLE):
                raise InvalidInputError(f"{name} has no part in output {HETERO!r}", "drop it, or choose to='ensemble'")

    @property
    def to(self) -> str:
        """The output, as `Recipe.to`."""
        return HETERO

    @property
    def label(self) -> str:
        """A name for messages."""
        return f"output {HETERO!r}"

    @property
    def by_first_tokens(self) -> bool:
        """The first tokens decide for the rest, in which only chosen members run."""
        return True

    @classmethod
    def from_document(cls, document: object, names: Sequence[str]) -> "HeteroRecipe":
        """Read the recipe of a `composition.json` (arguments and errors as `Recipe.from_document`)."""
        given = fields(document, _KINDS, "the recipe")
        recipe = cls(**{key: value for key, value in given.items() if key != "to" and value is not None})
        check_written(given, recipe.document(names), "the recipe")
        return recipe

    def check_members(self, names: Sequence[str]) -> None:
        """Check the recipe against the members' names.

        Raises:
            InvalidInputError: there is one member alone, the lead is no member, or top_k is out of range.
        """
        super().check_members(names)
        if len(set(names)) == 1:
            raise InvalidInputError(
                f"{names[0]} is the only member, and there is nothing to share or to choose from",
                f"name more --experts, or write it as it is: reg export {names[0]} DIR",
            )
        if self.lead is not None and self.lead not in names:
            raise InvalidInputError(
                f"the lead {self.lead!r} is not a member", f"name one of them: --lead {', '.join(names)}"
            )

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the recipe as `composition.json` holds it, every default spelled out."""
        return {
            "to": HETERO,
            "top_k": 1 if self.top_k is None else self.top_k,
            "temperature": float(self.temperature),
            "routing_tokens": self.routing_tokens,
            "lam": float(self.lam),
            "lead": self.lead,
            "dtype": self.dtype,
        }
