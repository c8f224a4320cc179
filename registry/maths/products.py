"""Products of float32 matrices by the fastest library there is, with bits that do not depend on the number of threads.

On processors of some makers oneDNN multiplies twice as fast as the library behind `torch.nn.functional.linear`.

Shapes: T rows, I columns of an input, O columns of an output.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(
    x: Float[Tensor, "*T I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None
) -> Float[Tensor, "*T O"]:
    """Return x Wᵀ + b."""
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
    if not (_ONEDNN and plain and x.numel() and not torch.is_grad_enabled()):
        return functional.linear(x, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
