"""Dense models run layer by layer: with the weights of one layer in memory at a time, or loaded as a whole.

Shapes: B windows of a batch, S tokens of a window, H hidden size. The residual stream is (B, S, H).
"""

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from registry.families import Family
from registry.hosts.architecture import Architecture
from registry.runtime.fast_linear import with_fast_products
from registry.runtime.loading import quiet_transformers, without_weights

Weights = Callable[[str], Tensor]
"""Returns a tensor of the dense model by its name."""


class Layers:
    """A model of a family without weights, whose modules are loaded when they are needed, in float32.

    Args:
        family: the family.
        architecture: the sizes of the model.
        config: its config.json.
        device: the device it runs on.
    """

    def __init__(
        self, family: Family, architecture: Architecture, config: Mapping[str, Any], device: torch.device
    ) -> None:
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM

        self._family, self._architecture, self._device = family, architecture, device
        with quiet_transformers(), without_weights():
            model: Any = AutoModelForCausalLM.from_config(
                CONFIG_MAPPING[family.model_type].from_dict(dict(config)), dtype=torch.float32
            )
        self._model = model.eval()
        # The arguments of each layer beside the stream (positions, masks, ropes), equal for all batches of one shape.
        self._calls: dict[tuple[int, ...], list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}

    def embedded(self, rows: Float[Tensor, "V H"]) -> Callable[[Tensor], Tensor]:
        """Return a function from token ids (B, S) to the residual stream before the first layer, (B, S, H).

        Each call also stores the layers' other arguments, which `run` passes on for streams of this shape.

        Args:
            rows: of the embedding, where ids may be numbers of these rows alone.
        """
        name = self._family.embedding
        module = self._model.get_submodule(name.removesuffix(".weight"))
        filled: Any = copy.deepcopy(module)  # subclasses may scale embeddings
        filled.weight = nn.Parameter(rows.float().to(self._device), requires_grad=False)
        filled.padding_idx = None  # a member may lack that row
        layers = self._model.get_submodule(self._family.layers)
        names = [".".join((self._family.layers, str(number))) for number in range(len(layers))]
        norm = self._family.head_input(self._architecture).norm

        def embed(ids: Int64[Tensor, "B S"]) -> Float[Tensor, "B S H"]:
            # Layers pass the stream through unchanged, so that the whole pass costs one look-up of embeddings.
            catchers = [_Catcher() for _ in names]
            replaced = {name.removesuffix(".weight"): filled, norm: nn.Identity()}
            with self._replaced(replaced | dict(zip(names, catchers, strict=True))), torch.no_grad():
                self._model.base_model(input_ids=ids.to(self._device), use_cache=False)
            self._calls[tuple(ids.shape)] = [(catcher.args, catcher.kwargs) for catcher in catchers]
            stream: Tensor = catchers[0].stream  # (B, S, H)
            return stream

        return embed

    def layer(self, number: int, weights: Weights) -> Any:
        """Return one layer with its weights."""
        module = copy.deepcopy(self._model.get_submodule(f"{self._family.layers}.{number}"))
        self._fill(module, f"{self._family.layers}.{number}.", weights)
        return with_fast_products(module)

    def part(self, number: int, name: str, weights: Weights) -> Any:
        """Return one module of a layer with its weights."""
        path = f"{self._family.layers}.{number}.{name}"
        module = copy.deepcopy(self._model.get_submodule(path))
        self._fill(module, f"{path}.", weights)
        return with_fast_products(module)

    def last_norm(self, weights: Weights) -> Any:
        """Return the norm before the head with its weights."""
        name = self._family.head_input(self._architecture).norm
        module = copy.deepcopy(self._model.get_submodule(name))
        self._fill(module, f"{name}.", weights)
        return module

    def run(self, number: int, module: nn.Module, stream: Float[Tensor, "B S H"]) -> Float[Tensor, "B S H"]:
        """Return the residual stream after a layer, given the stream before it."""
        args, kwargs = self._calls[tuple(stream.shape[:2])][number]
        with torch.no_grad():
            out = module(stream, *args, **kwargs)
        result: Tensor = out[0] if isinstance(out, tuple) else out  # some families return attention weights too
        return result

    def _fill(self, module: nn.Module, prefix: str, weights: Weights) -> None:
        state = {name: weights(prefix + name).float().to(self._device) for name, _ in module.named_parameters()}
        module.load_state_dict(state, assign=True, strict=False)
        for parameter in module.parameters():
            parameter.requires_grad_(False)

    @contextmanager
    def _replaced(self, modules: Mapping[str, nn.Module]) -> Iterator[None]:
        originals = {name: self._model.get_submodule(name) for name in modules}
        try:
            for name, module in modules.items():
                self._put(name, module)
            yield
        finally:
            for name, module in originals.items():
                self._put(name, module)

    def _put(self, name: str, module: nn.Module) -> None:
        parent, _, child = name.rpartition(".")
        self._model.get_submodule(parent)._modules[child] = module


class _Catcher(nn.Module):
    """A stand-in for a layer: it stores the layer's arguments, and returns the stream unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.stream, self.args = torch.empty(0), ()
        self.kwargs: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "attention_type":  # some models ask their layers for it
            return "full_attention"
        return super().__getattr__(name)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Store the arguments, and return the stream, (B, S, H)."""
        self.stream, self.args, self.kwargs = hidden_states, args, kwargs
        return hidden_states


@contextmanager
def layer_alone(layers: nn.ModuleList, number: int, stream: Float[Tensor, "B S H"] | None) -> Iterator[nn.Module]:
    """Let a loaded model run one layer alone while the context is open: the others pass the stream on unchanged.

    Args:
        layers: the layers of the model.
        number: of the layer that runs, which is returned.
        stream: what it runs on, whatever the model computes; None for the model's embeddings.
    """
    originals = list(layers)

    def replace_stream(_module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return inputs if stream is None else (stream, *inputs[1:])

    handle = originals[number].register_forward_pre_hook(replace_stream)
    try:
        for other in range(len(originals)):
            if other != number:
                layers[other] = _Catcher()
        yield originals[number]
    finally:
        handle.remove()
        for other, module in enumerate(originals):
            layers[other] = module


@contextmanager
def watched(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Record the input and the output of each module's latest call: name → (input, output)."""
    recorded: dict[str, tuple[Tensor, Tensor]] = {}

    def recorder(name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, inputs: Any, output: Any) -> None:
            recorded[name] = (inputs[0], output)  # (B, S, channels in), (B, S, channels out)

        return hook

    handles = [module.register_forward_hook(recorder(name)) for name, module in modules.items()]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


class _ReachedError(Exception):
    """A module was reached, with this input."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor


def input_of(module: nn.Module, run: Callable[[], object]) -> Tensor:
    """Return the input that a module is given in a computation, which is then left.

    Args:
        module: the module.
        run: the computation.
    """

    def leave(_module: Any, inputs: tuple[Any, ...]) -> None:
        raise _ReachedError(inputs[0])

    handle = module.register_forward_pre_hook(leave)
    try:
        with torch.no_grad():
            run()
    except _ReachedError as reached:
        traceback.clear_frames(reached.__traceback__)  # they hold the computation's tensors
        return reached.tensor
    finally:
        handle.remove()
    raise AssertionError("the module was not called")
