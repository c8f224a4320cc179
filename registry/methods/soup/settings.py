"""Settings of the training of a soup."""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from registry.errors import InvalidInputError
from registry.io.dtypes import AUTO
from registry.training.expert.expert_settings import FREE, ExpertTraining

SUPPORT = 4
"""Domains of a step's mixture (Ablin et al. 2025), where there are as many."""


@dataclass(frozen=True)
class SoupTraining:
    """Settings of the training of a soup.

    Attributes:
        experts: n, the number of experts.
        support: number of domains in the mixture of a step; None for 4, or all of fewer.
        rank: the rank of every expert's matrices, E_j = U_j V_j; None to train them in full.
        hidden: hidden units of the router φ.
        clusters: number of clusters of all documents that are the domains; None where each domain has files of its own.
        tokens: training tokens in total, padding included; they determine the number of steps.
        seq_len: tokens in a window.
        batch_size: windows that pass through the model at once.
        accumulate: batches whose gradients are summed for one step; they share its domain weights.
        lr: the highest learning rate of AdamW, for all weights alike.
        warmup: steps in which the rate rises; None for a twentieth of them. It then falls to a tenth as a cosine.
        weight_decay: of AdamW, on matrices alone.
        seed: of the router's first weights, the domain weights, and the windows and their order.
        device: `cpu` or `cuda`; None for the GPU if there is one.
        dtype: the dtype of the products: bfloat16 (weights and moments stay in float32), float32, or `auto`: bfloat16
            where the device is fast in it.
    """

    experts: int
    support: int | None = None
    rank: int | None = None
    hidden: int = 64
    clusters: int | None = None
    tokens: int = 409_600
    seq_len: int = 256
    batch_size: int = 8
    accumulate: int = 1
    lr: float = 3e-4
    warmup: int | None = None
    weight_decay: float = 0.1
    seed: int = 0
    device: str | None = None
    dtype: str = AUTO

    def __post_init__(self) -> None:
        for name in ("experts", "support", "rank", "hidden"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInputError(f"{name} is {value}, the least is 1", f"give --{name} 1 or more")
        if self.clusters is not None and self.clusters < 2:
            raise InvalidInputError(
                f"clusters is {self.clusters}, the least is 2: a soup is trained on two domains or more",
                "give --clusters 2 or more; to train on one: reg train-expert NAME --base B --data FILE",
            )
        _ = self.weights  # which checks the rest

    @cached_property
    def weights(self) -> ExpertTraining:
        """The same as settings of the training of weights."""
        own = ("experts", "support", "rank", "hidden", "clusters")
        return ExpertTraining(trunk=FREE, **{name: value for name, value in asdict(self).items() if name not in own})

    def support_of(self, domains: int) -> int:
        """Return the number of domains in a step's mixture.

        Args:
            domains: k.

        Raises:
            InvalidInputError: there are not as many domains.
        """
        if self.support is not None and self.support > domains:
            raise InvalidInputError(
                f"support is {self.support}, and there are {domains} domains", f"give --support {domains} or less"
            )
        return min(SUPPORT, domains) if self.support is None else self.support

    def document(self, domains: int, device: str, dtype: str) -> dict[str, Any]:
        """Return everything that the trained weights depend on, with every default resolved."""
        settings = self.weights.document(device, dtype)
        own = {"experts": self.experts, "support": self.support_of(domains), "rank": self.rank, "hidden": self.hidden}
        own |= {} if self.clusters is None else {"clusters": self.clusters}
        return {name: value for name, value in settings.items() if name in asdict(self) or name == "steps"} | own
