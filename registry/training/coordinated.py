"""An expert's MLPs in training beside the frozen public ones, with a router row of their own (FlexOlmo §3.2, §3.3).

With p = σ(r·x + b), the softmax over the logits (0, r·x + b) of the public expert and of this one, an MLP becomes

    y = (1 − p) M_public(x) + p M_expert(x)

for the layer's MLP input x. Public MLPs, attention, norms and embeddings are frozen; M_expert begins as a copy of
M_public, so that the training begins at the base model, whatever r is. A bias trains only where it is asked for, from 0
on; FlexOlmo has a negative one (§3.3.2, D.2), whose value and training it does not say. `bound_biases` keeps it at most
0, so that logits are (0, r·x + min(b, 0)). A public row that is not 0 is FlexOlmo's: r here is the difference of the
two. r begins at 0, or at the difference of the embeddings of the expert's text and of public text.

Shapes: L layers, H hidden size, N windows, B windows of a batch, S tokens of a window.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor, nn

from registry.errors import CalibrationError
from registry.maths.router.gates import initial_row
from registry.runtime.layerwise import seen_inputs
from registry.training.launcher import Processes
from registry.training.sharded import local, spread

WINDOWS = 32
"""Most windows of each text whose embedding a row begins with. FlexOlmo takes 1,000 documents (A.2)."""
EXPERT, PUBLIC = "expert", "public"
"""Names of the trained and of the frozen MLP within a `CoordinatedMLP`."""


class CoordinatedMLP(nn.Module):
    """A frozen public MLP and the expert's, which begins as its copy; with `bias` a bias trains, too. `size` is H."""

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
    """Replace every MLP of a dense model, whose tensors are `mlp`, by a coordinated one; return these by layer."""
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


def bound_biases(layers: Sequence[CoordinatedMLP]) -> None:
    """Set every bias above 0 to 0, after a step: there it has the gradient that min(b, 0) hides from one above 0."""
    with torch.no_grad():
        for layer in layers:
            if layer.bias is not None:
                local(layer.bias).clamp_(max=0)


def begin_rows(
    model: Any,
    layers: Sequence[CoordinatedMLP],
    own: tuple[Int64[Tensor, "N S"], Bool[Tensor, "N S"]],
    public: tuple[Int64[Tensor, "M T"], Bool[Tensor, "M T"]],
    batch_size: int,
    processes: Processes,
) -> None:
    """Set the row of every layer to the difference of the embeddings of two texts (`maths.router.gates`).

    The model still computes what the base model does, because both MLPs of a layer are equal. Each process passes all
    windows; of a text these are the tokens, and which of them count.

    Raises:
        CalibrationError: a mean is zero, NaN or infinite.
    """
    means, public_means = (_mean_inputs(model, layers, *text, batch_size) for text in (own, public))
    for number, (layer, mean, public_mean) in enumerate(zip(layers, means, public_means, strict=True)):
        try:
            row = initial_row(mean, public_mean)
        except ValueError as error:
            raise CalibrationError(
                f"layer {number} has no first router row: {error}", "train without --public-data: its row begins at 0"
            ) from error
        with torch.no_grad():
            layer.row.copy_(spread(row, layer.row, processes))


def _mean_inputs(
    model: Any,
    layers: Sequence[CoordinatedMLP],
    ids: Int64[Tensor, "N S"],
    keep: Bool[Tensor, "N S"],
    batch_size: int,
) -> Float64[Tensor, "L H"]:
    device = layers[0].row.device
    sums = torch.zeros(len(layers), len(layers[0].row), dtype=torch.float64)
    model.eval()
    with seen_inputs(layers) as seen, torch.no_grad():
        for some, counted in zip(ids.split(batch_size), keep.to(device).split(batch_size), strict=True):
            model(input_ids=some.to(device), use_cache=False)
            for layer, x in seen.items():
                sums[layer] += x[counted].double().sum(dim=0).cpu()  # (B, S, H) → (T, H) → (H,)
    model.train()
    return sums / int(keep.sum())
