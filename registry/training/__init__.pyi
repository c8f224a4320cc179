from .settings import TrainSettings as TrainSettings
from .train_router import Trained as Trained
from .train_router import train_router as train_router
