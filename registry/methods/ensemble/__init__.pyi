from .plan import active_parameters as active_parameters
from .plan import code as code
from .plan import config as config
from .plan import make_plan as make_plan
from .plan import opened as opened
