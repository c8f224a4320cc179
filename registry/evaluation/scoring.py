"""Scores of one model: perplexity by domain, size, for a mixture or an ensemble the routing, for a mixture the speed.

Shapes: B windows of S tokens in a batch, V vocabulary, T = B · S tokens; L layers that route (1 in an ensemble), E
experts, k experts per token.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from registry.calibration import Calibration
from registry.errors import CheckpointError, InvalidInputError
from registry.evaluation.results import DomainLoss, TestSettings
from registry.progress import Advance, Progress
from registry.runtime.gates import (
    Gate,
    RoutingRecord,
    adapter_sizes,
    expert_count,
    expert_names,
    force_expert,
    gates,
    record_routing,
    weighs_members,
)
from registry.runtime.loading import quiet_transformers
from registry.runtime.upcast import load_for_pass

ROUNDS = 9  # timed turns, of which the median is taken; one more before them is not timed


@dataclass(frozen=True)
class Model:
    """A loaded model and its name, and its routers, layer by layer: none if it is not a mixture."""

    name: str
    loaded: Any
    routers: tuple[Gate, ...]
    folder: Path = Path()

    @property
    def parameters(self) -> int:
        """Weights in all, tied ones once."""
        return sum(weight.numel() for weight in self.loaded.parameters())

    @property
    def experts_per_token(self) -> int | None:
        """Number of experts that each token goes to; None if the model is not a mixture."""
        return self.routers[0].top_k if self.routers else None

    @property
    def layers(self) -> int:
        """L, the number of layers that route: 1 where members are weighed as a whole, 0 in a dense model."""
        return 1 if weighs_members(self.loaded) else len(self.routers)

    @property
    def experts(self) -> int:
        """E, the number of experts or members; 0 for a dense model."""
        return expert_count(self.loaded) if self.layers else 0

    @property
    def expert_names(self) -> list[str]:
        """Names of the experts: the members in order, or numbers if the folder records no members."""
        return list(expert_names(self.loaded, self.folder, self.experts))

    @property
    def active_parameters(self) -> int:
        """Weights that take part in one token: all but those of the experts that it does not go to.

        In an ensemble that chooses its members by the first tokens: at most the weights of the chosen members, the
        largest ones where they differ in size; what all members share counts once.
        """
        if getattr(self.loaded.config, "routing", None) == "sequence":
            parts = zip(self.loaded.members, self.loaded.outputs, strict=True)
            sizes = sorted(sum(weight.numel() for part in pair for weight in part.parameters()) for pair in parts)
            unused: int = sum(sizes[: len(sizes) - int(self.loaded.config.routing_top_k)])
            return self.parameters - unused
        if getattr(self.loaded.config, "routing", None) in ("prompt-perplexity", "task-vector"):
            members = [{id(weight): weight.numel() for weight in one.parameters()} for one in self.loaded.members]
            common = set(members[0]).intersection(*members)
            sizes = sorted(sum(size for key, size in one.items() if key not in common) for one in members)
            largest: int = sum(sizes[len(sizes) - int(self.loaded.config.routing_top_k) :])
            shared: int = sum(members[0][key] for key in common)
            return min(self.parameters, largest + shared)
        if factors := adapter_sizes(self.loaded):
            return self.parameters - sum(factors) + sum(sorted(factors)[-(self.experts_per_token or 1) :])
        idle = 0
        for gate in gates(self.loaded, every=True) if self.routers else ():
            experts = sum(weight.numel() for weight in gate.block.get_submodule("experts").parameters())
            idle += experts - experts // gate.experts * gate.top_k
        return self.parameters - idle


def open_model(name: str, folder: Path, settings: TestSettings) -> Model:
    """Load the model in `folder` (CheckpointError: it does not load, or its keys are not those of its architecture)."""
    loaded = load_for_pass(folder, settings.dtype, settings.device, prefer_whole=True)
    try:
        return Model(name, loaded, tuple(gates(loaded)), folder)
    except InvalidInputError:
        return Model(name, loaded, (), folder)


class Tally:
    """Counts of the experts that the tokens of each domain go to."""

    def __init__(self, layers: int, experts: int) -> None:
        self.shape = layers, experts
        self._first: dict[str, Tensor] = {}
        self._by_length: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor] = {}
        self._tokens: dict[str, int] = {}

    def add(self, domain: str, routings: Sequence[RoutingRecord], keep: Bool[Tensor, "B S"]) -> None:
        """Count one batch; `keep` is False for padding."""
        first = self._first.setdefault(domain, torch.zeros(self.shape, dtype=torch.float64))
        own = self._weights.setdefault(domain, torch.zeros(self.shape, dtype=torch.float64))
        counted = keep.flatten()  # (B, S) → (T,): the order of tokens in a routing record
        read = keep.cumsum(dim=1).flatten()[counted]  # tokens read so far, from 1
        span = read.double().log2().ceil().long()  # 0 for the first token, 1 for the second, 2 for 3 and 4, …
        spans = int(keep.shape[1] - 1).bit_length() + 1
        by_length = self._by_length.setdefault(domain, torch.zeros((spans, self.shape[1]), dtype=torch.float64))
        self._tokens[domain] = self._tokens.get(domain, 0) + int(counted.sum())
        for layer, routing in enumerate(routings):
            chosen, weights = routing.chosen[-1][counted], routing.weights[-1][counted].double()  # (T, k) each
            part = torch.zeros_like(weights)  # of the first choice
            part[:, 0] = 1
            if routing.shares_ties:
                part = (weights == weights[:, :1]).double()
                part /= part.sum(dim=1, keepdim=True).clamp(min=1)  # weights that are NaN go to nobody
            first[layer].index_add_(0, chosen.flatten(), part.flatten())
            place = span.unsqueeze(1) * self.shape[1] + chosen  # in (spans, E)
            by_length.view(-1).index_add_(0, place.flatten(), part.flatten())
            own[layer].index_add_(0, chosen.flatten(), weights.flatten())

    def include(self, other: "Tally") -> None:
        """Add the domains of another tally, which this one has not."""
        self._first |= other._first
        self._by_length |= other._by_length
        self._weights |= other._weights
        self._tokens |= other._tokens

    def figures(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the figures of routing of a row (`Row`), for experts of these names."""
        routing = self.routing(names)
        return {
            "accuracy": {domain: shares[domain] for domain, shares in routing.items() if domain in names},
            "load": self.load(names),
            "routing": routing,
            "weights": self._shares(self._weights, names),
            "accuracy_by_tokens": self._accuracy_by_tokens(names),
        }

    def _accuracy_by_tokens(self, names: Sequence[str]) -> dict[str, dict[str, float]]:
        return {
            domain: {
                str(2**span): float(counts[names.index(domain)]) / total
                for span, counts in enumerate(by_length)
                if (total := round(float(counts.sum())))
            }
            for domain, by_length in self._by_length.items()
            if domain in names
        }

    def routing(self, names: Sequence[str]) -> dict[str, dict[str, list[float]]]:
        """Return domain → expert → for each layer the share of the domain's tokens that went to that expert first."""
        return self._shares(self._first, names)

    def _shares(self, sums: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, dict[str, list[float]]]:
        """Return domain → expert → sum / tokens layer by layer, of domain → sums, (L, E)."""
        return {
            domain: dict(zip(names, (each / self._tokens[domain]).T.tolist(), strict=True))
            for domain, each in sums.items()
        }

    def load(self, names: Sequence[str]) -> dict[str, list[float]]:
        """Return expert → for each layer its share of all tokens, by routing weights."""
        total = torch.zeros(self.shape, dtype=torch.float64) + sum(self._weights.values())  # (L, E)
        shares = (total / sum(self._tokens.values())).T.tolist()  # (L, E) → (E, L)
        return dict(zip(names, shares, strict=True))


