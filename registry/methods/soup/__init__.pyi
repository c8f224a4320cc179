from .instantiate import Instantiated as Instantiated
from .instantiate import instantiate as instantiate
from .settings import SoupTraining as SoupTraining
from .settings import check_soup as check_soup
from .train import TrainedSoup as TrainedSoup
from .train import train_soup as train_soup
