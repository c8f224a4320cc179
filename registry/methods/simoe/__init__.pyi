from .model import mask_overlaps as mask_overlaps
from .plan import base_of as base_of
from .plan import config as config
from .plan import make_simoe as make_simoe
from .settings import SimoeTraining as SimoeTraining
from .train import TrainedSimoe as TrainedSimoe
from .train import train_simoe as train_simoe
