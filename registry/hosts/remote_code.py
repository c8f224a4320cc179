"""Hosts with their own modelling file beside the weights; they load with `trust_remote_code=True`.

`modeling_routed.py` subclasses the dense class and routes its MLPs: the host for families that no native architecture
carries. `modeling_ensemble.py` holds complete dense models and mixes their predictions.
"""

import json
from pathlib import Path
from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import Host, PerExpert, dense_config

REMOTE_CODE = "remote-code"
"""Name of this host in recipes."""

ROUTED = "routed_"
"""Prefix of its `model_type`, before that of the dense model."""

ENSEMBLE = "ensemble_"
"""Prefix of an ensemble's `model_type`, before that of the dense model."""

ENSEMBLE_MODULE = "modeling_ensemble"
_MODULE = "modeling_routed"


def remote_code_host(model_type: str, class_name: str, layers: str) -> Host:
    """Return the host of a dense class.

    Args:
        model_type: of the dense family.
        class_name: the dense class of transformers.
        layers: name of the module of its layers.
    """
    source = _source(_MODULE, class_name).replace('"model.layers"', json.dumps(layers))

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


def ensemble_code(class_name: str) -> dict[str, bytes]:
    """Return the modelling file of ensembles of a dense class of transformers, by its name."""
    return {f"{ENSEMBLE_MODULE}.py": _source(ENSEMBLE_MODULE, class_name).encode()}


def _source(module: str, class_name: str) -> str:
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    return source.replace("LlamaForCausalLM as", f"{class_name} as")
