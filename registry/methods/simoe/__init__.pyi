from .settings import SimoeTraining as SimoeTraining
from .train import TrainedSimoe as TrainedSimoe
from .train import train_simoe as train_simoe
