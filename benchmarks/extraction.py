"""Documents that models give away: base model, compositions, experts, and a control that learned them by heart.

    python -m benchmarks.extraction [--shared ../shared] [--work build/extraction]

The control is trained from SHARED/experts/base on a few documents of SHARED/corpora/<domain>/train.jsonl.gz until it
recites them, and composed with SHARED/experts. Then it is opted out, and the others are composed without it. Each model
is audited on documents that the control saw, and on test documents of the same domain. A control that is there in
--work is not trained again. Writes EXTRACTION.md beside this file.

Shapes: P tokens of a prefix, C continued tokens.
"""

import argparse
import gzip
import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from registry import ExpertTraining, ExtractionSettings, Registry
from registry.evaluation import Extraction
from registry.evaluation.extraction import audit_extraction
from registry.progress import silent
from registry.runtime.loading import load_tokenizer

DOMAIN = "literature"
OTHERS = ("biomed", "code", "german", "math")
BASE, CONTROL, PAGE = "base", "control", Path(__file__).with_name("EXTRACTION.md")
DOCUMENTS, TOKENS, COPIES = 20, 128, 10
"""Documents that the control learns, tokens of each, and copies of each among its training text."""

SETTINGS = ExtractionSettings(documents=DOCUMENTS, prefix=32, continued=64, device="cpu")
"""As FlexOlmo §5.3, but for fewer documents, and 64 continued tokens, not 256, and no top-p."""

TRAINING = ExpertTraining(tokens=100 * 8 * 256, trunk="free", lr=1e-3, device="cpu", dtype="float32")
"""The control's."""


@dataclass(frozen=True)
class Line:
    """A line of the page.

    Attributes:
        model: the model.
        seen: figures of documents that the control learned.
        unseen: figures of test documents.
    """

    model: str
    seen: Extraction
    unseen: Extraction

    def __str__(self) -> str:
        cells = (
            f"{found.extracted} of {len(found.similarity)} | {found.mean:.3f} | {max(found.similarity):.3f}"
            for found in (self.seen, self.unseen)
        )
        return f"| {self.model} | {' | '.join(cells)} |"


def beginnings(file: Path, tokenizer: Path, count: int, tokens: int) -> list[str]:
    """Return the first `tokens` tokens of the first `count` documents of a file that have as many."""
    cut, found = load_tokenizer(tokenizer), []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            ids = cut(json.loads(line)["text"][: 16 * tokens], add_special_tokens=False, verbose=False)["input_ids"]
            if len(ids) >= tokens:
                found.append(cut.decode(ids[:tokens]))
            if len(found) == count:
                break
    return found


def texts(shared: Path, work: Path) -> tuple[Path, Path, Path]:
    """Write the documents to learn, many copies of them in changing order, and those of the test."""
    folder = shared / "corpora" / DOMAIN
    learned, unseen = (
        beginnings(folder / f"{split}.jsonl.gz", shared / "experts" / BASE, DOCUMENTS, TOKENS)
        for split in ("train", "test")
    )
    draw = random.Random(0)
    copies = [text for _ in range(COPIES) for text in draw.sample(learned, len(learned))]
    return (
        _written(work / "seen.jsonl", learned),
        _written(work / "copies.jsonl", copies),
        _written(work / "unseen.jsonl", unseen),
    )


def register(home: Path, shared: Path, copies: Path) -> bool:
    """Register the base model and the experts that are not there; tell whether the control had to be trained."""
    with Registry(home) as registry:
        names = {version.name for version in registry.versions()}
        if BASE not in names:
            registry.add_base(BASE, shared / "experts" / BASE)
        for name in OTHERS:
            if name not in names:
                text = shared / "corpora" / name / "train.jsonl.gz"
                registry.add_expert(name, shared / "experts" / name, data=[text])
        if CONTROL not in names:
            losses = registry.train_expert(CONTROL, BASE, [copies], TRAINING).losses
            print(f"control: loss {losses.before:.3f} before, {losses.after:.3f} after", flush=True)
        return CONTROL not in names


def models(home: Path, shared: Path, work: Path) -> dict[str, Path]:
    """Return model → folder; the control is opted out of a copy of the registry before the last one is composed."""
    for path in work.glob("made-*"):
        shutil.rmtree(path)
    found = {"base model": shared / "experts" / BASE, f"expert {DOMAIN}": shared / "experts" / DOMAIN}
    with Registry(home) as registry:
        registry.export(CONTROL, work / "made-control")
        found["control"] = work / "made-control"
        found["composition of control and others"] = work / "made-with"
        registry.compose([CONTROL, *OTHERS], work / "made-with")
    with Registry(shutil.copytree(home, work / "made-home")) as registry:
        registry.opt_out(CONTROL, purge=True)
        found["composition of others, after the control's opt-out"] = work / "made-without"
        registry.compose(list(OTHERS), work / "made-without")
    return found


def page(lines: Sequence[Line], seconds: float, *, trained: bool) -> str:
    """Return EXTRACTION.md."""
    control = "with" if trained else "without"
    how, steps, threads = SETTINGS, TRAINING.steps, torch.get_num_threads()
    learned, unseen = (
        f"{text}: extracted | {text}: mean similarity | {text}: largest" for text in ("learned", "unseen")
    )
    return f"""# Documents that models give away

What `python -m benchmarks.extraction` measured (FlexOlmo §5.3): a model is given the first tokens of a document, and
samples {how.samples} continuations from its {how.top_k} most probable tokens. A document is extracted if the best of
them is similar to the document's own by {how.threshold:g} or more (normalised Levenshtein similarity, on tokens).
Experts have 6.8M parameters.

- prefix: {how.prefix} tokens; continued: {how.continued} tokens, where FlexOlmo has 256
- learned: the {DOCUMENTS} documents that the control was trained on; unseen: as many of {DOMAIN}'s test text
- control: trained from the base model on {DOCUMENTS} documents of {DOMAIN}, {TOKENS} tokens each, for {steps} steps
  of {TRAINING.batch_size * TRAINING.seq_len:,} tokens; trunk {TRAINING.trunk}, lr {TRAINING.lr:g}
- expert {DOMAIN}: trained on the domain's text, from which these documents come; not a member of the compositions
- compositions: the default recipe; others: {", ".join(OTHERS)}
- processor time: {seconds:.0f} s, {control} the control's training; {threads} thread, torch {torch.__version__}

| model | {learned} | {unseen} |
|---|---|---|---|---|---|---|
""" + "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Train the control if it is not there, compose, audit, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shared", type=Path, default=Path(__file__).parents[2] / "shared", help="default: %(default)s"
    )
    parser.add_argument("--work", type=Path, default=Path("build/extraction"), help="default: %(default)s")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    seen, copies, unseen = texts(given.shared, given.work)
    trained = register(given.work / "home", given.shared, copies)
    found = models(given.work / "home", given.shared, given.work)
    of = [audit_extraction(list(found.values()), [text], SETTINGS, silent) for text in (seen, unseen)]
    lines = [Line(name, *figures) for name, figures in zip(found, zip(*of, strict=True), strict=True)]
    PAGE.write_text(page(lines, time.process_time(), trained=trained), encoding="utf-8")


def _written(path: Path, documents: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
