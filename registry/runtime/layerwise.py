"""Dense models run layer by layer: with the weights of one layer in memory at a time, or loaded as a whole.

Shapes: B windows of a batch, S tokens of a window, H hidden size. The residual stream is (B, S, H).
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from registry.families import Family
from registry.runtime.loading import quiet_transformers, with_fast_products, without_weights

Weights = Callable[[str], Tensor]  # returns a tensor of the dense model by its name


class LayerCalls:
    """The layers of a model, called one by one, with the arguments that the model gives them beside the stream.

    Those (positions, masks, ropes) are equal for all batches of one shape. The layers, modules of `path`, may have no
    weights.
    """

    def __init__(self, model: Any, path: str) -> None:
        self.model, self._path = model, path
        self.device: torch.device = model.device
        self._calls: dict[tuple[int, ...], list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}

    def embed(self, ids: Int64[Tensor, "B S"]) -> Float[Tensor, "B S H"]:
        """Return the residual stream before the first layer, and store the arguments of streams of its shape."""
        return self._embed(ids, {})

    def run(self, number: int, module: nn.Module, stream: Float[Tensor, "B S H"]) -> Float[Tensor, "B S H"]:
        """Return the residual stream after a layer, given the stream before it."""
        args, kwargs = self._calls[tuple(stream.shape[:2])][number]
        with torch.no_grad():
            out = module(stream, *args, **kwargs)
        result: Tensor = out[0] if isinstance(out, tuple) else out  # some families return attention weights too
        return result

    def _embed(self, ids: Int64[Tensor, "B S"], replaced: Mapping[str, nn.Module]) -> Float[Tensor, "B S H"]:
        # Layers pass the stream through unchanged, so that the whole pass costs one look-up of embeddings.
        catchers = [_Catcher() for _ in self.model.get_submodule(self._path)]
        layers = {f"{self._path}.{number}": catcher for number, catcher in enumerate(catchers)}
        with self._replaced({**replaced, **layers}), torch.no_grad():
            self.model.base_model(input_ids=ids.to(self.device), use_cache=False)
        self._calls[tuple(ids.shape)] = [(catcher.args, catcher.kwargs) for catcher in catchers]
        stream: Tensor = catchers[0].stream  # (B, S, H)
        return stream

    @contextmanager
    def _replaced(self, modules: Mapping[str, nn.Module]) -> Iterator[None]:
        originals = {name: self.model.get_submodule(name) for name in modules}
        try:
            for name, module in modules.items():
                self.model.set_submodule(name, module)
            yield
        finally:
            for name, module in originals.items():
                self.model.set_submodule(name, module)


class Layers(LayerCalls):
    """A model of a family without weights, by its config.json; its modules are loaded when they are needed."""

    def __init__(
        self,
        family: Family,
        config: Mapping[str, Any],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM

        self._family, self._dtype = family, dtype
        with quiet_transformers(), without_weights():
            model: Any = AutoModelForCausalLM.from_config(
                CONFIG_MAPPING[family.model_type].from_dict(dict(config)), dtype=dtype
            )
        for module in model.modules():  # weights have no storage, buffers do, such as the frequencies of its rope
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(device)
        super().__init__(model.eval(), family.layers)
        self.device = device

    @property
    def norm(self) -> str:
        """The path of the norm before the head."""
        return self._family.last_norm.norm

    def embedded(self, rows: Float[Tensor, "V H"], ids: Int64[Tensor, "B S"]) -> Float[Tensor, "B S H"]:
        """Return the stream before the first layer, and store arguments, as `embed`; ids are numbers of `rows`."""
        name = self._family.embedding.removesuffix(".weight")
        filled: Any = copy.deepcopy(self.model.get_submodule(name))  # subclasses may scale embeddings
        filled.weight = nn.Parameter(rows.to(self.device, self._dtype), requires_grad=False)
        filled.padding_idx = None  # a member may lack that row
        return self._embed(ids, {name: filled, self.norm: nn.Identity()})

    @contextmanager
    def resident(self, path: str, weights: Weights) -> Iterator[Any]:
        """Let a module of the model itself have its weights while the context is open, and yield it."""
        module = self.model.get_submodule(path)
        parts = [(part, dict(part._parameters)) for part in module.modules()]
        try:
            self._fill(module, f"{path}.", weights)
            yield with_fast_products(module)
        finally:
            for part, empty in parts:
                part._parameters.update(empty)

    def _fill(self, module: nn.Module, prefix: str, weights: Weights) -> None:
        names = [name for name, _ in module.named_parameters()]
        state = {name: weights(prefix + name).to(self.device, self._dtype) for name in names}
        module.load_state_dict(state, assign=True, strict=False)
        module.requires_grad_(False)


class _Catcher(nn.Module):
    """A module in the place of a layer: it stores the arguments, and returns the stream unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.stream, self.args = torch.empty(0), ()
        self.kwargs: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "attention_type":  # some models ask their layers for it
            return "full_attention"
        return super().__getattr__(name)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.stream, self.args, self.kwargs = hidden_states, args, kwargs
        return hidden_states


@contextmanager
def watched(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Record the input and the output of each module's latest call: name → (input, output)."""
    recorded: dict[str, tuple[Tensor, Tensor]] = {}

    def record(name: str, _module: Any, inputs: Any, output: Any) -> None:
        recorded[name] = (inputs[0], output)  # (B, S, channels in), (B, S, channels out)

    with ExitStack() as stack:
        for name, module in modules.items():
            stack.enter_context(module.register_forward_hook(partial(record, name)))
        yield recorded


@contextmanager
def seen_inputs(modules: Iterable[nn.Module]) -> Iterator[dict[int, Tensor]]:
    """Yield the input of each module by its number, which every pass replaces while the context is open."""
    seen: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for number, module in enumerate(modules):
            hook = module.register_forward_pre_hook(lambda _, inputs, number=number: seen.update({number: inputs[0]}))
            stack.enter_context(hook)
        yield seen
