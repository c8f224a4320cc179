from .lora import dora_weight as dora_weight
from .lora import lora_delta as lora_delta
from .lora import lora_scaling as lora_scaling
from .lora import spectrum as spectrum
from .lora import truncated as truncated
from .statistics import Statistics as Statistics
