"""A SIMoE as one module: a frozen dense model, the shared weights D of its linear layers, gates and a router.

D begins at 0, so that training begins at the base model whatever the masks and the router say. The gates begin mostly
open and at random, so that no two experts are alike, and the router near equal weights; their first values are ours.

Shapes: B windows, S tokens, n experts, R outputs of all linear layers of attention and MLPs, H hidden size.
"""

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from registry.io.torch_blocks import to_tensor
from registry.maths.interpolation import (
    change,
    expected_gates,
    expected_sparsity,
    expert_weights,
    final_masks,
    next_multiplier,
    orthogonality,
    overlap,
    overlap_matrix,
    sampled_gates,
    unpack_bits,
)
from registry.member import Member
from registry.methods.simoe.settings import SimoeTraining
from registry.methods.simoe.versions import KEY, MASK

FIRST_MEAN, FIRST_SPREAD = 1.0, 0.5
"""Mean and standard deviation of log α at the start: P(z ≠ 0) is about 0.93."""
CURVES = ("sparsity", "overlap", "multiplier")
"""Columns of the record of a training: expected sparsity, overlap of the gates without noise, and λ after each step."""


class Simoe(nn.Module):
    """The SIMoE of a dense model in float32, whose weights stay as they are.

    `modules` names the linear modules of its attention and MLPs, layer by layer.
    """

    def __init__(self, model: Any, modules: Sequence[str], settings: SimoeTraining) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        model.requires_grad_(False)
        layers = [model.get_submodule(name) for name in modules]
        device, size = layers[0].weight.device, model.get_input_embeddings().weight.shape[1]
        self.outputs = [layer.weight.shape[0] for layer in layers]
        self.deltas = nn.ParameterList([torch.zeros_like(layer.weight) for layer in layers])
        draw = torch.Generator().manual_seed(settings.seed)  # on the CPU: the same on every device
        first = torch.randn((settings.experts, sum(self.outputs)), generator=draw) * FIRST_SPREAD + FIRST_MEAN
        self.log_alpha = nn.Parameter(first.to(device))
        row = torch.randn((settings.experts, size), generator=draw) * size**-0.5
        self.router = nn.Parameter(row.to(device))
        self.multiplier = nn.Parameter(torch.zeros(1), requires_grad=False)  # of no gradient, and saved with the others
        self.record = nn.Parameter(torch.zeros(settings.steps, len(CURVES)), requires_grad=False)
        self._gates: Sequence[Tensor] = ()
        self._masks: Tensor | None = None
        for number, layer in enumerate(layers):
            layer.register_forward_hook(partial(self._changed, number))

    @property
    def trained(self) -> list[nn.Parameter]:
        """The tensors that a training changes, in a fixed order."""
        return [*self.deltas, self.log_alpha, self.router, self.multiplier, self.record]

    def forward(self, input_ids: Int64[Tensor, "B S"], **others: Any) -> Any:
        """Return the output of the model with the weights that each window's prompt gives the experts.

        Masks are random in training, the same for all windows of a batch; otherwise they are the final ones.
        """
        with torch.autocast(input_ids.device.type, enabled=False):
            embedding = self.model.get_input_embeddings()
            prompt = embedding(input_ids[:, : self.settings.prompt_tokens]).float().mean(dim=1)  # (B, H)
            if self.training:
                uniform = torch.rand(self.log_alpha.shape)  # on the CPU: the same on every device
                self._masks = sampled_gates(self.log_alpha, uniform.to(self.log_alpha.device))
            else:
                self._masks = self.final()[0].float()
            gates = expert_weights(prompt, self.router) @ self._masks  # g = Σ_m α_m z_m, (B, R)
        self._gates = gates.split(self.outputs, dim=1)
        return self.model(input_ids=input_ids, **others)

    def penalty(self) -> Float[Tensor, ""]:
        """Return λ (τ - expected sparsity) + β · the layers' mean ‖Z Zᵀ - I‖, of the gates Z of the last pass."""
        assert self._masks is not None
        short = self.settings.sparsity - expected_sparsity(self.log_alpha)
        constraint = self.multiplier[0].to(short.device) * short
        if not self.settings.beta:
            return constraint
        return constraint + self.settings.beta * orthogonality(self._masks.split(self.outputs, dim=1))

    @torch.no_grad()
    def ascend(self, step: int) -> None:
        """Take a step of dual ascent after a step of the training, counted from 1, and record it."""
        sparsity = float(expected_sparsity(self.log_alpha))
        value = next_multiplier(float(self.multiplier), sparsity, self.settings.sparsity, self.settings.dual_lr)
        self.multiplier.fill_(value)
        self.record[step - 1] = torch.tensor([sparsity, float(overlap(expected_gates(self.log_alpha))), value])

    def decays(self, part: nn.Parameter) -> bool:
        """Tell whether weight decay applies to a weight: to D."""
        return any(part is delta for delta in self.deltas)

    def rate_of(self, part: nn.Parameter) -> float:
        """Return the highest learning rate of a weight."""
        is_gate = part is self.log_alpha or part is self.router
        return self.settings.gate_lr if is_gate else self.settings.lr

    def final(self) -> tuple[Bool[Tensor, "n R"], int]:
        """Return the masks that stay, and the number of gates that were closed for the sparsity."""
        return final_masks(self.log_alpha.detach(), self.settings.sparsity)

    def _changed(self, number: int, _module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output + change(inputs[0], self.deltas[number], self._gates[number]).to(output.dtype)


def mask_overlaps(members: Sequence[Member]) -> tuple[tuple[str, str, float], ...]:
    """Return (name, name, overlap of the masks, from 0 to 1) of every two members of one SIMoE; of others nothing."""
    if not all(KEY in (member.version.content or {}) for member in members):
        return ()
    packed = [torch.cat([to_tensor(one, "uint8") for one in member.open(KEY, MASK).blocks()]) for member in members]
    masks = torch.stack([unpack_bits(bits, 8 * len(bits)) for bits in packed]).float()  # the last, of no output, are 0
    found = overlap_matrix(masks)
    pairs = combinations(range(len(members)), 2)
    return tuple((members[one].name, members[other].name, float(found[one, other])) for one, other in pairs)
