from .colours import COLOURS as COLOURS
from .colours import expert_colours as expert_colours
from .stylesheets import stylesheet as stylesheet
