"""The recipe of any composition: of a mixture or a dense model, of an ensemble, or of a SIMoE."""

from registry.composition.recipe import Recipe
from registry.methods.ensemble.recipe import EnsembleRecipe
from registry.methods.simoe.recipe import SimoeRecipe

AnyRecipe = Recipe | EnsembleRecipe | SimoeRecipe
