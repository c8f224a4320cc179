"""The steps of the demo."""

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, TextIO

from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.demo.domains import DOMAINS, MARKER, check_demo_folder, domain_files, write_domains
from registry.demo.train import new_model, read_texts, save, train_tokenizer
from registry.errors import CheckpointError, OutputError, StorageError
from registry.evaluation import Row, TestSettings
from registry.io.disk import try_lock
from registry.io.limits import JSON_BYTES
from registry.io.untrusted import json_object
from registry.progress import Advance, Progress, remark, silent
from registry.registry import Registry
from registry.statistics.collect import collect_to
from registry.statistics.file import FILE_NAME
from registry.statistics.settings import DEFAULT_SEQ_LEN, PassSettings
from registry.training import ExpertTraining
from registry.training.settings import GOES_ON
from store.digest import json_digest

BASE_STEPS, BASE_RATE = 300, 3e-3
EXPERT_STEPS, EXPERT_RATE = 100, 5e-4
BATCH, SEQ_LEN = 8, 128
TOKENS = 16_384


@dataclass(frozen=True)
class DemoResult:
    """The result of the demo."""

    folder: Path  # the folder with `text`, `checkpoints`, `registry` and `moe`
    domains: tuple[str, ...]  # the experts' names
    rows: list[Row]  # scores of base, experts, averaged weights and composition on every domain's test text
    orders: dict[tuple[str, ...], str]  # order of registration → SHA-256 over every byte of the composed folder
    opted_out: str  # the same digest for a pair composed after the third expert's opt-out and purge
    never_registered: str  # the same digest for that pair in a registry that never held the third
    withdrawn: str  # the expert that was opted out
    compositions: dict[str, str]  # members, with commas → digest of their composition, as `reg compose` prints it

    @property
    def holds(self) -> bool:
        """True if both guarantees were seen to hold: any order, and the opt-out, give the same bytes."""
        return len(set(self.orders.values())) == 1 and self.opted_out == self.never_registered

    def document(self) -> dict[str, Any]:
        """Return everything as `--json` shows it, except for the folder."""
        kept = {key: value for key, value in vars(self).items() if key not in ("folder", "rows", "orders")}
        orders = {",".join(order): digest for order, digest in self.orders.items()}
        return kept | {"domains": [*self.domains], "rows": [row.document() for row in self.rows], "orders": orders}

    @classmethod
    def from_document(cls, folder: Path, document: Mapping[str, Any]) -> "DemoResult":
        """Return the result that `document` was made of."""
        rows = [Row.from_document(row) for row in document["rows"]]
        orders = {tuple(order.split(",")): digest for order, digest in document["orders"].items()}
        lists = {"folder": folder, "domains": tuple(document["domains"]), "rows": rows, "orders": orders}
        return cls(**{**document, **lists})


def run_demo(out: Path, progress: Progress = silent, *, force: bool = False) -> DemoResult:
    """Run the demo in the folder `out`; one that was interrupted goes on, one that has ended returns its result.

    With `force`, delete the files of an earlier demo in `out` first; other files stay. OutputError: `out` is neither
    absent nor empty, and not of an earlier demo. StorageError: accelerate is not installed.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise StorageError(
            "the demo trains its models, and that needs accelerate", "run: pip install 'expert-registry[train]'"
        )
    with _prepared(out, force=force) as marker:
        if (earlier := _finished(marker, out)) is not None:
            remark(progress, f"the demo in {out} has ended, and these are its figures; reg demo --force makes it again")
            return earlier
        if (out / "text").exists():
            remark(progress, f"going on with the demo in {out}")
        result = _run(out, progress)
        _write_marker(marker, result.document())
        return result


def _run(out: Path, progress: Progress) -> DemoResult:
    remark(progress, "1 of 6: taking text from Python's standard library, and making up arithmetic")
    text = write_domains(out / "text")
    domains = tuple(text)
    remark(progress, f"2 of 6: training a tiny base model, then {len(domains)} experts from it: {', '.join(domains)}")
    scratch = out / "scratch"
    checkpoints = _train(out / "checkpoints", scratch, {domain: train for domain, (train, _) in text.items()}, progress)
    remark(progress, f"3 of 6: collecting each expert's statistics on {TOKENS:,} tokens")
    settings = PassSettings(tokens=TOKENS)
    for domain in domains:  # each team collects statistics beside its data, which never moves
        at = checkpoints[domain]
        if not (at / FILE_NAME).is_file():
            collect_to(at, at, data=[text[domain][0]], settings=settings, progress=progress)

    remark(progress, "4 of 6: registering, composing and evaluating them")
    with Registry(out / "registry", progress=progress) as registry:
        registry.add_base("base", checkpoints["base"])
        for domain in domains:
            registry.add_expert(domain, checkpoints[domain])
        compositions = {",".join(domains): registry.compose(list(domains), out / "moe", force=True).digest}
        tests = {domain: [test] for domain, (_, test) in text.items()}
        rows = registry.evaluate([out / "moe"], tests, TestSettings(seq_len=DEFAULT_SEQ_LEN), baselines=True)

    remark(progress, "5 of 6: registering them in every order")
    orders = {}
    for order in permutations(domains):
        _, orders[order] = _composed(scratch / "-".join(order), checkpoints, order, domains)
    *pair, withdrawn = domains
    remark(progress, f"6 of 6: opting {withdrawn} out of a copy")
    pair_digest, opted_out = _composed(scratch / "opted-out", checkpoints, domains, pair, opt_out=withdrawn)
    compositions[",".join(pair)] = pair_digest
    _, never = _composed(scratch / "never", checkpoints, pair, pair)
    shutil.rmtree(scratch)
    return DemoResult(out, domains, rows, orders, opted_out, never, withdrawn, compositions)


def folder_digest(folder: Path) -> str:
    """Return SHA-256 over the names and bytes of every file below `folder`."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
            state.update(path.read_bytes())
    return state.hexdigest()


