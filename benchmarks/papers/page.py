"""The page of `papers.py`: figures that parts found, as Markdown."""

import math
import os
import platform
from collections.abc import Iterator, Mapping
from textwrap import fill
from typing import Any

import torch

from benchmarks.papers import dume, findings, flexolmo, hetero, mergeme, simoe, soups, statistics_curves
from benchmarks.papers.bench import NEAR
from benchmarks.papers.tables import Found, alike, mean, table

_INTRODUCTION = """# Tables in the shape of the papers'

Written by `make papers` (`benchmarks/papers`), not by hand. All experts come from one Llama of 6.8M parameters; each
was trained on the same number of tokens of its domain: *free*, all weights (16 windows a step, learning rate 3e-4);
*frozen*, the MLPs alone; *coordinated*, the MLPs beside the frozen public expert, with router rows of their own
(`reg train-expert --coordinate`). The public expert is the base model; `general` is public text.

{size}

Figures are perplexities, lower is better; *mean* is the geometric mean over all columns. They are those of small
models: what counts is how the rows compare. FlexOlmo, MergeME and SIMoE score tasks where we have perplexities.

{machine}
"""
KINDS = ("free", "frozen", "coordinated")
COMPOSED = {
    "free": ("DUME", "DUME, weight 1", "regmean, ridge", "regmean, context (the default)"),
    "frozen": ("ridge", "context"),
    "coordinated": ("rows as trained, with the public expert", "ridge", "context"),
}
"""Kind of expert → compositions whose loss against the experts is shown."""


def machine() -> str:
    """Return what the figures are measured on."""
    return f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}."


