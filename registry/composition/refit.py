"""Refitting a composition layer by layer: linear maps are solved anew, so that each text finds its expert again.

The composed trunk is a compromise, so the residual stream of an expert's text drifts from what the dense expert has
there. Going down the layers with the kept tokens of all members, each through the dense expert and through what is
composed so far, the trunk's query, key, value and output projections are refitted on all of them, then the layer's
router is solved from what it now sees, and each expert's down projection is refitted on its own tokens and on those of
others that the router sends to it (`maths/refit.py` has the equations). Tokens then go where the router sends them, so
that later layers undo the errors of earlier routers too. The head comes last.

Of the model one layer is in memory at a time; the streams are files.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.composition.refit_source import RefitSource
from registry.composition.tensor_source import TensorSource
from registry.errors import CalibrationError
from registry.families.sites import MLP_INPUT
from registry.io.torch_blocks import to_tensor, torch_dtype
from registry.maths.refit import LeastSquares
from registry.maths.statistics import Statistics
from registry.member import Member
from registry.progress import Progress
from registry.runtime.layerwise import Layers, watched
from registry.runtime.loading import device_name
from registry.statistics.forward_pass import batch, fold_of_window
from registry.statistics.scales import Scales, scales
from registry.statistics.settings import PassSettings


@dataclass
class _Text:
    """One member's tokens on their way down the layers; each stream is float32 of shape (N, S, H).

    Attributes:
        member: whose.
        calibration: the tokens.
        keep: which of them count, (N, S).
        folds: the fold of each window.
        dense: the dense expert's stream before the layer.
        composed: the composed model's.
        files: other streams of the layer at hand.
    """

    member: Member
    calibration: Calibration
    keep: Tensor
    folds: Tensor
    dense: Tensor
    composed: Tensor
    files: dict[str, Tensor]


class _Replay(nn.Module):
    """Stands in an MLP's place: notes its input and returns what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.output = torch.empty(0), None

    output: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """Return `output`, or zeros."""
        self.given = x
        return torch.zeros_like(x) if self.output is None else self.output


