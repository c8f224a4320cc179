"""The steps of the demo."""

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from registry.demo.demo_folder import MARKER, check_demo_folder
from registry.demo.domains import DOMAINS, domain_files, write_domains
from registry.demo.train import new_model, read_texts, save, train_tokenizer
from registry.errors import OutputError, StorageError
from registry.evaluation import Row, TestSettings
from registry.io.file_lock import try_lock
from registry.progress import Progress, remark, silent
from registry.registry import Registry
from registry.statistics.collect import collect_to
from registry.statistics.settings import DEFAULT_SEQ_LEN, PassSettings
from registry.training import ExpertTraining

BASE_STEPS, BASE_RATE = 300, 3e-3
EXPERT_STEPS, EXPERT_RATE = 100, 5e-4
BATCH, SEQ_LEN = 8, 128
TOKENS = 16_384


@dataclass(frozen=True)
class DemoResult:
    """The result of the demo.

    Attributes:
        folder: the folder with `text`, `checkpoints`, `registry` and `moe`.
        domains: the experts' names.
        rows: scores of base, experts, plain average and composition on every domain's test text.
        orders: order of registration → SHA-256 over every byte of the composed folder.
        opted_out: the same digest for a pair composed after the third expert's opt-out and purge.
        never_registered: the same digest for that pair in a registry that never held the third.
        withdrawn: the expert that was opted out.
    """

    folder: Path
    domains: tuple[str, ...]
    rows: list[Row]
    orders: dict[tuple[str, ...], str]
    opted_out: str
    never_registered: str
    withdrawn: str


def run_demo(out: Path, progress: Progress = silent, *, force: bool = False) -> DemoResult:
    """Run the demo in the folder `out`, which is absent or empty.

    Args:
        out: the folder.
        progress: reports every step.
        force: delete the files of an earlier demo in `out` first; other files stay.

    Raises:
        OutputError: `out` is not empty.
        StorageError: accelerate is not installed.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise StorageError(
            "the demo trains its models, and that needs accelerate", "run: pip install 'expert-registry[train]'"
        )
    with _prepared(out, force=force):
        return _run(out, progress)


def _run(out: Path, progress: Progress) -> DemoResult:
    remark(progress, "1 of 6: collecting text from this machine")
    text = write_domains(out / "text")
    domains = tuple(text)
    remark(progress, f"2 of 6: training a tiny base model, then {len(domains)} experts from it: {', '.join(domains)}")
    scratch = out / "scratch"
    checkpoints = _train(out / "checkpoints", scratch, {domain: train for domain, (train, _) in text.items()}, progress)
    remark(progress, f"3 of 6: collecting each expert's statistics on {TOKENS:,} tokens")
    settings = PassSettings(tokens=TOKENS)
    for domain in domains:  # each team collects statistics beside its data, which never moves
        collect_to(
            checkpoints[domain], checkpoints[domain], data=[text[domain][0]], settings=settings, progress=progress
        )

    remark(progress, "4 of 6: registering, composing and evaluating them")
    with Registry(out / "registry", progress=progress) as registry:
        registry.add_base("base", checkpoints["base"])
        for domain in domains:
            registry.add_expert(domain, checkpoints[domain])
        registry.compose(list(domains), out / "moe")
        rows = registry.evaluate(
            [out / "moe"],
            {domain: [test] for domain, (_, test) in text.items()},
            TestSettings(seq_len=DEFAULT_SEQ_LEN),
            baselines=True,
        )

    remark(progress, "5 of 6: registering them in other orders")
    orders = {}
    for order in list(permutations(domains))[::2]:
        orders[order] = _composed(scratch / "-".join(order), checkpoints, order, domains)
    *pair, withdrawn = domains
    remark(progress, f"6 of 6: opting {withdrawn} out")
    opted_out = _composed(scratch / "opted-out", checkpoints, domains, pair, opt_out=withdrawn)
    never = _composed(scratch / "never", checkpoints, pair, pair)
    shutil.rmtree(scratch)
    return DemoResult(out, domains, rows, orders, opted_out, never, withdrawn)


def folder_digest(folder: Path) -> str:
    """Return SHA-256 over the names and bytes of every file below `folder`."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
            state.update(path.read_bytes())
    return state.hexdigest()


@contextmanager
def _prepared(out: Path, *, force: bool) -> Iterator[None]:
    """Prepare `out` for a demo and lock it, so that one demo runs at a time in a folder."""
    check_demo_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    with (out / MARKER).open("a+", encoding="utf-8") as marker:
        if not try_lock(marker.fileno()):
            raise OutputError(f"another demo is running in {out}", "choose another --out, or wait until it has ended")
        if any(path.name != MARKER for path in out.iterdir()):
            if not force:
                raise OutputError(f"{out} holds an earlier demo", "choose another --out, or replace it with --force")
            _delete_demo(out)
        marker.truncate(0)
        json.dump({"made by": "reg demo"}, marker)
        marker.flush()
        yield


def _delete_demo(out: Path) -> None:
    """Delete the files that a demo creates in `out`; other files stay."""
    for name in ("registry", "moe", "scratch", *(f"checkpoints/{name}" for name in ("base", *DOMAINS))):
        if (out / name).is_dir():
            shutil.rmtree(out / name)
    for domain in DOMAINS:
        for path in domain_files(out / "text", domain):
            path.unlink(missing_ok=True)
    for folder in (out / "checkpoints", out / "text"):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _train(folder: Path, scratch: Path, files: dict[str, Path], progress: Progress) -> dict[str, Path]:
    """Train a base model from random weights, then every domain's expert from it, and return their folders."""
    tokenizer = train_tokenizer([text for path in files.values() for text in read_texts(path)])
    random = save(new_model(), tokenizer, scratch / "random")
    base = folder / "base"
    work = {"base": (random, list(files.values()), _settings(BASE_STEPS, BASE_RATE))}
    work |= {domain: (base, [file], _settings(EXPERT_STEPS, EXPERT_RATE)) for domain, file in files.items()}
    for name, (begin, data, settings) in work.items():
        with Registry(scratch / "training", progress=_bars(progress, name)) as registry:
            losses = registry.train_expert(name, begin, data, settings, out=folder / name).losses
        remark(progress, f"  {name}: loss {losses.before:.2f} before, {losses.after:.2f} after {settings.steps} steps")
    return {name: folder / name for name in work}


def _bars(progress: Progress, name: str) -> Progress:
    """Return `progress` without its remarks, and with a name behind the label of each bar."""
    return lambda label, total, unit: progress(f"{label} {name}", total, unit) if unit else silent(label, total, unit)


def _settings(steps: int, rate: float) -> ExpertTraining:
    """Return the settings of a training of all weights, the same on every machine."""
    return ExpertTraining(
        tokens=steps * BATCH * SEQ_LEN,
        seq_len=SEQ_LEN,
        batch_size=BATCH,
        trunk="free",
        lr=rate,
        device="cpu",
        dtype="float32",
    )


def _composed(home: Path, checkpoints: dict[str, Path], order: Any, members: Any, *, opt_out: str | None = None) -> str:
    with Registry(home) as registry:
        for name in order:
            registry.add_expert(name, checkpoints[name])
        if opt_out is not None:
            registry.opt_out(opt_out, purge=True)
        registry.compose(list(members), home / "moe")
    return folder_digest(home / "moe")
