"""Fits of the trunk alone (`--refine-trunk`): RegMean on the inputs that the composed model gives its linear maps.

RegMean (`maths/trunk/regmean.py`) takes each map's inputs from the dense experts. In the composed model they are
others, because all maps below changed. RegMean++ (Nguyen et al. 2025, arXiv 2508.03121) takes them layer by layer from
the model as merged so far; here this is the mixture, in which tokens go to the experts that the routers choose. MLPs,
norms and embeddings stay as they are.

    W = (Σ_e ω_e Ĝ_e + r I)⁻¹ (Σ_e ω_e Ĝ_e W_e + r W_0)        Ĝ = α G + (1 − α) diag(G)          W is (in, out)

G_e is of the inputs x that the composed model gives the map on member e's tokens, W_0 the trunk's own solution.

Shapes: H hidden size, A width of attention's output before its projection; T tokens that count in a batch. A linear map
of I inputs and O outputs has the weight (O, I).
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from registry.composition.refit.composed_model import ComposedModel, Layer, affine, weights_of
from registry.composition.refit.token_streams import Text
from registry.io.memory import return_freed_memory
from registry.maths.products import filled_up
from registry.maths.refit import LeastSquares
from registry.runtime.layerwise import input_of
from registry.runtime.row_file import RowFile


class TrunkFit:
    """Maps fitted to what each member's own map gives for the composed model's inputs; MLPs stay.

    Args:
        model: the composed model.
    """

    option = "--refine-trunk"
    follows_experts = False

    def __init__(self, model: ComposedModel) -> None:
        self._model, self._alpha = model, model.plan.recipe.method_options["alpha"]

    def attention_inputs(self, layer: Layer, texts: Sequence[Text]) -> None:
        """Solve query, key and value, which have one input x, (T, H)."""
        self._solve(layer, self._model.attention.inputs, texts)

    def attention_output(self, layer: Layer, texts: Sequence[Text]) -> None:
        """Solve attention's output projection, whose input x is (T, A)."""
        self._solve(layer, [self._model.attention.output], texts)

    def _solve(self, layer: Layer, names: Sequence[str], texts: Sequence[Text]) -> None:
        """Solve maps of one input."""
        if len(texts) == 1:  # its own trunk
            return
        model, totals = self._model, dict[str, LeastSquares]()
        first = layer.module.get_submodule(names[0])
        for text, weight in zip(texts, model.token_weights, strict=True):
            inputs = (
                model.tokens(
                    input_of(first, partial(model.run, layer, model.read(text.composed, windows))), text, windows
                )
                for windows in text.batches()
            )
            sums = self._sums(inputs, first.weight.shape[1], weight)
            for name in names:
                full_name = model.family.tensor_name(layer.number, name)
                mapped = sums.mapped(affine(text.member, full_name, layer.module.get_submodule(name)))
                totals[name] = totals[name] + mapped if name in totals else mapped
        for name, total in totals.items():
            module = layer.module.get_submodule(name)
            model.set(module, model.family.tensor_name(layer.number, name), total.solve(module.weight))

    def _sums(self, inputs: Iterator[Float[Tensor, "T I"]], size: int, weight: float) -> LeastSquares:
        """Return one member's sums with x̃ = [x; 1] in place of y, (I + 1, I): a map [W_e, bias] of them gives y."""
        sums = LeastSquares.zero(size, 1, self._model.device)
        for x in inputs:
            sums.add(x, x.new_ones((len(x), 1)), weight)
        gram = sums.gram
        if self._alpha != 1:
            diagonal = gram.diagonal().clone()
            gram.mul_(self._alpha).diagonal().copy_(diagonal)
        return LeastSquares(gram, torch.cat([gram, sums.cross]))

    def mlps(self, layer: Layer, texts: Sequence[Text]) -> list[RowFile]:
        """Return the outputs of each expert's MLP for the tokens that are routed to it, text by text."""
        model, outputs = self._model, []
        for expert, text in enumerate(texts):
            mlp = model.layers.part(layer.number, model.mlp, weights_of(text.member))
            rows = RowFile(model.work / f"{expert}-outputs.rows", (model.architecture.hidden_size,))
            for other in texts:
                for windows, used in model.routed(other, expert):
                    x = model.read(other.mlp_input, windows)[used.to(model.device)]  # (T, H)
                    with torch.no_grad():
                        rows.append(mlp(filled_up(x)[None])[0, : len(x)])  # a batch of one
            outputs.append(rows)
            return_freed_memory()
        return outputs

    def head(self, texts: Sequence[Text]) -> list[LeastSquares]:
        """Return each member's sums for the head, from its inputs x, (T, H)."""
        model, size = self._model, self._model.architecture.hidden_size
        if len(texts) == 1:
            return []
        norm, collected = model.last_norm(), []
        for text, weight in zip(texts, model.token_weights, strict=True):
            with torch.no_grad():
                inputs = (
                    norm(model.tokens(model.read(text.composed, windows), text, windows)) for windows in text.batches()
                )
                sums = self._sums(inputs, size, weight)
            collected.append(LeastSquares(sums.gram, sums.cross[:-1]).cpu())  # a head has no bias here
        return collected