def losses_of(
    model: Model,
    windows: Mapping[str, Calibration],
    settings: TestSettings,
    progress: Progress,
    *,
    tally: Tally | None = None,
    expert_of: Mapping[str, int] | None = None,
    losses: "Losses | None" = None,
) -> dict[str, DomainLoss]:
    """Return the loss of a model on each domain, window by window; every perplexity is finite.

    Args:
        tally: counts the experts that tokens go to, for a mixture.
        expert_of: domain → the number of the expert that every token of it is sent to, for a mixture.

    Raises CheckpointError if a token is unknown to the model, or its loss is NaN or infinite.
    """
    known, largest = _vocabulary_size(model.loaded), max(int(text.ids.max()) for text in windows.values())
    if largest >= known:
        raise CheckpointError(
            f"{model.name}: the tokenizer gives token {largest}, the model knows {known}",
            "put the tokenizer that the model was trained with into the folder",
        )
    experts = expert_of or {}
    if losses is not None:
        by_domain = losses(model, windows, settings, progress, tally, experts)
    else:
        by_domain, total = {}, sum(len(text.ids) for text in windows.values())
        with progress(f"evaluating {model.name}", total, "window") as advance:
            for domain, text in windows.items():
                loss = loss_of(model, domain, text, settings.batch_size, tally, experts.get(domain), advance)
                by_domain[domain] = loss
                if not math.isfinite(loss.mean):
                    break
    for domain, loss in by_domain.items():
        if not math.isfinite(loss.perplexity):
            raise CheckpointError(
                f"{model.name}: its loss on domain {domain} is {loss.mean:g} nats a token, which gives no perplexity",
                "check its weights, or compute with --dtype float32",
            )
    return by_domain


