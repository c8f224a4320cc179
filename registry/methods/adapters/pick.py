"""The expert of a text in a folder of adapters, by its tokens alone: no model is loaded."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import and_
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from registry.checkpoint.model_files import read_headers, weight_files, weight_source
from registry.errors import CheckpointError
from registry.io.torch_blocks import read_tensor
from registry.maths.context.evidence import ALIKE
from registry.maths.context.prefix import context_scores
from registry.runtime.sequence_hosts import HINT, Picked

TIE = 1e-9
"""Nats by which the member of what nobody knows is ahead where evidence is alike, as in the modelling file."""


class AdapterPicker:
    """Picks the expert of the last of some tokens, as the folder's model chooses it.

    Shapes: V tokens of the vocabulary, E members, T tokens of a text.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Read the evidence of a folder by its checked config.json (CheckpointError: it is not that of its members)."""
        self._folder, self._config = folder, config
        stored, self._experts = read_headers(weight_files(folder)), len(config["members"])
        expected: dict[str, tuple[int, ...]] = {
            "evidence": (config["vocab_size"], self._experts),
            "thresholds": (self._experts, self._experts),
        }
        self._count = config.get("context_pairs") or 0
        if self._count:
            expected |= dict.fromkeys(("pairs", "pair_experts", "pair_evidence"), (self._count,))
        self._tensors: dict[str, Tensor] = {}
        for name, shape in expected.items():
            if name not in stored or stored[name].shape != shape:
                raise CheckpointError(f"{folder} has no {name} of shape {list(shape)}", HINT)
            self._tensors[name] = read_tensor(weight_source(name, stored[name], str(folder)))

    def __call__(self, ids: Sequence[int]) -> Picked:
        """Return the expert of the last of some tokens (CheckpointError: a token is not in the vocabulary)."""
        config = self._config
        if max(ids) >= len(self._tensors["evidence"]):
            raise CheckpointError(
                f"{self._folder}: its tokenizer gives token {max(ids)}, which its model does not know", HINT
            )
        nobody, prefix, turns = (config.get(f"context_{name}") for name in ("nobody", "prefix", "turns"))
        start = sum(accumulate((a == b for a, b in zip(ids, prefix or [], strict=False)), and_))
        told = [at for at in range(start, len(ids)) if not (turns and _is_turn(ids, at, turns))]
        if not told:
            return Picked(nobody or 0, None)
        scores = self._scores(ids, told)
        if nobody is not None:
            scores[nobody] += TIE
        number = int(scores.argmax())
        next_best = scores.topk(min(2, self._experts)).values[-1]
        return Picked(number, float(scores[number] - next_best))

    def _scores(self, ids: Sequence[int], told: Sequence[int]) -> Float[Tensor, "E"]:
        """Return what the model compares at the last token, of the tokens at the places `told`."""
        config, past = self._config, torch.arange(len(told), dtype=torch.float64).flip(0)  # tokens ago
        further = torch.tensor(self._questions_after(ids, told), dtype=torch.float64) * config["context_window"]
        plain = self._tensors["evidence"][[ids[at] for at in told]].double()  # (T, E), of each token of the text
        evidence = plain.clone()
        if self._count:
            self._add_pairs(evidence, ids, told)

        def mean(window: float, evidence: Float[Tensor, "T E"], past: Float[Tensor, "T"]) -> Float[Tensor, "E"]:
            weights = torch.exp(-past / window) if window else torch.ones_like(past)
            return weights @ evidence / weights.sum()

        scores = mean(config["context_window"], evidence, past + further) - self._of_other_form(ids, past + further)
        if config["context_fast"]:
            fast, limits = mean(config["context_fast"], plain, past), self._tensors["thresholds"].double()
            scores = context_scores(scores, fast, limits, config["context_alarm"])
        return scores

    def _of_other_form(self, ids: Sequence[int], past: Float[Tensor, "T"]) -> Float[Tensor, "E"]:
        """Return what speaks against each expert by the form of the text: conversations' where no message has begun."""
        window, user = self._config["context_window"], list(self._config.get("context_user") or [])
        behind = torch.tensor(self._config.get("context_form") or [0.0] * self._experts, dtype=torch.float64)
        if any(list(ids[at : at + len(user)]) == user for at in range(len(ids) - len(user) + 1)):
            return behind * 0.0
        count = float(torch.exp(-past / window).sum()) if window else len(past)
        return behind * ((1 - ALIKE) / count + ALIKE)

    def _questions_after(self, ids: Sequence[int], told: Sequence[int]) -> list[int]:
        """Return how many questions begin, each after an answer, between each of the places `told` and the end."""
        begin = self._config.get("context_next") or []
        starts = range(len(begin), len(ids) + 1 if begin else 0)
        questions = [at for at in starts if list(ids[at - len(begin) : at]) == begin]
        return [sum(question > at for question in questions) for at in told]

    def _add_pairs(self, evidence: Float[Tensor, "T E"], ids: Sequence[int], told: Sequence[int]) -> None:
        """Add what each token tells beside the one before it, where both are told."""
        rows = [row for row, (before, at) in enumerate(pairwise(told), 1) if before == at - 1]
        size = self._config["vocab_size"]
        keys = torch.tensor([ids[told[row] - 1] * size + ids[told[row]] for row in rows], dtype=torch.int64)
        first, last = (torch.searchsorted(self._tensors["pairs"], keys, right=right) for right in (False, True))
        counts = last - first
        starts = counts.cumsum(0) - counts  # of each token's pairs among all that were found
        found = torch.arange(int(counts.sum())) + (first - starts).repeat_interleave(counts)
        added = torch.zeros(len(rows), self._experts)
        at = torch.arange(len(rows)).repeat_interleave(counts)
        added[at, self._tensors["pair_experts"][found].long()] = self._tensors["pair_evidence"][found]
        evidence[rows] += (added - added.mean(dim=-1, keepdim=True)).double()


def _is_turn(ids: Sequence[int], at: int, turns: Sequence[Sequence[int]]) -> bool:
    """Tell whether a token, with those before it, begins one of `turns`, as the modelling file does."""
    return any(
        list(ids[at + 1 - size : at + 1]) == list(turn[:size])
        for turn in turns
        for size in range(1, min(len(turn), at + 1) + 1)
    )
