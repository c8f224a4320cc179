"""Domain embeddings: routers from mean features of the base model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.composition.method import BASE, Compared, Router, Settings
from registry.composition.recipe.option import Problem
from registry.methods.moe.options import BIAS, GATING, LAM, NORMALIZE
from registry.methods.moe.refinement import PAPER, refined, without_refinement
from registry.methods.works import FLEXOLMO

if TYPE_CHECKING:
    from torch import Tensor

    from registry.maths.router.inputs import RouterInputs


class DomainEmbedding(Router):
    """Mean features of each expert's text in the base model (FlexOlmo, §3.3.2)."""

    name = "domain-embedding"
    options = (LAM, NORMALIZE, GATING, BIAS)
    words = "routers from the base model’s embeddings of each domain"
    sentence = 'The routers are mean features of the experts\' text, as in "FlexOlmo", section 3.3.2.'
    works = (FLEXOLMO,)
    compared = {"domain-embedding": Compared(PAPER)}
    statistics = BASE

    def problem(self, values: Settings) -> Problem | None:
        if not (name := refined(values)):
            return None
        return without_refinement(name, self.name, "takes features of the base model, not of a refined one")

    def solve(self, inputs: RouterInputs) -> Tensor:
        from registry.maths.router.domain_embedding import domain_embedding

        return domain_embedding(inputs.statistics, inputs.lam, inputs.bias, inputs.normalize)
