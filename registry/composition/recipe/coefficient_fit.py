"""Fit of a recipe's coefficients to text: what they were fitted for and on, and what that gained."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from registry.errors import CheckpointError
from registry.io.untrusted import DIGEST, NUMBER, TEXT, WHOLE, fields
from store.digest import json_digest

_KINDS = {
    "members": DIGEST,
    "data": DIGEST,
    "tokens": WHOLE,
    "steps": WHOLE,
    "batch_size": WHOLE,
    "seq_len": WHOLE,
    "lr": NUMBER,
    "seed": WHOLE,
    "device": TEXT,
    "before": NUMBER,
    "after": NUMBER,
}


@dataclass(frozen=True)
class CoefficientFit:
    """Record of a fit; a composition by these coefficients is made without it, and without the text.

    Attributes:
        members: the digest of the members and the base model that they were fitted for: `fitted_members`.
        data: the digest of the windows of text.
        tokens: their tokens, those that were held out included.
        steps: steps of Adam.
        batch_size: windows of a step.
        seq_len: tokens of a window.
        lr: the highest learning rate.
        seed: of the choice of windows and their order.
        device: the kind of device.
        before: the loss on held-out windows in nats per token with equal coefficients.
        after: the same with the fitted ones.
    """

    members: str
    data: str
    tokens: int
    steps: int
    batch_size: int
    seq_len: int
    lr: float
    seed: int
    device: str
    before: float
    after: float

    def document(self) -> dict[str, Any]:
        """Return the record as recipes hold it."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: object, where: str) -> "CoefficientFit":
        """Read a record, which may come from anywhere.

        Raises:
            CheckpointError: a key is unknown or missing, or a value is not what this program writes.
        """
        given = fields(document, _KINDS, where)
        losses = given["lr"], given["before"], given["after"]
        if not given["device"].isidentifier() or not all(math.isfinite(loss) and loss >= 0 for loss in losses):
            raise CheckpointError(f"{where} is not the record of a fit", "copy the file again")
        return cls(**given)


def fitted_members(members: Iterable[tuple[str, str]], base: str) -> str:
    """Return the digest of members, (name, content digest) each, and of the content digest of their base model."""
    return json_digest([sorted(map(list, members)), base])
