"""Checks of names and shapes: what config.json describes is what the weight files hold."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from registry.doctor.examination import Examination
from registry.doctor.finding import Finding, error, skipped, warning
from registry.doctor.tensor_names import in_words, is_embedding, is_expert, is_head, numbers_of, role_of
from registry.errors import CheckpointError, first_line, is_foreign
from registry.io.dtypes import NAMES
from registry.io.torch_blocks import torch_dtype
from registry.runtime.loading import unfilled_model
from registry.runtime.members_config import check_members
from registry.runtime.stored_sizes import check_stored_sizes

_SAVE = "save the model again: save_pretrained writes config.json and weights that belong together"
_COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")


def check_architecture(folder: Examination) -> Iterator[Finding]:
    """Check that the sizes in config.json fit one another and the tensors, before a model of them is made."""
    config, where = folder.config, str(folder.path / "config.json")
    for name in _COUNTS:
        value = config.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            yield error(f"config.json says {name} {str(value)[:40]}, it must be a whole number from 1", _SAVE)
            return
    yield from _heads(config)
    yield from _positions(config)
    if folder.has_our_code and isinstance(config.get("members"), list):
        check_members(folder.path, config)
    else:
        check_stored_sizes(folder.path, [config], where)


def _heads(config: dict[str, Any]) -> Iterator[Finding]:
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    groups, channels = config.get("num_key_value_heads"), config.get("head_dim")
    if not isinstance(heads, int):
        return
    if isinstance(groups, int) and (groups < 1 or heads % groups):
        yield error(f"config.json has {heads} attention heads, which {groups} key-value heads cannot share", _SAVE)
    if channels is None and isinstance(hidden, int) and hidden % heads:
        yield error(f"config.json has a hidden size of {hidden}, which {heads} attention heads cannot share", _SAVE)
    if isinstance(channels, int) and (channels < 1 or channels % 2):
        yield error(f"config.json says head_dim {channels}, and rotary positions need an even number", _SAVE)


def _positions(config: dict[str, Any]) -> Iterator[Finding]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = rope if isinstance(rope, dict) else {}
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if isinstance(theta, int | float) and theta <= 0:
        yield error(f"config.json says rope_theta {theta:g}, it must be more than 0", _SAVE)
    longest, trained = config.get("max_position_embeddings"), rope.get("original_max_position_embeddings")
    if isinstance(longest, int) and isinstance(trained, int) and longest < trained:
        yield warning(
            f"config.json allows {longest:,} positions, fewer than the {trained:,} that the rope scaling starts from"
        )
    factor = rope.get("factor")
    if isinstance(factor, int | float) and factor < 1:
        yield warning(f"config.json has a rope factor of {factor:g}: below 1 it shortens what the model can read")


def check_tied(folder: Examination) -> Iterator[Finding]:
    """Check that the head is there, or is tied to the embedding."""
    tensors = folder.tensors
    if isinstance(folder.config.get("members"), list) or not any(map(is_embedding, tensors)):
        return  # each member has its own; or it is of an architecture with other names
    if folder.config.get("tie_word_embeddings") is False and not any(map(is_head, tensors)):
        yield error(
            "config.json says tie_word_embeddings false, but there is no lm_head.weight, so its head would be random",
            "set tie_word_embeddings to true in config.json, if the model was trained so",
        )


def check_keys(folder: Examination) -> Iterator[Finding]:
    """Compare names and shapes with those of the model that config.json describes; no weight is read."""
    if folder.config.get("auto_map") and not folder.has_our_code:
        yield skipped("it has modelling code of its author, which is never run here")
        return
    odd = list(_odd_experts(folder))
    if odd:
        yield from odd
        return
    stored = {
        name: torch.empty(one.shape, dtype=torch_dtype(NAMES[one.dtype]), device="meta")
        for name, one in folder.tensors.items()
        if one.dtype in NAMES
    }
    try:
        info = unfilled_model(folder.path, stored)
    except CheckpointError:
        raise
    except Exception as failure:  # transformers raises many kinds
        if not is_foreign(failure):
            raise
        yield error(f"transformers cannot map its keys to the architecture: {first_line(failure)}", _SAVE)
        return
    if info is None:
        yield skipped("comparing keys without loading needs accelerate: pip install accelerate")
        return
    missing, unexpected = (sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys"))
    if missing:
        yield error(f"{_listed(missing)} missing: transformers would fill it with random numbers", _SAVE)
    if unexpected:
        yield error(
            f"{_listed(unexpected)} unknown to the architecture {folder.config.get('model_type')!s:.40}, and would be "
            "dropped",
            "check model_type in config.json, or save the model again without it",
        )
    for name, has, wanted in sorted((str(key), tuple(a), tuple(b)) for key, a, b in info["mismatched_keys"]):
        yield error(f"{in_words(name)} ({name}) has shape {has}, config.json asks for {wanted}", _SAVE)
        break


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"{in_words(names[0])} ({names[0]}){more}"


def _odd_experts(folder: Examination) -> Iterator[Finding]:
    """Find tensors that one expert of a layer lacks, or has in another shape: transformers does not name them."""
    found: dict[str, dict[tuple[int, ...], str]] = defaultdict(dict)
    for name in folder.tensors:
        if is_expert(name) and len(numbers_of(name)) >= 2:
            found[role_of(name)][numbers_of(name)] = name
    experts = {key for names in found.values() for key in names}
    for role, names in sorted(found.items()):
        if absent := sorted(experts - names.keys()):
            numbers = iter(absent[0])
            lacking = ".".join(str(next(numbers)) if part == "*" else part for part in role.split("."))
            yield error(f"{in_words(lacking)} ({lacking}) is missing, which other experts have", _SAVE)
            return
        shapes = Counter(folder.tensors[name].shape for name in names.values())
        usual = shapes.most_common(1)[0][0]
        for name in names.values():
            if folder.tensors[name].shape != usual:
                shape = folder.tensors[name].shape
                yield error(f"{in_words(name)} ({name}) has shape {shape}, other experts have {usual}", _SAVE)
                return
