from .pick import pick as pick
from .plan import base_of as base_of
from .plan import config as config
from .plan import everyone as everyone
from .plan import make_adapters as make_adapters
