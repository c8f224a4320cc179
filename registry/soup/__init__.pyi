from .instantiate import Instantiated as Instantiated
from .instantiate import instantiate as instantiate
from .soup_settings import SoupTraining as SoupTraining
from .soup_version import check_soup as check_soup
from .train_soup import TrainedSoup as TrainedSoup
from .train_soup import train_soup as train_soup
