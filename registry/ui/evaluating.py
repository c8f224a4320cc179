"""The form that evaluates a composition: its rows of domain and file, and the command that they make."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from starlette.datastructures import QueryParams

from registry.composition.recipe.fields import target_of
from registry.errors import InvalidInputError
from registry.evaluation.results import TestSettings
from registry.evaluation.stored import Score
from registry.io.display import counted
from registry.ui.composer.composing import MOST_PATH
from registry.ui.jobs import Phase
from store.catalog import CompositionRecord

MOST_DOMAINS = 64  # domains that the form has rows for, beside the empty one
WINDOWS = TestSettings.windows  # windows per domain that the form begins with, as `reg evaluate`
TOKENS = WINDOWS * (TestSettings.seq_len - 1)
"""Tokens of these windows that are predicted: of each window all but the first."""

MORE_WINDOWS = "96"  # windows per domain where an evaluation had few tokens

MOST_WINDOWS = 100_000

_CORRECT = "correct it in the form"
_MOST_IN_TITLE = 6
_PERFECT = "with perfect routing"
_MORE = {"--baselines": "with baselines", "--oracle": _PERFECT}  # option → its words in the title of a job


def form_rows(
    domains: Sequence[str], form: QueryParams, jobs: Iterable[Sequence[str]], labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the rows of the form, the last one for another domain, which is empty where it is to be typed.

    A row has its `domain`, the `file` that was typed, at first the latest one that is known, all files that are
    `known`, and the name (`label`) of that of its latest evaluation. `jobs` are their words after `reg`, latest first.
    """
    known = known_files(jobs)
    typed = list(zip(form.getlist("domain"), form.getlist("file"), strict=False))
    files = {domain: known[domain][0] for domain in domains if domain in known and not typed}
    other = "", ""
    for domain, file in typed:
        if domain in domains and domain not in files:
            files[domain] = file
        elif not other[1]:  # of a domain that has a row already, too: the form is shown as it was typed
            other = domain, file
    rows = [(domain, files.get(domain, "")) for domain in domains] + [other]
    return [
        {"domain": domain, "file": file, "known": known.get(domain, ()), "label": labels.get(domain, "")}
        for domain, file in rows
    ]


def known_files(jobs: Iterable[Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return domain → files of its text that jobs scored, the latest first, each once (`jobs` as in `form_rows`)."""
    known: dict[str, dict[str, None]] = {}
    for words in jobs:
        for domain, file in _data(words):
            known.setdefault(domain, {})[file] = None
    return {domain: tuple(files) for domain, files in known.items()}


def evaluated_on(words: Sequence[str]) -> str:
    """Return what tells an evaluation from others of its composition: `on code, math (96 windows a domain)`."""
    domains = listed_briefly([domain for domain, _ in _data(words)])
    windows = int(next((after for word, after in pairwise(words) if word == "--windows"), WINDOWS))
    size = f"{counted(windows, 'window')} a domain"
    more = [text for option, text in _MORE.items() if option in words]
    return f"on {domains} ({', '.join([size, *more])})"


def phases_of_evaluating(words: Sequence[str]) -> list[Phase]:
    """Return what the command of an evaluation does; which models there are to score, it finds out itself."""
    name = Path(words[1]).name
    domains = "|".join(re.escape(domain) for domain, _ in _data(words))
    baselines, oracle = "--baselines" in words, "--oracle" in words
    return [
        *([Phase("evaluating .+@[0-9]+", "evaluating base models")] if baselines else []),
        Phase(f"evaluating ({domains})@[0-9]+", "evaluating each domain’s own expert"),
        *([Phase("evaluating averaged weights", "evaluating averaged weights")] if baselines else []),
        Phase(re.escape(f"evaluating {name}"), f"evaluating {name}"),
        *([Phase(re.escape(f"evaluating {name} {_PERFECT}"), f"evaluating {name} {_PERFECT}")] if oracle else []),
    ]


def listed_briefly(names: Sequence[str]) -> str:
    """Return names for a title, of many the first ones and how many others there are."""
    left = len(names) - _MOST_IN_TITLE
    return ", ".join(names if left <= 0 else [*names[: _MOST_IN_TITLE - 1], f"{left + 1} more"])


def _data(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return domain and file of each text of an evaluation; nothing of another command."""
    data = [after for word, after in pairwise(words) if word == "--data" and words[0] == "evaluate"]
    return [(domain, file) for domain, _, file in (one.partition("=") for one in data)]


def domains_of(record: CompositionRecord, score: Score | None) -> list[str]:
    """Return the domains that the form offers: those of the members, and others that were evaluated before."""
    document = record.document
    has_domains = "from_base" not in document and target_of(document["recipe"]).has_domains
    members = [str(one["name"]) for one in document["members"]] if has_domains else []
    return list(dict.fromkeys([*members, *(score.domains if score else ())]))[:MOST_DOMAINS]


def folders_of(record: CompositionRecord) -> list[str]:
    """Return the folders of a composition that are there, the latest first."""
    return [folder for folder in reversed(record.folders) if Path(folder).is_dir()]


def evaluating(record: CompositionRecord, form: QueryParams) -> list[str]:
    """Return the words of the command after `reg` that evaluates a composition (InvalidInputError: the form is wrong).

    The form has `folder`, pairs of `domain` and `file`, of which those without a file are left out, `windows`, and
    `baselines` and `oracle`, each 1 or absent.
    """
    folder = form.get("folder", "")
    if folder not in folders_of(record):
        raise InvalidInputError(
            f"{folder or 'no folder'} is not a folder of this composition", "choose one in the form"
        )
    rows = zip(form.getlist("domain"), form.getlist("file"), strict=False)
    given = [(domain.strip(), file.strip()) for domain, file in rows if file.strip()]
    for at, (domain, file) in enumerate(given):
        if earlier := next((other for name, other in given[:at] if name == domain), None):
            raise InvalidInputError(
                f"the domain {domain} is given two files: {earlier} and {file}",
                "keep one, or give the other one a domain of its own",
            )
    if not given:
        raise InvalidInputError("no file of test text is given", "give one for at least one domain in the form")
    words = ["evaluate", str(Path(folder).absolute())]
    for domain, file in given:
        if not domain or "=" in domain or not domain.isprintable():
            raise InvalidInputError(f"the domain of {file} is {domain!r}, expected a name without =", _CORRECT)
        if len(file) > MOST_PATH or not file.isprintable():
            message = f"the file of {domain} is not a path of 1 to {MOST_PATH} printable characters"
            raise InvalidInputError(message, _CORRECT)
        if not Path(file).is_file():
            raise InvalidInputError(f"the file of {domain} is not there: {Path(file).absolute()}", _CORRECT)
        words += ["--data", f"{domain}={file}"]
    windows = form.get("windows", "").strip() or str(WINDOWS)
    if not (windows.isascii() and windows.isdecimal() and len(windows) < 7 and 1 <= int(windows) <= MOST_WINDOWS):
        raise InvalidInputError(f"windows is {windows!r}, expected a number from 1 to {MOST_WINDOWS:,}", _CORRECT)
    words += ["--windows", windows] if int(windows) != WINDOWS else []
    return words + [f"--{name}" for name in ("baselines", "oracle") if form.get(name) == "1"]
