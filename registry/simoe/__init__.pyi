from .simoe_settings import SimoeTraining as SimoeTraining
from .train_simoe import TrainedSimoe as TrainedSimoe
from .train_simoe import train_simoe as train_simoe
