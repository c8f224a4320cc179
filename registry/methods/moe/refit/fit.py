"""The refit of a composition, layer by layer: linear maps solved again on the stream that the composed model gives.

A refit follows the kept tokens of all members down the layers composed so far. In every layer it solves, in this order:

1. the trunk's query, key and value projections, and the output projection of attention, on all members' tokens;
2. the router, from the MLP inputs that result, unless the expert of each token is known beforehand (`choice.py`);
3. each expert's down projection, on its own tokens and on those of others that are routed to it.

Tokens then go where they are routed, so that later layers undo the errors of earlier routers too. The head comes
last. One layer of a model is in memory at a time, and one batch of tokens; all else lies in files.

The composed trunk is a compromise, so the residual stream of an expert's text drifts from that of the dense expert.
Every map is solved for what makes up for that drift (`maths/refit.py` has the targets).

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
from torch import Tensor

from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError
from registry.io.process import return_freed_memory
from registry.maths.products import filled_up
from registry.maths.refit import LeastSquares
from registry.methods.moe.refit.choice import Choice, GateChoice
from registry.methods.moe.refit.composed_model import ComposedModel, Layer, RefitSource, affine, bias_of, weights_of
from registry.methods.moe.refit.texts import Queue, Text
from registry.methods.moe.tensor_source import TensorSource
from registry.progress import Progress
from registry.runtime.layerwise import input_of, watched
from registry.runtime.row_file import RowFile

_QKV, _ATTENTION, _DOWN = "query, key and value", "attention output", "down projection"
"""Keys of watched linear maps. Their inputs are (b, S, H), (b, S, A), (b, S, F); the last two give (b, S, H)."""


def attention_inputs(model: ComposedModel, layer: Layer, texts: Sequence[Text]) -> None:
    """Run the dense experts, and refit query, key and value to y = W_e x°.

    The sums are taken with x̃° = [x°; 1] in place of y, (H + 1, H), and mapped by [W_e, bias] to those of y, (O, H):
    one pass over the tokens serves all three projections.
    """
    names, size = model.attention.inputs, model.architecture.hidden_size
    totals: dict[str, LeastSquares] = {}
    for text, weight in zip(texts, model.token_weights, strict=True):
        dense = model.layers.layer(layer.number, weights_of(text.member))
        sums = LeastSquares.zero(size, size + 1, model.device)
        for windows in text.batches():
            stream = model.read(text.composed, windows)
            inputs = input_of(layer.module.get_submodule(names[0]), partial(model.run, layer, stream))
            dense_inputs = _run_dense(model, layer.number, dense, text, windows, stream)
            x, dense_x = model.tokens(inputs, text, windows), model.tokens(dense_inputs, text, windows)  # (T, H)
            sums.add(x, torch.cat([dense_x, dense_x.new_ones((len(dense_x), 1))], dim=1), weight)  # (T, H + 1)
        return_freed_memory()
        for name in names:
            full_name = model.family.tensor_name(layer.number, name)
            mapped = sums.mapped(affine(text.member, full_name, layer.module.get_submodule(name)))
            totals[name] = totals[name] + mapped if name in totals else mapped
    for name, total in totals.items():
        module = layer.module.get_submodule(name)
        model.set(module, model.family.tensor_name(layer.number, name), total.solve(module.weight))


def _run_dense(
    model: ComposedModel, number: int, dense: Any, text: Text, windows: slice, composed: Float[Tensor, "b S H"]
) -> Float[Tensor, "b S H"]:
    """Run a batch through the dense expert's layer; return the input of its query, key and value.

    Its stream after the layer takes the place of that before. The target of attention's output is what brings the
    composed stream to the dense one: y = W_e x° + (h° − h) / residual, or W_e x° where a norm comes in between.
    """
    maps = {_QKV: model.attention.inputs[0], _ATTENTION: model.attention.output, _DOWN: model.family.down}
    before = model.read(text.dense, windows)
    with watched({key: dense.get_submodule(name) for key, name in maps.items()}) as expert:
        after = model.layers.run(number, dense, before)  # (b, S, H)
    # Some models give (b · S, H): seen as (b, S, H).
    target = expert[_ATTENTION][1].view(after.shape)
    if model.residual is not None:
        target = target + (before - composed) / model.residual
    else:
        text.dense_mlp.write(windows.start, expert[_DOWN][1].view(after.shape))
    text.target.write(windows.start, target)
    text.dense.write(windows.start, after)
    return expert[_QKV][0].view(after.shape)


def attention_output(model: ComposedModel, layer: Layer, texts: Sequence[Text]) -> None:
    """Refit attention's output projection, so that the stream after it is the dense expert's."""
    name = model.attention.output
    module = layer.module.get_submodule(name)
    sums = LeastSquares.zero(module.weight.shape[1], module.weight.shape[0], model.device)  # A inputs, H outputs
    for text, weight in zip(texts, model.token_weights, strict=True):
        for windows in text.batches():
            stream = model.read(text.composed, windows)
            inputs = input_of(module, partial(model.run, layer, stream))
            target = model.tokens(model.read(text.target, windows), text, windows) - bias_of(module)  # (T, H)
            sums.add(model.tokens(inputs, text, windows), target, weight)  # x (T, A)
    model.set(module, model.family.tensor_name(layer.number, name), sums.solve(module.weight))


def mlps(model: ComposedModel, layer: Layer, texts: Sequence[Text]) -> list[RowFile]:
    """Refit each down projection on own and routed tokens; return each MLP's outputs for the routed ones, by text."""
    name = model.family.tensor_name(layer.number, model.family.down)
    queues = _queues(model, texts)
    outputs = [RowFile(model.work / f"{expert}-outputs.rows", (queues[0].size,)) for expert in range(len(texts))]
    hidden = RowFile(model.work / "hidden.rows", (model.architecture.intermediate_size,))
    for expert, (text, queue) in enumerate(zip(texts, queues, strict=True)):
        mlp = model.layers.module(model.family.tensor_name(layer.number, model.mlp), weights_of(text.member))
        module = mlp.get_submodule(model.family.down.rpartition(".")[2])
        outs, ins = module.weight.shape  # H, F
        sums = LeastSquares.zero(ins, outs, model.device)
        hidden.clear()
        for index, mlp_input, target, routed in queue.blocks():  # (T, H) of one text, twice, and (T,)
            padded = filled_up(mlp_input.to(model.device))[None]  # a batch of one
            x = input_of(module, partial(mlp, padded))[0, : len(target)]  # (T, F)
            sums.add(x, target.to(model.device) - bias_of(module), model.token_weights[index])
            hidden.append(x[routed.to(model.device)])
        model.set(module, name, sums.solve(module.weight), member=expert)
        queue.clear()
        for rows in hidden.blocks():
            with torch.no_grad():
                outputs[expert].append(module(filled_up(rows.to(model.device)))[: len(rows)])
        return_freed_memory()
    hidden.clear()
    return outputs


