"""The page of `quality.py`: figures that parts found, as Markdown."""

import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.context_parts import OFFSETS, READ, SPANS, WINDOWS
from benchmarks.quality_parts import FIVE, REFERENCE, SAMPLED_REFERENCE, Figures

WIDE = 0.5
"""A difference from the reference that is more than this stands out."""

_INTRODUCTION = """# What compositions are worth

Written by `make quality` (`benchmarks/quality.py`), not by hand. [docs/methods.md](../docs/methods.md) says what each
method is.

Scores are normalised: 100 · perplexity of the domain's own expert / perplexity of the model, so that 100 is the expert
itself; the average is over the domains. {settings} *Reference* is what an
independent implementation got by the same protocol; a difference of more than {wide} is set in bold. The models are
Llamas of 6.8M parameters (hidden size 256, 6 layers), calibrated on 24,576 tokens an expert.

{machine}

## The experts

The base model learnt from general English (US government sites, the World Factbook, old books) and slices of every
domain in 2,300 steps of 16 windows of 256 tokens. Each expert took 200 more steps on the text of its domain, all
weights trained, at a learning rate of 3e-4. They share a vocabulary of 4,096 tokens (byte-level BPE).

| expert | text |
| --- | --- |
| code | the standard library of CPython 3.11 |
| math | problems with worked answers: GSM8K, MATH, AQuA-RAT, MathQA |
| literature | English novels, plays and poems, out of copyright |
| german | plays, and federal laws |
| biomed | MedQuAD, PubMedQA |
| history_philosophy | English non-fiction, out of copyright, by other authors than `literature` |
| far from these | Chinese manual pages, C headers (`benchmarks/far_text.py` has the commands) |

A document is wholly training text or wholly test text; experts are registered with training text. The reference is a
separate program that has no code in common with this one. The experts, their text and the
reference are not part of this repository. `make quality` measures yours, in folders beside it of the names that
`benchmarks/quality.py` begins with.
"""


def page(found: Mapping[str, Figures], reference: Mapping[str, float], windows: int) -> str:
    """Return the page.

    Args:
        found: part → its figures; sections whose parts are absent are left out.
        reference: row → average score.
        windows: test windows of each domain.
    """
    settings = f"Test text is {windows} windows of 256 tokens of each domain."
    text = [_INTRODUCTION.format(settings=settings, wide=WIDE, machine=_machine())]
    for title, part in (
        ("Every method", _methods(found, reference)),
        ("More rows of the reference", _more(found, reference)),
        ("Experts registered without any text", _sampled(found, reference)),
        ("Six experts, the sixth close to `literature`", _rows(found, "six")),
        ("Near and far experts", _rows(found, "far")),
        ("Context routing", _context(found)),
        ("One expert with ten times the tokens", _tokens(found)),
        ("Continual learning", _continual(found)),
        ("Time", _cost(found)),
    ):
        if lines := "\n".join(part):
            text.append(f"## {title}\n\n{lines}\n")
    return "\n".join(text)


def with_scores(document: str, found: Mapping[str, Figures]) -> str:
    """Return docs/methods.md with the measured scores; those not measured are left empty.

    They stand in the last column of each table where that is called `score`, in the lines that have a cell with the
    name of a row; after a stroke stands that of far experts too.
    """
    scores = [_averages(_table_rows(found)), _averages(found["far"]["rows"] if "far" in found else [])]
    lines = document.split("\n")
    wanted = False
    for number, line in enumerate(lines):
        cells = line.split(" | ")
        if not line.startswith("|"):
            wanted = False
        elif cells[-1] == "score |":
            wanted = True
        elif wanted and (named := re.search(r"\| `([^`]+)` \|", line)):
            known = [of[named[1]] for of in scores if named[1] in of]
            lines[number] = " | ".join([*cells[:-1], f"{' / '.join(known)} |"])
    return "\n".join(lines)


def _averages(rows: Iterable[Figures]) -> dict[str, str]:
    return {_key(row["name"]): _average(row) for row in rows}


def _average(row: Figures) -> str:
    return _figure(row["average"]) + (f" ± {row['spread']['average']:.2f}" if row.get("spread") else "")


