"""The recipe of an ensemble: routing method and its parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from registry.composition.recipe.recipe import Recipe
from registry.composition.recipe.recipe_fields import (
    DENSE,
    ENSEMBLE,
    FIELDS,
    LOGITS,
    PROMPT_PERPLEXITY,
    TRUNK_OPTIONS,
    default,
)
from registry.composition.recipe.recipe_rules import check_complete, check_named, first_problem
from registry.errors import InvalidInputError
from registry.io.schema import NUMBERS, check_written, fields, maybe

TO_ENSEMBLE = ENSEMBLE
"""Output that a composition's document names."""

POSTERIOR, PERPLEXITY, TASK_VECTOR = "posterior", "perplexity", "task-vector"
ROUTINGS = {
    POSTERIOR: "p(expert | text so far) by Bayes' rule (Branch-Train-Merge, section 2)",
    PERPLEXITY: "softmax of the negative perplexity on the text so far (MergeME, section 3.1.3)",
    PROMPT_PERPLEXITY: "softmax of one over the perplexity on the first tokens (MergeME, section 3.1.3)",
    TASK_VECTOR: "softmax of the cosine between the base model's negative gradient on the first tokens and the task "
    "vector (MergeME, section 3.1.3)",
}
"""Routing method → where its weights come from."""

_KINDS = {name: FIELDS[name].document_kind for name in ("to", "routing", "top_k", "temperature", "dtype")}
_KINDS |= {name: maybe(FIELDS[name].document_kind) for name in ("weights", "routing_tokens")}
_OF_TRUNK = {name: FIELDS[name].document_kind for name in ("trunk", "combine", "coefficients")}
_OF_TRUNK |= {TRUNK_OPTIONS: NUMBERS}
_LATER = {"mixing": FIELDS["mixing"].document_kind, **_OF_TRUNK}
"""Key of a document → what it holds; the later ones are there only where they are not at their defaults."""

_BY_FIRST_TOKENS = (PROMPT_PERPLEXITY, TASK_VECTOR)


@dataclass(frozen=True)
class EnsembleRecipe:
    """Routing method + its parameters.

    Attributes:
        routing: a key of `ROUTINGS`.
        top_k: members kept per token, their weights renormalised, from 1 to the number of members; None for all.
        temperature: > 0; divides log likelihoods (`posterior`), perplexities, their inverses (`prompt-perplexity`) or
            cosines before the softmax.
        trunk: a key of `TRUNKS`: the members share one trunk, made by that method, and keep their MLPs; None where each
            keeps its own trunk.
        trunk_options: parameters of the trunk method, as in `Recipe`.
        coefficients: the same.
        combine: the same.
        weights: member name → ω > 0, 1 where absent: its weight in the sums of the trunk method, and with `posterior`
            its prior is the share of ω; for neither, none is given.
        routing_tokens: with `prompt-perplexity` and `task-vector`, how many first tokens decide, 2 or more; before
            there are so many, all members count alike. With `prompt-perplexity` 0 stands for the tokens of the
            model's first call, which is the prompt in generation; such a model has no perplexity of its own.
        mixing: `probabilities` are summed by weight, or `logits`, of which the softmax is taken.
        dtype: what the folder is written in, or None for the members' own.
    """

    routing: str = default("routing")
    top_k: int | None = default("top_k")
    temperature: float = default("temperature", TO_ENSEMBLE)
    trunk: str | None = default("trunk", TO_ENSEMBLE)
    trunk_options: Mapping[str, float] = field(default_factory=dict)
    coefficients: Mapping[str, float] = field(default_factory=partial(default, "coefficients"))
    combine: str = default("combine")
    weights: Mapping[str, float] = field(default_factory=partial(default, "weights"))
    routing_tokens: int = default("routing_tokens")
    mixing: str = default("mixing")
    dtype: str | None = default("dtype")

    def __post_init__(self) -> None:
        own = {name: getattr(self, name) for name in FIELDS if hasattr(self, name)}
        if self.trunk is None:
            del own["trunk"]
        if problem := first_problem(own, self.trunk_options):
            raise problem.error()

    @property
    def to(self) -> str:
        """The output, as `Recipe.to`."""
        return TO_ENSEMBLE

    @property
    def label(self) -> str:
        """A name for messages."""
        return f"routing {self.routing!r}" + (f" with trunk method {self.trunk!r}" if self.trunk else "")

    @property
    def needs_base(self) -> bool:
        """The base model takes part, in the routing or in the trunk."""
        shared = self.shared_trunk
        return self.has_base or (shared is not None and shared.needs_base)

    @property
    def has_base(self) -> bool:
        """The base model is in the folder, whole."""
        return self.routing == TASK_VECTOR

    @property
    def shared_trunk(self) -> Recipe | None:
        """The recipe of the trunk that the members share, or None."""
        if self.trunk is None:
            return None
        return Recipe(
            to=DENSE,
            trunk=self.trunk,
            trunk_options=self.trunk_options,
            coefficients=self.coefficients,
            combine=self.combine,
            weights=self.weights,
            dtype=self.dtype,
        )

    @property
    def by_first_tokens(self) -> bool:
        """The first tokens decide for the rest, in which only chosen members run."""
        return self.routing in _BY_FIRST_TOKENS

    @property
    def mixes(self) -> bool:
        """The folder needs the modelling file of `prompt-perplexity` and of mixed logits."""
        return self.routing == PROMPT_PERPLEXITY or self.mixing == LOGITS

    @classmethod
    def from_document(cls, document: object, names: Sequence[str]) -> "EnsembleRecipe":
        """Read the recipe of a `composition.json` (arguments and errors as `Recipe.from_document`)."""
        given = fields(document, _KINDS | _LATER, "the recipe", optional=_LATER)
        asked = {key: value for key, value in given.items() if key != "to" and value is not None}
        recipe = cls(**asked)
        check_written(given, recipe.document(names), "the recipe")
        return recipe

    def check_members(self, names: Sequence[str]) -> None:
        """Check the recipe against the members' names.

        Raises:
            InvalidInputError: a number is for no member, a coefficient is missing, or top_k is out of range.
        """
        check_named(names, weight=self.weights)
        check_complete(names, self.coefficients)
        if self.top_k is not None and not 1 <= self.top_k <= len(names):
            raise InvalidInputError(
                f"top-k is {self.top_k}, it must be from 1 to {len(names)}, the number of members",
                f"give --top-k {len(names)} or less, or name more --experts",
            )

    def document(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the recipe as `composition.json` holds it, every default spelled out; null where it has no part."""
        weights = {name: float(self.weights.get(name, 1.0)) for name in names}
        shared, merged = self.shared_trunk, dict[str, Any]()
        if shared is not None:
            of_trunk = shared.document(names)
            merged = {name: of_trunk[name] for name in _OF_TRUNK if name in of_trunk}
        return {
            "to": TO_ENSEMBLE,
            "routing": self.routing,
            "top_k": len(names) if self.top_k is None else self.top_k,
            "temperature": float(self.temperature),
            "weights": weights if self.routing == POSTERIOR or merged else None,
            "routing_tokens": self.routing_tokens if self.by_first_tokens else None,
            "dtype": self.dtype,
            **({"mixing": self.mixing} if self.mixing != default("mixing") else {}),
            **merged,
        }
