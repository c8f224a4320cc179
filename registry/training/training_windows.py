"""What routers are trained on: windows of tokens, some held out, in an order that a step's number alone decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from registry.calibration import Calibration, Corpus, random_places
from registry.errors import CalibrationError
from registry.io.torch_blocks import to_tensor
from registry.member import Member
from registry.training.settings import TrainSettings

HELD_OUT = 32
"""Windows kept from training at most, and at most a tenth of all, on which the loss is told."""


@dataclass(frozen=True)
class Windows:
    """Windows of all sources together.

    Attributes:
        all: windows source by source; its digest is that of the training data.
        training: numbers of the windows that are trained on.
        held_out: numbers of those that the loss is measured on; where there are too few windows, all of them.
        seed: of the order.
    """

    all: Calibration
    training: Int64[Tensor, "N"]
    held_out: Int64[Tensor, "M"]
    seed: int

    def batch(self, step: int, size: int) -> tuple[Int64[Tensor, "B S"], Bool[Tensor, "B S"]]:
        """Return (ids, keep) of a step: windows in a seeded order, each once before any comes again."""
        count = len(self.training)
        places = range(step * size, (step + 1) * size)
        orders = {epoch: self._order(epoch) for epoch in {place // count for place in places}}
        return self.take(torch.stack([self.training[orders[place // count][place % count]] for place in places]))

    def take(self, numbers: Int64[Tensor, "B"]) -> tuple[Int64[Tensor, "B S"], Bool[Tensor, "B S"]]:
        """Return (ids, keep) of some windows; keep is False at padding."""
        return self.all.ids[numbers].long(), self.all.keep[numbers]

    def _order(self, epoch: int) -> Tensor:
        return torch.randperm(len(self.training), generator=torch.Generator().manual_seed(self.seed + 1 + epoch))


def make_windows(calibrations: Sequence[Calibration], settings: TrainSettings) -> Windows:
    """Return the windows of all sources, cut or filled up to `settings.seq_len` tokens.

    Raises:
        CalibrationError: there is no token to predict.
    """
    size = settings.seq_len
    ids = torch.cat(
        [torch.nn.functional.pad(c.ids[:, :size], (0, max(0, size - c.ids.shape[1]))) for c in calibrations]
    )
    lengths = torch.cat([c.lengths.clamp(max=size) for c in calibrations])
    whole = Calibration(ids, lengths, ", ".join(c.label for c in calibrations))
    usable = (lengths > 1).nonzero().flatten()
    if not len(usable):
        raise CalibrationError(f"{whole.label}: there is no token to predict", "give more text with --data")
    shuffled = usable[torch.randperm(len(usable), generator=torch.Generator().manual_seed(settings.seed))]
    held = min(HELD_OUT, len(shuffled) // 10)
    return Windows(whole, shuffled[held:], shuffled[:held] if held else shuffled, settings.seed)


def read_source(
    source: str, members: Sequence[Member], tokenizer: Any, settings: TrainSettings, sources: int
) -> Calibration:
    """Return the windows of one `--data`: a file, or else a member whose calibration tokens were kept.

    Args:
        source: the file's path, or the member's name or version.
        members: of the composition.
        tokenizer: the composition's.
        settings: how many windows are wanted.
        sources: how many share in them, each with as many.

    Raises:
        CalibrationError: it is neither, or the file holds no text or cannot be read.
    """
    path = Path(source)
    member = next((member for member in members if source in (member.name, member.version.ref)), None)
    if path.is_file() or member is None:
        windows = -(-settings.steps * settings.batch_size // sources) + HELD_OUT
        tokens = windows * settings.seq_len
        return random_places(
            Corpus([path], tokenizer), tokenizer, tokens=tokens, seq_len=settings.seq_len, seed=settings.seed
        )
    if not member.names("calibration"):
        raise CalibrationError(
            f"{source} is no file, and the calibration tokens of {member.version.ref} were not kept",
            f"name a file, or register it again: reg add-expert {member.name} CKPT --data FILE --keep-calibration",
        )
    ids, lengths = (
        to_tensor(member.store.read(member.link("calibration", name).digest), "int32") for name in ("ids", "lengths")
    )
    return Calibration(ids.clone(), lengths.clone(), f"calibration of {member.version.ref}")
