"""The routers of a loaded mixture: which expert each token goes to, read and decided, on every host."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from registry.errors import InvalidInputError

GATE = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:mlp\.gate|block_sparse_moe\.(?:gate|router))")
"""What the router of layer (group 1) is called as a module, and with `.weight` as a tensor of a composed folder."""


@dataclass(frozen=True)
class Gate:
    """The router of one layer.

    Attributes:
        layer: of the model, from 0.
        name: the module's, in the loaded model; in the folder the tensor may be called otherwise.
        module: gives (logits (T, E), weights (T, k), chosen experts (T, k)) in a native host, logits in `RoutedMLP`.
        block: the mixture that it stands in.
    """

    layer: int
    name: str
    module: nn.Module
    block: nn.Module

    @property
    def weight(self) -> nn.Parameter:
        """The router's weight, of shape (E, H)."""
        weight = self.module.weight
        assert isinstance(weight, nn.Parameter)
        return weight

    @property
    def experts(self) -> int:
        """How many experts it chooses from."""
        return int(self.weight.shape[0])

    @property
    def is_linear(self) -> bool:
        """It stands in our own `RoutedMLP`, which chooses and weighs by itself."""
        return isinstance(self.module, nn.Linear)

    @property
    def top_k(self) -> int:
        """Experts per token."""
        return int(getattr(self.block if self.is_linear else self.module, "top_k"))  # noqa: B009 - modules are untyped


@dataclass
class RoutingRecord:
    """What the router of one layer decided, one entry for each forward pass.

    Attributes:
        layer: of the model.
        logits: float32 of shape (T, E), before softmax; T counts the tokens of a batch, row by row.
        chosen: int64 of shape (T, k), the largest logit first.
        weights: float32 of shape (T, k), which sum to 1 for each token.
    """

    layer: int
    logits: list[Tensor] = field(default_factory=list)
    chosen: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)


def gates(model: Any) -> list[Gate]:
    """Return the routers of a loaded mixture, layer by layer.

    Raises:
        InvalidInputError: it has none.
    """
    found = []
    for name, module in model.named_modules():
        match = GATE.fullmatch(name)
        if match and isinstance(getattr(module, "weight", None), nn.Parameter):
            found.append(Gate(int(match[1]), name, module, model.get_submodule(name.rpartition(".")[0])))
    if not found:
        raise InvalidInputError(
            f"model type {model.config.model_type} has no router: it is no mixture of experts",
            "name a composed folder: reg compose --experts … --out DIR",
        )
    return sorted(found, key=lambda gate: gate.layer)


@contextmanager
def record_routing(model: Any) -> Iterator[list[RoutingRecord]]:
    """Collect what every router decides while the context is open, one `RoutingRecord` a layer, on the CPU.

    Inside `force_expert` it is the forced expert that is recorded, if that context was entered first.
    """
    routers = gates(model)
    routings = [RoutingRecord(gate.layer) for gate in routers]
    with _hooked(routers, [_recorder(gate, routing) for gate, routing in zip(routers, routings, strict=True)]):
        yield routings


@contextmanager
def force_expert(model: Any, expert: int) -> Iterator[None]:
    """Send every token to one expert of each layer, with weight 1, while the context is open.

    Args:
        model: a loaded mixture.
        expert: its number, from 0: members stand in name order.

    Raises:
        InvalidInputError: there is no router, or no such expert.
    """
    routers = gates(model)
    for gate in routers:
        if not 0 <= expert < gate.experts:
            raise InvalidInputError(
                f"layer {gate.layer} has no expert {expert}: it has {gate.experts}",
                f"name one from 0 to {gate.experts - 1}",
            )
    with _hooked(routers, [_forcing(expert)] * len(routers)):
        yield


def choice(gate: Gate, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return (weights, chosen) of shape (T, k) that a router's logits (T, E) give: softmax over the k largest."""
    largest, chosen = logits.float().topk(gate.top_k, dim=-1)
    return largest.softmax(dim=-1), chosen


Hook = Callable[[nn.Module, Any, Any], Any]


@contextmanager
def _hooked(routers: Sequence[Gate], hooks: Sequence[Hook]) -> Iterator[None]:
    with ExitStack() as stack:
        for gate, hook in zip(routers, hooks, strict=True):
            stack.callback(gate.module.register_forward_hook(hook).remove)
        yield


def _recorder(gate: Gate, routing: RoutingRecord) -> Hook:
    def record(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            output = (output, *choice(gate, output))
        logits, weights, chosen = (part.detach().cpu() for part in output)
        routing.logits.append(logits.float())
        routing.weights.append(weights.float())
        routing.chosen.append(chosen)

    return record


def _forcing(expert: int) -> Hook:
    def force(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        if isinstance(output, Tensor):  # RoutedMLP takes the softmax of the k largest: 1 and exact zeros
            only = torch.full_like(output, -1e4)
            only[:, expert] = 0
            return only
        logits, weights, chosen = output
        return logits, torch.ones_like(weights[:, :1]), torch.full_like(chosen[:, :1], expert)

    return force
