"""The routers of a loaded mixture: which expert each token goes to, read and decided."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from registry.errors import InvalidInputError


@dataclass(frozen=True)
class Gate:
    """The router of one layer.

    Attributes:
        layer: of the model, from 0.
        module: gives (logits (T, E), weights (T, k), chosen experts (T, k)) in a native host, logits in `RoutedMLP`.
        block: the mixture that it stands in.
    """

    layer: int
    module: nn.Module
    block: nn.Module

    @property
    def experts(self) -> int:
        """How many experts it chooses from."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return int(weight.shape[0])

    @property
    def top_k(self) -> int:
        """Experts per token."""
        return int(getattr(self.block if isinstance(self.module, nn.Linear) else self.module, "top_k"))  # noqa: B009


@dataclass
class Routing:
    """What the router of one layer decided, one entry for each forward pass.

    Attributes:
        layer: of the model.
        chosen: int64 of shape (T, k), the largest logit first; T counts the tokens of a batch, row by row.
        weights: float32 of shape (T, k), which sum to 1 for each token.
    """

    layer: int
    chosen: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)


def gates(model: Any) -> list[Gate]:
    """Return the routers of a loaded mixture, layer by layer.

    Raises:
        InvalidInputError: it has none.
    """
    found: list[Gate] = []
    for block in model.modules():
        children = dict(block.named_children())
        router = children.get("gate", children.get("router"))
        if "experts" in children and router is not None and isinstance(router.weight, nn.Parameter):
            found.append(Gate(len(found), router, block))
    if not found:
        raise InvalidInputError(
            f"a {model.config.model_type} model has no router: it is no mixture of experts",
            "name a composed folder: reg compose --experts … --out DIR",
        )
    return found


@contextmanager
def recorded(model: Any) -> Iterator[list[Routing]]:
    """Collect what every router decides while the context is open, one `Routing` a layer, on the CPU."""
    routers = gates(model)
    routings = [Routing(gate.layer) for gate in routers]
    with ExitStack() as stack:
        for gate, routing in zip(routers, routings, strict=True):
            stack.callback(gate.module.register_forward_hook(_recorder(gate, routing)).remove)
        yield routings


@contextmanager
def forced(model: Any, expert: int) -> Iterator[None]:
    """Send every token to one expert of each layer, with weight 1, while the context is open.

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
    with ExitStack() as stack:
        for gate in routers:
            stack.callback(gate.module.register_forward_hook(_forcing(expert)).remove)
        yield


Hook = Callable[[nn.Module, Any, Any], Any]


def _recorder(gate: Gate, routing: Routing) -> Hook:
    def record(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            largest, chosen = output.float().topk(gate.top_k, dim=-1)
            weights = largest.softmax(dim=-1)
        else:
            _, weights, chosen = output
        routing.weights.append(weights.detach().float().cpu())
        routing.chosen.append(chosen.detach().cpu())

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
