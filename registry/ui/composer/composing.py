"""The choices of the Compose page: experts, a recipe and an output folder; and the command that makes it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from starlette.datastructures import QueryParams

from registry.composition import Plan
from registry.composition.found import OUTPUTS
from registry.errors import InvalidInputError, RegError
from registry.io.model_folder import check_output
from registry.ui.composer.choices import Choices
from registry.ui.jobs import COMPOSING, Phase
from registry.ui.site import Site, url
from store.catalog import CompositionRecord, VersionRecord
from store.object_store import is_url

MOST = 256  # experts that can be ticked
MOST_PATH = 1000  # characters of an output folder's path
MOST_LOOKED = 20  # compositions, the latest, among which a folder that is still there is looked for
_LONGEST_FOLDER = 60


@dataclass(frozen=True)
class Composing:
    """References to experts, each once, the recipe, and the typed output folder: empty for the suggested one."""

    refs: tuple[str, ...]
    choices: Choices
    out: str = ""

    @classmethod
    def of(cls, query: QueryParams) -> Composing:
        """Return what a query asks for."""
        refs = tuple(dict.fromkeys(query.getlist("e")))[:MOST]
        return cls(refs, Choices.of_query(query), query.get("out", "").strip()[: MOST_PATH + 1])

    @property
    def address(self) -> str:
        """The address of the page with these choices."""
        return url("compose", e=self.refs, **self.query)

    @property
    def query(self) -> dict[str, str]:
        """The fields beside the experts that are not at their defaults."""
        return {**self.choices.query, **({"out": self.out} if self.out else {})}

    def plan(self, site: Site) -> Plan:
        """Return the plan (errors as in `Registry.plan`)."""
        return site.registry.plan(self.refs, self.choices.recipe(), base=self.choices.base)

    def resolved(self, site: Site) -> dict[str, VersionRecord]:
        """Return the version of each reference that names one."""
        found = {}
        for ref in self.refs:
            with suppress(RegError):
                found[ref] = site.registry.resolve(ref)
        return found

    def words(self, plan: Plan, out: str) -> list[str]:
        """Return the words of the command after `reg`."""
        versions = ",".join(member.version.ref for member in plan.members)
        return ["compose", "--experts", versions, *self.choices.words(), "--out", out]

    def without(self, *refs: str) -> Composing:
        """Return the same without some of the experts."""
        return replace(self, refs=tuple(one for one in self.refs if one not in refs))

    def having(self, **texts: str) -> Composing:
        """Return the same with other texts of some fields."""
        return replace(self, choices=Choices({**self.choices.texts, **texts}))


def phases_of_composing(plan: Plan, out: str) -> list[Phase]:
    """Return what the command of a composition into `out` does."""
    found = [Phase(label, words, sure=is_sure) for label, words, is_sure in plan.output.passes(plan.recipe)]
    into = f"composing into {out}"
    if found and (plan.recipe.refine or 0) > 1:
        into = f"composing, between passes into a temporary folder, at last into {out}"
    return [*found, Phase(COMPOSING, into, sure=True)]


def beside_latest(records: Sequence[CompositionRecord]) -> Path | None:
    """Return where the latest composed folder lies (`records`: oldest first), if it can be written to; else None."""
    folders = [folder for record in reversed(records[-MOST_LOOKED:]) for folder in reversed(record.folders)]
    for folder in folders:
        if not is_url(folder) and Path(folder).is_dir():
            place = Path(folder).resolve().parent
            return place if place != Path.cwd() and os.access(place, os.W_OK) else None
    return None


def suggested_folder(names: Sequence[str], output: str, taken: Iterable[str] = (), beside: Path | None = None) -> str:
    """Return a folder that does not exist yet, named after the members: `code-math/`, `code-math-2/`, `code-dense/`.

    `taken` are folders that other jobs are going to write; `beside` is where to put it, if not in the current one.
    """
    shown = list(names)
    while len(shown) > 1 and (len(shown) > 4 or len("-".join(shown)) > _LONGEST_FOLDER):
        shown.pop()
    left = len(names) - len(shown)
    stem = "-".join(
        [*shown, *(["and", str(left)] if left else []), *([] if output == OUTPUTS.default.name else [output])]
    )
    reserved = {Path(one).absolute() for one in taken}
    for number in count(1):
        name = stem if number == 1 else f"{stem}-{number}"
        folder = name if beside is None else str(beside / name)
        path = Path(folder).absolute()
        if path not in reserved and not path.exists() and not path.is_symlink():
            break
    return f"{folder}/"


def check_new_folder(text: str) -> str:
    """Return the path of an output folder that a page may write: not there yet, or empty (else InvalidInputError)."""
    if not text or len(text) > MOST_PATH or not text.isprintable():
        raise InvalidInputError(
            f"an output folder's path has 1 to {MOST_PATH} printable characters", "correct it in the form"
        )
    if text.startswith(("-", "~")):
        raise InvalidInputError(f"the output folder {text} begins with {text[0]}", f"write it as ./{text}")
    if is_url(text):
        raise InvalidInputError(
            f"the output folder {text} is a URL, and pages write to this machine",
            f"reg compose --experts … --out {text}",
        )
    check_output(Path(text), replace=None)
    return text
