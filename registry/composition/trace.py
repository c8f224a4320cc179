"""Which expert handles each token of a text: one pass through a composed model, its routers recorded."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import InvalidInputError
from registry.io.model_folder import composed_of
from registry.runtime.gates import gates, record_routing
from registry.runtime.loading import load_model, load_tokenizer

MOST_CHARACTERS = 100_000
"""A longer text is refused: it is one window for the model."""


@dataclass(frozen=True)
class RoutedToken:
    """One token.

    Attributes:
        id: in the vocabulary.
        text: the characters it stands for; empty where a character takes several tokens and this is not the first.
        special: the tokenizer added it.
        experts: for each layer the expert that it goes to first.
        weights: for each layer its routing weights, expert → weight, the largest first; they sum to 1.
    """

    id: int
    text: str
    special: bool
    experts: tuple[str, ...]
    weights: tuple[dict[str, float], ...]

    @property
    def overall(self) -> str:
        """The expert with the most weight over all layers; of equals the first by name."""
        total: dict[str, float] = {}
        for layer in self.weights:
            for name, weight in layer.items():
                total[name] = total.get(name, 0.0) + weight
        return min(total, key=lambda name: (-total[name], name))

    def expert(self, layer: int | None) -> str:
        """Return the expert of one layer, or with None over all of them."""
        return self.overall if layer is None else self.experts[layer]


@dataclass(frozen=True)
class Routed:
    """A text and where its tokens went.

    Attributes:
        experts: what the model's experts are called, in their order.
        layers: how many layers route.
        tokens: in the order of the text.
    """

    experts: tuple[str, ...]
    layers: int
    tokens: tuple[RoutedToken, ...]

    def shares(self, layer: int | None = None) -> dict[str, float]:
        """Return expert → share of the tokens that it handles, at one layer or over all."""
        counts = Counter(token.expert(layer) for token in self.tokens)
        return {expert: counts[expert] / len(self.tokens) for expert in self.experts}

    def document(self) -> dict[str, Any]:
        """Return everything as `--json` shows it."""
        return {
            "experts": self.experts,
            "shares": self.shares(),
            "tokens": [vars(token) | {"expert": token.overall} for token in self.tokens],
        }


def route(folder: Path, text: str, device: str | None = None) -> Routed:
    """Return which expert handles each token of a text, in a composed folder.

    Args:
        folder: a mixture; nothing need be registered.
        text: one window.
        device: a torch device; default the GPU if there is one.

    Raises:
        InvalidInputError: the folder is no mixture, or the text has no token, or more than the model takes.
        CheckpointError: the folder does not load, or has no tokenizer.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidInputError(
            f"the text has {len(text):,} characters, at most {MOST_CHARACTERS:,} are routed", "give a part of it"
        )

    import torch

    tokenizer = load_tokenizer(folder)
    ids, pieces, special = _tokens(tokenizer, text)
    if not ids:
        raise InvalidInputError("the text has no token", 'give some: reg route moe/ "def add(a, b):"')
    model = load_model(folder, "float32", device)
    count = gates(model)[0].experts
    most = getattr(model.config, "max_position_embeddings", None)
    if isinstance(most, int) and len(ids) > most:
        raise InvalidInputError(f"the text has {len(ids):,} tokens, the model takes {most:,}", "give a part of it")
    names = tuple(composed_of(folder))
    names = names if len(names) == count else tuple(map(str, range(count)))
    with torch.no_grad(), record_routing(model) as routings:
        model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    layers = [(routing.chosen[-1].tolist(), routing.weights[-1].tolist()) for routing in routings]
    tokens = []
    for at, (number, piece) in enumerate(zip(ids, pieces, strict=True)):
        weights = tuple(
            {names[expert]: weight for expert, weight in zip(chosen[at], given[at], strict=True)}
            for chosen, given in layers
        )
        tokens.append(RoutedToken(number, piece, special[at], tuple(next(iter(one)) for one in weights), weights))
    return Routed(names, len(layers), tuple(tokens))


def _tokens(tokenizer: Any, text: str) -> tuple[list[int], list[str], list[bool]]:
    """Return ids, the characters that each stands for, and which are special; white space goes to what follows."""
    if not getattr(tokenizer, "is_fast", False):
        ids = list(tokenizer(text)["input_ids"])
        known = set(tokenizer.all_special_ids)
        return ids, [tokenizer.decode([number]) for number in ids], [number in known for number in ids]
    coded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids, marks = list(coded["input_ids"]), [bool(mark) for mark in coded["special_tokens_mask"]]
    pieces, done = [], 0
    for number, (_, stop), mark in zip(ids, coded["offset_mapping"], marks, strict=True):
        if mark and stop <= done:
            pieces.append(str(tokenizer.convert_ids_to_tokens(number)))
            continue
        pieces.append(text[done : max(done, stop)])
        done = max(done, stop)
    return ids, pieces, marks
