"""Settings of the training of a soup, and the check that a version is one; without torch."""

from dataclasses import KW_ONLY, MISSING, dataclass
from typing import Any, ClassVar

from registry.errors import InvalidInputError
from registry.training.settings import WeightTraining, setting
from store.catalog import VersionRecord

SUPPORT = 4
"""Domains of a step's mixture (Ablin et al. 2025, §3), where there are as many."""
_WARMUP = 2000
"""Most steps of the warm-up where nothing is given (Ablin et al. 2025, Table 3)."""


@dataclass(frozen=True)
class SoupTraining(WeightTraining):
    """Settings of the training of a soup, beyond those of `WeightTraining`.

    The batches of a step share its domain weights, and the seed is of these and the router's first weights too. The
    rate, the moments' decay, the norm of gradients and Adam in place of AdamW are those of Ablin et al. 2025 (Table 3);
    a shorter warm-up than theirs and the fall of the rate are ours.

    Attributes:
        experts: n, the number of experts.
        support: number of domains in the mixture of a step; None for 4, or all of fewer.
        rank: the rank of every expert's matrices, E_j = U_j V_j; None to train them in full.
        hidden: hidden units of the router φ.
        clusters: number of clusters of all documents that are the domains; None where each domain has files of its own.
        warmup: steps in which the rate rises; None for 2,000, or a twentieth of all where that is less.
    """

    experts: int = setting(MISSING, least=1)
    support: int | None = setting(None, least=1)
    rank: int | None = setting(None, least=1)
    hidden: int = setting(64, least=1)
    clusters: int | None = None
    _: KW_ONLY
    lr: float = setting(1e-4, above=True)
    weight_decay: float = setting(0.0, above=False)

    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)
    clip: ClassVar[float] = 0.1

    def __post_init__(self) -> None:
        if self.clusters is not None and self.clusters < 2:
            raise InvalidInputError(
                f"clusters is {self.clusters}, the least is 2: a soup is trained on two domains or more",
                "give --clusters 2 or more; to train on one: reg train-expert NAME --base B --data FILE",
            )
        super().__post_init__()

    @property
    def rising(self) -> int:
        """Steps in which the rate rises."""
        return min(super().rising, _WARMUP) if self.warmup is None else self.warmup

    def support_of(self, domains: int) -> int:
        """Return the number of domains in the mixture of a step, of k domains, or raise InvalidInputError."""
        if self.support is not None and self.support > domains:
            raise InvalidInputError(
                f"support is {self.support}, and there are {domains} domains", f"give --support {domains} or less"
            )
        return min(SUPPORT, domains) if self.support is None else self.support

    def inputs(self, domains: int, device: str, dtype: str) -> dict[str, Any]:
        """Return everything that the trained weights depend on, with every default resolved."""
        own = {"experts": self.experts, "support": self.support_of(domains), "rank": self.rank, "hidden": self.hidden}
        adam = {"beta2": self.betas[1], "clip": self.clip}
        clusters = {} if self.clusters is None else {"clusters": self.clusters}
        return self.document(device, dtype) | own | adam | clusters


def check_soup(version: VersionRecord) -> None:
    """Raise InvalidInputError unless a version holds the shared weights of a soup."""
    document = (version.content or {}).get("soup")
    if version.kind == "base" and document is not None:
        return
    is_expert = document is not None and f"name the soup: reg instantiate {version.name.rpartition('-')[0]} --out DIR"
    raise InvalidInputError(
        f"{version.ref} is no soup: it was not registered by reg train-soup as the shared weights of one",
        is_expert or "train one: reg train-soup NAME --base B --domains FILE …",
    )
