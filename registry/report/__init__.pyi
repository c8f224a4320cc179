from .data import Figures as Figures
from .page import page as page