def page(record: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        record: the machine; `whole`, the seconds of a run of all parts, if it was one run; part → its figures and its
            size: training tokens of each expert, test windows of each domain, steps of a training of routers. Sections
            whose parts are absent are left out.
    """
    found: Found = record["parts"]
    sizes = [figures["size"] for figures in found.values()]
    text = [_INTRODUCTION.format_map({"size": _size(sizes[0]) if sizes else "", **record})]
    for title, first, part in (
        ("What the experts learned", None, _gains(found)),
        ("What the papers find", None, findings.lines(found)),
        ("FlexOlmo's Table 1", "near-free", _flexolmo(found)),
        ("FlexOlmo's Figures 3 and 4", "opt-out", flexolmo.section(found)),
        ("What each kind of expert loses", "near-free", _losses(found)),
        ("Experts of five domains", "near-free", _perplexities(found)),
        ("DUME's Table 2", "dume", dume.section(found)),
        ("MergeME's Tables 2 and 3", "mergeme", mergeme.section(found)),
        ("MergeME's Figure 4", None, mergeme.similarity_section(found)),
        ("MergeME's Table 4", "hetero", hetero.section(found)),
        ("Soup-of-Experts", "soups", soups.section(found)),
        ("SIMoE", "simoe", simoe.section(found)),
        ("Curves", None, _curves(found)),
        ("How long it took", None, _seconds(found, record.get("whole"))),
    ):
        if lines := "\n".join(part):
            usual, own = (_size(one) for one in (sizes[0], found.get(first or "", {}).get("size", sizes[0])))
            text.append(f"## {title}\n\n" + ("" if own == usual else f"{own}\n\n") + f"{lines}\n")
    return "\n".join(text)


def _size(size: Mapping[str, Any]) -> str:
    """Return sentences on the size of a part."""
    return fill(
        f"Experts trained here have read {size['tokens']:,} tokens, {size['batch']} windows of 256 a step, learning "
        f"rate {size['lr']:g}; trainings on text of several domains {size['mixed_batch']} and {size['mixed_lr']:g}. "
        f"Test text: {size['windows']} windows of each domain.",
        116,
    )


def _curves(found: Found) -> Iterator[str]:
    if not {"sweeps", "statistics-curves", "soups"} & set(found):
        return
    yield "![Curves over k, ridge strength, support and documents](papers_curves.svg)"
    for name, curve in found.get("sweeps", {}).get("curves", {}).items():
        yield ""
        yield f"| {name} | {' | '.join(curve)} |"
        yield f"| --- | {'---: | ' * len(curve)}".rstrip()
        yield f"| mean score | {' | '.join(f'{value:.2f}' for value in curve.values())} |"
    yield from statistics_curves.section(found)


def _seconds(found: Found, whole: Mapping[str, Any] | None) -> Iterator[str]:
    timed = {name: figures["seconds"] for name, figures in found.items() if "seconds" in figures}
    if not timed:
        return
    if whole:
        yield f"All of it, in one run: {whole['wall'] / 60:.0f} minutes by the clock, {whole['jobs']} parts at a time."
        yield ""
    yield "Minutes of each part, where they were taken."
    yield ""
    yield "| part | tokens | threads | by the clock | of a processor |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, seconds in timed.items():
        tokens, threads = found[name]["size"]["tokens"], seconds["threads"]
        yield f"| {name} | {tokens:,} | {threads} | {seconds['wall'] / 60:.1f} | {seconds['processor'] / 60:.1f} |"


FLEXOLMO: tuple[tuple[str, str, str], ...] = (
    ("public model", "near-free", "base model"),
    ("model soup", "near-free", "soup: average of all weights"),
    ("BTM, all whole models", "near-free", "BTM: all whole models"),
    ("BTM, the best 2", "near-free", "BTM: the best 2 whole models"),
    ("BTX, then trained on public text", "mixtures", "BTX, trained on public text"),
    ("BTX, then trained on all text", "mixtures", "mean (BTX), trained on all text"),
    ("the same, attention merged by TIES", "mixtures", "TIES, trained on all text"),
    ("the same, attention merged by DARE", "mixtures", "DARE, trained on all text"),
    ("unrestricted mixture, 0.5× data", "unrestricted-half", "unrestricted mixture, 0.5× data"),
    ("unrestricted mixture, 1× data", "unrestricted-1", "unrestricted mixture, 1× data"),
    ("DUME", "near-free", "DUME"),
    ("DUME, its one expert at weight 1", "near-free", "DUME, weight 1"),
    ("default recipe on free experts", "near-free", "regmean, context (the default)"),
    ("default recipe on free experts, with the public one", "near-free", "regmean, context, with the public expert"),
    ("FlexOlmo: rows, bias, tuned on proxy text", "tuned", "rows with a bias, tuned on proxy text"),
    ("FlexOlmo: rows, tuned on proxy text", "tuned", "rows, tuned on proxy text"),
    ("FlexOlmo without tuning: rows and a bias", "near-coordinated", "rows as trained, bias -0.5"),
    ("… and without a bias", "near-coordinated", "rows as trained, with the public expert"),
    ("… and random rows", "near-coordinated", "random rows, with the public expert"),
    ("… and no training to coordinate", "near-frozen", "domain embeddings, with the public expert"),
    ("coordinated experts, ridge in closed form", "near-coordinated", "ridge, with the public expert"),
    ("coordinated experts, ridge, tuned on proxy text", "tuned", "ridge, tuned on proxy text"),
    ("coordinated experts, context routing", "near-coordinated", "context, with the public expert"),
)
"""Row of the table, and the part and row where its figures are."""


def _flexolmo(found: Found) -> Iterator[str]:
    if "near-free" not in found:
        return
    rows = {
        label: found[part]["rows"][name]
        for label, part, name in FLEXOLMO
        if part in found and name in found[part]["rows"] and alike(found[part]["size"], found["near-free"]["size"])
    }
    if "mixtures" in found:
        yield "BTX mixtures, trained in full, read as many tokens as one expert did."
    if {"unrestricted-half", "unrestricted-1"} & found.keys():
        yield "The unrestricted mixture begins as five copies of the public model, and all its weights train on all"
        yield "text (sparse upcycling), at the experts' rate: on as many tokens as the five experts together (1× data,"
        yield "about twice the compute), or half as many."
    yield "*Proxy text* is what `reg proxy` chose for each expert out of public text. In FlexOlmo's rows four experts"
    yield f"are active, weighed by the softmax over all. A bias of {flexolmo.BIAS:g} is added after training; the"
    yield "paper's is below 0 in training already (D.2)."
    yield ""
    yield from table(rows)


GAIN = 20
"""Percent by which an expert's perplexity is to be below the base model's, or methods are compared on nothing."""


def _gains(found: Found) -> Iterator[str]:
    """Yield the table of each expert's perplexity on its own domain beside the base model's."""
    lines, domains = [], list[str]()
    for kind in KINDS:
        rows = found.get(f"near-{kind}", {}).get("rows", {})
        own = {domain: rows[f"expert {domain}"][domain] for domain in NEAR if f"expert {domain}" in rows}
        if not own:
            continue
        base = rows["base model"]
        gains = {domain: 100 * (1 - value / base[domain]) for domain, value in own.items()}
        whole = 100 * (1 - mean(own) / mean({domain: base[domain] for domain in own}))
        cells = " | ".join(f"{base[domain]:.2f} → {own[domain]:.2f}: {gains[domain]:.1f} %" for domain in own)
        enough = sum(gain >= GAIN for gain in gains.values())
        domains = list(own)
        lines.append(f"| {kind} | {cells} | {whole:.1f} % | {enough} of {len(own)} |")
    if not lines:
        return
    yield "Perplexity of the base model on each domain, that of the domain's own expert, and by how much it is lower:"
    yield "methods can be told apart only where experts know more than the base model does. A coordinated expert was"
    yield "trained in a mixture, and is scored alone here."
    yield ""
    yield f"| experts | {' | '.join(domains)} | mean | at least {GAIN} % |"
    yield f"| --- | {'---: | ' * (len(domains) + 2)}".rstrip()
    yield from lines


def _losses(found: Found) -> Iterator[str]:
    lines = []
    for kind in KINDS if "near-free" in found else ():
        part = found.get(f"near-{kind}", {})
        rows = part["rows"] if part and alike(part["size"], found["near-free"]["size"]) else {}
        own = mean({domain: rows[f"expert {domain}"][domain] for domain in NEAR}) if rows else math.nan
        for name in (one for one in COMPOSED[kind] if one in rows):
            value = mean({domain: rows[name][domain] for domain in NEAR})
            lines.append(f"| {kind} | {own:.2f} | {name} | {value:.2f} | {100 * (value / own - 1):+.1f} % |")
    if lines:
        yield "Geometric means over the domains, without public text; *own* is each domain by its own expert alone,"
        yield "which no composition knows. A coordinated expert was trained in a mixture, not alone."
        yield ""
        yield "| experts | own | composition | of it | change |"
        yield "| --- | ---: | --- | ---: | ---: |"
        yield from lines


def _perplexities(found: Found) -> Iterator[str]:
    kinds = {kind: found[f"near-{kind}"]["rows"] for kind in KINDS if f"near-{kind}" in found}
    if not kinds:
        return
    domains = list(next(iter(next(iter(kinds.values())).values())))
    yield f"| experts | model | {' | '.join(domains)} | mean |"
    yield f"| --- | --- | {'---: | ' * (len(domains) + 1)}".rstrip()
    for kind, rows in kinds.items():
        for name, of in rows.items():
            cells = " | ".join(f"{of[domain]:.2f}" for domain in domains)
            yield f"| {kind} | {name} | {cells} | {mean(of):.2f} |"
