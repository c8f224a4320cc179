"""The page of all that was found."""

import json
from collections.abc import Sequence
from platform import python_version
from typing import Any

import peft
import torch
import transformers

from benchmarks.real.measure import GENERAL, LONGEST, interval, scores, wilson
from benchmarks.real.place import WINDOW, Place
from benchmarks.real.rows import ROWS
from registry.statistics.collect import EVIDENCE_TOKENS

REFERENCE = "--to adapters"
BEFORE = (
    "Then what the base model could do before, in the first row its own: facts, whose answer has a right word; SVAMP,",
    "whose last number is right; MBPP, whose Python code passes all tests; IFEval, whose instructions are all followed",
    f"({LONGEST['MBPP']} and {LONGEST['IFEval']} tokens at most).",
)


def result(place: Place, count: int, row: str) -> dict[str, Any]:
    """Return what a row gave for so many members; nothing if it was not measured."""
    path = place.work / f"{count} {row.replace('/', '-')}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def page(place: Place) -> str:
    """Return the page."""
    every = [*place.domains, *place.tasks]
    versions = [f"{one.__name__} {one.__version__}" for one in (torch, transformers, peft)]
    lines = [
        f"# Experts of {place.base.absolute().name}",
        "",
        "Written by `python -m benchmarks.real` (`make real`), not by hand.",
        "",
        f"The adapters of this base model have rank {_ranks(place, every)}. Merges and",
        "averages give each adapter the weight 1 / members, `sum` the weight 1; PEFT's TIES and DARE keep half.",
        "For PEFT, adapters of a smaller rank have zeros up to the largest.",
        "Without base member, all text goes to an adapter. MB are",
        "those of a composed folder, and then those of a loaded model's weights in float32; work is a token's",
        "multiplications, the base model's being 1. Each calibration, and the text that the base model wrote, has",
        f"{place.size.tokens:,} tokens, and of other text {EVIDENCE_TOKENS:,} at most are counted as evidence.",
        "An empty cell was not measured. Equation 4 of DUME, as printed, leaves the one expert a weight near",
        "1 / members, which the model does not bear; beside it stands the same with weight 1.",
        "",
        f"Python {python_version()}, {torch.backends.cpu.get_cpu_capability()}, {', '.join(versions)}.",
    ]
    for names in place.groups:
        if len(names) > 1:
            lines += _domains(place, names)
    return "\n".join([*lines, *(_skills(place, every) if place.tasks else [])]) + "\n"


def _domains(place: Place, names: Sequence[str]) -> list[str]:
    """Return the table of scores of domains, among these members."""
    whole = result(place, 0, "own")["domains"]
    best = {name: whole[name] for name in place.domains}
    reference = result(place, len(names), REFERENCE).get("domains")
    columns = (
        "mean",
        "95 % interval",
        f"`{REFERENCE}` is above it by",
        "general",
        "MB",
        "loaded",
        "work",
        "prompt",
        "token",
    )
    lines = [
        "",
        f"## {len(names)} members: {', '.join(names)}",
        "",
        f"Score of each domain, {place.size.windows} windows of {WINDOW} tokens each; 100 is its own expert, and of",
        "general text the base model. Times of a prompt of 512 tokens and of a token after it: the base model's is 1.",
        "",
        f"| | {' | '.join([*best, *columns])} |",
        "| --- |" + " ---: |" * (len(best) + len(columns)),
    ]
    for row in ROWS:
        found = result(place, len(names), row)
        if "refused" in found:
            lines.append(f"| {row} | {found['refused'].splitlines()[0][:80]} |" + " |" * (len(best) + len(columns) - 1))
        if "domains" not in found:
            continue
        score = scores(best, found["domains"])
        low, high = interval(best, found["domains"])
        ahead = ""
        if reference is not None and row != REFERENCE:
            ahead = "{:.2f} to {:.2f}".format(*interval(best, reference, found["domains"]))
        general = ""
        if GENERAL in found["domains"] and GENERAL in whole:
            general = f"{scores({GENERAL: whole[GENERAL]}, found['domains'])[GENERAL]:.1f}"
        pace = found.get("pace", {})
        cells = [f"{one:.2f}" for one in score.values()]
        cells += [f"{sum(score.values()) / len(score):.2f}", f"{low:.2f} to {high:.2f}", ahead, general]
        cells += [
            str(found["MB"] or ""),
            str(found.get("loaded", "")),
            f"{found['work']:.2f}" if "work" in found else "",
        ]
        cells += [f"{pace[key]:.2f}" if pace else "" for key in ("prefill_ratio", "decode_ratio")]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def _skills(place: Place, names: Sequence[str]) -> list[str]:
    """Return the table of right answers, among these members."""
    best = result(place, 0, "own")
    measured = {row: result(place, len(names), row) for row in ROWS}
    found = {"its own expert": best} | {row: one for row, one in measured.items() if "skills" in one}
    columns = list(dict.fromkeys(name for one in found.values() for name in one["skills"]))
    before = list(best["abilities"])
    lines = [
        "",
        f"## Answers right to the letter, in %, among {', '.join(names)}",
        "",
        f"Greedy answers to {place.size.prompts} questions each."
        + " A → B: a question of B after one of A and its answer." * (len(place.tasks) > 1),
        *(BEFORE if before else ()),
        "",
        f"| | {' | '.join([*columns, *before])} |",
        "| --- |" + " ---: |" * (len(columns) + len(before)),
    ]
    for row, one in found.items():
        shares = [(one["skills"] | one["abilities"]).get(name) for name in (*columns, *before)]
        cells = [
            "" if not own else "{:.0f} ({:.0f} to {:.0f})".format(100 * own[0] / own[1], *wilson(*own))
            for own in shares
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines


def _ranks(place: Place, names: Sequence[str]) -> str:
    """Return the rank of each adapter, in words."""
    found = {name: json.loads((place.adapter(name) / "adapter_config.json").read_text())["r"] for name in names}
    return "; ".join(
        f"{rank} ({', '.join(name for name in names if found[name] == rank)})" for rank in sorted(set(found.values()))
    )
