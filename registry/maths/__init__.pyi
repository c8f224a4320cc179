from .lora import dora_weight as dora_weight
from .lora import lora_delta as lora_delta
from .lora import lora_scaling as lora_scaling
from .statistics import Statistics as Statistics
