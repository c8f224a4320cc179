"""Rotary position embeddings in config.json, in the keys of transformers 4 or 5."""

from collections.abc import Mapping
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
"""Layer types in `layer_types` and in nested rope parameters."""

ORIGINAL = "original_max_position_embeddings"
"""Key of the longest text before a rope was scaled: among its parameters, or beside them in config.json."""

_SCALED = ("llama3", "yarn", "longrope")


def rope_parameters(values: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Return the rope's parameters of a config.json as transformers 5 writes them; `theta` is the family's."""
    rope = dict(values.get("rope_scaling") or values.get("rope_parameters") or {})
    own = {key: values[key] for key in ("partial_rotary_factor",) if key in values}
    _complete(rope, {"rope_theta": values.get("rope_theta", theta), **own}, values)
    if rope["rope_type"] in _SCALED:
        rope[ORIGINAL] = values.get(ORIGINAL, rope[ORIGINAL])  # beside the rope it comes first, as in transformers
    return rope


def nested_rope_parameters(values: Mapping[str, Any], full: float, sliding: float) -> dict[str, Any]:
    """Return the rope's parameters of full and of sliding layers, with the family's `rope_theta` of each.

    `rope_scaling` of a config.json applies to full layers only.
    """
    nested = values.get("rope_parameters") or {}
    ropes = {kind: dict(nested.get(kind) or {}) for kind in (FULL, SLIDING)}
    ropes[FULL] |= values.get("rope_scaling") or {}
    _complete(ropes[FULL], {"rope_theta": values.get("rope_theta", full)}, values)
    _complete(ropes[SLIDING], {"rope_theta": sliding}, values)
    return ropes


def _complete(rope: dict[str, Any], defaults: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Add the parameters that a rope lacks, in place; the type may have its old name."""
    for name, value in {"rope_type": rope.pop("type", "default"), **defaults}.items():
        rope.setdefault(name, value)
    if rope["rope_type"] in _SCALED:
        rope.setdefault(ORIGINAL, values["max_position_embeddings"])


def fill_layer_types(values: dict[str, Any], number: int) -> None:
    """Derive `layer_types`, if there are none: every `number`-th layer has full attention, the others a window."""
    if values["layer_types"] is None:
        layers = range(values["num_hidden_layers"])
        values["layer_types"] = [FULL if (layer + 1) % number == 0 else SLIDING for layer in layers]
