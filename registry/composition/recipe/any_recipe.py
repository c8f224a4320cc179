"""The recipe of any composition: of a mixture or a dense model, of an ensemble, or of a SIMoE."""

from registry.composition.ensemble.recipe import EnsembleRecipe
from registry.composition.interpolated.simoe_recipe import SimoeRecipe
from registry.composition.recipe import Recipe

AnyRecipe = Recipe | EnsembleRecipe | SimoeRecipe
