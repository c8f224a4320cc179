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


def page(found: Mapping[str, Mapping[str, Any]], tokens: int, windows: int) -> str:
    """Return the page.

    Args:
        found: part → its figures; sections whose parts are absent are left out.
        tokens: training tokens of each expert.
        windows: test windows of each domain.
    """
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}."
    text = [_INTRODUCTION.format(tokens=tokens, windows=windows, machine=machine)]
    for title, part in (
        ("Experts of five domains", _perplexities(found, "near")),
        ("With two domains far from the base model", _perplexities(found, "far")),
        ("DUME's Table 2", _scores(found)),
        ("Time", _seconds(found)),
    ):
        if lines := "\n".join(part):
            text.append(f"## {title}\n\n{lines}\n")
    return "\n".join(text)


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


def _seconds(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "| part | seconds |"
    yield "| --- | ---: |"
    for name, figures in found.items():
        yield f"| {name} | {figures['seconds']:.0f} |"
