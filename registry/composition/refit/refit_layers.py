"""The refit of a composition, layer by layer: linear maps solved again so that each text finds its expert.

The composed trunk is a compromise, so the residual stream of an expert's text drifts from that of the dense expert. A
refit follows the kept tokens of all members down the layers, through each dense expert and through the layers composed
so far. In every layer it solves, in this order (`maths/refit.py` has the equations):

1. the trunk's query, key and value projections, and the output projection of attention, on all members' tokens;
2. the router, from the MLP inputs that result, unless the expert of each token is known beforehand (`choice.py`);
3. each expert's down projection, on its own tokens and on those of others that are routed to it.

Tokens then go where they are routed, so that later layers undo the errors of earlier routers too. The head comes
last. One layer of a model is in memory at a time; the streams are files.

Shapes: E members (experts of a layer), H hidden size, F intermediate size of the MLP, A width of attention's output
before its projection; N windows of S tokens for one member, taken in batches of B windows, of which the last has b ≤ B
and is filled up; T tokens that count (not padding) in a batch. A linear map of I inputs and O outputs has the weight
(O, I). ° marks the dense expert: x is an input in the composed model, x° the same input in the dense expert.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.composition.refit.choice import Choice, GateChoice
from registry.composition.refit.refit_source import RefitSource
from registry.composition.tensor_source import TensorSource
from registry.errors import CalibrationError
from registry.io.torch_blocks import to_tensor, torch_dtype
from registry.maths.refit import LeastSquares
from registry.member import Member
from registry.progress import Progress
from registry.runtime.layerwise import Layers, watched
from registry.runtime.loading import device_name
from registry.statistics.forward_pass import batch
from registry.statistics.settings import PassSettings

_QKV, _ATTENTION, _DOWN = "query, key and value", "attention output", "down projection"
"""Keys of watched linear maps. Their inputs are (B, S, H), (B, S, A), (B, S, F); the last two give (B, S, H)."""

_STREAMS = (
    *("dense", "dense_attention", "dense_mlp", "dense_after"),
    *("composed", "after_attention", "mlp_input", "mlp_output"),
)
"""The fields of `_Text` that are streams."""


@dataclass
class _Text:
    """One member's tokens on their way down the layers, with the streams of the layer that is being refitted.

    A stream is float32 of shape (N, S, H), in a file.

    Attributes:
        member: the member whose tokens these are.
        calibration: the tokens.
        keep: True for the tokens that count, (N, S).
        dense: h°, the dense expert's residual stream before the layer.
        dense_attention: the output of the dense expert's attention, after its projection.
        dense_mlp: the output of the dense expert's MLP.
        dense_after: h°_after, the dense expert's residual stream after the layer.
        composed: h, the composed model's residual stream before the layer.
        after_attention: the composed model's residual stream after the layer if its MLP gave zeros.
        mlp_input: the input of the composed model's router and MLPs.
        mlp_output: the output of the MLP that each token was routed to.
    """

    member: Member
    calibration: Calibration
    keep: Bool[Tensor, "N S"]
    dense: Float[Tensor, "N S H"]
    dense_attention: Float[Tensor, "N S H"]
    dense_mlp: Float[Tensor, "N S H"]
    dense_after: Float[Tensor, "N S H"]
    composed: Float[Tensor, "N S H"]
    after_attention: Float[Tensor, "N S H"]
    mlp_input: Float[Tensor, "N S H"]
    mlp_output: Float[Tensor, "N S H"]


class _Replay(nn.Module):
    """A module in place of an MLP: it keeps its input, and returns a given output."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.output = torch.empty(0), None

    output: Tensor | None

    def forward(self, x: Float[Tensor, "*T H"]) -> Float[Tensor, "*T H"]:
        """Return `output`, or zeros."""
        self.input = x
        return torch.zeros_like(x) if self.output is None else self.output


