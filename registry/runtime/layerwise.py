"""Running a dense model layer by layer, with the weights of one layer in memory at a time."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from registry.families import Family
from registry.hosts.architecture import Architecture
from registry.runtime.loading import quiet_transformers

Weights = Callable[[str], Tensor]
"""Gives a dense tensor by its name."""


class Layers:
    """A model of a family without weights, whose parts are filled as they are needed.

    Args:
        family: the family.
        architecture: its sizes.
        config: its config.json.
        device: where it runs.

    Everything runs in float32.
    """

    def __init__(
        self, family: Family, architecture: Architecture, config: Mapping[str, Any], device: torch.device
    ) -> None:
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM

        self._family, self._architecture, self._device = family, architecture, device
        with quiet_transformers(), _without_weights():
            made: Any = AutoModelForCausalLM.from_config(
                CONFIG_MAPPING[family.model_type].from_dict(dict(config)), dtype=torch.float32
            )
        self._model = made.eval()
        self._calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def embedded(self, weights: Weights) -> Callable[[Tensor], Tensor]:
        """Return what gives the residual stream before the first layer, (B, S, H), for token ids (B, S).

        It also learns what else the layers are given, which is the same for all batches of one shape.
        """
        name = self._family.embedding
        module = self._model.get_submodule(name.removesuffix(".weight"))
        filled: Any = copy.deepcopy(module)  # with what subclasses add, as a factor
        filled.weight = nn.Parameter(weights(name).float().to(self._device), requires_grad=False)
        filled.padding_idx = None  # a member may lack that row
        layers = self._model.get_submodule(self._family.layers)
        names = [".".join((self._family.layers, str(number))) for number in range(len(layers))]
        norm = self._family.head_input(self._architecture).norm

        def embed(ids: Tensor) -> Tensor:
            catchers = [_Catcher() for _ in names]
            replaced = {name.removesuffix(".weight"): filled, norm: nn.Identity()}
            with self._replaced(replaced | dict(zip(names, catchers, strict=True))), torch.no_grad():
                self._model.base_model(input_ids=ids.to(self._device), use_cache=False)
            self._calls = [(catcher.args, catcher.kwargs) for catcher in catchers]
            stream: Tensor = catchers[0].stream
            return stream

        return embed

    def layer(self, number: int, weights: Weights) -> Any:
        """Return one layer with its weights."""
        module = copy.deepcopy(self._model.get_submodule(f"{self._family.layers}.{number}"))
        self._fill(module, f"{self._family.layers}.{number}.", weights)
        return module

    def last_norm(self, weights: Weights) -> Any:
        """Return the norm before the head with its weights."""
        name = self._family.head_input(self._architecture).norm
        module = copy.deepcopy(self._model.get_submodule(name))
        self._fill(module, f"{name}.", weights)
        return module

    def run(self, number: int, module: nn.Module, stream: Tensor) -> Tensor:
        """Return the residual stream after a layer, (B, S, H), from that before it."""
        args, kwargs = self._calls[number]
        with torch.no_grad():
            out = module(stream, *args, **kwargs)
        result: Tensor = out[0] if isinstance(out, tuple) else out
        return result

    def _fill(self, module: nn.Module, prefix: str, weights: Weights) -> None:
        state = {name: weights(prefix + name).float().to(self._device) for name, _ in module.named_parameters()}
        module.load_state_dict(state, assign=True, strict=False)
        for parameter in module.parameters():
            parameter.requires_grad_(False)

    @contextmanager
    def _replaced(self, modules: Mapping[str, nn.Module]) -> Iterator[None]:
        before = {name: self._model.get_submodule(name) for name in modules}
        try:
            for name, module in modules.items():
                self._put(name, module)
            yield
        finally:
            for name, module in before.items():
                self._put(name, module)

    def _put(self, name: str, module: nn.Module) -> None:
        above, _, own = name.rpartition(".")
        parent = self._model.get_submodule(above)
        parent._modules[own] = module


class _Catcher(nn.Module):
    """Stands in a layer's place: notes what the layer is given, and hands the stream on."""

    def __init__(self) -> None:
        super().__init__()
        self.stream, self.args = torch.empty(0), ()
        self.kwargs: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "attention_type":  # some models ask their layers for it
            return "full_attention"
        return super().__getattr__(name)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the stream."""
        self.stream, self.args, self.kwargs = hidden_states, args, kwargs
        return hidden_states


@contextmanager
def watched(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Note the input and the output of modules, each call over the one before: name → (input, output)."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, inputs: Any, output: Any) -> None:
            seen[name] = (inputs[0], output)

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in modules.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _without_weights() -> Iterator[None]:
    """Let modules that are made meanwhile have parameters without storage; buffers are real."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
