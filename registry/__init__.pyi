from .composition import EnsembleRecipe as EnsembleRecipe
from .composition import HeteroRecipe as HeteroRecipe
from .composition import Plan as Plan
from .composition import Recipe as Recipe
from .composition import SimoeRecipe as SimoeRecipe
from .errors import RegError as RegError
from .evaluation import ExtractionSettings as ExtractionSettings
from .evaluation import TestSettings as TestSettings
from .maths.statistics import Statistics as Statistics
from .registry import Registry as Registry
from .simoe import SimoeTraining as SimoeTraining
from .soup import SoupTraining as SoupTraining
from .statistics.settings import PassSettings as PassSettings
from .training.coefficients import FitSettings as FitSettings
from .training.expert import ExpertTraining as ExpertTraining
from .training.mixture import MixtureTraining as MixtureTraining
from .training.settings import TrainSettings as TrainSettings

__all__ = [
    "EnsembleRecipe",
    "ExpertTraining",
    "ExtractionSettings",
    "FitSettings",
    "HeteroRecipe",
    "MixtureTraining",
    "PassSettings",
    "Plan",
    "Recipe",
    "RegError",
    "Registry",
    "SimoeRecipe",
    "SimoeTraining",
    "SoupTraining",
    "Statistics",
    "TestSettings",
    "TrainSettings",
]
