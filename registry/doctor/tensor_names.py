"""Names of tensors in words: which layer, and which part of it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from registry.hosts.context import CONTEXT_LAYERS
from registry.runtime.gates import GATE

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_MEMBER = re.compile(r"^members\.(\d+)\.")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")
_EMBEDDINGS = (
    "embed_tokens.weight",
    "embed_in.weight",
    "wte.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
)
_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
_ADDED = ("head_maps.", "evidence", "thresholds", "pairs", "pair_experts")
"""Parts of the names of tensors that context routing adds to a model's own."""


def part_of(name: str) -> str:
    """Return the part of a model that a tensor belongs to, in a word; `part` if its name says none."""
    parts = {
        "router": GATE.fullmatch(name.removesuffix(".weight")) is not None,
        "experts": ".experts." in name,
        "norm": "norm" in name,
        "attention": "attn" in name or "attention" in name,
        "MLP": ".mlp." in name or ".feed_forward." in name,
        "embedding": name.endswith(_EMBEDDINGS),
        "head": name.endswith(_HEADS) and _LAYER.search(name) is None,
    }
    return next((part for part, is_it in parts.items() if is_it), "part")


def tensors_of(part: str, names: Iterable[str]) -> list[str]:
    """Return the names of the tensors that belong to a part (`part_of`)."""
    return [name for name in names if part_of(name) == part]


def layer_of(name: str) -> int | None:
    """Return the number of the layer that a tensor is in."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def role_of(name: str) -> str:
    """Return what a tensor is in every layer, expert and member: its name with `*` for numbers."""
    return _NUMBER.sub("*", name)


def numbers_of(name: str) -> tuple[int, ...]:
    """Return the numbers in a tensor's name, which `role_of` leaves out."""
    return tuple(map(int, _NUMBER.findall(name)))


def is_made_up(name: str, config: Mapping[str, Any]) -> bool:
    """Tell whether context routing made a tensor, so that it has zeros and large constants on purpose."""
    added = config.get(CONTEXT_LAYERS)
    if isinstance(added, list) and added:
        return layer_of(name) in added or part_of(name) == "router" or layer_of(name) is None
    return any(part in name for part in _ADDED)


def in_words(name: str) -> str:
    """Return what a tensor is, as in `layer 3's router`."""
    layer, expert, member = _LAYER.search(name), _EXPERT.search(name), _MEMBER.search(name)
    part = part_of(name)
    part = f"expert {expert[1]}" if expert and part == "experts" else part
    found = f"layer {layer[1]}'s {part}" if layer else f"the {part}" if part != "part" else "a tensor"
    return f"{found} of member {member[1]}" if member else found


def named(names: Iterable[str]) -> str:
    """Return tensors in words: the first one with its name, and how many more there are."""
    first, *others = names
    more = f" and {len(others)} more tensor{'s' * (len(others) > 1)}" if others else ""
    return f"{in_words(first)} ({first}){more}"
