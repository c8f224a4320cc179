"""The expert of a text in a folder of adapters, by its tokens alone: no model is loaded."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import and_
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.checkpoint.model_files import read_headers, weight_files, weight_source
from registry.errors import CheckpointError
from registry.io.torch_blocks import read_tensor
from registry.maths.context.prefix import context_scores, prefix_means
from registry.runtime.sequence_hosts import HINT

TIE = 1e-9
"""Nats by which the member of what nobody knows is ahead where evidence is alike, as in the modelling file."""


def pick(folder: Path, config: Mapping[str, Any], ids: Sequence[int]) -> int:
    """Return the number of the expert of the last of some tokens, as the folder's model chooses it.

    `config` is its checked config.json (CheckpointError: evidence and thresholds are not those of its members, or a
    token is not in its vocabulary).
    """
    stored, experts = read_headers(weight_files(folder)), len(config["members"])
    expected = {"evidence": (config["vocab_size"], experts), "thresholds": (experts, experts)}
    tensors: dict[str, Tensor] = {}
    for name, shape in expected.items():
        if name not in stored or stored[name].shape != shape:
            raise CheckpointError(f"{folder} has no {name} of shape {list(shape)}", HINT)
        tensors[name] = read_tensor(weight_source(name, stored[name], str(folder))).double()
    if max(ids) >= len(tensors["evidence"]):
        raise CheckpointError(f"{folder}: its tokenizer gives token {max(ids)}, which its model does not know", HINT)
    nobody, prefix, turns = (config.get(f"context_{name}") for name in ("nobody", "prefix", "turns"))
    start = sum(accumulate((a == b for a, b in zip(ids, prefix or [], strict=False)), and_))
    ids = [token for at, token in enumerate(ids) if at >= start and not _is_turn(ids, at, turns or [])]
    if not ids:
        return nobody or 0
    text, past = torch.tensor([ids]), torch.arange(len(ids), dtype=torch.float64)

    def means(window: float) -> Tensor:
        weights = torch.exp(-past / window) if window else torch.ones_like(past)
        return prefix_means(text, torch.ones_like(text, dtype=torch.bool), tensors["evidence"], weights)[0, -1:]

    scores = means(config["context_window"])
    if config["context_fast"]:
        scores = context_scores(scores, means(config["context_fast"]), tensors["thresholds"], config["context_alarm"])
    if nobody is not None:
        scores[0, nobody] += TIE
    return int(scores[0].argmax())


def _is_turn(ids: Sequence[int], at: int, turns: Sequence[Sequence[int]]) -> bool:
    """Tell whether a token, with those before it, begins one of `turns`, as the modelling file does."""
    return any(
        list(ids[at + 1 - size : at + 1]) == list(turn[:size])
        for turn in turns
        for size in range(1, min(len(turn), at + 1) + 1)
    )
