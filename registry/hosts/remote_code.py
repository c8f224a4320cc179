"""Hosts with their own modelling file beside the weights; they load with `trust_remote_code=True`.

The files are in `code/`, and those of one method in its folder. A file that builds on another one imports it, and in a
model's folder the two are one file:

    modeling_routed         the dense class with routed MLPs, for families that no native architecture carries
      modeling_biased         with routers that have a bias
      modeling_context        with routers of the text so far
      modeling_softmax_topk   with weights from the softmax over all experts
    modeling_sequences      the call of models that weigh experts by each sequence's text; in no folder by itself
      modeling_members        several models side by side; in no folder by itself
"""

import json
import re
from pathlib import Path
from typing import Any

from registry.hosts.architecture import Architecture
from registry.hosts.host import LAYERS, DenseClass, Host, PerExpert, dense_config

REMOTE_CODE = "remote-code"
"""Name of this host in recipes."""

ROUTED = "routed_"
"""Prefix of its `model_type`, before that of the dense model."""

HEAD_MAPS = "head_maps"
"""The module of head maps in a model that is routed by the text so far, and the key of config.json for it."""

_CODE = Path(__file__).with_name("code")
_IMPORT = re.compile(r"^from (\.|registry\.hosts\.code\.)(modeling_\w+) import .*\n", re.MULTILINE)


PLAIN, BIASED, CONTEXT = "modeling_routed", "modeling_biased", "modeling_context"
WHOLE_SOFTMAX = "modeling_softmax_topk"
CLASSES = {
    PLAIN: ("RoutedForCausalLM", "RoutedConfig"),
    BIASED: ("BiasedRoutedForCausalLM", "RoutedConfig"),
    CONTEXT: ("ContextRoutedForCausalLM", "ContextConfig"),
    WHOLE_SOFTMAX: ("SoftmaxTopKForCausalLM", "RoutedConfig"),
}
"""Modelling file of a mixture, without its suffix → the classes of the model and of its configuration."""


def routed_host(dense: DenseClass, module: str = PLAIN, *, bias: bool = False, **settings: Any) -> Host:
    """Return the host of a dense class with the modelling file `module`; with `bias` its routers have one.

    `settings` are what its config.json has besides the keys of the routed model.
    """
    name, config_class = CLASSES[module]

    def config(architecture: Architecture, experts: int, top_k: int) -> dict[str, Any]:
        return {
            "auto_map": {"AutoConfig": f"{module}.{config_class}", "AutoModelForCausalLM": f"{module}.{name}"},
            "num_experts_per_tok": top_k,
            "num_local_experts": experts,
            "vocab_size": architecture.vocab_size,
            **settings,
        }

    return Host(
        model_type=f"{ROUTED}{dense.model_type}",
        class_name=name,
        experts=PerExpert("mlp.experts.{expert}.{projection}"),
        config=config,
        layers=dense.layers,
        dense_config=dense_config,
        gate_bias="mlp.gate.bias" if bias else "",
        files=modelling_file(_CODE / f"{module}.py", dense.class_name, dense.layers),
    )


def modelling_file(path: Path, class_name: str = "LlamaForCausalLM", layers: str = LAYERS) -> dict[str, bytes]:
    """Return a modelling file by its name in the folder.

    What it imports from one other modelling file stands in place of the import, and so on. Were they two files,
    transformers 4 would give folders of one name the other file of whichever it loaded first, although its dense class
    is another.

    Args:
        path: the file, which imports from one other at most: from one beside it, or from `code/`.
        class_name: the dense class of transformers; members of several have what all classes have from any.
    """
    return {path.name: _source(path, class_name, layers).encode()}


def _source(path: Path, class_name: str, layers: str) -> str:
    source = path.read_text(encoding="utf-8")
    source = source.replace("LlamaForCausalLM as", f"{class_name} as").replace(f'"{LAYERS}"', json.dumps(layers))

    def imported(found: re.Match[str]) -> str:
        folder = path.parent if found[1] == "." else _CODE
        return _source(folder / f"{found[2]}.py", class_name, layers)

    return _IMPORT.sub(imported, source)