class Refit:
    """Refit of one composition, in the steps of the module's docstring.

    Args:
        source: the tensors of the composition.
        composed: a dense folder of the composed trunk, which gives its weights and scales.
        work: a folder for streams and refitted tensors.
        progress: reports the layers.
        choice: the expert of each token; None for routers that the refit solves.
    """

    def __init__(
        self,
        source: TensorSource,
        composed: Checkpoint,
        work: Path,
        progress: Progress,
        choice: Choice | None = None,
    ) -> None:
        self._source, self._composed, self._work, self._progress = source, composed, work, progress
        self._plan, self._settings = source.plan, PassSettings()
        self._family, self._architecture = composed.family, composed.architecture
        self._attention = self._family.attention(self._architecture)
        self._residual = self._family.residual(self._architecture)
        self._device = torch.device(device_name(self._plan.recipe.device))
        self._layers = Layers(self._family, self._architecture, composed.config, self._device)
        self._choice = choice or GateChoice(source.plan, composed)
        self._result = RefitSource(source, work, self._choice.routers)
        self._weights = source.plan.statistics_weights  # of each member's tokens

    def run(self) -> RefitSource:
        """Return the source with its refitted tensors.

        Raises:
            CalibrationError: an activation is NaN or infinite.
        """
        texts = [self._text(number, member) for number, member in enumerate(self._plan.members)]
        count = self._architecture.num_hidden_layers
        with self._progress("refitting", count, "layer") as advance:
            for number in range(count):
                try:
                    self._refit_layer(number, texts)
                except ValueError as error:
                    raise CalibrationError(
                        f"layer {number} cannot be refitted: {error}", "compose without --refine-mlp"
                    ) from error
                advance(1)
        if not self._architecture.tie_word_embeddings:
            self._refit_head(texts)
        return self._result

    def _refit_layer(self, number: int, texts: Sequence[_Text]) -> None:
        layer = self._layers.layer(number, self._composed.tensor)
        replay = _Replay()
        mlp_name = self._family.down.rpartition(".")[0]
        layer._modules[mlp_name] = replay
        self._refit_attention_inputs(number, layer, texts)
        self._refit_attention_output(number, layer, texts)
        self._solve_router(number, layer, replay, texts)
        self._refit_down_projections(number, mlp_name, texts)
        # Both streams go on: the composed one with the outputs of the MLPs that the tokens were routed to.
        for text in texts:
            for first, rows in self._batches(text):
                if self._residual is not None:  # (b, S, H): h_after = h_after_attention + residual · MLP
                    stream = text.after_attention[rows] + self._residual * text.mlp_output[rows]
                else:  # a norm follows the MLP, so the layer runs again with its output
                    replay.output = self._full(text.mlp_output, first)
                    stream = self._layers.run(number, layer, self._full(text.composed, first))[: len(text.keep[rows])]
                text.composed[rows] = stream.cpu()
            text.dense.copy_(text.dense_after)

    def _refit_attention_inputs(self, number: int, layer: Any, texts: Sequence[_Text]) -> None:
        """Run the dense experts, and refit query, key and value to y = W_e x°.

        The sums are taken with x̃° = [x°; 1] in place of y, (H + 1, H), and mapped by [W_e, bias] to those of y, (O, H):
        one pass over the tokens serves all three projections.
        """
        names, crosses = self._attention.inputs, []
        size = self._architecture.hidden_size
        for text, weight in zip(texts, self._weights, strict=True):
            dense = self._layers.layer(number, partial(_weight, text.member))
            sums = LeastSquares.zero(size, size + 1)
            dense_maps = {
                _QKV: dense.get_submodule(names[0]),  # query, key and value have one input
                _ATTENTION: dense.get_submodule(self._attention.output),
                _DOWN: dense.get_submodule(self._family.down),
            }
            with watched(dense_maps) as expert, watched({_QKV: layer.get_submodule(names[0])}) as mixed:
                for first, rows in self._batches(text):
                    after = self._layers.run(number, dense, self._full(text.dense, first))  # (B, S, H)
                    self._layers.run(number, layer, self._full(text.composed, first))
                    for stream, output in (
                        (text.dense_after, after),
                        (text.dense_attention, expert[_ATTENTION][1]),
                        (text.dense_mlp, expert[_DOWN][1]),
                    ):
                        # Some models give (B · S, H): seen as (B, S, H), without the windows that filled up the batch.
                        stream[rows] = output.view(after.shape)[: len(text.keep[rows])].cpu()
                    keep = self._keep(text, first)
                    x, dense_x = _tokens(mixed[_QKV][0], keep), _tokens(expert[_QKV][0], keep)  # (T, H) each
                    sums.add(x, torch.cat([dense_x, dense_x.new_ones((len(dense_x), 1))], dim=1), weight)  # (T, H + 1)
            crosses.append(sums)
        for name in names:
            full_name = self._family.tensor_name(number, name)
            module = layer.get_submodule(name)
            parts = [sums.mapped(_affine(t.member, full_name, module)) for sums, t in zip(crosses, texts, strict=True)]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            self._set(module, full_name, total.solve(module.weight))

    def _refit_attention_output(self, number: int, layer: Any, texts: Sequence[_Text]) -> None:
        """Refit attention's output projection, so that the stream after it is the dense expert's."""
        name = self._family.tensor_name(number, self._attention.output)
        module = layer.get_submodule(self._attention.output)
        sums = LeastSquares.zero(module.weight.shape[1], module.weight.shape[0])  # A inputs, H outputs
        with watched({_ATTENTION: module}) as mixed:
            for text, weight in zip(texts, self._weights, strict=True):
                for first, rows in self._batches(text):
                    self._layers.run(number, layer, self._full(text.composed, first))
                    target = text.dense_attention[rows]  # (b, S, H)
                    if self._residual is not None:  # and the drift of the stream: (h° − h) / residual
                        target = target + (text.dense[rows] - text.composed[rows]) / self._residual
                    target = target[text.keep[rows]].to(self._device) - _bias(module)  # (T, H)
                    sums.add(_tokens(mixed[_ATTENTION][0], self._keep(text, first)), target, weight)  # x (T, A)
        self._set(module, name, sums.solve(module.weight))

    def _solve_router(self, number: int, layer: Any, replay: _Replay, texts: Sequence[_Text]) -> None:
        """Record the input of the MLPs after the refit of attention, and solve the layer's router from it."""
        replay.output = None
        for member, text in enumerate(texts):
            for first, rows in self._batches(text):
                stream = self._layers.run(number, layer, self._full(text.composed, first))  # (B, S, H)
                mlp_input = replay.input.view(stream.shape)[: len(text.keep[rows])].cpu()  # (b, S, H)
                text.after_attention[rows] = stream[: len(mlp_input)].cpu()
                text.mlp_input[rows] = mlp_input
                self._choice.count(number, member, first, mlp_input)
        self._choice.solve(number)

    def _refit_down_projections(self, number: int, mlp_name: str, texts: Sequence[_Text]) -> None:
        """Refit each expert's down projection, on its own tokens and on those that are routed to it."""
        chosen = [  # (N, S) each
            torch.cat(
                [
                    self._choice.experts(number, member, first, text.mlp_input[rows])
                    for first, rows in self._batches(text)
                ]
            )
            for member, text in enumerate(texts)
        ]
        name = self._family.tensor_name(number, self._family.down)
        for expert, text in enumerate(texts):
            mlp = self._layers.layer(number, partial(_weight, text.member)).get_submodule(mlp_name)
            module = mlp.get_submodule(self._family.down.rpartition(".")[2])
            sums = LeastSquares.zero(module.weight.shape[1], module.weight.shape[0])  # F inputs, H outputs
            for index, other in enumerate(texts):
                for _, rows in self._batches(other):
                    used = other.keep[rows] & ((chosen[index][rows] == expert) | (index == expert))  # (b, S)
                    if bool(used.any()):
                        with watched({_DOWN: module}) as seen, torch.no_grad():
                            mlp(other.mlp_input[rows][used][None].to(self._device))  # (1, T, H): a batch of one
                        target = self._mlp_target(other, rows)[used].to(self._device) - _bias(module)  # (T, H)
                        sums.add(seen[_DOWN][0][0], target, self._weights[index])  # x (1, T, F) → (T, F)
            self._set(module, name, sums.solve(module.weight), member=expert)
            for index, other in enumerate(texts):
                for _, rows in self._batches(other):
                    routed = chosen[index][rows] == expert  # (b, S)
                    if bool(routed.any()):
                        with torch.no_grad():
                            output = mlp(other.mlp_input[rows][routed][None].to(self._device))[0]  # (T, H)
                        # Back to the tokens' places in (b, S, H); the mask (b, S, 1) covers all channels of a token.
                        mlp_output = other.mlp_output[rows].masked_scatter(routed[..., None], output.cpu())
                        other.mlp_output[rows] = mlp_output

    def _mlp_target(self, text: _Text, rows: slice) -> Float[Tensor, "b S H"]:
        """Return the MLP output with which the stream after the layer is the dense expert's."""
        if self._residual is None:  # a norm follows: the dense expert's own output is the target
            return text.dense_mlp[rows]
        return (text.dense_after[rows] - text.after_attention[rows]) / self._residual

    def _refit_head(self, texts: Sequence[_Text]) -> None:
        """Sum up for the head, from its inputs x and the inputs x° of each member's own head."""
        size = self._architecture.hidden_size
        norm = self._layers.last_norm(self._composed.tensor)
        collected = []
        for text, weight in zip(texts, self._weights, strict=True):
            own_norm = self._layers.last_norm(partial(_weight, text.member))
            sums = LeastSquares.zero(size, size)
            for _, rows in self._batches(text):
                keep = text.keep[rows]
                with torch.no_grad():
                    x = norm(text.composed[rows][keep].to(self._device))  # (T, H)
                    sums.add(x, own_norm(text.dense[rows][keep].to(self._device)), weight)
            collected.append(LeastSquares(sums.gram.cpu(), sums.cross.cpu()))
        self._result.put_head(collected)

    def _text(self, number: int, member: Member) -> _Text:
        calibration = member.calibration
        assert calibration is not None  # checked with the plan
        shape = (*calibration.ids.shape, self._architecture.hidden_size)
        streams = {name: _stream(self._work / f"{number}-{name}.stream", shape) for name in _STREAMS}
        text = _Text(member, calibration, calibration.keep, **streams)
        for weights, stream in ((partial(_weight, member), text.dense), (self._composed.tensor, text.composed)):
            embed = self._layers.embedded(weights)
            for first, rows in self._batches(text):
                ids, _ = batch(calibration, first, self._settings.batch_size)  # (B, S), filled up
                stream[rows] = embed(ids)[: len(text.keep[rows])].cpu()
        return text

    def _batches(self, text: _Text) -> Iterator[tuple[int, slice]]:
        """Yield (first window, its windows) of each batch."""
        size = self._settings.batch_size
        for first in range(0, len(text.keep), size):
            yield first, slice(first, min(first + size, len(text.keep)))

    def _full(self, stream: Float[Tensor, "N S H"], first: int) -> Float[Tensor, "B S H"]:
        """Return a batch of a stream in its full size, the last one filled up: layers were called with one shape."""
        size = self._settings.batch_size
        rows = stream[first : first + size]
        if len(rows) < size:
            rows = torch.cat([rows, rows[:1].expand(size - len(rows), *rows.shape[1:])])
        return rows.to(self._device)

    def _keep(self, text: _Text, first: int) -> Bool[Tensor, "BS"]:
        """Return the tokens of a full batch that count, flat: windows that filled it up do not."""
        size = self._settings.batch_size
        keep = torch.zeros((size, text.keep.shape[1]), dtype=torch.bool)
        rows = text.keep[first : first + size]
        keep[: len(rows)] = rows
        return keep.flatten().to(self._device)

    def _set(self, module: Any, name: str, weight: Float[Tensor, "O I"], member: int | None = None) -> None:
        """Replace a weight by its solution, rounded as it will be written: later solutions use the written weights."""
        stored = self._plan.members[member or 0].weight(f"{name}.weight")
        rounded = weight.cpu().to(torch_dtype(self._plan.recipe.dtype or stored.dtype))
        if not bool(torch.isfinite(rounded).all()):
            raise ValueError(f"the solution for {name} is not finite in {rounded.dtype}")
        self._result.put(member, f"{name}.weight", rounded)
        module.weight = nn.Parameter(rounded.float().to(self._device), requires_grad=False)


