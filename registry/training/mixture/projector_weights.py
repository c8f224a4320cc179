"""The weights that train between members of several architectures: projectors, and the router of sequences.

MergeME (Zhou et al. 2025, §3.2) trains them too; here they begin at their closed form.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from registry.checkpoint.model_files import read_config
from registry.errors import InvalidInputError
from registry.io.torch_blocks import to_block, torch_dtype
from registry.training.parent import Parent
from store.arrays import ArraySource, digest_of

_PROJECTOR = re.compile(r"(members\.\d+\..*\.projector|outputs\.\d+)\.weight")
_ROUTER = "router.weight"


def check_projectors(parent: Parent) -> None:
    """Check that a folder has projectors or a router that a language-model loss can train.

    Raises:
        InvalidInputError: it has not.
    """
    config = read_config(parent.folder)
    if not config.get("routing_tokens"):
        raise InvalidInputError(
            f"{parent.folder} weighs a text by all of its tokens, so that a loss would see what it predicts",
            "compose it again with --routing-tokens 32, and train that",
        )
    if not _names(parent.tensors, config):
        raise InvalidInputError(
            f"{parent.folder} has nothing to train: its members share one embedding and head already, and one member "
            "for each text leaves its router without a gradient",
            "compose it again with --top-k 2, and train that",
        )


def projector_weights(parent: Parent) -> int:
    """Return the number of weights that a training of a checked folder's projectors changes."""
    names = _names(parent.tensors, read_config(parent.folder))
    return sum(math.prod(parent.tensors[name].shape) for name in names)


def let_projectors_train(model: Any) -> None:
    """Let projectors have gradients, the router if a text has several members, and no other weight."""
    model.requires_grad_(False)
    for _, part in _trained(model):
        part.requires_grad_(True)


def changed_projectors(model: Any, parent: Parent) -> dict[str, ArraySource]:
    """Return the projectors and the router that a training changed, by name, in the dtypes of the parent's files."""
    changed = {}
    for name, part in _trained(model):
        dtype = parent.dtype_of(name)
        source = ArraySource.of(to_block(part.detach().cpu().to(torch_dtype(dtype))), dtype)
        if digest_of(source) != digest_of(parent.source(name)):
            changed[name] = source
    return changed


def _trained(model: Any) -> Iterator[tuple[str, nn.Parameter]]:
    parameters = dict(model.named_parameters())
    for name in _names(parameters, model.config.to_dict()):
        yield name, parameters[name]


def _names(tensors: Mapping[str, object], config: Mapping[str, Any]) -> list[str]:
    """Return the names of the tensors that train; the weight of a single member is 1, without a gradient."""
    routes = config["routing_top_k"] > 1
    return [name for name in tensors if _PROJECTOR.fullmatch(name) or (routes and name == _ROUTER)]
