"""Trace of the expert that handles each token of a text, from one recorded pass through a composed model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from registry.checkpoint.model_files import read_config
from registry.errors import InvalidInputError, first_line
from registry.io.dtypes import AUTO
from registry.runtime.folder_checks import check_members
from registry.runtime.gates import expert_count, expert_names, record_routing
from registry.runtime.loading import load_tokenizer
from registry.runtime.sequence_hosts import Picker, sequence_host
from registry.runtime.upcast import load_for_pass

MOST_CHARACTERS = 100_000
"""A longer text is refused: it is one window for the model."""


@dataclass(frozen=True)
class RoutedToken:
    """One token and its experts.

    Attributes:
        weights: the routing weights of each layer, expert → weight, the largest first; they sum to 1. Of an ensemble or
            a SIMoE, which count as one layer, all members' for the token after this one, 0 for those that are not kept.
    """

    id: int  # its number in the vocabulary
    text: str  # its characters; empty for a token that continues a character of several tokens
    special: bool  # True if the tokenizer added it
    experts: tuple[str, ...]  # the first choice of each layer
    weights: tuple[dict[str, float], ...]

    @property
    def total_weights(self) -> dict[str, float]:
        """Expert → its weights summed over the layers, of those that have one."""
        total: dict[str, float] = {}
        for layer in self.weights:
            for name, weight in layer.items():
                total[name] = total.get(name, 0.0) + weight
        return total

    @property
    def overall(self) -> str:
        """The expert with the most weight over all layers; the first by name if some have equal weights."""
        total = self.total_weights
        return min(total, key=lambda name: (-total[name], name))

    def expert(self, layer: int | None) -> str:
        """Return the expert of one layer, or over all layers for None."""
        return self.overall if layer is None else self.experts[layer]


@dataclass(frozen=True)
class Routed:
    """A text and the experts of its tokens.

    Attributes:
        experts: the names of the model's experts, in their order.
        layers: the number of layers that route.
    """

    experts: tuple[str, ...]
    layers: int
    tokens: tuple[RoutedToken, ...]

    @property
    def is_alike(self) -> bool:
        """True if several layers send each token to the same one of several experts first."""
        return min(self.layers, len(self.experts)) > 1 and all(len(set(token.experts)) == 1 for token in self.tokens)

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
    """Trace the expert that handles each token of a text, in a composed folder.

    Args:
        folder: a mixture, an ensemble or a SIMoE; its members need not be registered.
        text: the text, as one window.
        device: a torch device; the GPU by default, if there is one.

    Raises:
        InvalidInputError: the folder holds neither, or the text has no token or more than the model takes.
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
        raise _no_token()
    model = load_for_pass(folder, AUTO, device, prefer_whole=True)
    limit = getattr(model.config, "max_position_embeddings", None)
    if isinstance(limit, int) and len(ids) > limit:
        raise InvalidInputError(f"the text has {len(ids):,} tokens, the model takes {limit:,}", "give a part of it")
    names = expert_names(model, folder, expert_count(model))
    with torch.no_grad(), record_routing(model) as routings:
        model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    layers = [(routing.chosen[-1].tolist(), routing.weights[-1].tolist()) for routing in routings]
    tokens = []
    for position, (number, piece) in enumerate(zip(ids, pieces, strict=True)):
        weights = tuple(
            {names[expert]: weight for expert, weight in zip(chosen[position], shares[position], strict=True)}
            for chosen, shares in layers
        )
        first = tuple(next(iter(layer_weights)) for layer_weights in weights)
        tokens.append(RoutedToken(number, piece, special[position], first, weights))
    return Routed(names, len(layers), tuple(tokens))


def pick(folder: str | PathLike[str], text: str, device: str | None = None) -> str:
    """Return the one expert of a text: the one that goes on with it (arguments and errors as `route`).

    It is for servers that take an adapter's name with each request. Of a folder of adapters no model is loaded; where
    its base model is a member, text that no adapter knows is the base model's, and its name is returned.
    """
    if text and (picker := ExpertPicker.of(folder)) is not None:
        return picker.pick(text)[0]
    return route(Path(folder), text, device).tokens[-1].overall


@dataclass(frozen=True)
class ExpertPicker:
    """Picks the one expert of each of many texts by tokens alone, as `pick` does; what it needs is read once.

    Attributes:
        members: the names of the folder's experts, in their order.
    """

    members: tuple[str, ...]
    tokenizer: Any
    _picked: Picker

    @classmethod
    def of(cls, folder: str | PathLike[str]) -> "ExpertPicker | None":
        """Return the picker of a folder; None if its model must run to tell (CheckpointError: it is damaged)."""
        folder = Path(folder)
        config = read_config(folder)
        if (host := sequence_host(config.get("model_type"))) is None:
            return None
        check_members(folder, config)
        picked = host.picker(folder, config)
        return None if picked is None else cls(tuple(map(str, config["members"])), load_tokenizer(folder), picked)

    def pick(self, text: str | Sequence[Mapping[str, Any]]) -> tuple[str, float | None]:
        """Return the expert of a text, or of a conversation's answer, and how clearly.

        Args:
            text: the text; or messages with `role` and `content`, which the chat template makes a text.

        Returns:
            Its name, and by how much what the model compares is above the next expert's; None where nothing tells.

        Raises:
            InvalidInputError: the text has no token, or the chat template refuses the messages.
        """
        if isinstance(text, str):
            ids = self.tokenizer(text)["input_ids"]
        else:
            try:
                ids = self.tokenizer.apply_chat_template(list(text), add_generation_prompt=True, return_dict=False)
            except Exception as error:  # whatever a template or its engine raises
                raise InvalidInputError(
                    f"the chat template does not take these messages: {first_line(error)}",
                    "give messages with role and content, in the order that the model was trained with",
                ) from error
        if not ids:
            raise _no_token()
        found = self._picked(ids)
        return self.members[found.number], found.ahead


def _no_token() -> InvalidInputError:
    return InvalidInputError("the text has no token", 'give some: reg route moe/ "def add(a, b):"')


def _tokens(tokenizer: Any, text: str) -> tuple[list[int], list[str], list[bool]]:
    """Return ids, the characters of each, and which are special; white space belongs to the token after it."""
    if not getattr(tokenizer, "is_fast", False):
        ids = list(tokenizer(text)["input_ids"])
        special_ids = set(tokenizer.all_special_ids)
        return ids, [tokenizer.decode([number]) for number in ids], [number in special_ids for number in ids]
    coded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids, marks = list(coded["input_ids"]), [bool(mark) for mark in coded["special_tokens_mask"]]
    pieces, end = [], 0  # the end of the characters that have a token
    for number, (_, stop), mark in zip(ids, coded["offset_mapping"], marks, strict=True):
        if mark and stop <= end:
            pieces.append(str(tokenizer.convert_ids_to_tokens(number)))
            continue
        pieces.append(text[end : max(end, stop)])
        end = max(end, stop)
    return ids, pieces, marks
