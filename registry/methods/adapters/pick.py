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
    expected: dict[str, tuple[int, ...]] = {
        "evidence": (config["vocab_size"], experts),
        "thresholds": (experts, experts),
    }
    pairs = config.get("context_pairs") or 0
    expected |= dict.fromkeys(("pairs", "pair_experts", "pair_evidence"), (pairs,)) if pairs else {}
    tensors: dict[str, Tensor] = {}
    for name, shape in expected.items():
        if name not in stored or stored[name].shape != shape:
            raise CheckpointError(f"{folder} has no {name} of shape {list(shape)}", HINT)
        tensors[name] = read_tensor(weight_source(name, stored[name], str(folder)))
    if max(ids) >= len(tensors["evidence"]):
        raise CheckpointError(f"{folder}: its tokenizer gives token {max(ids)}, which its model does not know", HINT)
    nobody, prefix, turns = (config.get(f"context_{name}") for name in ("nobody", "prefix", "turns"))
    start = sum(accumulate((a == b for a, b in zip(ids, prefix or [], strict=False)), and_))
    told = [at for at in range(start, len(ids)) if not _is_turn(ids, at, turns or [])]
    if not told:
        return nobody or 0
    past, text = torch.arange(len(told), dtype=torch.float64), torch.arange(len(told))[None]
    plain = tensors["evidence"][[ids[at] for at in told]].double()  # of each token of the text
    evidence = plain.clone()
    for number, (before, at) in enumerate(zip([-1, *told], told, strict=False)):
        if pairs and before == at - 1 >= 0:
            key = ids[before] * config["vocab_size"] + ids[at]
            first, last = (int(torch.searchsorted(tensors["pairs"], key, right=right)) for right in (False, True))
            added = torch.zeros(experts)
            added[tensors["pair_experts"][first:last].long()] = tensors["pair_evidence"][first:last]
            evidence[number] += (added - added.mean()).double()

    def means(window: float, evidence: Tensor) -> Tensor:
        weights = torch.exp(-past / window) if window else torch.ones_like(past)
        return prefix_means(text, torch.ones_like(text, dtype=torch.bool), evidence, weights)[0, -1:]

    scores = means(config["context_window"], evidence)
    if config["context_fast"]:
        fast, limits = means(config["context_fast"], plain), tensors["thresholds"].double()
        scores = context_scores(scores, fast, limits, config["context_alarm"])
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