def _queues(model: ComposedModel, texts: Sequence[Text]) -> list[Queue]:
    """Return the tokens of each expert: its own, and those that are routed to it."""
    queues = [
        Queue(model.work / f"{expert}-tokens.rows", model.architecture.hidden_size) for expert in range(len(texts))
    ]
    for index, text in enumerate(texts):
        for windows in text.batches():
            keep, chosen = text.keep[windows], text.experts[windows]  # (b, S)
            if model.residual is not None:  # h_after = h + residual · MLP
                target = (text.dense.read(windows) - text.composed.read(windows)) / model.residual
            else:  # a norm follows the MLP, whose target is the dense expert's own output
                target = text.dense_mlp.read(windows)
            mlp_input = text.mlp_input.read(windows)
            for expert, queue in enumerate(queues):
                used = keep if expert == index else keep & (chosen == expert)
                queue.add(index, mlp_input[used], target[used], chosen[used] == expert)
    return queues


def head(model: ComposedModel, texts: Sequence[Text]) -> list[LeastSquares]:
    """Return each member's sums for the head, from its inputs x and the inputs x° of the member's own head."""
    size, norm, collected = model.architecture.hidden_size, model.last_norm(), []
    for text, weight in zip(texts, model.token_weights, strict=True):
        own_norm = model.layers.module(model.layers.norm, weights_of(text.member))
        sums = LeastSquares.zero(size, size, model.device)
        for windows in text.batches():
            with torch.no_grad():
                x = norm(model.tokens(model.read(text.composed, windows), text, windows))  # (T, H)
                dense_x = own_norm(model.tokens(model.read(text.dense, windows), text, windows))
            sums.add(x, dense_x, weight)
        collected.append(sums.cpu())
    return collected


def refit(
    source: TensorSource, composed: Checkpoint, work: Path, progress: Progress, choice: Choice | None = None
) -> RefitSource:
    """Return a source with its refitted tensors (arguments as `ComposedModel`; without `choice` routers are solved).

    (CalibrationError: an activation is NaN or infinite.)
    """
    plan = source.plan
    model = ComposedModel(source, composed, work, choice or GateChoice(plan, composed))
    texts = [model.text(number, member) for number, member in enumerate(plan.members)]
    count = model.architecture.num_hidden_layers
    with progress("refitting", count, "layer") as advance:
        for number in range(count):
            try:
                _refit_layer(model, number, texts)
            except ValueError as error:
                raise CalibrationError(
                    f"layer {number} cannot be refitted: {error}", "compose without --refine-mlp"
                ) from error
            advance(1)
    if not model.architecture.tie_word_embeddings:
        model.result.head = head(model, texts)
    return model.result


def _refit_layer(model: ComposedModel, number: int, texts: Sequence[Text]) -> None:
    layer = model.layer(number)
    attention_inputs(model, layer, texts)
    attention_output(model, layer, texts)
    return_freed_memory()
    model.run_attention(layer, texts)
    return_freed_memory()
    model.route(layer, texts)
    return_freed_memory()
    outputs = mlps(model, layer, texts)
    model.add_outputs(layer, texts, outputs)
