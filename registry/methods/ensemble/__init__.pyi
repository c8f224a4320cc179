from .plan import make_plan as make_plan
from .plan import opened as opened
