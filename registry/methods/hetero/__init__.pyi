from .plan import config as config
from .plan import make_hetero as make_hetero
from .plan import opened as opened
