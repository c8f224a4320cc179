from .expert import ExpertTraining as ExpertTraining
from .expert import TrainedExpert as TrainedExpert
from .expert import train_expert as train_expert
from .mixture import MixtureTraining as MixtureTraining
from .mixture import train_mixture as train_mixture
from .settings import TrainSettings as TrainSettings
from .train_router import Trained as Trained
from .train_router import train_router as train_router
