"""An expert's MLPs in training beside the frozen public ones, with a router row of their own (FlexOlmo §3.3.1).

With p = σ(r·x + b), the softmax over the logits (0, r·x + b) of the public expert and of this one, an MLP becomes

    y = (1 − p) M_public(x) + p M_expert(x)

for the layer's MLP input x. Public MLPs, attention, norms and embeddings are frozen; M_expert begins as a copy of
M_public, so that the training begins at the base model, whatever r is. The bias b trains only where it is asked for.

Shapes: B windows, S tokens, H hidden size.
"""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

EXPERT, PUBLIC = "expert", "public"
"""Names of the trained and of the frozen MLP within a `CoordinatedMLP`."""


class CoordinatedMLP(nn.Module):
    """A frozen public MLP and the expert's.

    Args:
        public: the base model's MLP.
        size: H.
        bias: a bias trains beside the row.
    """

    def __init__(self, public: nn.Module, size: int, *, bias: bool) -> None:
        super().__init__()
        self.public, self.expert = public, copy.deepcopy(public)
        device = next(public.parameters()).device
        self.row = nn.Parameter(torch.zeros(size, dtype=torch.float32, device=device))
        self.bias = nn.Parameter(torch.zeros(1, dtype=torch.float32, device=device)) if bias else None

    def forward(self, x: Float[Tensor, "B S H"]) -> Float[Tensor, "B S H"]:
        """Return y."""
        logit = (x.float() * self.row).sum(dim=-1, keepdim=True)  # (B, S, 1)
        share = torch.sigmoid(logit if self.bias is None else logit + self.bias)
        public, expert = self.public(x), self.expert(x)
        mixed: Tensor = public + share.to(public.dtype) * (expert - public)
        return mixed


def coordinate(model: nn.Module, mlp: Sequence[str], size: int, *, bias: bool) -> list[CoordinatedMLP]:
    """Replace every MLP of a model by a coordinated one, and return these, layer by layer.

    Args:
        model: a dense model.
        mlp: names of all MLP tensors, layer by layer.
        size: H.
        bias: a bias trains beside the row of each.
    """
    layers = []
    for holder in dict.fromkeys(map(_holder, mlp)):
        parent, _, attribute = holder.rpartition(".")
        layer = CoordinatedMLP(model.get_submodule(holder), size, bias=bias)
        setattr(model.get_submodule(parent), attribute, layer)
        layers.append(layer)
    return layers


def within(name: str, which: str) -> str:
    """Return the name that an MLP tensor has in a coordinated model, in its `EXPERT` or `PUBLIC` MLP."""
    holder = _holder(name)
    return f"{holder}.{which}{name.removeprefix(holder)}"


def _holder(name: str) -> str:
    """Return the module that holds the linear maps of an MLP: `layers.0.mlp` of `layers.0.mlp.up_proj.weight`."""
    return name.rpartition(".")[0].rpartition(".")[0]