Losses = Callable[
    [Model, Mapping[str, Calibration], TestSettings, Progress, Tally | None, Mapping[str, int]], dict[str, DomainLoss]
]
"""Returns domain → loss, with arguments as `losses_of`; domains without an expert are routed."""


@torch.no_grad()
def loss_of(
    model: Model,
    domain: str,
    text: Calibration,
    batch_size: int,
    tally: Tally | None,
    expert: int | None,
    advance: Advance,
) -> DomainLoss:
    """Return the loss of a model on one domain; `tally` counts the experts that tokens go to.

    With the number of an `expert` every token is sent to it; None leaves it to the routers.
    """
    loaded, nats = model.loaded, list[float]()
    with quiet_transformers(), nullcontext() if expert is None else force_expert(loaded, expert):
        for ids, keep in zip(text.ids.split(batch_size), text.keep.split(batch_size), strict=True):
            tokens = ids.long().to(loaded.device)  # (B, S)
            recording = nullcontext(list[RoutingRecord]()) if tally is None else record_routing(loaded)
            with recording as routings:
                logits = loaded(input_ids=tokens, use_cache=False).logits[:, :-1].float()
            if tally is not None:
                tally.add(domain, routings, keep)
            # The logits (B, S, V) at token t predict token t + 1; nothing predicts the first token.
            targets = tokens[:, 1:].masked_fill(~keep[:, 1:].to(loaded.device), -100)
            each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
            nats += each.view(targets.shape).cpu().sum(dim=1, dtype=torch.float64).tolist()  # 0 for padding
            advance(len(ids))
    return DomainLoss(tuple(nats), tuple((text.lengths - 1).tolist()))


def _vocabulary_size(model: Any) -> int:
    try:
        return int(model.get_input_embeddings().num_embeddings)
    except NotImplementedError:  # an ensemble: each member embeds by itself
        return int(model.config.vocab_size)


@torch.no_grad()
def relative_time(mixture: Model, dense: Model, windows: Calibration, batch_size: int) -> float:
    """Return the time of a mixture's forward pass over one batch, divided by that of a dense model's.

    The two take turns, and the median of the turns' ratios is taken: other load on the computer affects both alike.
    """
    tokens = windows.ids[:batch_size].long().to(mixture.loaded.device)

    def seconds(model: Model) -> float:
        start = perf_counter()
        model.loaded(input_ids=tokens, use_cache=False)
        if tokens.device.type != "cpu":
            torch.accelerator.synchronize(tokens.device)
        return perf_counter() - start

    ratios = [seconds(mixture) / seconds(dense) for _ in range(1 + ROUNDS)]
    return median(ratios[1:])
