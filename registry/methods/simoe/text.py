"""Windows of a SIMoE's training: their first tokens are the router's, and the loss counts the others.

Shapes: N windows, B of them, S tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Bool, Int64
from torch import Tensor

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError
from registry.methods.simoe.settings import SimoeTraining
from registry.progress import Progress
from registry.training.training_windows import Windows, draw_windows, make_windows, remark_repeats


@dataclass(frozen=True)
class SimoeWindows(Windows):
    """Windows that are longer than a prompt, whose tokens no loss counts."""

    prompt_tokens: int

    def take(self, numbers: Int64[Tensor, "B"]) -> tuple[Int64[Tensor, "B S"], Bool[Tensor, "B S"]]:
        """Return (ids, keep) of some windows; keep is False at padding and in the prompt."""
        ids, keep = super().take(numbers)
        keep = keep.clone()
        keep[:, : self.prompt_tokens] = False
        return ids, keep

    @property
    def predicted(self) -> int:
        """Number of held-out tokens that the loss counts."""
        return int((self.all.lengths[self.held_out] - self.prompt_tokens).sum())


def read_simoe_windows(
    files: Sequence[Path], checkpoint: Checkpoint, tokenizer: Any, settings: SimoeTraining, progress: Progress
) -> SimoeWindows:
    """Read the windows of a training; each is used once before any is used again.

    (CalibrationError: there is no text longer than a prompt, or a token is beyond the model's vocabulary.)
    """
    found = draw_windows(files, tokenizer, checkpoint.architecture.vocab_size, settings)
    long = found.lengths > settings.prompt_tokens
    if not bool(long.any()):
        raise CalibrationError(
            f"{found.label}: no window has more than the {settings.prompt_tokens} tokens of a prompt",
            "give more text with --data, or fewer --prompt-tokens",
        )
    longer = Calibration(found.ids[long], found.lengths[long], found.label)
    windows = make_windows([longer], settings.seq_len, settings.seed)
    remark_repeats(progress, windows, settings.windows)
    return SimoeWindows(windows.all, windows.training, windows.held_out, windows.seed, settings.prompt_tokens)
