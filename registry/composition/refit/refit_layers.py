"""The refit of a composition, layer by layer: linear maps solved again on the stream that the composed model gives.

A refit follows the kept tokens of all members down the layers composed so far. In every layer it solves, in this order:

1. the trunk's query, key and value projections, and the output projection of attention, on all members' tokens;
2. the router, from the MLP inputs that result, unless the expert of each token is known beforehand (`choice.py`);
3. for `--refine-mlp`, each expert's down projection, on its own tokens and on those of others that are routed to it.

Tokens then go where they are routed, so that later layers undo the errors of earlier routers too. The head comes
last. What the maps are fitted to is that of a `Fit`: `fit_mlps.py` and `fit_trunk.py`. One layer of a model is in
memory at a time, and one batch of tokens; all else lies in files.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from registry.checkpoint import Checkpoint
from registry.composition.refit.choice import Choice, GateChoice
from registry.composition.refit.composed_model import ComposedModel, Layer
from registry.composition.refit.fit_mlps import MlpFit
from registry.composition.refit.fit_trunk import TrunkFit
from registry.composition.refit.refit_source import RefitSource
from registry.composition.refit.token_streams import Text
from registry.composition.tensor_source import TensorSource
from registry.errors import CalibrationError
from registry.io.memory import return_freed_memory
from registry.maths.refit import LeastSquares
from registry.progress import Progress
from registry.runtime.row_file import RowFile


@runtime_checkable
class Fit(Protocol):
    """The equations that the linear maps of a composed model are solved by.

    Attributes:
        option: the option of `reg compose` that asks for it.
        follows_experts: it needs the streams of the dense experts too.
    """

    option: str
    follows_experts: bool

    def attention_inputs(self, layer: Layer, texts: Sequence[Text]) -> None:
        """Solve query, key and value."""

    def attention_output(self, layer: Layer, texts: Sequence[Text]) -> None:
        """Solve attention's output projection."""

    def mlps(self, layer: Layer, texts: Sequence[Text]) -> list[RowFile]:
        """Return the outputs of each expert's MLP for the tokens that are routed to it, text by text."""

    def head(self, texts: Sequence[Text]) -> list[LeastSquares]:
        """Return each member's sums for the head; none if it stays."""


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
    fit: Fit = TrunkFit(model) if plan.recipe.refine_trunk else MlpFit(model)
    texts = [model.text(number, member, dense=fit.follows_experts) for number, member in enumerate(plan.members)]
    count = model.architecture.num_hidden_layers
    with progress("refitting", count, "layer") as advance:
        for number in range(count):
            try:
                _refit_layer(model, fit, number, texts)
            except ValueError as error:
                raise CalibrationError(
                    f"layer {number} cannot be refitted: {error}", f"compose without {fit.option}"
                ) from error
            advance(1)
    if not model.architecture.tie_word_embeddings:
        model.result.put_head(fit.head(texts))
    return model.result


def _refit_layer(model: ComposedModel, fit: Fit, number: int, texts: Sequence[Text]) -> None:
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
