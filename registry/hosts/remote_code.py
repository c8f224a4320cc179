"""Hosts with their own modelling file beside the weights; they load with `trust_remote_code=True`.

`modeling_routed.py` subclasses the dense class and routes its MLPs: the host for families that no native architecture
carries. `modeling_biased.py`, `modeling_context.py` and `modeling_softmax_topk.py` subclass that: routers with a bias,
routers of the text so far, and weights from the softmax over all experts. `modeling_ensemble.py` holds complete dense
models and mixes their predictions; `modeling_mixed.py` subclasses it, with one routing and one way of mixing more.
`modeling_families.py` subclasses that one, for members that differ in family or size; `modeling_hetero.py` holds bodies
of several architectures between one embedding and one head. `modeling_simoe.py` subclasses the dense class, and changes
its linear layers by what experts of a SIMoE share.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import NORM_TOPK_PROB, Host, PerExpert, dense_config
from registry.hosts.tensors import OwnHeadMap

REMOTE_CODE = "remote-code"
"""Name of this host in recipes."""

ROUTED = "routed_"
"""Prefix of its `model_type`, before that of the dense model."""

ENSEMBLE = "ensemble_"
"""Prefix of an ensemble's `model_type`, before that of the dense model."""

ENSEMBLE_MODULE, MIXED_MODULE = "modeling_ensemble", "modeling_mixed"

HETERO = "ensemble_hetero"
"""The `model_type` of members of several architectures between one embedding and one head."""

FAMILIES_ENSEMBLE = "ensemble_families"
"""The `model_type` of an ensemble whose members differ in family or size."""

HETERO_MODULE, FAMILIES_MODULE = "modeling_hetero", "modeling_families"

SIMOE = "simoe_"
"""Prefix of a SIMoE's `model_type`, before that of the dense model."""

SIMOE_MODULE = "modeling_simoe"

EVIDENCE_TENSOR = "evidence"
"""The tensor of evidence in a model that is routed by the text so far."""

THRESHOLDS_TENSOR = "thresholds"
"""The tensor of the thresholds of its fast window."""

CONTEXT_WINDOW, CONTEXT_SHARPNESS = "context_window", "context_sharpness"
CONTEXT_FAST, CONTEXT_ALARM = "context_fast", "context_alarm"
HEAD_MAPS = "head_maps"
"""Keys of config.json, and options of the architecture, of a model that is routed by the text so far."""

_CONTEXT_KEYS = (CONTEXT_WINDOW, CONTEXT_FAST, CONTEXT_ALARM, CONTEXT_SHARPNESS, HEAD_MAPS)
ROUTER_BIAS = "router_bias"
"""Key of config.json of a model whose weights are from the softmax over all experts: its routers have a bias."""

_CODE = Path(__file__).with_name("code")
_MODULE, _CONTEXT_MODULE, _BIASED_MODULE = "modeling_routed", "modeling_context", "modeling_biased"
_SOFTMAX_TOPK_MODULE = "modeling_softmax_topk"
_IMPORT = re.compile(r"^from \.modeling_\w+ import .*\n", re.MULTILINE)


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


def context_code_host(model_type: str, class_name: str, layers: str) -> Host:
    """Return the host of a dense class that routes by the text so far (arguments as `remote_code_host`).

    Its config.json holds the architecture's options of `_CONTEXT_KEYS`.
    """
    routed = remote_code_host(model_type, class_name, layers)

    def config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
        return routed.config(architecture, experts, top_k) | {
            "auto_map": {
                "AutoConfig": f"{_CONTEXT_MODULE}.ContextConfig",
                "AutoModelForCausalLM": f"{_CONTEXT_MODULE}.ContextRoutedForCausalLM",
            },
            **{key: architecture.options[key] for key in _CONTEXT_KEYS},
        }

    return replace(routed, class_name="ContextRoutedForCausalLM", config=config, files=_joined(_CONTEXT_MODULE, routed))