def _table_rows(found: Mapping[str, Figures]) -> list[Figures]:
    pieces = [part for name, part in found.items() if name.startswith("table-")]
    return sorted((row for part in pieces for row in part["rows"]), key=_place)


def _machine() -> str:
    import torch
    import transformers

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = named[0] if named else model
    return (
        f"Measured on {os.cpu_count()} cores of {model} ({platform.system()} {platform.machine()}), a thread each,\n"
        f"with Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}."
    )


def _methods(found: Mapping[str, Figures], reference: Mapping[str, float]) -> Iterator[str]:
    if not (rows := _table_rows(found)):
        return
    yield from _scores(rows, reference, REFERENCE)
    yield ""
    own = {row["name"].removeprefix("expert "): row["perplexity"] for row in rows if row["name"].startswith("expert ")}
    listed = ", ".join(f"{name} {own[name][name]:.2f}" for name in FIVE if name in own)
    yield "± is the standard deviation over five seeds, over three where routers are trained."
    yield f"Perplexities of the experts on their own domains: {listed}."
    yield ""
    yield "Share of each domain's tokens that go to its own expert first, the mean over the layers; and parameters:"
    yield ""
    yield from _routing(rows, FIVE)


def _place(row: Figures) -> int:
    from registry.evaluation.methods import DENSE, METHODS

    name = row["name"]
    known = [*DENSE, *METHODS]
    first = {"base": 0, "expert": 1, "average": 2}.get(name.split()[0])
    return known.index(name) if first is None else first


def _more(found: Mapping[str, Figures], reference: Mapping[str, float]) -> Iterator[str]:
    if "reference" in found:
        rows = found["reference"]["rows"]
        yield "By recipe, not by a method's name; names are the reference's."
        yield ""
        yield from _scores(rows, reference, {row["name"]: row["name"] for row in rows})


def _sampled(found: Mapping[str, Figures], reference: Mapping[str, float]) -> Iterator[str]:
    if "sampled" in found:
        yield "Each wrote its own calibration text (temperature 1, from the start token); no text was given."
        yield ""
        yield from _scores(found["sampled"]["rows"], reference, SAMPLED_REFERENCE)


def _rows(found: Mapping[str, Figures], part: str) -> Iterator[str]:
    if part in found:
        rows = sorted(found[part]["rows"], key=_place)
        yield from _scores(rows)
        yield ""
        yield "Share of each domain's tokens that go to its own expert first:"
        yield ""
        yield from _routing(rows, list(rows[0]["tokens"]))


def _context(found: Mapping[str, Figures]) -> Iterator[str]:
    parts = {name.removeprefix("context-"): part for name, part in found.items() if name.startswith("context-")}
    if not parts:
        return
    offsets = ", ".join(map(str, OFFSETS))
    yield (
        f"Scores are means over {len(OFFSETS)} sets of {WINDOWS} windows a domain, at {offsets} tokens into the test "
        "text, ± their standard deviation. *After a change* is text whose second half is of another domain: scores of "
        f"the tokens from the first to before the last after it, against the new domain's own expert. Routing accuracy "
        "is the share of tokens that go to the expert of their domain. Window 24 is `--context-window 24`; whole "
        "prefix is `--context-window 0`, which has no fast window; shared head is `--vocabulary shared`. *Second "
        "layer* is not a recipe: with a shared head, routers from layer 1 on add three times the mean of that layer's "
        "ridge logits over the recent text to the scores of context routing, as a second context layer would. It is to "
        "be compared with the row of the shared head."
    )
    for name, part in parts.items():
        yield ""
        yield f"### {name}: {', '.join(part['experts'])}"
        yield ""
        spans = [f"{first}–{end}" for first, end in SPANS]
        lines = []
        for row in part["rows"]:
            size = f"{row['active']:,}" if "active" in row else ""
            after = [f"{value:.1f}" for value in row["switching"]]
            lines.append([row["name"], f"{row['average']:.2f} ± {row['spread']:.2f}", *after, size])
        yield from _table(["", "whole text", *(f"after a change: {span}" for span in spans), "active"], lines)
        yield ""
        layers = len(part["rows"][0]["by_layer"])
        yield "Routing accuracy by tokens read, and by layer:"
        yield ""
        lines = [
            [row["name"], *(f"{value:.0%}" for value in (*row["by_tokens"], *row["by_layer"]))]
            for row in part["rows"]
            if "by_layer" in row
        ]
        yield from _table(["", *map(str, READ), *(f"layer {layer}" for layer in range(layers))], lines)


