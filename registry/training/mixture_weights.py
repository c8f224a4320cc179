"""The weights of a loaded mixture that train, its load-balance loss, and its tensors in the form of the parent's files.

Of members of several architectures everything trains, as in MergeME (Zhou et al. 2025, §3.2), or projectors and router
alone. Where MergeME begins with random ones, these begin at their closed form.

Shapes: T tokens and B sequences of a batch, S tokens in each, E experts, k experts per token.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from registry.checkpoint.model_files import read_config, read_headers, weight_files, weight_source
from registry.composition.trained import ALL, PROJECTORS, ROUTERS
from registry.errors import CheckpointError, InvalidInputError, StorageError
from registry.io.dtypes import NAMES
from registry.io.torch_blocks import to_block, to_tensor, torch_dtype
from registry.maths.router_training import balance_loss
from registry.runtime.gates import Gate, choice, gates, in_order, weighs_members
from registry.runtime.loading import quiet_transformers
from registry.training.parent import Parent
from registry.training.sharded import array_of
from store.arrays import ArraySource, Block, digest_of
from store.permissions import SPACE, writing

_BLOCK = re.compile(r".*layers\.\d+\.[a-z_]+\.")
"""The beginning of the names of a mixture's tensors, in that of its router."""

_SHARED = ".shared_expert"
_PROJECTOR = re.compile(r"(members\.\d+\..*\.projector|outputs\.\d+)\.weight")
_ROUTER = "router.weight"