class Refit:
    """One refit: see the module.

    Args:
        source: what is composed.
        composed: a dense folder of the composed trunk, which gives its weights and scales.
        work: a folder for streams and refitted tensors.
        progress: told of layers.
    """

    def __init__(self, source: TensorSource, composed: Checkpoint, work: Path, progress: Progress) -> None:
        self._source, self._composed, self._work, self._progress = source, composed, work, progress
        self._plan, self._settings = source.plan, PassSettings()
        self._family, self._architecture = composed.family, composed.architecture
        self._attention = self._family.attention(self._architecture)
        self._residual = self._family.residual(self._architecture)
        self._device = torch.device(device_name(self._plan.recipe.device))
        self._layers = Layers(self._family, self._architecture, composed.config, self._device)
        self._scales: Scales = scales(composed, MLP_INPUT)
        self._result = RefitSource(source, work)
        self._weights = source.plan.statistics_weights

    def run(self) -> RefitSource:
        """Return the refitted source.

        Raises:
            CalibrationError: an activation is NaN or infinite.
        """
        texts = [self._text(number, member) for number, member in enumerate(self._plan.members)]
        count = self._architecture.num_hidden_layers
        with self._progress("refitting", count, "layer") as advance:
            for number in range(count):
                try:
                    self._layer(number, texts)
                except ValueError as error:
                    raise CalibrationError(
                        f"layer {number} cannot be refitted: {error}", "compose without --refine-mlp"
                    ) from error
                advance(1)
        if not self._architecture.tie_word_embeddings:
            self._head(texts)
        return self._result

    def _layer(self, number: int, texts: Sequence[_Text]) -> None:
        layer = self._layers.layer(number, self._composed.tensor)
        replay = _Replay()
        mlp_name = self._family.down.rpartition(".")[0]
        layer._modules[mlp_name] = replay
        self._inputs(number, layer, texts)
        self._output(number, layer, texts)
        self._routers(number, layer, replay, texts)
        self._downs(number, mlp_name, texts)
        for text in texts:
            for first, rows in self._batches(text):
                if self._residual is not None:
                    stream = text.files["base"][rows] + self._residual * text.files["mlp_out"][rows]
                else:
                    replay.output = self._full(text.files["mlp_out"], first)
                    stream = self._layers.run(number, layer, self._full(text.composed, first))[: len(text.keep[rows])]
                text.composed[rows] = stream.cpu()
            text.dense.copy_(text.files["dense_out"])

    def _inputs(self, number: int, layer: Any, texts: Sequence[_Text]) -> None:
        """Run the dense experts, and refit the maps that see the attention input to what they give."""
        names, crosses = self._attention.inputs, []
        size = self._architecture.hidden_size
        for text, weight in zip(texts, self._weights, strict=True):
            dense = self._layers.layer(number, partial(_weight, text.member))
            sums = LeastSquares.zero(size, size + 1)
            seen_in = {
                "x": dense.get_submodule(names[0]),
                "o": dense.get_submodule(self._attention.output),
                "d": dense.get_submodule(self._family.down),
            }
            with watched(seen_in) as expert, watched({"x": layer.get_submodule(names[0])}) as mixed:
                for first, rows in self._batches(text):
                    out = self._layers.run(number, dense, self._full(text.dense, first))
                    self._layers.run(number, layer, self._full(text.composed, first))
                    for name, stream in (("dense_out", out), ("dense_o", expert["o"][1]), ("dense_d", expert["d"][1])):
                        text.files[name][rows] = stream.view(out.shape)[: len(text.keep[rows])].cpu()
                    keep = self._keep(text, first)
                    x, wanted = _rows(mixed["x"][0], keep), _rows(expert["x"][0], keep)
                    sums.add(x, torch.cat([wanted, wanted.new_ones((len(wanted), 1))], dim=1), weight)
            crosses.append(sums)
        for name in names:
            whole = self._family.tensor_name(number, name)
            module = layer.get_submodule(name)
            parts = [sums.mapped(_affine(t.member, whole, module)) for sums, t in zip(crosses, texts, strict=True)]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            self._set(module, whole, total.solve(module.weight))

    def _output(self, number: int, layer: Any, texts: Sequence[_Text]) -> None:
        """Refit attention's output projection, so that the stream after it is the dense expert's."""
        name = self._family.tensor_name(number, self._attention.output)
        module = layer.get_submodule(self._attention.output)
        sums = LeastSquares.zero(module.weight.shape[1], module.weight.shape[0])
        with watched({"o": module}) as mixed:
            for text, weight in zip(texts, self._weights, strict=True):
                for first, rows in self._batches(text):
                    self._layers.run(number, layer, self._full(text.composed, first))
                    wanted = text.files["dense_o"][rows]
                    if self._residual is not None:
                        wanted = wanted + (text.dense[rows] - text.composed[rows]) / self._residual
                    wanted = wanted[text.keep[rows]].to(self._device) - _bias(module)
                    sums.add(_rows(mixed["o"][0], self._keep(text, first)), wanted, weight)
        self._set(module, name, sums.solve(module.weight))

    def _routers(self, number: int, layer: Any, replay: _Replay, texts: Sequence[_Text]) -> None:
        """Note what the MLPs will see, and solve the layer's router from it."""
        exponents, bits = self._scales.exponents[number], self._scales.bits
        replay.output = None
        found = []
        for text in texts:
            count = int(text.folds.max()) + 1
            folds = [Statistics.zero(exponents)] * count
            for first, rows in self._batches(text):
                base = self._layers.run(number, layer, self._full(text.composed, first))
                seen = replay.given.view(base.shape)[: len(text.keep[rows])].cpu()
                text.files["base"][rows] = base[: len(seen)].cpu()
                text.files["mlp_in"][rows] = seen
                for fold in range(count):
                    keep = text.keep[rows] & (text.folds[rows] == fold)[:, None]
                    folds[fold] = folds[fold] + Statistics.of(seen.flatten(0, 1), exponents, keep.flatten(), bits)
            found.append(tuple(folds))
        self._result.put_statistics(number, found)

    def _downs(self, number: int, mlp_name: str, texts: Sequence[_Text]) -> None:
        """Refit each expert's down projection, on its own tokens and on those that the router sends to it."""
        gate = (
            (self._result.routers.gate(number) / self._plan.recipe.temperature)
            .to(torch_dtype(self._plan.dtype))
            .float()
        )
        chosen = [(text.files["mlp_in"] @ gate.T).argmax(dim=-1) for text in texts]
        whole = self._family.tensor_name(number, self._family.down)
        for expert, text in enumerate(texts):
            mlp = self._layers.layer(number, partial(_weight, text.member)).get_submodule(mlp_name)
            module = mlp.get_submodule(self._family.down.rpartition(".")[2])
            sums = LeastSquares.zero(module.weight.shape[1], module.weight.shape[0])
            for other, of in enumerate(texts):
                for _, rows in self._batches(of):
                    mine = of.keep[rows] & ((chosen[other][rows] == expert) | (other == expert))
                    if bool(mine.any()):
                        with watched({"down": module}) as seen, torch.no_grad():
                            mlp(of.files["mlp_in"][rows][mine][None].to(self._device))
                        wanted = self._wanted(of, rows)[mine].to(self._device) - _bias(module)
                        sums.add(seen["down"][0][0], wanted, self._weights[other])
            self._set(module, whole, sums.solve(module.weight), member=expert)
            for other, of in enumerate(texts):
                for _, rows in self._batches(of):
                    mine = chosen[other][rows] == expert
                    if bool(mine.any()):
                        with torch.no_grad():
                            out = mlp(of.files["mlp_in"][rows][mine][None].to(self._device))[0]
                        of.files["mlp_out"][rows] = of.files["mlp_out"][rows].masked_scatter(mine[..., None], out.cpu())

    def _wanted(self, text: _Text, rows: slice) -> Tensor:
        """Return what the MLP has to give for the stream to be the dense expert's."""
        if self._residual is None:
            return text.files["dense_d"][rows]
        return (text.files["dense_out"][rows] - text.files["base"][rows]) / self._residual

    def _head(self, texts: Sequence[_Text]) -> None:
        size = self._architecture.hidden_size
        norm = self._layers.last_norm(self._composed.tensor)
        found = []
        for text, weight in zip(texts, self._weights, strict=True):
            own = self._layers.last_norm(partial(_weight, text.member))
            sums = LeastSquares.zero(size, size)
            for _, rows in self._batches(text):
                keep = text.keep[rows]
                with torch.no_grad():
                    x = norm(text.composed[rows][keep].to(self._device))
                    sums.add(x, own(text.dense[rows][keep].to(self._device)), weight)
            found.append(LeastSquares(sums.gram.cpu(), sums.cross.cpu()))
        self._result.put_head(found)

    def _text(self, number: int, member: Member) -> _Text:
        calibration = member.calibration
        assert calibration is not None  # checked with the plan
        shape = (*calibration.ids.shape, self._architecture.hidden_size)
        names = ("dense", "composed", "dense_out", "dense_o", "dense_d", "base", "mlp_in", "mlp_out")
        files = {name: _stream(self._work / f"{number}-{name}.stream", shape) for name in names}
        folds = fold_of_window(len(calibration.ids), int((member.content["computed"] or {}).get("folds", 1)))
        text = _Text(member, calibration, calibration.keep, folds, files.pop("dense"), files.pop("composed"), files)
        for weights, stream in ((partial(_weight, member), text.dense), (self._composed.tensor, text.composed)):
            embed = self._layers.embedded(weights)
            for first, rows in self._batches(text):
                ids, _ = batch(calibration, first, self._settings.batch_size)
                stream[rows] = embed(ids)[: len(text.keep[rows])].cpu()
        return text

    def _batches(self, text: _Text) -> Iterator[tuple[int, slice]]:
        size = self._settings.batch_size
        for first in range(0, len(text.keep), size):
            yield first, slice(first, min(first + size, len(text.keep)))

    def _full(self, stream: Tensor, first: int) -> Tensor:
        """Return a batch of a stream in its full size, the last one filled up."""
        size = self._settings.batch_size
        rows = stream[first : first + size]
        if len(rows) < size:
            rows = torch.cat([rows, rows[:1].expand(size - len(rows), *rows.shape[1:])])
        return rows.to(self._device)

    def _keep(self, text: _Text, first: int) -> Tensor:
        """Return which tokens of a full batch count, flat."""
        size = self._settings.batch_size
        keep = torch.zeros((size, text.keep.shape[1]), dtype=torch.bool)
        rows = text.keep[first : first + size]
        keep[: len(rows)] = rows
        return keep.flatten().to(self._device)

    def _set(self, module: Any, name: str, weight: Tensor, member: int | None = None) -> None:
        """Put a solved weight in place, rounded as it will be written, and go on with that."""
        of = self._plan.members[member or 0]
        rounded = weight.cpu().to(torch_dtype(self._plan.recipe.dtype or of.weight(f"{name}.weight").dtype))
        if not bool(torch.isfinite(rounded).all()):
            raise ValueError(f"the solution for {name} is not finite in {rounded.dtype}")
        self._result.put(member, f"{name}.weight", rounded)
        module.weight = nn.Parameter(rounded.float().to(self._device), requires_grad=False)


