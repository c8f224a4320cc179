"""Proves: the catalog answers as a plain-Python model of it does, whatever is done to it in whatever order.

On SQLite and on PostgreSQL.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from store.catalog import Catalog, VersionRecord
from store.errors import ConflictError
from tests.catalogs import Schemas
from tests.store.test_catalog import new

NAMES, DIGESTS, ALIASES = ("math", "code"), "abc", ("stable", "new")


@dataclass
class Row:
    """A version, as the model has it."""

    name: str
    number: int
    digest: str
    arrays: frozenset[str]
    state: str = "active"
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class Model:
    """What a catalog must answer."""

    rows: list[Row] = field(default_factory=list)
    aliases: dict[tuple[str, str], int] = field(default_factory=dict)
    compositions: dict[str, set[str]] = field(default_factory=dict)
    evaluations: dict[str, dict[str, int]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    log: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, digest: str, arrays: str) -> tuple[str, bool]:
        """As `add_version`."""
        mine = [row for row in self.rows if row.name == name]
        for row in mine:
            if row.digest == digest and row.state == "active":
                return f"{name}@{row.number}", False
        row = Row(name, len(mine) + 1, digest, frozenset(arrays), tags={"team": "x"})
        self.rows.append(row)
        self.known |= row.arrays
        self.log.append(("add-expert", f"{name}@{row.number}"))
        return f"{name}@{row.number}", True

    def act(self, action: str, ref: str, word: str, number: int) -> Any:
        """Do what `apply` does; `ConflictError` where it raises that."""
        row = next(row for row in self.rows if f"{row.name}@{row.number}" == ref)
        if action in ("alias", "tag", "compose") and row.state != "active":
            return ConflictError
        if action == "alias":
            before = self.aliases.get((row.name, word))
            self.aliases[row.name, word] = row.number
            self.log.append(("alias", ref))
            return None if before is None else f"{row.name}@{before}"
        if action == "unalias" and self.aliases.pop((row.name, word), 0):
            self.log.append(("alias", row.name))
        elif action == "tag":
            row.tags[word] = str(number)
            self.log.append(("tag", ref))
        elif action == "compose":
            self.compositions.setdefault(word[0] * 64, set()).add(ref)
            self.log.append(("compose", word[0] * 64))
        elif action == "evaluate" and word[0] * 64 in self.compositions:
            self.evaluations.setdefault(word[0] * 64, {})[str(number) * 64] = number
            self.log.append(("evaluate", word[0] * 64))
        elif action == "withdraw" and row.state == "active":
            row.state = "withdrawn"
            self.log.append(("opt-out", ref))
        elif action == "purge" and row.state != "active":
            gone = [self.evaluations.pop(made, None) for made, members in self.compositions.items() if ref in members]
            if any(gone):
                self.log.append(("forget", ref))
            if row.state == "withdrawn":
                row.state, row.arrays, row.tags = "purged", frozenset(), {}
                self.aliases = {k: v for k, v in self.aliases.items() if (k[0], v) != (row.name, row.number)}
                self.log.append(("purge", ref))
        elif action == "forget":
            self.known &= self.needed()
            self.log.append(("gc", "arrays"))
        return None

    def needed(self) -> set[str]:
        """Return the arrays that some version needs."""
        return {array for row in self.rows for array in row.arrays}


def apply(catalog: Catalog, action: str, version: VersionRecord, word: str, number: int) -> Any:
    """Do one thing to a catalog."""
    if action == "alias":
        return catalog.set_alias(version, word)
    if action == "unalias":
        catalog.delete_alias(version.name, word)
    elif action == "tag":
        catalog.set_tags(version, {word: str(number)})
    elif action == "compose":
        catalog.record_composition(word[0] * 64, {"recipe": {}}, [version], "moe")
    elif action == "evaluate" and catalog.has_composition(word[0] * 64):
        catalog.record_evaluation(word[0] * 64, str(number) * 64, {"average": number})
    elif action == "withdraw":
        catalog.withdraw([version])
    elif action == "purge" and version.state != "active":
        catalog.purge([version])
    elif action == "forget":
        catalog.forget_unreferenced(0, 0)
    return None


def compare(catalog: Catalog, model: Model) -> None:
    """Ask a catalog everything, and hold it against the model."""
    rows = sorted(model.rows, key=lambda row: (row.name, row.number))
    found = catalog.versions()
    assert [(v.name, v.number, v.digest[0], v.state, v.tags) for v in found] == [
        (row.name, row.number, row.digest, row.state, row.tags) for row in rows
    ]
    assert [(v.content is None, v.parameters == 0) for v in found] == [(row.state == "purged",) * 2 for row in rows]
    assert [{link.digest[0] for link in catalog.arrays_of(v)} for v in found] == [set(row.arrays) for row in rows]
    assert {digest[0] for digest in catalog.referenced()} == model.needed()
    assert {digest[0] for digest in catalog.unreferenced()} == model.known - model.needed()
    assert {key: catalog.alias_target(*key) for key in model.aliases} == model.aliases
    assert {(v.name, a): v.number for v in found for a in v.aliases} == model.aliases
    assert {c.digest: set(c.members) for c in catalog.compositions()} == model.compositions
    for digest in model.compositions:
        figures = {e.asked: e.document["average"] for e in catalog.evaluations(digest)}
        assert figures == model.evaluations.get(digest, {})
    assert [(e.action, e.subject) for e in reversed(catalog.events())] == model.log
    assert (catalog.chain().events, catalog.chain().broken) == (len(model.log), None)


ACTIONS = ("alias", "unalias", "tag", "compose", "evaluate", *("withdraw", "purge") * 2, "forget")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(NAMES), st.sampled_from(DIGESTS), st.sampled_from(["12", "23", "3"])),
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5), st.sampled_from(ALIASES), st.integers(0, 2)),
    ),
    min_size=4,
    max_size=14,
)


@contextmanager
def opened(schemas: Schemas | None) -> Iterator[Catalog]:
    with TemporaryDirectory() as folder:
        url = schemas.fresh() if schemas else f"sqlite:///{folder}/catalog.sqlite"
        with closing(Catalog(url, Path(folder) / "lock")) as catalog:
            yield catalog


MEASURED = [("add", "math", "a", "12"), *((act, 0, "new", 1) for act in ("compose", "evaluate", "withdraw", "purge"))]
"""Evaluations that involved a version are deleted, and the log says so, as it is purged."""


@pytest.mark.check
@given(STEPS)
@example(MEASURED)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_catalog_answers_as_the_model_does(catalog_schemas: Schemas | None, steps: list[tuple[Any, ...]]) -> None:
    model = Model()
    with opened(catalog_schemas) as catalog:
        for step in steps:
            if step[0] == "add":
                _, name, digest, arrays = step
                version, added = catalog.add_version(new(name, digest, arrays))
                assert (version.ref, added) == model.add(name, digest, arrays)
            elif model.rows:
                action, which, word, number = step
                version = catalog.versions()[which % len(model.rows)]
                expected = model.act(action, version.ref, word, number)
                if expected is ConflictError:
                    with pytest.raises(ConflictError, match=f"{version.ref} was opted out"):
                        apply(catalog, action, version, word, number)
                else:
                    assert apply(catalog, action, version, word, number) == expected
        compare(catalog, model)
