from .pick import pick as pick
from .plan import added_parameters as added_parameters
from .plan import base_of as base_of
from .plan import config as config
from .plan import everyone as everyone
from .plan import make_adapters as make_adapters
from .plan import ranks_note as ranks_note
from .plan import truncation_bytes as truncation_bytes