def biased_code_host(model_type: str, class_name: str, layers: str) -> Host:
    """Return the host of a dense class whose routers have a bias (arguments as `remote_code_host`)."""
    routed, name = remote_code_host(model_type, class_name, layers), "BiasedRoutedForCausalLM"

    def config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
        return routed.config(architecture, experts, top_k) | {
            "auto_map": {
                "AutoConfig": f"{_BIASED_MODULE}.RoutedConfig",
                "AutoModelForCausalLM": f"{_BIASED_MODULE}.{name}",
            }
        }

    files = _joined(_BIASED_MODULE, routed)
    return replace(routed, class_name=name, gate_bias="mlp.gate.bias", config=config, files=files)


def softmax_topk_code_host(model_type: str, class_name: str, layers: str, *, bias: bool = False) -> Host:
    """Return the host of a dense class whose experts keep the weights of the softmax over all of them.

    Args:
        model_type: of the dense family.
        class_name: the dense class of transformers.
        layers: name of the module of its layers.
        bias: routers have a bias.
    """
    routed, name = remote_code_host(model_type, class_name, layers), "SoftmaxTopKForCausalLM"

    def config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
        return routed.config(architecture, experts, top_k) | {
            "auto_map": {
                "AutoConfig": f"{_SOFTMAX_TOPK_MODULE}.RoutedConfig",
                "AutoModelForCausalLM": f"{_SOFTMAX_TOPK_MODULE}.{name}",
            },
            NORM_TOPK_PROB: False,
            ROUTER_BIAS: bias,
        }

    files = _joined(_SOFTMAX_TOPK_MODULE, routed)
    return replace(routed, class_name=name, gate_bias="mlp.gate.bias" if bias else "", config=config, files=files)


def _joined(module: str, routed: Host) -> dict[str, bytes]:
    """Return a modelling file that subclasses the routed model, with that in place of its import."""
    return {f"{module}.py": _merged(_read(module), routed.files[f"{_MODULE}.py"].decode())}


def _merged(source: str, imported: str) -> bytes:
    """Return a modelling file with the one that it imports in place of the import.

    Were they two files, transformers 4 would give folders of one name the other file of whichever it loaded first,
    although its dense class is another.
    """
    return _IMPORT.sub(lambda _: imported, source).encode()


def own_head_maps(experts: int, hidden_size: int, *, bias: bool) -> dict[str, OwnHeadMap]:
    """Return the tensors of head maps in `modeling_context.py`, by name, expert by expert.

    Args:
        experts: number of experts.
        hidden_size: H.
        bias: the last norm has a bias.
    """
    parts = {"weight": (hidden_size, hidden_size)} | ({"bias": (hidden_size,)} if bias else {})
    return {
        f"{HEAD_MAPS}.experts.{expert}.{part}": OwnHeadMap(shape, expert)
        for expert in range(experts)
        for part, shape in parts.items()
    }


def ensemble_code(class_name: str) -> dict[str, bytes]:
    """Return the modelling file of ensembles of a dense class of transformers, by its name."""
    return {f"{ENSEMBLE_MODULE}.py": _source(ENSEMBLE_MODULE, class_name).encode()}


def mixed_code(class_name: str) -> dict[str, bytes]:
    """Return that of ensembles that are weighed by the prompt, or whose logits are mixed."""
    ensemble = _source(ENSEMBLE_MODULE, class_name)
    return {f"{MIXED_MODULE}.py": _merged(_read(MIXED_MODULE), ensemble)}


def hetero_code() -> dict[str, bytes]:
    """Return the modelling file of members of several architectures."""
    return {f"{HETERO_MODULE}.py": _read(HETERO_MODULE).encode()}


def families_code() -> dict[str, bytes]:
    """Return that of ensembles whose members differ in family or size."""
    mixed = mixed_code("LlamaForCausalLM")[f"{MIXED_MODULE}.py"].decode()  # of which it takes what all classes have
    return {f"{FAMILIES_MODULE}.py": _merged(_read(FAMILIES_MODULE), mixed)}


def simoe_code(class_name: str) -> dict[str, bytes]:
    """Return the modelling file of a SIMoE of a dense class of transformers, by its name."""
    return {f"{SIMOE_MODULE}.py": _source(SIMOE_MODULE, class_name).encode()}


def _source(module: str, class_name: str) -> str:
    return _read(module).replace("LlamaForCausalLM as", f"{class_name} as")


def _read(module: str) -> str:
    return (_CODE / f"{module}.py").read_text(encoding="utf-8")
