"""The composed model of a refit: one layer at a time, the residual stream of each member's tokens, refitted tensors.

Shapes: E members (experts of a layer), H hidden size, V vocabulary; N windows of S tokens for one member, taken in
batches of b windows; T tokens that count (not padding) in a batch. A linear map of I inputs and O outputs has the
weight (O, I).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from registry.checkpoint import Checkpoint
from registry.composition.stored import pass_over
from registry.io.process import return_freed_memory
from registry.io.safetensors_file import Stream, write_shard
from registry.io.torch_blocks import RowReader, dtype_name, to_block, to_tensor, torch_dtype
from registry.maths.refit import Factor, LeastSquares
from registry.maths.trunk.combination import Combination, aligned
from registry.member import Member
from registry.methods.moe.context import ContextInputs
from registry.methods.moe.plan import statistics_weights
from registry.methods.moe.refit.choice import Choice
from registry.methods.moe.refit.texts import Text
from registry.methods.moe.tensor_source import RouterSolver, TensorSource
from registry.runtime.layerwise import Layers
from registry.runtime.loading import device_name
from registry.runtime.row_file import RowFile
from store.arrays import ArraySource

_KEY = "tensor"
"""The name of the only tensor in each file of a refit."""


_HEAD_ROWS = 512
"""Rows of the head that are solved for at once."""


class RefitSource:
    """Tensors of another source, some of them replaced by those of a refit, and the routers that the refit solved.

    Args:
        folder: the folder for refitted tensors, one file each.
        routers: in place of those of the inner source; None where these stay.
    """

    def __init__(self, inner: TensorSource, folder: Path, routers: RouterSolver | None) -> None:
        self._inner, self._folder = inner, folder
        self.plan = inner.plan
        self.routers = routers or inner.routers
        self.context = ContextInputs(self)
        self._files: dict[tuple[int | None, str], Path] = {}
        """(number of the member, or None for the trunk; name of the tensor) → file."""
        self.head: list[LeastSquares] = []
        """Sums that the head is solved from, one a member, (H, H), of inputs x and of the member's head's, x°."""

    def put(self, member: int | None, name: str, tensor: Float[Tensor, "O I"]) -> None:
        """Replace a tensor of the trunk, or of one member's MLP."""
        dtype = dtype_name(tensor.dtype)
        path = self._folder / f"{len(self._files)}.safetensors"
        write_shard(path, [Stream(_KEY, dtype, tuple(tensor.shape), lambda: [to_block(tensor)])])
        self._files[member, name] = path

    def combined(self, name: str) -> Iterator[Float[Tensor, "r ..."]]:
        """Yield the rows of one tensor: the refitted one in one block, or those of the inner source."""
        if (None, name) in self._files:
            yield self._tensor(None, name)
        elif self.head and name == self.plan.lead.family.head:
            yield from self._refitted_head(name)
        else:
            yield from self._inner.combined(name)

    def mlp(self, member: int, name: str) -> ArraySource:
        """Return one MLP tensor of a member: the refitted one, or that of the inner source."""
        if (member, name) not in self._files:
            return self._inner.mlp(member, name)
        dtype = self.plan.recipe.dtype or self.plan.members[member].link("mlp", name).dtype
        return ArraySource.of(to_block(self._tensor(member, name)), dtype)

    def _tensor(self, member: int | None, name: str) -> Tensor:
        from safetensors import safe_open

        with safe_open(self._files[member, name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(_KEY)
        return tensor

    def _refitted_head(self, name: str) -> Iterator[Float[Tensor, "r H"]]:
        """Solve the head (V, H) in blocks of rows: a row of a linear map depends on no other row of it."""
        members = self.plan.members
        towards = RowReader(self._inner.combined(name))  # W₀, (V, H)
        heads = Combination(name, [pass_over(member, name) for member in members], self.plan.weights)
        factors: dict[tuple[int, ...], Factor] = {}
        for rows in aligned(heads):  # the same rows of every head; None past a smaller vocabulary
            present = tuple(rows.present)
            if present not in factors:
                factors[present] = self._factor(present)
            longest = max(len(part) for part in rows.parts if part is not None)
            for start in range(0, longest, _HEAD_ROWS):
                cross: Float[Tensor, "r H"] | None = None
                for member in present:
                    part = rows.parts[member]
                    assert part is not None
                    own = part[start : start + _HEAD_ROWS].double() @ self.head[member].cross
                    cross = own if cross is None else cross.add_(own)
                assert cross is not None
                yield factors[present].solve(cross, towards.take(len(cross)))
            return_freed_memory()

    def _factor(self, members: tuple[int, ...]) -> Factor:
        first, *others = members
        gram = self.head[first].gram
        for member in others:
            gram.add_(self.head[member].gram)
        return Factor(gram)


class Replay(nn.Module):
    """A module in place of an MLP: it keeps its input, and returns a given output."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.output = torch.empty(0), None

    output: Tensor | None

    def forward(self, x: Float[Tensor, "*T H"]) -> Float[Tensor, "*T H"]:
        """Return `output`, or zeros."""
        self.input = x
        return torch.zeros_like(x) if self.output is None else self.output.view(x.shape)


@dataclass(frozen=True)
class Layer:
    """A layer of the composed model.

    Attributes:
        module: the layer, with the composed weights.
        replay: what stands in the place of its MLP.
    """

    number: int
    module: Any
    replay: Replay


class ComposedModel:
    """The composed model that a refit solves for: what is the same whatever a linear map is fitted to.

    Args:
        composed: a dense folder of the composed trunk, which gives its weights and scales.
        work: a folder for streams and refitted tensors.
    """

    def __init__(self, source: TensorSource, composed: Checkpoint, work: Path, choice: Choice) -> None:
        self.plan, self.work, self._composed, self._choice = source.plan, work, composed, choice
        self.family, self.architecture = composed.family, composed.architecture
        self.attention = self.family.attention(self.architecture)
        self.residual = self.family.residual(self.architecture)
        self.mlp = self.family.down.rpartition(".")[0]
        self.device = torch.device(device_name(self.plan.recipe.device))
        self.layers = Layers(self.family, composed.config, self.device)
        self.result = RefitSource(source, work, choice.routers)
        self.token_weights = statistics_weights(self.plan)  # of each member's tokens

    def text(self, number: int, member: Member) -> Text:
        """Return a member's tokens, with the streams before the first layer."""
        text = Text(member, number, self.architecture.hidden_size, self.work)
        used, name = text.ids.unique().long(), self.family.embedding
        for source, stream in ((self._composed.source(name), text.composed), (member.source(name), text.dense)):
            rows = _rows(source, used, self.work / "embedding.rows")
            for windows in text.batches():
                # Only the rows of the embeddings that the batch uses: ids are numbers of these, in their order.
                ids, numbers = text.ids[windows].long().unique(return_inverse=True)
                own = rows.take(torch.searchsorted(used, ids))
                stream.write(windows.start, self.layers.embedded(own, numbers))
            rows.clear()
        return_freed_memory()
        return text

    def layer(self, number: int) -> Layer:
        """Return a layer with the composed weights."""
        module, replay = self.layers.layer(number, self._composed.tensor), Replay()
        module._modules[self.mlp] = replay
        return Layer(number, module, replay)

    def last_norm(self) -> Any:
        """Return the norm before the head, with the composed weights."""
        return self.layers.module(self.layers.norm, self._composed.tensor)

    def run(self, layer: Layer, stream: Float[Tensor, "b S H"]) -> Float[Tensor, "b S H"]:
        """Return the residual stream after a layer, given the stream before it."""
        return self.layers.run(layer.number, layer.module, stream)

    def set(self, module: Any, name: str, weight: Float[Tensor, "O I"], member: int | None = None) -> None:
        """Replace a weight of the trunk, or a member's MLP, rounded as it is written: later solutions build on that.

        (ValueError: the solution is not finite in the dtype that is written.)
        """
        stored = self.plan.members[member or 0].weight(f"{name}.weight")
        rounded = weight.cpu().to(torch_dtype(self.plan.recipe.dtype or stored.dtype))
        if not bool(torch.isfinite(rounded).all()):
            raise ValueError(f"the solution for {name} is not finite in {rounded.dtype}")
        self.result.put(member, f"{name}.weight", rounded)
        module.weight = nn.Parameter(rounded.float().to(self.device), requires_grad=False)

    def run_attention(self, layer: Layer, texts: Sequence[Text]) -> None:
        """Run the layer's attention: record the input of the MLPs, and the stream if they gave zeros.

        Where a norm follows the MLP, the stream stays that before the layer.
        """
        layer.replay.output = None
        for member, text in enumerate(texts):
            for windows in text.batches():
                stream = self.run(layer, self.read(text.composed, windows))  # (b, S, H)
                mlp_input = layer.replay.input.view(stream.shape).cpu()
                text.mlp_input.write(windows.start, mlp_input)
                self._choice.count(layer.number, member, windows.start, mlp_input)
                if self.residual is not None:  # h_after = stream + residual · MLP
                    text.composed.write(windows.start, stream)

    def route(self, layer: Layer, texts: Sequence[Text]) -> None:
        """Decide which expert each token goes to."""
        self._choice.solve(layer.number)
        for member, text in enumerate(texts):
            for windows in text.batches():
                mlp_input = text.mlp_input.read(windows)
                text.experts[windows] = self._choice.experts(layer.number, member, windows.start, mlp_input)

    def add_outputs(self, layer: Layer, texts: Sequence[Text], outputs: Sequence[RowFile]) -> None:
        """Take the composed stream through the MLPs: each token by the output of the one that it was routed to.

        `outputs` are those of each expert's MLP for the tokens that are routed to it, text by text; they are removed.
        """
        positions = [0] * len(outputs)
        for text in texts:
            for windows in text.batches():
                keep, chosen = text.keep[windows], text.experts[windows]  # (b, S)
                mlp_output = torch.zeros((*keep.shape, self.architecture.hidden_size))
                for expert, rows in enumerate(outputs):
                    used = keep & (chosen == expert)
                    start, count = positions[expert], int(used.sum())
                    mlp_output[used] = rows.read(slice(start, start + count))
                    positions[expert] += count
                stream = self.read(text.composed, windows)
                if self.residual is not None:
                    stream = stream + self.residual * mlp_output.to(self.device)
                else:  # a norm follows the MLP, so the layer runs again with its output
                    layer.replay.output = mlp_output.to(self.device)
                    stream = self.run(layer, stream)
                text.composed.write(windows.start, stream)
        for rows in outputs:
            rows.clear()

    def read(self, stream: RowFile, windows: slice) -> Float[Tensor, "b S H"]:
        """Return some windows of a stream, on the device."""
        return stream.read(windows).to(self.device)

    def tokens(self, x: Tensor, text: Text, windows: slice) -> Float[Tensor, "T I"]:
        """Return the rows of the tokens that count, from (b, S, I) or (b · S, I)."""
        return x.reshape(-1, x.shape[-1])[text.keep[windows].flatten().to(x.device)]


def weights_of(member: Member) -> Callable[[str], Tensor]:
    """Return a function from the names of a dense expert's tensors to these."""
    return lambda name: torch.cat(list(pass_over(member, name)()))


def affine(member: Member, full_name: str, module: Any) -> Float[Tensor, "O J"]:
    """Return a member's weight with one more column: its bias, less the composed one, which stays."""
    own = weights_of(member)
    weight = own(f"{full_name}.weight").double()
    column = torch.zeros((len(weight), 1), dtype=torch.float64)
    if module.bias is not None:
        column[:, 0] = own(f"{full_name}.bias").double() - module.bias.double().cpu()
    return torch.cat([weight, column], dim=1)


def bias_of(module: Any) -> Tensor | float:
    """Return the bias of a linear map, 0 if it has none."""
    bias: Tensor | None = module.bias
    return 0.0 if bias is None else bias


def _rows(source: ArraySource, numbers: Int64[Tensor, "n"], path: Path) -> RowFile:
    """Write some rows of a stored tensor (V, H) to a file, by ascending numbers."""
    found, start = RowFile(path, source.shape[1:]), 0
    for block in source.blocks():
        rows = to_tensor(block, source.dtype)
        here = numbers[(numbers >= start) & (numbers < start + len(rows))] - start
        found.append(rows[here].float())
        start += len(rows)
    return found
