"""Rows that `reg evaluate --methods` compares: those of all methods.

The caller passes a function that composes (`Compose`), so that this module does not depend on composition.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from registry.composition.found import OUTPUTS, ROUTERS, TRUNKS
from registry.composition.method import Compared
from registry.errors import InvalidInputError
from registry.names.suggest import suggest

Compose = Callable[[Mapping[str, Any], Path], None]
"""Writes the composition of the experts by some fields of a recipe to an absent folder.

Raises InvalidInputError if these experts cannot be composed so."""

DENSE = ("base", "experts", "average")
"""Rows that need no composition: the base model, every domain's expert, the averaged weights of the experts."""


@dataclass(frozen=True)
class Method:
    """One way of composing.

    Attributes:
        settings: fields of a recipe, and `train_steps` if the routers are then trained.
        seeds, oracle: as in `Compared`.
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


def _rows() -> Iterator[tuple[str, Method]]:
    """Yield name and row of every method that has rows: of routers, of trunks, of outputs."""
    for of, methods in (("router", ROUTERS), ("trunk", TRUNKS), ("to", OUTPUTS)):
        for method in methods.values():
            rows = {method.name: Compared()} if method.compared is None else method.compared
            for name, row in rows.items():
                reference = OUTPUTS.default.reference if of == "trunk" and "to" not in row.settings else {}
                yield name, Method({**reference, of: method.name, **row.settings}, row.seeds, row.oracle)


METHODS: dict[str, Method] = dict(_rows())
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
