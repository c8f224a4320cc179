"""The routers of a loaded mixture, on every host: routing recorded, tokens forced to one expert or sent to k of them.

Where members are weighed alike in all layers, their weights are recorded as the routing of one layer.

Shapes: T tokens of a batch, row by row; H hidden size, E experts, k experts per token.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from registry.errors import InvalidInputError
from registry.hosts.context import CONTEXT_LAYERS
from registry.hosts.host import NORM_TOPK_PROB
from registry.hosts.remote_code import HEAD_MAPS
from registry.io.model_folder import composed_of

GATE = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:mlp\.gate|block_sparse_moe\.(?:gate|router))")
"""Name of a layer's router as a module, with the layer as group 1; its tensor in a composed folder adds `.weight`."""


ADAPTER_GATE = "adapter_gate"
"""Name of the only router of a model whose layers all send a token to the same adapter."""


@dataclass(frozen=True)
class Gate:
    """The router of one layer, in the `block` of its mixture.

    Attributes:
        module: in a native host it returns logits (T, E), weights (T, k) and chosen experts (T, k), see `in_order`; in
            `RoutedMLP` the logits alone; there it is linear, or a `ContextGate` without a weight.
    """

    layer: int  # number of the layer in the members, from 0
    name: str  # name of the module in the loaded model; the tensor's name in the folder may differ
    module: nn.Module
    block: nn.Module

    @property
    def weight(self) -> nn.Parameter:
        """The router's weight, (E, H)."""
        weight = self.module.weight
        assert isinstance(weight, nn.Parameter)
        return weight

    @property
    def experts(self) -> int:
        """Number of experts it chooses from."""
        return int(getattr(self.module, "out_features", None) or self.weight.shape[0])

    @property
    def is_linear(self) -> bool:
        """True in our own `RoutedMLP` with routers of the stream."""
        return isinstance(self.module, nn.Linear)

    @property
    def top_k(self) -> int:
        """Experts per token."""
        holder = self.module if hasattr(self.module, "top_k") else self.block
        return int(getattr(holder, "top_k"))  # noqa: B009 - modules are untyped

    @property
    def renormalizes(self) -> bool:
        """True if the weights of a token's experts add up to 1, False if they are shares of the softmax over all."""
        return all(getattr(part, NORM_TOPK_PROB, True) for part in (self.module, self.block))


@dataclass
class RoutingRecord:
    """Routing decisions of one layer, one entry for each forward pass.

    Attributes:
        logits: float32 of shape (T, E), before softmax; of an ensemble the logarithms of the weights.
        chosen: int64 of shape (T, k), the largest logit first; of an ensemble all members, k = E.
        weights: float32 of shape (T, k), which sum to 1 for each token, or to less where the mixture keeps the softmax
            over all experts.
        shares_ties: experts with the largest weight share the first choice, as members do that nothing tells apart yet.
    """

    layer: int
    shares_ties: bool = False
    logits: list[Tensor] = field(default_factory=list)
    chosen: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)

    def add(self, logits: Float[Tensor, "T E"], weights: Float[Tensor, "T k"], chosen: Int64[Tensor, "T k"]) -> None:
        """Record one forward pass."""
        self.logits.append(logits.detach().float().cpu())
        self.weights.append(weights.detach().float().cpu())
        self.chosen.append(chosen.cpu())


def gates(model: Any, *, every: bool = False) -> list[Gate]:
    """Return the routers of a loaded mixture, layer by layer; layers that context routing adds do not count.

    With `every` these layers count too, from 0, and the head maps of a modelling file as the last one
    (InvalidInputError: the model has no router).
    """
    if (one := getattr(model, ADAPTER_GATE, None)) is not None:
        return [Gate(0, ADAPTER_GATE, one, one)]
    routers = []
    head_gate = f"{HEAD_MAPS}.gate" if every else None
    context_layers = set() if every else set(getattr(model.config, CONTEXT_LAYERS, ()))
    for name, module in model.named_modules():
        match = GATE.fullmatch(name)
        is_router = isinstance(getattr(module, "weight", None), nn.Parameter) or hasattr(module, "out_features")
        if match and is_router and int(match[1]) not in context_layers:
            layer = int(match[1]) - sum(number < int(match[1]) for number in context_layers)
            routers.append(Gate(layer, name, module, model.get_submodule(name.rpartition(".")[0])))
        elif name == head_gate:
            routers.append(Gate(model.config.num_hidden_layers, name, module, model.get_submodule(HEAD_MAPS)))
    if not routers:
        raise InvalidInputError(
            f"model type {model.config.model_type} has no router: it is not a mixture of experts",
            "name a composed folder: reg compose --experts … --out DIR",
        )
    return sorted(routers, key=lambda gate: gate.layer)


def adapter_sizes(model: Any) -> list[int]:
    """Return the weights of each adapter of a loaded model of adapters; an empty list for any other."""
    if not hasattr(model, ADAPTER_GATE):
        return []
    config, sizes = model.config, [0] * len(model.config.members)
    for name, number in config.adapted_layers.items():
        shape = model.get_submodule(name).weight.shape
        for expert, (rank, _, _) in enumerate(config.adapted_kinds[number]):
            sizes[expert] += rank * sum(shape)
    for name, experts in config.adapted_vectors.items():
        for expert in experts:
            sizes[expert] += model.get_parameter(name).numel()
    return sizes


def weighs_members(model: Any) -> bool:
    """Tell whether a loaded model weighs its members alike in all layers, by each sequence's text."""
    return hasattr(model, "_weigh")


def expert_count(model: Any) -> int:
    """Return the number of experts of a loaded mixture, or of the members that it weighs (errors as `gates`)."""
    return len(model.config.members) if weighs_members(model) else gates(model)[0].experts