@contextmanager
def _prepared(out: Path, *, force: bool) -> Iterator[TextIO]:
    """Prepare `out` for a demo and lock it, so that one demo runs at a time in a folder; yield its marker."""
    check_demo_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    with (out / MARKER).open("a+", encoding="utf-8") as marker:
        if not try_lock(marker.fileno()):
            raise OutputError(f"another demo is running in {out}", "choose another --out, or wait until it has ended")
        if force:
            _delete_demo(out)
        if force or not _content(marker):
            _write_marker(marker, None)
        yield marker


def _write_marker(marker: TextIO, result: dict[str, Any] | None) -> None:
    """Write who made the folder and, once the demo has ended, its result with a digest."""
    more = {} if result is None else {"result": result, "digest": json_digest(result)}
    marker.truncate(0)
    json.dump({"made by": "reg demo", **more}, marker)
    marker.flush()


def _content(marker: TextIO) -> dict[str, Any]:
    marker.seek(0)
    try:
        return json_object(marker.read(JSON_BYTES).encode(), marker.name)
    except (CheckpointError, UnicodeError):
        return {}


def _finished(marker: TextIO, out: Path) -> DemoResult | None:
    """Return the result of the demo in `out`; None if it has not ended, or its files or figures are incomplete."""
    content = _content(marker)
    result = content.get("result")
    if not isinstance(result, dict) or content.get("digest") != json_digest(result) or "compositions" not in result:
        return None
    if not ((out / "registry").is_dir() and (out / "moe").is_dir()):
        return None
    return DemoResult.from_document(out, result)


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
        if (folder / name / EXPERT_TRAINING).is_file():  # it appeared whole, before an interruption
            remark(progress, f"  {name}: trained already")
            continue
        with Registry(scratch / "training", progress=_bars(progress, name)) as registry:
            losses = registry.train_expert(name, begin, data, settings, out=folder / name).losses
        remark(progress, f"  {name}: loss {losses.before:.2f} before, {losses.after:.2f} after {settings.steps} steps")
    return {name: folder / name for name in work}


def _bars(progress: Progress, name: str) -> Progress:
    """Return `progress` with a name behind the label of each bar, and of remarks only that a training goes on."""

    def named(label: str, total: int, unit: str) -> AbstractContextManager[Advance]:
        if unit:
            return progress(f"{label} {name}", total, unit)
        return (progress if label.startswith(GOES_ON) else silent)(f"  {name}: {label}", total, unit)

    return named


def _settings(steps: int, rate: float) -> ExpertTraining:
    """Return the settings of a training of all weights, the same on every machine."""
    tokens = steps * BATCH * SEQ_LEN
    return ExpertTraining(
        tokens=tokens, seq_len=SEQ_LEN, batch_size=BATCH, trunk="free", lr=rate, device="cpu", dtype="float32"
    )


def _composed(
    home: Path, checkpoints: dict[str, Path], order: Any, members: Any, *, opt_out: str | None = None
) -> tuple[str, str]:
    """Register experts in an order, and return the digests of their composition and of its folder."""
    if home.exists():  # of an interrupted demo
        shutil.rmtree(home)
    with Registry(home) as registry:
        for name in order:
            registry.add_expert(name, checkpoints[name])
        if opt_out is not None:
            registry.opt_out(opt_out, purge=True)
        digest = registry.compose(list(members), home / "moe").digest
    return digest, folder_digest(home / "moe")
