from .styles import COLOURS as COLOURS
from .styles import NEUTRAL as NEUTRAL
from .styles import colour_class as colour_class
from .styles import expert_colours as expert_colours
from .styles import static_text as static_text
from .templates import REPORT_EXTRA as REPORT_EXTRA
from .templates import environment as environment
