"""The page of `papers.py`: figures that parts found, as Markdown."""

import math
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_INTRODUCTION = """# Tables in the shape of the papers'

Written by `make papers` (`benchmarks/papers.py`), not by hand. All experts come from one Llama of 6.8M parameters; each
was trained on {tokens:,} tokens of its domain: *free*, all weights; *frozen*, the MLPs alone; *coordinated*, the MLPs
beside the frozen public expert, with router rows of their own (`reg train-expert --coordinate`). The public expert is
the base model. Test text is {windows} windows of 256 tokens of each domain; `general` is public text.

Figures are perplexities, lower is better; *mean* is the geometric mean over all columns. They are those of small
models: what counts is how the rows compare.

{machine}
"""
KINDS = ("free", "frozen", "coordinated")
COMPOSED = {
    "free": ("DUME: trunk mean, ridge", "regmean, ridge", "regmean, context (the default)"),
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
        record: training tokens of each expert, test windows of each domain, the machine, and part → its figures;
            sections whose parts are absent are left out.
    """
    found: Mapping[str, Mapping[str, Any]] = record["parts"]
    text = [_INTRODUCTION.format_map(record)]
    for title, part in (
        ("FlexOlmo's Table 1", _flexolmo(found)),
        ("What each kind of expert loses", _losses(found)),
        ("Experts of five domains", _perplexities(found, "near")),
        ("With two domains far from the base model", _perplexities(found, "far")),
        ("DUME's Table 2", _scores(found)),
    ):
        if lines := "\n".join(part):
            text.append(f"## {title}\n\n{lines}\n")
    return "\n".join(text)


FLEXOLMO: tuple[tuple[str, str, str], ...] = (
    ("public model", "near-free", "base model"),
    ("model soup", "near-free", "soup: average of all weights"),
    ("BTM, all whole models", "near-free", "BTM: all whole models"),
    ("BTM, the best 2", "near-free", "BTM: the best 2 whole models"),
    ("BTX, then trained on public text", "mixtures", "BTX, trained on public text"),
    ("BTX, then trained on all text", "mixtures", "BTX, trained on all text"),
    ("unrestricted mixture, 1×", "unrestricted-1", "unrestricted mixture, 1×"),
    ("unrestricted mixture, 2×", "unrestricted-2", "unrestricted mixture, 2×"),
    ("unrestricted mixture, 1×, its trunk frozen", "unrestricted-mlps", "unrestricted mixture, 1×, its trunk frozen"),
    ("DUME", "near-free", "DUME: trunk mean, ridge"),
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


def _flexolmo(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = {
        label: found[part]["rows"][name]
        for label, part, name in FLEXOLMO
        if part in found and name in found[part]["rows"]
    }
    if not rows:
        return
    yield "BTX mixtures, trained in full, read as many tokens as one expert did. The unrestricted mixture begins as"
    yield "five copies of the public model, and all its weights train on all text (sparse upcycling): on as many tokens"
    yield "as the five experts together (1×), or twice as many. *Proxy text* is what `reg proxy` chose for each expert"
    yield "out of public text, in which documents of every domain stand without"
    yield f"labels{_own(found)}. The bias is the best on this test text of the four in the table of five domains."
    yield ""
    yield from _table(rows)


def _own(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return how many of the chosen documents come from the expert's own domain."""
    if "tuned" not in found:
        return ""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found["tuned"]["own"].items())
    return f" (of its own domain are: {shares})"


def _losses(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    lines = []
    for which in ("near", "far"):
        for kind in KINDS:
            rows = found.get(f"{which}-{kind}", {}).get("rows", {})
            domains = [name.removeprefix("expert ") for name in rows if name.startswith("expert ")]
            own = mean({domain: rows[f"expert {domain}"][domain] for domain in domains}) if domains else math.nan
            for name in COMPOSED[kind] if domains else ():
                value = mean({domain: rows[name][domain] for domain in domains})
                change = f"{100 * (value / own - 1):+.1f} %"
                lines.append(f"| {len(domains)} | {kind} | {own:.2f} | {name} | {value:.2f} | {change} |")
    if lines:
        yield "Geometric means over the domains, without public text; *own* is each domain by its own expert alone,"
        yield "which no composition knows. A coordinated expert was trained in a mixture, not alone."
        yield ""
        yield "| domains | experts | own | composition | of it | change |"
        yield "| ---: | --- | ---: | --- | ---: | ---: |"
        yield from lines
    if "rates" in found:
        yield ""
        yield f"Held-out loss of one expert ({found['rates']['domain']}) by its highest learning rate:"
        yield ""
        yield "| trained, learning rate | before | after |"
        yield "| --- | ---: | ---: |"
        for name, (before, after) in found["rates"]["losses"].items():
            yield f"| {name} | {before:.4f} | {after:.4f} |"


def _table(rows: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    domains = list(next(iter(rows.values())))
    yield f"| model | {' | '.join(domains)} | mean |"
    yield f"| --- | {'---: | ' * (len(domains) + 1)}".rstrip()
    for name, of in rows.items():
        yield f"| {name} | {' | '.join(f'{of[domain]:.2f}' for domain in domains)} | {mean(of):.2f} |"


def _perplexities(found: Mapping[str, Mapping[str, Any]], which: str) -> Iterator[str]:
    kinds = {kind: found[f"{which}-{kind}"]["rows"] for kind in KINDS if f"{which}-{kind}" in found}
    if not kinds:
        return
    domains = list(next(iter(next(iter(kinds.values())).values())))
    yield f"| experts | model | {' | '.join(domains)} | mean |"
    yield f"| --- | --- | {'---: | ' * (len(domains) + 1)}".rstrip()
    for kind, rows in kinds.items():
        for name, of in rows.items():
            cells = " | ".join(f"{of[domain]:.2f}" for domain in domains)
            yield f"| {kind} | {name} | {cells} | {mean(of):.2f} |"


def _scores(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if "dume" not in found:
        return
    rows = found["dume"]["scores"]
    domains = list(next(iter(rows.values())))
    yield "The experts of `../shared/experts`, all of whose weights were trained on 819,200 tokens. Scores are"
    yield "normalised: 100 · perplexity of the domain's own expert / perplexity of the model; higher is better."
    yield "That paper's DUME+ and BTX train gates alone, from the closed form and from random ones. At top 1"
    yield "a softmax over one logit passes no gradient; there `reg train-router` compares two experts."
    yield ""
    yield f"| model | {' | '.join(domains)} |"
    yield f"| --- | {'---: | ' * len(domains)}".rstrip()
    for name, of in rows.items():
        yield f"| {name} | {' | '.join(f'{of[domain]:.2f}' for domain in domains)} |"


def mean(of: Mapping[str, float]) -> float:
    """Return the geometric mean of perplexities."""
    return math.exp(sum(map(math.log, of.values())) / len(of))
