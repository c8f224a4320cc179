"""Windows of tokens for training: some are held out, and the order depends only on the seed and the step.

Shapes: N training windows and M held-out ones of S tokens; B windows in a batch; V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int64
from torch import Tensor

from registry.calibration import Calibration, Corpus, document_beginnings, random_places
from registry.checkpoint.model_files import read_config
from registry.errors import CalibrationError
from registry.io.torch_blocks import to_tensor
from registry.member import Member
from registry.progress import Progress, remark
from registry.training.settings import AdamSettings, WeightTraining
from registry.workspace import PathLike

HELD_OUT = 32
"""Most windows that are held out to measure the loss; never more than a tenth of all."""
IGNORED = -100
"""Label of a token that is not predicted."""


@dataclass(frozen=True)
class Windows:
    """Windows of all sources together.

    Attributes:
        all: windows source by source; its digest is that of the training data. Where some of their tokens are
            `written`, these alone are predicted.
        training: numbers of the windows to train on.
        held_out: numbers of the windows to measure the loss on; all windows if there are too few to hold some out.
        seed: the seed of the order.
    """

    all: Calibration
    training: Int64[Tensor, "N"]
    held_out: Int64[Tensor, "M"]
    seed: int

    def used(self, count: int) -> Int64[Tensor, "count"]:
        """Return the numbers of the first windows of a training, in a seeded order: all once before any again."""
        epochs = -(-count // len(self.training))
        generators = [torch.Generator().manual_seed(self.seed + 1 + epoch) for epoch in range(epochs)]
        orders = [torch.randperm(len(self.training), generator=generator) for generator in generators]
        return self.training[torch.cat(orders)][:count]

    def take(self, numbers: Int64[Tensor, "B"]) -> tuple[Int64[Tensor, "B S"], Bool[Tensor, "B S"]]:
        """Return (ids, keep) of some windows, as long as the longest; keep is False where nothing is predicted."""
        size = int(self.all.lengths[numbers].max())
        return self.all.ids[numbers, :size].long(), self.keep[numbers, :size]

    @cached_property
    def keep(self) -> Bool[Tensor, "N S"]:
        """True at tokens that are predicted; the first of a window is not, even so."""
        return _predicted(self.all)

    def inputs(self, step: int) -> dict[str, Tensor]:
        """Return what the model gets besides the tokens of each window of a step, counted from 0."""
        return {}

    def held_out_batches(self, size: int) -> Iterator[tuple[Int64[Tensor, "B"], dict[str, Tensor]]]:
        """Yield the numbers of held-out windows, `size` at once, with what the model gets besides their tokens."""
        for numbers in self.held_out.split(size):
            yield numbers, {}

    def loss(self, model: Any, size: int) -> float:
        """Return the language-model loss (nats per token) on held-out windows, of which `size` pass at once."""
        total, count = 0.0, 0
        for numbers, others in self.held_out_batches(size):
            ids, keep = self.take(numbers)
            with torch.no_grad():
                total += float(next_token_loss(model, ids, keep, "sum", **others))
            count += int(keep[:, 1:].sum())
        return total / count

    @property
    def predicted(self) -> int:
        """Number of held-out tokens that the loss counts."""
        return int(self.keep[self.held_out, 1:].sum())


def next_token_loss(
    model: Any, ids: Int64[Tensor, "B S"], keep: Bool[Tensor, "B S"], reduction: str, **others: Tensor
) -> Tensor:
    """Return the loss of a causal language model's predictions in nats, a scalar.

    `keep` is False at padding, `reduction` is `mean` over the tokens that are predicted, or `sum`, and `others` is what
    the model gets besides tokens.
    """
    device = next(iter(model.parameters())).device
    ids, keep = ids.to(device), keep.to(device)
    others = {name: value.to(device) for name, value in others.items()}
    logits = model(input_ids=ids, use_cache=False, **others).logits[:, :-1].float()
    # The logits (B, S, V) at token t predict token t + 1; nothing predicts the first token.
    targets = ids[:, 1:].masked_fill(~keep[:, 1:], IGNORED)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction=reduction)


def make_windows(
    calibrations: Sequence[Calibration], size: int, seed: int, *, written: Bool[Tensor, "N S"] | None = None
) -> Windows:
    """Join the windows of all sources, cut or padded to `size` tokens, and hold some out by `seed`.

    `written` are the tokens that are predicted, of all windows; None for all.
    """
    ids = torch.cat([F.pad(c.ids[:, :size], (0, max(0, size - c.ids.shape[1]))) for c in calibrations])
    lengths = torch.cat([c.lengths.clamp(max=size) for c in calibrations])
    joined = Calibration(ids, lengths, ", ".join(c.label for c in calibrations), written)
    usable = _predicted(joined)[:, 1:].any(dim=1).nonzero().flatten()
    if not len(usable):
        raise CalibrationError(f"{joined.label}: there is no token to predict", "give more text with --data")
    shuffled = usable[torch.randperm(len(usable), generator=torch.Generator().manual_seed(seed))]
    held_out = min(HELD_OUT, len(shuffled) // 10)
    return Windows(joined, shuffled[held_out:], shuffled[:held_out] if held_out else shuffled, seed)


def _predicted(windows: Calibration) -> Bool[Tensor, "N S"]:
    return windows.keep if windows.written is None else windows.keep & windows.written


def check_vocabulary(
    found: Calibration,
    vocabulary: int,
    label: str,
    hint: str = "put the tokenizer that the model was trained with into its folder",
) -> None:
    """Raise CalibrationError if a text, called `label`, has a token beyond the model's vocabulary."""
    if (largest := int(found.ids.max())) >= vocabulary:
        raise CalibrationError(f"{label}: token {largest:,} is beyond the model's vocabulary of {vocabulary:,}", hint)


