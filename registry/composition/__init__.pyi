from .ensemble.plan import Ensemble as Ensemble
from .ensemble.plan import EnsembleRecipe as EnsembleRecipe
from .ensemble.plan import make_ensemble as make_ensemble
from .ensemble.plan import write_ensemble as write_ensemble
from .plan import Plan as Plan
from .plan import make_plan as make_plan
from .recipe import Recipe as Recipe
from .write import write_composition as write_composition