class BalanceLoss:
    """The load-balance loss of the latest pass of a loaded mixture, summed over layers, times a weight.

    Where a router weighs members by sequences, it is that of these: E Σ_e f_e p_e, f_e the mean weight of member e and
    p_e the mean of its softmax over all, both over the pass's sequences (the next step in MergeME §7).
    """

    def __init__(self, model: Any, weight: float) -> None:
        self._model, self._weight = model, weight
        self._parts: list[Tensor] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Add up the losses of passes with gradients while the context is open."""
        model = self._model
        with ExitStack() as stack:
            if weighs_members(model):
                model._weigh = partial(self._record_sequences, model._weigh)
                stack.callback(delattr, model, "_weigh")  # that of its class is found again
            else:
                for gate in gates(model):
                    stack.callback(gate.module.register_forward_hook(partial(self._record, gate)).remove)
            yield

    def take(self) -> Tensor:
        """Return the loss since the last call, a scalar."""
        total = self._weight * torch.stack(self._parts).sum()
        self._parts.clear()
        return total

    def _record(self, gate: Gate, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not torch.is_grad_enabled():
            return
        # RoutedMLP's router returns the logits (T, E) alone.
        parts = (output, *choice(gate, output)) if isinstance(output, Tensor) else in_order(output)
        logits, weights, chosen = parts
        self._parts.append(balance_loss(logits, weights, chosen))

    def _record_sequences(self, weigh: Any, scores: Tensor, known: Tensor) -> Any:
        """Return the log weights (B, S, E) that a model gives its members by scores (B, S, E), and record their loss.

        `known`, (B, S), tells whether enough tokens were read; at the last one all of a sequence's weights are.
        """
        found = weigh(scores, known)
        if torch.is_grad_enabled():
            logits, weights = scores[:, -1].float(), found[:, -1].float().exp()  # (B, E)
            every = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
            # Sequences of a pass are equally long, so that the router has read enough of all of them, or of none.
            is_known = bool(known[:, -1].all())
            self._parts.append(balance_loss(logits, weights, every) if is_known else logits.new_zeros(()))
        return found


def check_several(parent: Parent, train: str, seq_len: int) -> None:
    """Raise InvalidInputError unless a language-model loss can train members of several architectures, or projectors.

    `train` is `all` or `projectors`, and `seq_len` the tokens of a window.
    """
    config = read_config(parent.folder)
    tokens, top_k = config["routing_tokens"], config["routing_top_k"]
    if not tokens:
        raise InvalidInputError(
            f"{parent.folder} weighs a text by all of its tokens, so that a loss would see what it predicts",
            "compose it again with --routing-tokens 32, and train that",
        )
    if train == ALL and top_k < 2:
        raise InvalidInputError(
            f"{parent.folder} sends each text to {top_k} member with weight 1, so its router would get no gradient",
            f"compose it again with --top-k 2, as MergeME does, and train that; or give --train {PROJECTORS}",
        )
    if not _projectors(parent.tensors, config):
        raise InvalidInputError(
            f"{parent.folder} has nothing to train: its members share one embedding and head already, and one member "
            "for each text leaves its router without a gradient",
            "compose it again with --top-k 2, and train that",
        )
    if top_k > 1 and seq_len <= tokens:
        raise InvalidInputError(
            f"{parent.folder} weighs its members by the first {tokens:,} tokens of a text, and windows have "
            f"{seq_len:,}, so its router would get no gradient",
            f"give --seq-len {tokens + 1} or more; or compose it again with fewer --routing-tokens",
        )


def trained_weights(parent: Parent, train: str) -> int:
    """Return the number of weights of a checked folder that a training of a part, a key of `NAMED`, changes."""
    if train == ROUTERS:
        names = [name for name, _ in parent.gates.values()]
    elif train == PROJECTORS:
        names = _projectors(parent.tensors, read_config(parent.folder))
    else:
        blocks = _blocks(parent)
        names = [name for name in parent.tensors if (train == ALL or name.startswith(blocks)) and _SHARED not in name]
    return sum(math.prod(parent.tensors[name].shape) for name in names)


def let_train(model: Any, train: str) -> None:
    """Let the weights of a loaded mixture that train have gradients: `mlps`, `all` or `projectors`; and no others.

    The shared expert of some hosts returns zero, is of no member, and never trains.
    """
    model.requires_grad_(train == ALL)
    parameters = dict(model.named_parameters())
    if train == PROJECTORS:
        for name in _projectors(parameters, model.config.to_dict()):
            parameters[name].requires_grad_(True)
        return
    if weighs_members(model):
        return
    for gate in gates(model):
        gate.block.requires_grad_(True)
    for name, part in parameters.items():
        if _SHARED in name:
            part.requires_grad_(False)


def changed_tensors(
    model: Any, parent: Parent, train: str, scratch: Path, whole: Mapping[str, Tensor]
) -> dict[str, ArraySource]:
    """Return the tensors that a training changed, by their names in the parent's files and in its dtypes.

    Args:
        model: the trained mixture, loaded from the parent.
        scratch: a folder for the model in float32, which the tensors are read from.
        whole: the weights of a sharded model by name; empty for any other.

    Raises:
        CheckpointError: transformers saves other tensors than the folder has, or one that is frozen has moved.
        StorageError: the disk is full or refuses.
    """
    if train == PROJECTORS:
        parts = dict(model.named_parameters())
        names = _projectors(parts, model.config.to_dict())
        arrays = {name: array_of(parts[name], parent.dtype_of(name)) for name in names}
        return {name: array for name, array in arrays.items() if digest_of(array) != digest_of(parent.source(name))}
    saved = scratch / "trained"
    _save(model, saved, whole)
    places = read_headers(weight_files(saved))
    if places.keys() != parent.tensors.keys():
        name = min(places.keys() ^ parent.tensors.keys())
        raise CheckpointError(
            f"{parent.folder}: transformers saves its tensors under other names, such as {name}, so only its routers "
            "can be trained here",
            "give --train routers",
        )
    blocks = _blocks(parent)
    changed = {}
    for name, place in parent.tensors.items():
        own = parent.source(name)
        source = _in_dtype(weight_source(name, places[name], "the trained mixture"), NAMES[place.dtype])
        if digest_of(source) == digest_of(own):
            continue
        if train != ALL and not name.startswith(blocks):
            raise CheckpointError(
                f"{parent.folder}: {name} is frozen, and has changed during the training",
                "this is a bug in the program or in a library; please report it",
            )
        changed[name] = source
    return changed


def _projectors(tensors: Mapping[str, object], config: Mapping[str, Any]) -> list[str]:
    """Return the names of the projectors, and of the router, unless the weight of its single member is always 1."""
    routes = config["routing_top_k"] > 1
    return [name for name in tensors if _PROJECTOR.fullmatch(name) or (routes and name == _ROUTER)]


def _blocks(parent: Parent) -> tuple[str, ...]:
    """Return the beginnings of the names of the tensors of its layers' experts and routers."""
    return tuple(match[0] for name, _ in parent.gates.values() if (match := _BLOCK.match(name)))


def _save(model: Any, folder: Path, whole: Mapping[str, Tensor]) -> None:
    from safetensors import SafetensorError

    try:
        with writing(folder), quiet_transformers():
            model.save_pretrained(folder, **({"state_dict": dict(whole)} if whole else {}))
    except SafetensorError as error:  # of a full disk too
        raise StorageError(f"{folder} cannot be written: {error}", SPACE) from error


def _in_dtype(source: ArraySource, dtype: str) -> ArraySource:
    def blocks() -> Iterator[Block]:
        for block in source.blocks():
            yield to_block(to_tensor(block, source.dtype).to(torch_dtype(dtype)))

    return ArraySource(dtype, source.shape, blocks)
