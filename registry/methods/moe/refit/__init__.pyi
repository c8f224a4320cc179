from .choice import Choice as Choice
from .choice import GateChoice as GateChoice
from .choice import KnownChoice as KnownChoice
from .refit_layers import refit as refit
from .refit_source import RefitSource as RefitSource
