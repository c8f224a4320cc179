from .composition import Plan as Plan
from .composition import Recipe as Recipe
from .errors import RegError as RegError
from .evaluation import ExtractionSettings as ExtractionSettings
from .evaluation import TestSettings as TestSettings
from .maths.statistics import Statistics as Statistics
from .methods.simoe import SimoeTraining as SimoeTraining
from .methods.soup import SoupTraining as SoupTraining
from .registry import Registry as Registry
from .statistics.settings import PassSettings as PassSettings
from .training.settings import ExpertTraining as ExpertTraining
from .training.settings import FitSettings as FitSettings
from .training.settings import MixtureTraining as MixtureTraining
from .training.settings import TrainSettings as TrainSettings

__all__ = [
    "ExpertTraining",
    "ExtractionSettings",
    "FitSettings",
    "MixtureTraining",
    "PassSettings",
    "Plan",
    "Recipe",
    "RegError",
    "Registry",
    "SimoeTraining",
    "SoupTraining",
    "Statistics",
    "TestSettings",
    "TrainSettings",
]
