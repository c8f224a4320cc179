"""The refit of a composition, layer by layer: linear maps solved again so that each text finds its expert.

The composed trunk is a compromise, so the residual stream of an expert's text drifts from that of the dense expert. A
refit follows the kept tokens of all members down the layers, through each dense expert and through the layers composed
so far. In every layer it solves, in this order (`maths/refit.py` has the equations):

1. the trunk's query, key and value projections, and the output projection of attention, on all members' tokens;
2. the router, from the MLP inputs that result, unless the expert of each token is known beforehand (`choice.py`);
3. each expert's down projection, on its own tokens and on those of others that are routed to it.

Tokens then go where they are routed, so that later layers undo the errors of earlier routers too. The head comes
last. One layer of a model is in memory at a time, and one batch of tokens; all else lies in files.

Shapes: E members (experts of a layer), H hidden size, F intermediate size of the MLP, A width of attention's output
before its projection; N windows of S tokens for one member, taken in batches of b windows; T tokens that count (not
padding) in a batch. A linear map of I inputs and O outputs has the weight (O, I). ° marks the dense expert: x is an
input in the composed model, x° the same input in the dense expert.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from registry.checkpoint import Checkpoint
from registry.composition.refit.choice import Choice, GateChoice
from registry.composition.refit.expert_queue import Queue
from registry.composition.refit.refit_source import RefitSource
from registry.composition.refit.row_file import RowFile
from registry.composition.refit.token_streams import Text
from registry.composition.tensor_source import TensorSource
from registry.errors import CalibrationError
from registry.io.torch_blocks import to_tensor, torch_dtype
from registry.maths.refit import LeastSquares
from registry.member import Member
from registry.progress import Progress
from registry.runtime.layerwise import Layers, input_of, watched
from registry.runtime.loading import device_name
from store.arrays import ArraySource

_QKV, _ATTENTION, _DOWN = "query, key and value", "attention output", "down projection"
"""Keys of watched linear maps. Their inputs are (b, S, H), (b, S, A), (b, S, F); the last two give (b, S, H)."""


class _Replay(nn.Module):
    """A module in place of an MLP: it keeps its input, and returns a given output."""

    def __init__(self) -> None:
        super().__init__()
        self.input, self.output = torch.empty(0), None

    output: Tensor | None

    def forward(self, x: Float[Tensor, "*T H"]) -> Float[Tensor, "*T H"]:
        """Return `output`, or zeros."""
        self.input = x
        return torch.zeros_like(x) if self.output is None else self.output.view(x.shape)


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
        self._plan = source.plan
        self._family, self._architecture = composed.family, composed.architecture
        self._attention = self._family.attention(self._architecture)
        self._residual = self._family.residual(self._architecture)
        self._mlp = self._family.down.rpartition(".")[0]
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

    def _refit_layer(self, number: int, texts: Sequence[Text]) -> None:
        layer = self._layers.layer(number, self._composed.tensor)
        replay = _Replay()
        layer._modules[self._mlp] = replay
        self._refit_attention_inputs(number, layer, texts)
        self._refit_attention_output(number, layer, texts)
        self._run_attention(number, layer, replay, texts)
        self._route(number, texts)
        outputs = self._refit_mlps(number, texts)
        self._add_outputs(number, layer, replay, texts, outputs)

    def _refit_attention_inputs(self, number: int, layer: Any, texts: Sequence[Text]) -> None:
        """Run the dense experts, and refit query, key and value to y = W_e x°.

        The sums are taken with x̃° = [x°; 1] in place of y, (H + 1, H), and mapped by [W_e, bias] to those of y, (O, H):
        one pass over the tokens serves all three projections.
        """
        names, size = self._attention.inputs, self._architecture.hidden_size
        totals: dict[str, LeastSquares] = {}
        for text, weight in zip(texts, self._weights, strict=True):
            dense = self._layers.layer(number, partial(_weight, text.member))
            sums = LeastSquares.zero(size, size + 1, self._device)
            for windows in text.batches():
                stream = self._read(text.composed, windows)
                inputs = input_of(layer.get_submodule(names[0]), partial(self._layers.run, number, layer, stream))
                dense_inputs = self._run_dense(number, dense, text, windows, stream)
                x, dense_x = self._tokens(inputs, text, windows), self._tokens(dense_inputs, text, windows)  # (T, H)
                sums.add(x, torch.cat([dense_x, dense_x.new_ones((len(dense_x), 1))], dim=1), weight)  # (T, H + 1)
            for name in names:
                mapped = sums.mapped(_affine(text.member, self._family.tensor_name(number, name), layer, name))
                totals[name] = totals[name] + mapped if name in totals else mapped
        for name, total in totals.items():
            module = layer.get_submodule(name)
            self._set(module, self._family.tensor_name(number, name), total.solve(module.weight))

    def _run_dense(
        self, number: int, dense: Any, text: Text, windows: slice, composed: Float[Tensor, "b S H"]
    ) -> Float[Tensor, "b S H"]:
        """Run a batch through the dense expert's layer; return the input of its query, key and value.

        Its stream after the layer takes the place of that before. The target of attention's output is what brings the
        composed stream to the dense one: y = W_e x° + (h° − h) / residual, or W_e x° where a norm comes in between.
        """
        maps = {_QKV: self._attention.inputs[0], _ATTENTION: self._attention.output, _DOWN: self._family.down}
        before = self._read(text.dense, windows)
        with watched({key: dense.get_submodule(name) for key, name in maps.items()}) as expert:
            after = self._layers.run(number, dense, before)  # (b, S, H)
        # Some models give (b · S, H): seen as (b, S, H).
        target = expert[_ATTENTION][1].view(after.shape)
        if self._residual is not None:
            target = target + (before - composed) / self._residual
        else:
            text.dense_mlp.write(windows.start, expert[_DOWN][1].view(after.shape))
        text.target.write(windows.start, target)
        text.dense.write(windows.start, after)
        return expert[_QKV][0].view(after.shape)

    def _refit_attention_output(self, number: int, layer: Any, texts: Sequence[Text]) -> None:
        """Refit attention's output projection, so that the stream after it is the dense expert's."""
        module = layer.get_submodule(self._attention.output)
        sums = LeastSquares.zero(module.weight.shape[1], module.weight.shape[0], self._device)  # A inputs, H outputs
        for text, weight in zip(texts, self._weights, strict=True):
            for windows in text.batches():
                stream = self._read(text.composed, windows)
                inputs = input_of(module, partial(self._layers.run, number, layer, stream))
                target = self._tokens(self._read(text.target, windows), text, windows) - _bias(module)  # (T, H)
                sums.add(self._tokens(inputs, text, windows), target, weight)  # x (T, A)
        self._set(module, self._family.tensor_name(number, self._attention.output), sums.solve(module.weight))

    def _run_attention(self, number: int, layer: Any, replay: _Replay, texts: Sequence[Text]) -> None:
        """Run the refitted attention: record the input and the target of the MLPs, and the stream if they gave zeros.

        Where a norm follows the MLP, its target is the dense expert's own output, and the stream stays that before the
        layer.
        """
        replay.output = None
        for member, text in enumerate(texts):
            for windows in text.batches():
                before = self._read(text.composed, windows)
                stream = self._layers.run(number, layer, before)  # (b, S, H)
                mlp_input = replay.input.view(stream.shape).cpu()
                text.mlp_input.write(windows.start, mlp_input)
                self._choice.count(number, member, windows.start, mlp_input)
                if self._residual is not None:  # h_after = stream + residual · MLP
                    target = (self._read(text.dense, windows) - stream) / self._residual
                    text.target.write(windows.start, target)
                    text.composed.write(windows.start, stream)

    def _route(self, number: int, texts: Sequence[Text]) -> None:
        """Decide which expert each token goes to."""
        self._choice.solve(number)
        for member, text in enumerate(texts):
            for windows in text.batches():
                mlp_input = self._read(text.mlp_input, windows).cpu()
                text.experts[windows] = self._choice.experts(number, member, windows.start, mlp_input)

    def _refit_mlps(self, number: int, texts: Sequence[Text]) -> list[RowFile]:
        """Refit each expert's down projection, on its own tokens and on those that are routed to it.

        Returns:
            The outputs of each expert's MLP for the tokens that are routed to it, text by text.
        """
        name = self._family.tensor_name(number, self._family.down)
        queues = self._queues(texts)
        outputs = [RowFile(self._work / f"{expert}-outputs.rows", (queues[0].size,)) for expert in range(len(texts))]
        hidden = RowFile(self._work / "hidden.rows", (self._architecture.intermediate_size,))
        for expert, (text, queue) in enumerate(zip(texts, queues, strict=True)):
            layer = self._layers.layer(number, partial(_weight, text.member))
            mlp, module = layer.get_submodule(self._mlp), layer.get_submodule(self._family.down)
            sums = LeastSquares.zero(
                module.weight.shape[1], module.weight.shape[0], self._device
            )  # F inputs, H outputs
            hidden.clear()
            for index, mlp_input, target, routed in queue.blocks():  # (T, H) of one text, twice, and (T,)
                x = input_of(module, partial(mlp, mlp_input[None].to(self._device)))[0]  # a batch of one: (T, F)
                sums.add(x, target.to(self._device) - _bias(module), self._weights[index])
                hidden.append(x[routed.to(self._device)])
            self._set(module, name, sums.solve(module.weight), member=expert)
            queue.clear()
            for rows in hidden.blocks():
                with torch.no_grad():
                    outputs[expert].append(module(rows.to(self._device)))
        hidden.clear()
        return outputs

    def _queues(self, texts: Sequence[Text]) -> list[Queue]:
        """Return the tokens of each expert: its own, and those that are routed to it."""
        queues = [
            Queue(self._work / f"{expert}-tokens.rows", self._architecture.hidden_size) for expert in range(len(texts))
        ]
        for index, text in enumerate(texts):
            targets = text.target if self._residual is not None else text.dense_mlp
            for windows in text.batches():
                keep, chosen = text.keep[windows], text.experts[windows]  # (b, S)
                mlp_input, target = text.mlp_input.read(windows), targets.read(windows)
                for expert, queue in enumerate(queues):
                    used = keep if expert == index else keep & (chosen == expert)
                    queue.add(index, mlp_input[used], target[used], chosen[used] == expert)
        return queues

    def _add_outputs(
        self, number: int, layer: Any, replay: _Replay, texts: Sequence[Text], outputs: Sequence[RowFile]
    ) -> None:
        """Take the composed stream through the MLPs: each token by the output of the one that it was routed to."""
        positions = [0] * len(outputs)
        for text in texts:
            for windows in text.batches():
                keep, chosen = text.keep[windows], text.experts[windows]  # (b, S)
                mlp_output = torch.zeros((*keep.shape, self._architecture.hidden_size))
                for expert, rows in enumerate(outputs):
                    used = keep & (chosen == expert)
                    start, count = positions[expert], int(used.sum())
                    mlp_output[used] = rows.read(slice(start, start + count))
                    positions[expert] += count
                stream = self._read(text.composed, windows)
                if self._residual is not None:
                    stream = stream + self._residual * mlp_output.to(self._device)
                else:  # a norm follows the MLP, so the layer runs again with its output
                    replay.output = mlp_output.to(self._device)
                    stream = self._layers.run(number, layer, stream)
                text.composed.write(windows.start, stream)
        for rows in outputs:
            rows.clear()

    def _refit_head(self, texts: Sequence[Text]) -> None:
        """Sum up for the head, from its inputs x and the inputs x° of each member's own head."""
        size = self._architecture.hidden_size
        norm = self._layers.last_norm(self._composed.tensor)
        collected = []
        for text, weight in zip(texts, self._weights, strict=True):
            own_norm = self._layers.last_norm(partial(_weight, text.member))
            sums = LeastSquares.zero(size, size, self._device)
            for windows in text.batches():
                with torch.no_grad():
                    x = norm(self._tokens(self._read(text.composed, windows), text, windows))  # (T, H)
                    dense_x = own_norm(self._tokens(self._read(text.dense, windows), text, windows))
                sums.add(x, dense_x, weight)
            collected.append(sums.cpu())
        self._result.put_head(collected)

    def _text(self, number: int, member: Member) -> Text:
        text = Text.of(member, number, self._architecture.hidden_size, self._work)
        # Only the rows of the embeddings that the text uses: ids are numbers of these, in the order of the vocabulary.
        used, numbers = text.ids.unique(return_inverse=True)
        name = self._family.embedding
        for source, stream in ((member.open_weight(name), text.dense), (self._composed.source(name), text.composed)):
            embed = self._layers.embedded(_rows(source, used.tolist()))
            for windows in text.batches():
                stream.write(windows.start, embed(numbers[windows]))
        return text

    def _read(self, stream: RowFile, windows: slice) -> Float[Tensor, "b S H"]:
        return stream.read(windows).to(self._device)

    def _tokens(self, x: Tensor, text: Text, windows: slice) -> Float[Tensor, "T I"]:
        """Return the rows of the tokens that count, from (b, S, I) or (b · S, I)."""
        return x.reshape(-1, x.shape[-1])[text.keep[windows].flatten().to(x.device)]

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


def _rows(source: ArraySource, numbers: Sequence[int]) -> Float[Tensor, "V H"]:
    """Return some rows of a stored tensor, by ascending numbers."""
    found, start, wanted = [], 0, torch.tensor(numbers)
    for block in source.blocks():
        rows = to_tensor(block, source.dtype)
        here = wanted[(wanted >= start) & (wanted < start + len(rows))] - start
        found.append(rows[here].float())
        start += len(rows)
    return torch.cat(found)


def _affine(member: Member, full_name: str, layer: Any, name: str) -> Float[Tensor, "O J"]:
    """Return a member's weight with one more column: its bias, less the composed one, which stays."""
    module = layer.get_submodule(name)
    weight = _weight(member, f"{full_name}.weight").double()
    column = torch.zeros((len(weight), 1), dtype=torch.float64)
    if module.bias is not None:
        column[:, 0] = _weight(member, f"{full_name}.bias").double() - module.bias.double().cpu()
    return torch.cat([weight, column], dim=1)


def _bias(module: Any) -> Tensor | float:
    bias: Tensor | None = module.bias
    return 0.0 if bias is None else bias
