from .colours import COLOURS as COLOURS
from .colours import NEUTRAL as NEUTRAL
from .colours import colour_class as colour_class
from .colours import expert_colours as expert_colours
from .stylesheets import stylesheet as stylesheet
