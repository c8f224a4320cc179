"""The host for families that no native architecture carries: one modelling file of ours beside the weights.

The composed folder's `modeling_routed.py` subclasses the dense class and routes its MLPs; transformers loads it with
`trust_remote_code=True`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from registry.architecture import Architecture
from registry.hosts.host import Host, PerExpert

REMOTE_CODE = "remote-code"
"""What a recipe calls this host."""

ROUTED = "routed_"
"""What its `model_type` begins with; the dense one follows."""

_MODULE = "modeling_routed"
_DROPPED = ("_name_or_path", "transformers_version", "auto_map", "quantization_config")


def remote_code_host(model_type: str, class_name: str, layers: str) -> Host:
    """Return the host of a dense class.

    Args:
        model_type: of the dense family.
        class_name: the dense class of transformers.
        layers: where its layers are, as a module.
    """
    source = Path(__file__).with_name(f"{_MODULE}.py").read_text(encoding="utf-8")
    source = source.replace("LlamaForCausalLM as", f"{class_name} as").replace('"model.layers"', json.dumps(layers))

    def config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
        return {
            "auto_map": {
                "AutoConfig": f"{_MODULE}.RoutedConfig",
                "AutoModelForCausalLM": f"{_MODULE}.RoutedForCausalLM",
            },
            "num_experts_per_tok": top_k,
            "num_local_experts": experts,
            "vocab_size": architecture.vocab_size,
        }

    return Host(
        model_type=f"{ROUTED}{model_type}",
        class_name="RoutedForCausalLM",
        gate="mlp.gate.weight",
        experts=PerExpert("mlp.experts.{expert}.{projection}"),
        config=config,
        layers=layers,
        dense_config=dense_config,
        files={f"{_MODULE}.py": source.encode()},
    )


def dense_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a folder takes over from the members' own config.json."""
    return {key: value for key, value in config.items() if key not in _DROPPED}
