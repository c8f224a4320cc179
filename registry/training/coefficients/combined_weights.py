"""Weights of a loaded model as a function of coefficients, and the gradient of its loss by them.

    θ(α) = θ_0 + Σ_e α_e (θ_e − θ_0)               Soup-of-Experts (Ablin et al. 2025), §2, eq. 2–3
    ∂L/∂α_e = ⟨∂L/∂θ, θ_e − θ_0⟩                   the chain rule of that sum

Both are read from the store, tensor by tensor and member by member. In memory are the model, the gradient of one
tensor, the base model's tensor and some rows of one member's: none of it grows with the number of members.

Shapes: E members, R rows of a tensor, B windows of S tokens.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor, nn

from registry.composition.plan import Plan
from registry.composition.stored import pass_over
from registry.errors import CheckpointError
from registry.io.torch_blocks import torch_dtype
from registry.maths.trunk.combination import Pass, tile_rows
from registry.member import Member
from registry.training.losses import next_token_loss


class CombinedWeights:
    """The weights of a model by coefficients of the members' task vectors.

    Rows that the base model lacks depend on no coefficient, and stay as they were loaded.

    Args:
        plan: the composition, one dense model by task arithmetic.
        model: it, loaded in float32 with any coefficients.

    Raises:
        CheckpointError: the model has other weights than the composition.
    """

    def __init__(self, plan: Plan, model: Any) -> None:
        assert plan.base is not None
        self._members, self._base, self._model = plan.members, plan.base, model
        stored = {tensor.name for tensor in plan.tensors}
        head = model.get_output_embeddings()
        # transformers has another name for the head of some families than their files.
        self._parameters: dict[str, nn.Parameter] = {
            plan.lead.family.head if name not in stored and part is head.weight else name: part
            for name, part in model.named_parameters()
        }
        if other := self._parameters.keys() ^ stored:
            raise CheckpointError(
                f"transformers gives the model {plan.model_type} other weights than its files, such as {min(other)}, "
                "so no coefficients can be fitted",
                "give coefficients: --coefficients NAME=X,…",
            )
        model.requires_grad_(True)
        self._passes: dict[tuple[str, str], Pass] = {}
        self._current: list[float] = []

    @torch.no_grad()
    def set(self, coefficients: Sequence[float]) -> None:
        """Give the model the weights θ(α), from the stored arrays in float32, unless it has them already.

        Raises:
            DamagedError: a stored array is damaged.
        """
        if self._current == (given := list(coefficients)):
            return
        self._current = []
        for name, part in self._parameters.items():
            base = self._base_tensor(name)
            part.data[: len(base)] = base
            for member, coefficient in zip(self._members, coefficients, strict=True):
                for start, difference in self._task_vector(member, name, base):
                    part.data[start : start + len(difference)].add_(difference, alpha=coefficient)
        self._current = given

    def gradient(self, ids: Int64[Tensor, "B S"], keep: Bool[Tensor, "B S"]) -> tuple[float, Float64[Tensor, "E"]]:
        """Return the mean loss of a batch in nats per token, and its gradient by the coefficients.

        Args:
            ids: tokens.
            keep: whether each counts.

        Raises:
            DamagedError: a stored array is damaged.
        """
        products = torch.zeros(len(self._members), dtype=torch.float64, device=self._model.device)
        handles = [
            part.register_post_accumulate_grad_hook(partial(self._multiply, name, products))
            for name, part in self._parameters.items()
        ]
        try:
            loss = next_token_loss(self._model, ids, keep, "mean")
            loss.backward()
        finally:
            for handle in handles:
                handle.remove()
            self._model.zero_grad(set_to_none=True)
        return float(loss.detach()), products.cpu()

    @torch.no_grad()
    def _multiply(self, name: str, products: Float64[Tensor, "E"], part: nn.Parameter) -> None:
        """Add the products of a tensor's gradient and its task vectors, and drop the gradient."""
        gradient, part.grad = part.grad, None
        assert gradient is not None
        base = self._base_tensor(name)
        for number, member in enumerate(self._members):
            for start, difference in self._task_vector(member, name, base):
                rows = gradient[start : start + len(difference)]
                products[number] += rows.mul(difference).sum(dtype=torch.float64)

    def _base_tensor(self, name: str) -> Tensor:
        """Return a tensor of the base model, (R, …) in the dtype in which it is stored."""
        link = self._base.weight(name)
        whole = torch.empty(link.shape, dtype=torch_dtype(link.dtype), device=self._model.device)
        start = 0
        for block in self._blocks(self._base, name):
            whole[start : start + len(block)] = block
            start += len(block)
        return whole

    def _task_vector(self, member: Member, name: str, base: Tensor) -> Iterator[tuple[int, Float32[Tensor, "r ..."]]]:
        """Yield the first number and the task vector θ_e − θ_0 of some rows at a time, those that both models have."""
        start = 0
        for block in self._blocks(member, name):
            own = base[start : start + len(block)].float()
            if len(own):
                yield start, block[: len(own)].to(base.device).float().sub_(own)
            start += len(block)

    def _blocks(self, member: Member, name: str) -> Iterator[Tensor]:
        """Yield a member's tensor, some rows at a time; checked after the last of them."""
        key = member.version.digest, name
        if key not in self._passes:
            self._passes[key] = pass_over(member, name, tile_rows(prod(member.weight(name).shape[1:])))
        return self._passes[key]()
