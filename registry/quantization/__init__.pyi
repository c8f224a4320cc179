from .quantize import Quantized as Quantized
from .quantize import quantize as quantize