def _tokens(found: Mapping[str, Figures]) -> Iterator[str]:
    if "tokens" not in found:
        return
    part = found["tokens"]
    yield (
        f"`{part['expert']}` registered with {part['tokens']:,} tokens, the others with {part['others']:,}; in the "
        f"reference all have {part['others']:,}; balanced is `--balance tokens`."
    )
    yield ""
    yield from _scores(part["rows"])
    yield ""
    yield from _routing(part["rows"], FIVE)


def _continual(found: Mapping[str, Figures]) -> Iterator[str]:
    if "continual" not in found:
        return
    part = found["continual"]
    verdict = "are the same, byte by byte" if part["identical"] else "**differ**"
    yield (
        "Three schedules by the default recipe, scored on half of the test windows, each in a registry of its own in "
        "which experts were registered in that order. "
        f"The final folders {verdict} (`==` on all {len(part['files'])} files)."
    )
    for schedule in part["schedules"]:
        names = schedule["schedule"]
        lines = []
        for step, name in enumerate(names):
            lines.append(
                [name, *(f"{value:.2f}" for value in schedule["score"][step]), *[""] * (len(names) - step - 1)]
            )
        yield ""
        yield from _table(["score after", *names], lines)
        yield ""
        yield (
            f"Average {schedule['average']:.2f}, forgetting {schedule['forgetting']:.2f}, backward transfer "
            f"{schedule['backward_transfer']:+.2f}."
        )


def _cost(found: Mapping[str, Figures]) -> Iterator[str]:
    cost = {name: part["cost"] for name, part in found.items()}
    yield "Processor seconds of each part, on one thread; parts run side by side."
    yield ""
    lines = [[name, f"{of['cpu']:.0f}"] for name, of in cost.items()]
    yield from _table(["part", "seconds"], [*lines, ["in all", f"{sum(of['cpu'] for of in cost.values()):.0f}"]])


def _scores(
    rows: Sequence[Figures], reference: Mapping[str, float] | None = None, named: Mapping[str, str] | None = None
) -> Iterator[str]:
    domains = [name for name in FIVE if name in rows[0]["tokens"]]
    domains += [name for name in rows[0]["tokens"] if name not in domains]
    lines = []
    for row in rows:
        line = [row["name"], *(_figure(row["score"].get(name)) for name in domains), _average(row)]
        if reference is not None and named is not None:
            line += _against(row["average"], reference.get(named.get(_key(row["name"]), "")))
        lines.append(line)
    header = ["", *domains, "average", *(["reference", "difference"] if reference is not None else [])]
    yield from _table(header, lines)


def _key(name: str) -> str:
    return "base" if name.startswith("base ") else name


def _against(average: float | None, expected: float | None) -> list[str]:
    if expected is None or average is None:
        return ["", ""]
    difference = f"{round(average - expected, 2) + 0.0:+.2f}"
    return [f"{expected:.2f}", f"**{difference}**" if abs(average - expected) > WIDE else difference]


def _routing(rows: Iterable[Figures], domains: Sequence[str]) -> Iterator[str]:
    lines = []
    for row in rows:
        accuracy = row["overall_accuracy"]
        if accuracy:
            shares = [f"{accuracy[name]:.1%}" if name in accuracy else "" for name in domains]
            mean = f"{sum(accuracy.values()) / len(accuracy):.1%}"
            lines.append([row["name"], *shares, mean, f"{row['parameters']:,}", f"{row['active_parameters']:,}"])
    yield from _table(["", *domains, "mean", "parameters", "active"], lines)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _table(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> Iterator[str]:
    for line in (header, ["---", *["---:"] * (len(header) - 1)], *lines):
        yield "| " + " | ".join(line) + " |"
