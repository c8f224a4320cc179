"""Methods that `reg evaluate --methods` compares; a new one is one line in `METHODS`.

The caller passes a function that composes (`Compose`), so that this module does not depend on composition.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from registry.errors import InvalidInputError
from registry.names.suggest import suggest

Compose = Callable[[Mapping[str, Any], Path], None]
"""Writes the composition of the experts by some fields of a `Recipe` to an absent folder.

Raises InvalidInputError if these experts cannot be composed so."""

SEEDS = 5
"""Seeds of a method with randomness, by default; its figures are means with standard deviations."""
TRAINED_SEEDS = 3
"""Seeds of a method whose routers are trained, by default."""

DENSE = ("base", "experts", "average")
"""Rows that need no composition: the base model, every domain's expert, the averaged weights of the experts."""


@dataclass(frozen=True)
class Method:
    """One way of composing.

    Attributes:
        settings: fields of `Recipe` that differ from its defaults, or of `EnsembleRecipe`, `HeteroRecipe` or
            `SimoeRecipe` if `to` is `ensemble`, `hetero` or `simoe`; and `train_steps` if the routers are then trained.
        seeds: seeds by default of a method with randomness, counted from 0: of its training, else of its recipe; 0 if
            it has none.
        oracle: send every token to the expert of its domain, which no router can know: the trunk's upper bound.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 0
    oracle: bool = False

    def runs(self, seeds: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the settings of each composition that the row needs; `seeds` replaces the default number, if any."""
        field_name = "train_seed" if "train_steps" in self.settings else "seed"
        if not self.seeds:
            yield dict(self.settings)
            return
        for seed in range(self.seeds if seeds is None else seeds):
            yield {**self.settings, field_name: seed}


TRAIN_STEPS = 200
"""Steps of training for rows whose routers are trained on the members' kept calibration tokens."""

RIDGE: dict[str, Any] = {"router": "ridge"}
PAPER: dict[str, Any] = {"router": "ridge", "top_k": 1, "normalize": True}
"""Routers as in the DUME paper."""

METHODS: dict[str, Method] = {
    "oracle-mean": Method({"trunk": "mean", **RIDGE}, oracle=True),
    "oracle-base": Method({"trunk": "base", **RIDGE}, oracle=True),
    "oracle": Method(RIDGE, oracle=True),
    "random": Method({**PAPER, "trunk": "mean", "router": "random"}, SEEDS),
    "router-ft": Method({**PAPER, "trunk": "mean", "router": "random", "train_steps": TRAIN_STEPS}, TRAINED_SEEDS),
    "dume": Method({"trunk": "mean", "refine": 1, **PAPER}),
    "dume-eq-4": Method(
        {
            "trunk": "mean",
            "refine": 1,
            **PAPER,
            "gating": "softmax-topk",
            "temperature": 1.0,
            "host": "remote-code",
        }
    ),
    "dume+": Method({"trunk": "mean", "refine": 1, "train_steps": TRAIN_STEPS, **PAPER}, TRAINED_SEEDS),
    "mean-own": Method({"trunk": "mean", **PAPER}),
    "base-own": Method({"trunk": "base", **PAPER}),
    "ties": Method({"trunk": "ties", **PAPER}),
    "ties-sum": Method({"trunk": "ties", "combine": "sum", "trunk_options": {"scale": 1 / 3}, **PAPER}),
    "dare": Method({"trunk": "dare", **PAPER}),
    "dare-sum": Method({"trunk": "dare", "combine": "sum", "trunk_options": {"scale": 1 / 3}, **PAPER}),
    "task-arithmetic": Method({"trunk": "task-arithmetic", **PAPER}),
    "domain-embedding": Method({**PAPER, "router": "domain-embedding"}),
    "regmean-alpha-0.9": Method({"trunk_options": {"alpha": 0.9}, **PAPER}),
    "regmean-paper": Method(PAPER),
    "regmean-paper-top-2": Method({**PAPER, "top_k": 2, "temperature": 0.1}),
    "regmean-top-1": Method({**RIDGE, "top_k": 1}),
    "regmean": Method(RIDGE),
    "refine-1": Method({**RIDGE, "refine": 1}),
    "refine-2": Method({**RIDGE, "refine": 2}),
    "context": Method(),
    "context-whole": Method({"context_window": 0.0}),
    "context-shared": Method({"vocabulary": "shared"}),
    "refine-mlp": Method({**RIDGE, "refine_mlp": True}),
    "refine-mlp-top-1": Method({**RIDGE, "refine_mlp": True, "top_k": 1}),
    "refine-mlp-context": Method({"refine_mlp": True}),
    "oracle-context": Method(oracle=True),
    "oracle-refine-mlp": Method({**RIDGE, "refine_mlp": True}, oracle=True),
    "soup": Method({"to": "dense", "trunk": "mean"}),
    "soup-ties": Method({"to": "dense", "trunk": "ties"}),
    "soup-dare": Method({"to": "dense", "trunk": "dare"}),
    "soup-regmean": Method({"to": "dense"}),
    "btm": Method({"to": "ensemble"}),
    "btm-top-1": Method({"to": "ensemble", "top_k": 1}),
    "perplexity": Method({"to": "ensemble", "routing": "perplexity", "top_k": 1}),
    "prompt-perplexity": Method({"to": "ensemble", "routing": "prompt-perplexity", "top_k": 1}),
    "task-vector": Method({"to": "ensemble", "routing": "task-vector", "top_k": 1}),
    "prompt-perplexity-merged": Method({"to": "ensemble", "routing": "prompt-perplexity", "top_k": 1, "trunk": "mean"}),
    "task-vector-merged": Method({"to": "ensemble", "routing": "task-vector", "top_k": 1, "trunk": "mean"}),
    "hetero": Method({"to": "hetero", "top_k": 1}),
    "simoe": Method({"to": "simoe"}),
}
"""Name of a row → its method, in the order of the table. `context` is the default recipe of `reg compose`."""


def named_methods(names: Sequence[str]) -> list[str]:
    """Return the named rows in the order of the table, each once; `all` selects every row.

    Raises:
        InvalidInputError: a name is unknown.
    """
    known = [*DENSE, *METHODS]
    for name in names:
        if name != "all" and name not in known:
            raise InvalidInputError(
                f"method {name!r} is not one of {', '.join(known)}{suggest(name, known)}",
                "choose among them, or take all: --methods all",
            )
    return [name for name in known if name in names or "all" in names]
