"""Training the routers of a composition, and nothing else of it: what DUME calls DUME+."""

from registry.training.settings import TrainSettings
from registry.training.train_router import Trained, train_router

__all__ = ["TrainSettings", "Trained", "train_router"]
