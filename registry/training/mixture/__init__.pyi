from .mixture_settings import MixtureTraining as MixtureTraining
from .train_mixture import train_mixture as train_mixture
