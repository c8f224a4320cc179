"""Linear layers of float32 by the faster of two libraries (`maths.products`)."""

from typing import TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from registry.maths.products import linear

Module = TypeVar("Module", bound=nn.Module)


class FastLinear(nn.Linear):
    """A linear layer by the faster product."""

    def forward(self, x: Float[Tensor, "*T I"]) -> Float[Tensor, "*T O"]:
        """Return x Wᵀ + b."""
        return linear(x, self.weight, self.bias)


def with_fast_products(module: Module) -> Module:
    """Let the linear layers of a module use the faster product, and return the module.

    The layers of a mixture's experts are left out: the number of their rows changes with every call, and the library
    compiles a kernel for each.
    """
    for name, part in module.named_modules():
        if type(part) is nn.Linear and "experts" not in name.split("."):
            part.__class__ = FastLinear
    return module
