"""A soup as one module: a dense model that holds the shared weights, the bank of experts, and the router φ.

Every pass makes the weights Θ of its domain weights by eq. 2 (`maths.soup_weights`), for the one model in
memory. Experts begin at 0, so that the soup begins at the base model whatever the domain weights are; the first
gradient of E_j is α_j ∂L/∂Θ (§2.5), which is not 0 because φ begins at random. Of a low-rank expert only V_j begins
at 0.

Shapes: k domains, n experts, F hidden units, B windows, S tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.func import functional_call

from registry.errors import InvalidInputError
from registry.maths.soup_weights import combined, combined_low_rank
from registry.methods.soup.versions import SoupRouter


class Bank(nn.Module):
    """One tensor of n experts, like the shared one: each in full, or with a rank for matrices."""

    def __init__(self, like: Tensor, experts: int, rank: int | None) -> None:
        super().__init__()
        self.is_matrix = like.ndim > 1
        self.right: nn.Parameter | None = None
        if rank is None or not self.is_matrix:
            self.left = nn.Parameter(torch.zeros((experts, *like.shape), device=like.device))
        else:
            rows, columns = like.shape
            first = torch.randn((experts, rows, rank)) * rank**-0.5  # on the CPU: the same on every device
            self.left = nn.Parameter(first.to(like.device))
            self.right = nn.Parameter(torch.zeros((experts, rank, columns), device=like.device))

    def expert(self, number: int) -> Tensor:
        """Return E_j of the tensor; j counts from 0."""
        return self.left[number] if self.right is None else self.left[number] @ self.right[number]

    def forward(self, shared: Tensor, alpha: Float[Tensor, "n"]) -> Tensor:
        """Return Θ of the tensor."""
        if self.right is None:
            return combined(shared, self.left, alpha)
        return combined_low_rank(shared, self.left, self.right, alpha)


class Soup(nn.Module):
    """The soup of a dense model in float32, whose weights, as its checkpoint names them, become the shared ones.

    `rank` is that of the experts' matrices, None for full ones; `seed` is of the router, and of low-rank factors.

    (InvalidInputError: the rank is more than a matrix has.)
    """

    def __init__(
        self, model: Any, names: Sequence[str], domains: int, experts: int, hidden: int, rank: int | None, seed: int
    ) -> None:
        super().__init__()
        own = dict(model.named_parameters())
        for name in names:
            if rank is not None and own[name].ndim > 1 and rank > (least := min(own[name].shape)):
                raise InvalidInputError(
                    f"rank is {rank}, and {name} of shape {list(own[name].shape)} has at most rank {least}",
                    f"give --rank {least} or less, or leave it out to train experts in full",
                )
        self.model, self.names = model, tuple(names)
        model.requires_grad_(False)
        for name in names:
            own[name].requires_grad_(True)
        device = next(iter(own.values())).device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden, self.output = nn.Linear(domains, hidden), nn.Linear(hidden, experts)
            self.banks = nn.ModuleList(Bank(own[name], experts, rank) for name in names)
        self.hidden.to(device)
        self.output.to(device)

    def alpha(self, domain_weights: Float[Tensor, "k"]) -> Float[Tensor, "n"]:
        """Return φ(h) (§2.3)."""
        found: Tensor = self.output(torch.relu(self.hidden(domain_weights.to(self.hidden.weight))))
        return found

    def combined(self, alpha: Float[Tensor, "n"]) -> dict[str, Tensor]:
        """Return Θ by name (eq. 2)."""
        parts = zip(self.names, self.banks, strict=True)
        return {name: bank(self.model.get_parameter(name), alpha) for name, bank in parts}

    def forward(self, input_ids: Int64[Tensor, "B S"], domain_weights: Float[Tensor, "B k"], **others: Any) -> Any:
        """Return the output of the model with the weights of the batch, whose windows share their domain weights."""
        with torch.autocast(input_ids.device.type, enabled=False):  # weights are combined in float32
            weights = self.combined(self.alpha(domain_weights[0]))
        return functional_call(self.model, weights, (), {"input_ids": input_ids, **others})

    def tensor(self, name: str, expert: int | None) -> Tensor:
        """Return one tensor of the shared weights S, or of S + E_j; j counts from 0."""
        shared: Tensor = self.model.get_parameter(name).detach()
        if expert is None:
            return shared
        bank = self.banks[self.names.index(name)]
        assert isinstance(bank, Bank)
        return shared + bank.expert(expert).detach()

    def decays(self, part: nn.Parameter) -> bool:
        """Tell whether weight decay applies to a weight: to matrices, an expert's too."""
        vectors = {id(bank.left) for bank in self.banks if isinstance(bank, Bank) and not bank.is_matrix}
        return part.ndim > 1 and id(part) not in vectors

    def router(self, centroids: Float[Tensor, "k H"]) -> SoupRouter:
        """Return φ with the centroids of its domains."""
        parts = (self.hidden.weight, self.hidden.bias, self.output.weight, self.output.bias, centroids)
        return SoupRouter(*(part.detach().float().cpu().contiguous().numpy() for part in parts))
