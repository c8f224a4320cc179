"""Text to run a model on: given files, else the members' own, kept or sampled, else a few built-in passages."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from registry.calibration import Calibration, sample_from_expert
from registry.checkpoint import Checkpoint
from registry.composition.dense import write_dense
from registry.doctor.built_in_text import BUILT_IN
from registry.doctor.examined_folder import ExaminedFolder
from registry.errors import CalibrationError, RegError
from registry.evaluation.results import TestSettings
from registry.evaluation.scoring import Model, open_model
from registry.evaluation.text import predicted, test_windows
from registry.io.work_dirs import temporary_folder
from registry.member import Member
from registry.progress import remark, silent

WINDOWS, SEQ_LEN = 8, 128
"""Windows of a domain, and tokens in one: enough to tell a broken model, and seconds for a small one."""

CHEAP = 2**29
"""Parameters of a member up to which it is loaded from the registry."""

_SAMPLED_TOKENS = 256

_UNKNOWN = 0.5
"""Share of unknown tokens from which on a built-in text says nothing about a model."""

Source = Literal["given", "kept", "sampled", "built-in"]


@dataclass(frozen=True)
class DomainTexts:
    """Windows of each domain, and where they are from: one source for all of them."""

    windows: dict[str, Calibration]
    source: Source


def settings_of(folder: ExaminedFolder) -> TestSettings:
    """Return the settings of scoring, with windows that the model takes."""
    longest = folder.config.get("max_position_embeddings")
    fits = min(SEQ_LEN, longest) if isinstance(longest, int) and longest > 1 else SEQ_LEN
    return TestSettings(windows=WINDOWS, seq_len=fits, batch_size=WINDOWS, device=folder.device)


def domain_texts(folder: ExaminedFolder) -> DomainTexts:
    """Return the text of each domain.

    Raises:
        CalibrationError: a given file cannot be read, or holds no text.
        CheckpointError: the tokenizer fails on it.
    """
    settings = settings_of(folder)
    if folder.data:
        return DomainTexts(test_windows(folder.data, folder.path, settings), "given")
    kept = {name: _kept(member, settings) for name, member in folder.members.items()}
    if kept and all(text is not None for text in kept.values()):
        return DomainTexts({name: text for name, text in kept.items() if text is not None}, "kept")
    if kept and all(is_cheap(member) for member in folder.members.values()):
        try:
            return DomainTexts(
                {name: kept[name] or _sampled(folder, member, settings) for name, member in folder.members.items()},
                "sampled",
            )
        except RegError as failure:
            remark(folder.progress, f"no text of the members: {failure.message}; built-in text is used")
    return DomainTexts(_built_in(folder, settings), "built-in")


def is_cheap(member: Member) -> bool:
    """Tell whether a member is small enough to be loaded beside the folder."""
    return _parameters(member) <= CHEAP


@contextmanager
def dense_model(folder: ExaminedFolder, name: str, members: list[Member], settings: TestSettings) -> Iterator[Model]:
    """Open the averaged weights of members, or a single one, from the registry."""
    with temporary_folder() as temporary:
        out = temporary / "dense"
        write_dense(members, out, silent)
        yield open_model(name, out, settings)


def _parameters(member: Member) -> int:
    total = 0
    for link in member.arrays:
        if link.role in ("trunk", "mlp"):
            count = 1
            for size in link.shape:
                count *= size
            total += count
    return total


def _kept(member: Member, settings: TestSettings) -> Calibration | None:
    text = member.calibration
    if text is None:
        return None
    ids, lengths = text.ids[:WINDOWS, : settings.seq_len], text.lengths[:WINDOWS].clamp(max=settings.seq_len)
    found = Calibration(ids, lengths, text.label)
    return found if predicted(found) > 0 else None


def _sampled(folder: ExaminedFolder, member: Member, settings: TestSettings) -> Calibration:
    with temporary_folder() as temporary:
        out = temporary / "dense"
        write_dense([member], out, silent)
        model, special = open_model(member.name, out, settings).loaded, Checkpoint(out).special_tokens
    end = [number for number in _ids(special["eos_token_id"]) if isinstance(number, int)]
    start = special["bos_token_id"]
    return sample_from_expert(
        model,
        start=start if isinstance(start, int) else next(iter(end), None),
        end=end,
        tokens=_SAMPLED_TOKENS,
        seq_len=min(64, settings.seq_len),
        batch_size=4,
        progress=silent,
    )


def _ids(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _built_in(folder: ExaminedFolder, settings: TestSettings) -> dict[str, Calibration]:
    with temporary_folder() as temporary:
        files = {}
        for domain, text in BUILT_IN.items():
            path = temporary / f"{domain}.txt"
            path.write_text(text, encoding="utf-8")
            files[domain] = [path]
        texts = test_windows(files, folder.path, settings)
    unknown = getattr(folder.tokenizer, "unk_token_id", None)
    known = {domain: text for domain, text in texts.items() if unknown is None or _share(text, unknown) < _UNKNOWN}
    if not known:
        raise CalibrationError(
            "its vocabulary is not that of a natural language, so no built-in text can be read",
            f"give text of its own: reg doctor {folder.quoted} --data DOMAIN=FILE",
        )
    return known


def _share(text: Calibration, token: int) -> float:
    return int((text.ids == token).sum()) / text.tokens