def draw_windows(
    files: Sequence[PathLike], tokenizer: Any, vocabulary: int, settings: WeightTraining, count: int | None = None
) -> Calibration:
    """Draw windows from files, as many as `count`, or as a training takes with those that are held out."""
    corpus, size = Corpus([Path(file) for file in files], tokenizer), settings.seq_len
    tokens = (settings.windows + HELD_OUT if count is None else count) * size
    found = random_places(corpus, tokenizer, tokens=tokens, seq_len=size, seed=settings.seed)
    check_vocabulary(found, vocabulary, found.label)
    return found


def draw_conversations(
    files: Sequence[PathLike], tokenizer: Any, vocabulary: int, settings: WeightTraining, progress: Progress
) -> Calibration | None:
    """Draw conversations from files, as many as `draw_windows` windows, of which `written` are the assistant's answers.

    Each is a window, cut if it is longer. Where the chat template does not show where answers stand, all is learned,
    which is said. None if no document is a conversation.

    (CalibrationError: other documents stand among them, or no answer begins within a window.)
    """
    corpus, size = Corpus([Path(file) for file in files], tokenizer, progress), settings.seq_len
    kinds = {document.is_chat for document in corpus}
    if True not in kinds:
        return None
    if len(kinds) > 1:
        hint = "train on the one, then on the other: --base takes an expert too; or give text alone"
        raise CalibrationError(f"{corpus.label}: some rows are conversations, and some are text", hint)
    tokens = (settings.windows + HELD_OUT) * size
    found = document_beginnings(corpus, tokenizer, tokens=tokens, seq_len=size, seed=settings.seed, speaker="assistant")
    check_vocabulary(found, vocabulary, found.label)
    written = found.keep if found.written is None else found.keep & _with_next(found.written)
    cut, count = int((found.lengths == size).sum()), int(written.sum())
    if not count:
        raise CalibrationError(
            f"{found.label}: no message of the role assistant begins within {size:,} tokens",
            "give rows whose answers have that role, or a larger --seq-len",
        )
    long = f"; {cut:,} of {size:,} tokens or more are cut there" if cut else ""
    learned = f"{count:,} of {found.tokens:,} tokens are answers, which alone are learned"
    if count == found.tokens:  # no template puts nothing around answers
        learned = "all tokens are learned: the chat template does not show which are answers"
    remark(progress, f"{found.label}: of {len(found.ids):,} conversations {learned}{long}")
    return replace(found, written=written)


def _with_next(written: Bool[Tensor, "N S"]) -> Bool[Tensor, "N S"]:
    """Return the same, with the token after each that is true: the one that ends an answer."""
    return written | F.pad(written[:, :-1], (1, 0))


def remark_repeats(progress: Progress, windows: Windows, used: int) -> None:
    """Remark on windows that are read twice or more, of `used` that are read in all."""
    passes = used / max(1, len(windows.training))
    if passes >= 2:
        remark(progress, f"{windows.all.label} is read {passes:.1f} times: it has fewer tokens than asked for")


def shortened(seq_len: int, folder: Path, progress: Progress) -> int:
    """Return the tokens of a window: `seq_len`, or what the model of a folder takes, if that is less."""
    limit = read_config(folder).get("max_position_embeddings")
    if not isinstance(limit, int) or limit < 2 or seq_len <= limit:
        return seq_len
    remark(progress, f"windows have {limit:,} tokens, not {seq_len:,}: the model takes no more")
    return limit


def read_windows(sources: Sequence[str], members: Sequence[Member], tokenizer: Any, settings: AdamSettings) -> Windows:
    """Read the windows of every `--data`, and hold some out.

    A source is a file's path, or a member's name or version. Files provide equal numbers of windows (CalibrationError:
    a source is neither, a file holds no text or cannot be read, or there is no token to predict).
    """
    size, seed = settings.seq_len, settings.seed
    windows = -(-settings.windows // len(sources)) + HELD_OUT
    calibrations = [_read(source, members, tokenizer, windows * size, size, seed) for source in sources]
    return make_windows(calibrations, size, seed)


def _read(source: str, members: Sequence[Member], tokenizer: Any, tokens: int, seq_len: int, seed: int) -> Calibration:
    """Read the windows of one `--data`: a file, or a member whose calibration tokens were kept."""
    path = Path(source)
    member = next((member for member in members if source in (member.name, member.version.ref)), None)
    if path.is_file() or member is None:
        return random_places(Corpus([path], tokenizer), tokenizer, tokens=tokens, seq_len=seq_len, seed=seed)
    if member.version.kind == "base":
        raise CalibrationError(
            f"{source} is not a file, and {member.version.ref} is a base model, which has no calibration tokens",
            "name a file: --data FILE",
        )
    if not member.names("calibration"):
        raise CalibrationError(
            f"{source} is not a file, and the calibration tokens of {member.version.ref} were not kept",
            f"name a file, or register it again: reg add-expert {member.name} CKPT --data FILE --keep-calibration",
        )
    ids, lengths = (
        to_tensor(member.store.read(member.link("calibration", name).digest), "int32") for name in ("ids", "lengths")
    )
    return Calibration(ids.clone(), lengths.clone(), f"calibration of {member.version.ref}")
