"""Folders of SIMoEs: the dense class with linear layers between the experts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError
from registry.families import FAMILIES, Family
from registry.hosts.architecture import Architecture
from registry.io.untrusted import COUNT, LABEL, list_of, some_fields
from registry.runtime.sequence_hosts import HINT, MOST_TOKENS, SequenceHost

SIMOE = "simoe_"
"""Prefix of a SIMoE's `model_type`, before that of the dense model."""
MODELLING_FILE = Path(__file__).with_name("modeling_simoe.py")
_KEYS = {
    "members": list_of(LABEL),
    "prompt_tokens": COUNT,
    "interpolated_layers": list_of(LABEL),
    "interpolated_rows": list_of(COUNT),
}


def interpolated_layers(family: Family, architecture: Architecture) -> list[str]:
    """Return the modules that have a D, as transformers names them: all linear ones of attention and MLPs, in order."""
    names = family.layer_matrices(architecture)
    return [family.renamed.get(name, name).removesuffix(".weight") for name in names]


def layer_outputs(family: Family, architecture: Architecture) -> list[int]:
    """Return how many outputs each of these modules has."""
    shapes = family.trunk_shapes(architecture) | family.mlp_shapes(architecture)
    return [shapes[name][0] for name in family.layer_matrices(architecture)]


class SimoeHost(SequenceHost):
    """SIMoEs of a dense class."""

    model_type = SIMOE
    files = (MODELLING_FILE,)

    def check(self, config: Mapping[str, Any], where: str) -> None:
        keys = some_fields(config, _KEYS, where, hint=HINT)
        family, tokens = FAMILIES[config["model_type"].removeprefix(SIMOE)], keys["prompt_tokens"]
        try:
            architecture = family.architecture(config)
            layers = interpolated_layers(family, architecture)
        except ValueError as error:
            raise CheckpointError(f"{where}: {error}", HINT) from error
        if not 1 <= tokens <= MOST_TOKENS:
            raise CheckpointError(f"{where}: prompt_tokens is {tokens}, it must be from 1 to {MOST_TOKENS:,}", HINT)
        if not keys["members"]:
            raise CheckpointError(f"{where}: members is empty, expected one name or more", HINT)
        if keys["interpolated_layers"] != layers:
            own, expected = keys["interpolated_layers"], len(layers)
            strange = next((name for name in own if name not in layers), None)
            problem = f"has {len(own)} names, expected {expected}" if strange is None else f"names {strange[:80]!r}"
            raise CheckpointError(
                f"{where}: interpolated_layers {problem}: all linear layers of attention and MLPs, in their order",
                HINT,
            )
        rows, outputs = keys["interpolated_rows"], layer_outputs(family, architecture)
        if len(rows) != len(outputs):
            raise CheckpointError(f"{where}: interpolated_rows has {len(rows)} counts, expected {len(outputs)}", HINT)
        for layer, count, most in zip(layers, rows, outputs, strict=True):
            if count > most:
                raise CheckpointError(f"{where}: interpolated_rows has {count} of {layer}, which has {most}", HINT)
