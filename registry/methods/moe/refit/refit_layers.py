"""The refit of a composition, layer by layer: linear maps solved again on the stream that the composed model gives.

A refit follows the kept tokens of all members down the layers composed so far. In every layer it solves, in this order:

1. the trunk's query, key and value projections, and the output projection of attention, on all members' tokens;
2. the router, from the MLP inputs that result, unless the expert of each token is known beforehand (`choice.py`);
3. each expert's down projection, on its own tokens and on those of others that are routed to it.

Tokens then go where they are routed, so that later layers undo the errors of earlier routers too. The head comes
last. What the maps are fitted to is in `fit_mlps.py`. One layer of a model is in memory at a time, and one batch of
tokens; all else lies in files.
"""

from collections.abc import Sequence
from pathlib import Path

from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError
from registry.io.process import return_freed_memory
from registry.methods.moe.refit.choice import Choice, GateChoice
from registry.methods.moe.refit.composed_model import ComposedModel
from registry.methods.moe.refit.fit_mlps import MlpFit
from registry.methods.moe.refit.refit_source import RefitSource
from registry.methods.moe.refit.token_streams import Text
from registry.methods.moe.tensor_source import TensorSource
from registry.progress import Progress


def refit(
    source: TensorSource, composed: Checkpoint, work: Path, progress: Progress, choice: Choice | None = None
) -> RefitSource:
    """Return a source with its refitted tensors.

    Args:
        source: the tensors of the composition.
        composed: a dense folder of the composed trunk, which gives its weights and scales.
        work: a folder for streams and refitted tensors.
        progress: reports the layers.
        choice: the expert of each token; None for routers that the refit solves.

    Raises:
        CalibrationError: an activation is NaN or infinite.
    """
    plan = source.plan
    model = ComposedModel(source, composed, work, choice or GateChoice(plan, composed))
    fit = MlpFit(model)
    texts = [model.text(number, member) for number, member in enumerate(plan.members)]
    count = model.architecture.num_hidden_layers
    with progress("refitting", count, "layer") as advance:
        for number in range(count):
            try:
                _refit_layer(model, fit, number, texts)
            except ValueError as error:
                raise CalibrationError(
                    f"layer {number} cannot be refitted: {error}", "compose without --refine-mlp"
                ) from error
            advance(1)
    if not model.architecture.tie_word_embeddings:
        model.result.put_head(fit.head(texts))
    return model.result


def _refit_layer(model: ComposedModel, fit: MlpFit, number: int, texts: Sequence[Text]) -> None:
    layer = model.layer(number)
    fit.attention_inputs(layer, texts)
    fit.attention_output(layer, texts)
    return_freed_memory()
    model.run_attention(layer, texts)
    return_freed_memory()
    model.route(layer, texts)
    return_freed_memory()
    outputs = fit.mlps(layer, texts)
    model.add_outputs(layer, texts, outputs)