def expert_names(model: Any, folder: Path, count: int) -> tuple[str, ...]:
    """Return the names of the `count` experts of a loaded mixture; numbers if its folder does not name so many."""
    named = getattr(model.config, "members", ())
    names = tuple(map(str, named)) or tuple(composed_of(folder))
    return names if len(names) == count else tuple(map(str, range(count)))


@contextmanager
def record_routing(model: Any) -> Iterator[list[RoutingRecord]]:
    """Record the routing while the context is open: one `RoutingRecord` a layer, on the CPU.

    Inside `force_expert` the forced expert is recorded, if that context was entered first. A model that weighs
    its members has one record, of the weights that they have at each token, which is for the token after it.
    """
    if weighs_members(model):
        routing = RoutingRecord(0, shares_ties=True)
        with _recorded_weights(model, routing):
            yield [routing]
        return
    routers = gates(model)
    routings = [RoutingRecord(gate.layer) for gate in routers]
    with _hooked(routers, [partial(_record, *both) for both in zip(routers, routings, strict=True)]):
        yield routings


@contextmanager
def force_expert(model: Any, expert: int) -> Iterator[None]:
    """Send every token to one expert of each layer, from 0, while the context is open (InvalidInputError: no such)."""
    routers = gates(model, every=True)  # added layers too: head maps are a part of the expert
    for gate in routers:
        if not 0 <= expert < gate.experts:
            raise InvalidInputError(
                f"layer {gate.layer} has no expert {expert}: it has {gate.experts}",
                f"name one from 0 to {gate.experts - 1}",
            )
    with _hooked(routers, [partial(_force, expert)] * len(routers)):
        yield


@contextmanager
def experts_per_token(model: Any, count: int) -> Iterator[None]:
    """Send every token to `count` experts of each layer while the context is open (InvalidInputError: too many)."""
    routers = gates(model, every=True)
    for gate in routers:
        if not 1 <= count <= gate.experts:
            raise InvalidInputError(
                f"{count} experts per token are asked for, layer {gate.layer} has {gate.experts}",
                f"give 1 to {gate.experts}",
            )
    holders: list[Any] = [part for gate in routers for part in (gate.module, gate.block) if hasattr(part, "top_k")]
    before = [holder.top_k for holder in holders]
    try:
        for holder in holders:
            holder.top_k = count
        yield
    finally:
        for holder, top_k in zip(holders, before, strict=True):
            holder.top_k = top_k


def choice(gate: Gate, logits: Float[Tensor, "T E"]) -> tuple[Float[Tensor, "T k"], Int64[Tensor, "T k"]]:
    """Return the weights of the chosen experts, and their numbers, the largest first.

    Weights are the softmax over the k largest logits, or where the mixture keeps them so, that over all E.
    """
    if not gate.renormalizes:
        weights, chosen = logits.float().softmax(dim=-1).topk(gate.top_k, dim=-1)  # (T, E) → (T, k)
        return weights, chosen
    largest, chosen = logits.float().topk(gate.top_k, dim=-1)
    return largest.softmax(dim=-1), chosen


def in_order(output: Any) -> tuple[Float[Tensor, "T E"], Float[Tensor, "T k"], Int64[Tensor, "T k"]]:
    """Return the (logits, weights, chosen experts) of what a native router returned.

    Some versions of transformers (5.17 is one) have GraniteMoE's the other way round. The numbers of experts alone are
    integers.
    """
    first, weights, last = output
    return (first, weights, last) if first.is_floating_point() else (last, weights, first)


def as_returned(parts: tuple[Tensor, Tensor, Tensor], output: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return (logits, weights, chosen experts) in the order in which a native router returned its own."""
    return parts if output[0].is_floating_point() else (parts[2], parts[1], parts[0])


Hook = Callable[[nn.Module, Any, Any], Any]


@contextmanager
def _hooked(routers: Sequence[Gate], hooks: Sequence[Hook]) -> Iterator[None]:
    with ExitStack() as stack:
        for gate, hook in zip(routers, hooks, strict=True):
            stack.enter_context(gate.module.register_forward_hook(hook))
        yield


def _record(gate: Gate, routing: RoutingRecord, _module: nn.Module, _inputs: Any, output: Any) -> None:
    # RoutedMLP's router returns the logits (T, E) alone.
    routing.add(*((output, *choice(gate, output)) if isinstance(output, Tensor) else in_order(output)))


@contextmanager
def _recorded_weights(model: Any, routing: RoutingRecord) -> Iterator[None]:
    """Record what a modelling file weighs its members by, in each call."""
    weigh = model._weigh

    def record(scores: Tensor, known: Tensor) -> Any:
        found = weigh(scores, known)
        logits = found.detach().flatten(0, 1).float().cpu()  # (B, S, E) → (T, E)
        routing.add(logits, *logits.exp().sort(dim=-1, descending=True, stable=True))
        return found

    model._weigh = record
    try:
        yield
    finally:
        del model._weigh


def _force(expert: int, _module: nn.Module, _inputs: Any, output: Any) -> Any:
    if isinstance(output, Tensor):  # RoutedMLP takes the softmax of the k largest: 1 and exact zeros
        forced = torch.full_like(output, -1e4)  # (T, E)
        forced[:, expert] = 0
        return forced
    logits, weights, chosen = in_order(output)
    # (T, k) → (T, 1): one expert for each token. Native hosts loop over the experts that were chosen.
    forced_to = logits, torch.ones_like(weights[:, :1]), torch.full_like(chosen[:, :1], expert)
    return as_returned(forced_to, output)