def refit(
    source: TensorSource, composed: Checkpoint, work: Path, progress: Progress, choice: Choice | None = None
) -> RefitSource:
    """Refit a source (arguments and errors as `Refit`)."""
    return Refit(source, composed, work, progress, choice).run()


def _weight(member: Member, name: str) -> Tensor:
    source = member.open_weight(name)
    return torch.cat([to_tensor(block, source.dtype) for block in source.blocks()])


def _affine(member: Member, name: str, module: Any) -> Float[Tensor, "O J"]:
    """Return a member's weight with one more column: its bias, less the composed one, which stays."""
    weight = _weight(member, f"{name}.weight").double()
    column = torch.zeros((len(weight), 1), dtype=torch.float64)
    if module.bias is not None:
        column[:, 0] = _weight(member, f"{name}.bias").double() - module.bias.double().cpu()
    return torch.cat([weight, column], dim=1)


def _bias(module: Any) -> Tensor | float:
    bias: Tensor | None = module.bias
    return 0.0 if bias is None else bias


def _tokens(x: Tensor, keep: Bool[Tensor, "BS"]) -> Float[Tensor, "T I"]:
    """Return the inputs of the tokens that count, one row each, from (B, S, I) or (B · S, I)."""
    return x.reshape(-1, x.shape[-1])[keep]


def _stream(path: Path, shape: tuple[int, ...]) -> Float[Tensor, "N S H"]:
    """Return zeros of a shape in a file, float32.

    The file's space is allocated at once: a full disk is an error here, where in a write to memory it would end the
    process.
    """
    size = math.prod(shape)
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, 4 * size)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.float32).view(shape)
