from .expert_settings import ExpertTraining as ExpertTraining
from .expert_settings import TrainingText as TrainingText
from .train_expert import TrainedExpert as TrainedExpert
from .train_expert import train_expert as train_expert
