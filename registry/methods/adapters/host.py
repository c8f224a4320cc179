"""Folders of low-rank experts: the dense class with a `LowRank` for each layer that an expert changed."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.io.untrusted import COUNT, LABEL, OBJECT, Kind, list_of, some_fields
from registry.methods import adapters
from registry.runtime.sequence_hosts import HINT, Picker, SequenceHost

ADAPTERS = "adapters_"
"""Prefix of the `model_type`, before that of the dense model."""
MODELLING_FILE = Path(__file__).with_name("modeling_adapters.py")
LARGEST = 2**20  # the largest rank, and the largest number of tokens of a window

_SIZE = Kind(
    f"a number from 0 to {LARGEST:,}",
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST,
)
_KIND = Kind(
    f"[a rank from 0 to {LARGEST:,}, a finite number, whether it is DoRA]",
    lambda value: (
        isinstance(value, list)
        and [type(part) for part in value] == [int, float, bool]
        and 0 <= value[0] <= LARGEST
        and math.isfinite(value[1])
    ),
)
_KEYS = {
    "members": list_of(LABEL),
    "adapted_layers": OBJECT,
    "adapted_kinds": list_of(list_of(_KIND)),
    "adapted_vectors": OBJECT,
    "context_pairs": COUNT,
    "context_prefix": list_of(COUNT),
    "context_turns": list_of(list_of(COUNT)),
    "context_next": list_of(COUNT),
    "context_user": list_of(COUNT),
    "context_form": list_of(_SIZE),
    "context_nobody": Kind("a number of a member, or null", lambda value: value is None or type(value) is int),
    "routing_top_k": COUNT,
} | {f"context_{name}": _SIZE for name in ("window", "fast", "alarm")}
# Keys that the first folders lack.
_LATER = (
    *(f"context_{name}" for name in ("pairs", "prefix", "turns", "next", "user", "form", "nobody")),
    "routing_top_k",
)


class AdaptersHost(SequenceHost):
    """Low-rank experts of a dense class."""

    model_type = ADAPTERS
    files = (MODELLING_FILE,)

    def picker(self, folder: Path, config: Mapping[str, Any]) -> Picker:
        return adapters.AdapterPicker(folder, config)

    def check(self, config: Mapping[str, Any], where: str) -> None:
        keys = some_fields(config, _KEYS, where, hint=HINT, optional=_LATER)
        members, kinds, layers = keys["members"], keys["adapted_kinds"], keys["adapted_layers"]
        if not members:
            raise CheckpointError(f"{where}: members is empty, expected one name or more", HINT)
        nobody = keys.get("context_nobody")
        if nobody is not None and not 0 <= nobody < len(members):
            raise CheckpointError(f"{where}: context_nobody is {nobody}, and there are {len(members)} members", HINT)
        if len(form := keys.get("context_form", ())) not in (0, len(members)):
            raise CheckpointError(
                f"{where}: context_form has {len(form)} numbers, and there are {len(members)} members", HINT
            )
        if not 1 <= keys.get("routing_top_k", 1) <= len(members):
            raise CheckpointError(
                f"{where}: routing_top_k is {keys['routing_top_k']}, and there are {len(members)} members", HINT
            )
        if any(len(kind) != len(members) for kind in kinds):
            raise CheckpointError(f"{where}: adapted_kinds must have one for each of {len(members)} members", HINT)
        for name, own in keys["adapted_vectors"].items():
            numbers = own if isinstance(own, list) and own else [None]
            if any(type(number) is not int or not 0 <= number < len(members) for number in numbers):
                raise CheckpointError(
                    f"{where}: adapted_vectors gives {name[:80]!r} no numbers of the {len(members)} members", HINT
                )
        for name, kind in layers.items():
            if type(kind) is not int or not 0 <= kind < len(kinds):
                raise CheckpointError(
                    f"{where}: adapted_layers gives {name[:80]!r} no number of the {len(kinds)} adapted_kinds", HINT
                )