def refit(source: TensorSource, composed: Checkpoint, work: Path, progress: Progress) -> RefitSource:
    """Return `source` refitted (arguments and errors as `Refit`)."""
    return Refit(source, composed, work, progress).run()


def _weight(member: Member, name: str) -> Tensor:
    source = member.open_weight(name)
    return torch.cat([to_tensor(block, source.dtype) for block in source.blocks()])


def _affine(member: Member, name: str, module: Any) -> Tensor:
    """Return a member's weight with one more column: its bias, less the composed one, which stays."""
    weight = _weight(member, f"{name}.weight").double()
    column = torch.zeros((len(weight), 1), dtype=torch.float64)
    if module.bias is not None:
        column[:, 0] = _weight(member, f"{name}.bias").double() - module.bias.double().cpu()
    return torch.cat([weight, column], dim=1)


def _bias(module: Any) -> Tensor | float:
    bias: Tensor | None = module.bias
    return 0.0 if bias is None else bias


def _rows(x: Tensor, keep: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])[keep]


def _stream(path: Path, shape: tuple[int, ...]) -> Tensor:
    """Return zeros of a shape in a file, float32.

    Its space is taken at once: a full disk is an error here, where in a write to memory it would end the process.
    """
    size = math.prod(shape)
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, 4 * size)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.float32).view(shape)
