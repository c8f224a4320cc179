"""Proves: the catalog's contract, the same in SQLite and in PostgreSQL."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from store.catalog import ArrayLink, Catalog, Chain, NewVersion, StatisticsRecord
from store.errors import ConflictError, DamagedError, InvalidInputError, StorageError
from tests.conftest import files_of


@pytest.fixture
def catalog(catalog_url: str, tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(catalog_url, tmp_path / "lock")
    yield opened
    opened.close()


def link(digest: str, name: str = "w", role: Any = "trunk") -> ArrayLink:
    return ArrayLink(role, name, digest * 64, "float32", (2, 3), 24)


def new(name: str = "math", digest: str = "a", arrays: str = "1", **changes: Any) -> NewVersion:
    values: dict[str, Any] = {
        "kind": "expert",
        "content": {"family": "llama"},
        "parameters": 6,
        "arrays": tuple(link(a, f"w{a}") for a in arrays),
        "statistics": (StatisticsRecord("mlp_input", 100, 0, "c" * 64, "text.jsonl"),),
        "tags": {"team": "x"},
    }
    return NewVersion(name, digest=digest * 64, **(values | changes))


def test_versions_are_numbered_and_come_back_whole(catalog: Catalog) -> None:
    first, added = catalog.add_version(new())
    assert added
    assert (first.ref, first.number, first.state, first.kind) == ("math@1", 1, "active", "expert")
    assert first.content == {"family": "llama"}
    assert first.tags == {"team": "x"}
    assert first.statistics == (StatisticsRecord("mlp_input", 100, 0, "c" * 64, "text.jsonl"),)
    assert catalog.add_version(new(digest="b"))[0].ref == "math@2"
    assert catalog.add_version(new("code"))[0].ref == "code@1"
    assert [v.ref for v in catalog.versions()] == ["code@1", "math@1", "math@2"]
    assert [v.ref for v in catalog.versions("math")] == ["math@1", "math@2"]
    assert catalog.versions("math")[0] == first
    assert catalog.names() == ["code", "math"]


def test_same_content_is_recognised_but_withdrawn_content_gets_a_new_number(catalog: Catalog) -> None:
    first, _ = catalog.add_version(new())
    assert catalog.add_version(new()) == (first, False)
    catalog.withdraw([first])
    again, added = catalog.add_version(new())
    assert (again.ref, added) == ("math@2", True)


def test_a_number_is_never_reused(catalog: Catalog) -> None:
    first, _ = catalog.add_version(new())
    catalog.withdraw([first])
    catalog.purge([first])
    assert catalog.add_version(new())[0].number == 2


def test_a_name_belongs_to_one_kind(catalog: Catalog) -> None:
    catalog.add_version(new(kind="base"))
    with pytest.raises(ConflictError, match="math is registered as a base model, not as an expert"):
        catalog.add_version(new())
    assert [v.ref for v in catalog.versions(kind="base")] == ["math@1"]
    assert catalog.versions(kind="expert") == []


def test_arrays_are_shared_and_forgotten_when_nobody_needs_them(catalog: Catalog) -> None:
    math, _ = catalog.add_version(new(arrays="12"))
    code, _ = catalog.add_version(new("code", arrays="23"))
    assert catalog.arrays_of(math) == [link("1", "w1"), link("2", "w2")]
    assert catalog.referenced() == {"1" * 64, "2" * 64, "3" * 64}
    assert catalog.users_of("2" * 64) == ["code@1", "math@1"]
    catalog.withdraw([math])
    assert catalog.unreferenced() == []
    catalog.purge([math])
    assert catalog.arrays_of(math) == []
    assert catalog.unreferenced() == ["1" * 64]
    catalog.forget_unreferenced(1, 24)
    assert catalog.unreferenced() == []
    assert catalog.referenced() == {"2" * 64, "3" * 64}
    assert catalog.arrays_of(code)


def test_arrays_of_a_trained_composition_go_with_any_member(catalog: Catalog) -> None:
    math, _ = catalog.add_version(new(arrays="12"))
    code, _ = catalog.add_version(new("code", arrays="3"))
    law, _ = catalog.add_version(new("law", arrays="4"))
    links = [link("2", "gate", "trained"), link("5", "head", "trained")]
    for _ in range(2):  # the same again adds nothing
        catalog.record_composition("d" * 64, {"training": {}}, [math, code], "out", links)
    catalog.record_composition("e" * 64, {}, [law, code], "other", [link("6", "gate", "trained")])
    assert catalog.trained_arrays("d" * 64) == links
    assert catalog.trained() == ["d" * 64, "e" * 64]
    assert catalog.trained_with([math]) == {"2" * 64, "5" * 64}
    assert catalog.referenced() == {number * 64 for number in "123456"}
    assert catalog.users_of("2" * 64) == ["math@1", f"composition {'d' * 64}"]
    assert catalog.unreferenced() == []
    assert catalog.discrepancies(log=True) == []
    catalog.withdraw([code])
    assert catalog.trained_arrays("d" * 64) == links
    with pytest.raises(ConflictError, match="code@1 was opted out"):
        catalog.record_composition("d" * 64, {"training": {}}, [math, code], "out", links)
    catalog.purge([code], {"5" * 64: 24, "6" * 64: 8})
    assert catalog.trained() == []
    assert catalog.unreferenced() == ["3" * 64, "5" * 64, "6" * 64]
    purge = catalog.events()[0].details
    assert (purge["deleted"], purge["shared"]) == ({"3" * 64: 0, "5" * 64: 24, "6" * 64: 8}, ["2" * 64])
    assert catalog.discrepancies(log=True) == []


def test_a_changed_trained_array_is_noticed(catalog: Catalog) -> None:
    math, _ = catalog.add_version(new(arrays="12"))
    catalog.record_composition("d" * 64, {}, [math], "out", [link("5", "gate", "trained")])
    for statement in ("UPDATE composition_arrays SET digest = :other", "DELETE FROM composition_arrays"):
        with catalog.engine.begin() as connection:
            connection.execute(text(statement), {"other": "1" * 64} if ":other" in statement else {})
        assert catalog.discrepancies(log=True) == [
            f"composition {'d' * 64}: the catalog's rows differ from those in the log"
        ]


def test_purged_version_keeps_only_name_number_digest_and_times(catalog: Catalog) -> None:
    version, _ = catalog.add_version(new())
    catalog.set_alias(version, "stable")
    catalog.check_active([version])
    catalog.withdraw([version])
    with pytest.raises(ConflictError, match="math@1 was opted out"):
        catalog.check_active([version])
    catalog.purge([version])
    (purged,) = catalog.versions("math")
    assert (purged.name, purged.number, purged.digest) == ("math", 1, "a" * 64)
    assert purged.created_at == version.created_at
    assert purged.withdrawn_at is not None
    assert purged.purged_at is not None
    assert purged.withdrawn_at <= purged.purged_at
    assert (purged.content, purged.parameters) == (None, 0)
    assert (purged.tags, purged.aliases, purged.statistics) == ({}, (), ())
    before = purged.purged_at
    catalog.withdraw([purged])
    catalog.purge([purged])
    assert catalog.versions("math")[0].purged_at == before


def test_aliases_move_and_only_to_active_versions(catalog: Catalog) -> None:
    one, _ = catalog.add_version(new())
    two, _ = catalog.add_version(new(digest="b"))
    assert catalog.set_alias(one, "stable") is None
    assert catalog.set_alias(two, "stable") == "math@1"
    assert catalog.alias_target("math", "stable") == 2
    assert catalog.versions("math")[1].aliases == ("stable",)
    assert catalog.alias_target("math", "other") is None
    catalog.withdraw([one])
    with pytest.raises(ConflictError, match="math@1 was opted out"):
        catalog.set_alias(one, "stable")
    catalog.delete_alias("math", "stable")
    catalog.delete_alias("math", "stable")
    assert catalog.alias_target("math", "stable") is None


def test_tags_are_set_and_replaced(catalog: Catalog) -> None:
    version, _ = catalog.add_version(new())
    catalog.set_tags(version, {"team": "y", "run": "7"})
    assert catalog.versions("math")[0].tags == {"run": "7", "team": "y"}


def test_compositions_are_recorded_once_and_found_by_member(catalog: Catalog) -> None:
    math, _ = catalog.add_version(new())
    code, _ = catalog.add_version(new("code"))
    for _ in range(2):
        catalog.record_composition("d" * 64, {"recipe": {"lam": 0.01}}, [code, math], "moe")
    catalog.record_composition("e" * 64, {"recipe": {}}, [code], "alone")
    both, alone = catalog.compositions()
    assert (both.digest, both.document, both.members) == ("d" * 64, {"recipe": {"lam": 0.01}}, ("code@1", "math@1"))
    assert (both.folders, alone.folders) == (("moe",), ("alone",))
    assert catalog.compositions([math]) == [both]
    assert catalog.compositions([code]) == [both, alone]
    assert catalog.compositions([]) == []


def test_a_composition_made_again_of_another_version_names_each_member_once(catalog: Catalog) -> None:
    code, _ = catalog.add_version(new("code"))
    first, _ = catalog.add_version(new())
    catalog.record_composition("d" * 64, {}, [code, first], "old")
    catalog.withdraw([first])
    again, added = catalog.add_version(new())
    assert (added, again.ref) == (True, "math@2")
    catalog.record_composition("d" * 64, {}, [code, again], "new")
    (found,) = catalog.compositions([first])  # an opt-out still finds every folder with math@1
    assert found.members == ("code@1", "math@1", "math@2")
    assert found.folders == ("old", "new")
    assert found.latest == found.current == ("code@1", "math@2")
    assert catalog.compositions([again]) == [found]


def test_composition_of_a_withdrawn_member_is_refused_and_not_recorded(catalog: Catalog) -> None:
    math, _ = catalog.add_version(new())
    catalog.withdraw([math])
    with pytest.raises(ConflictError, match="math@1 was opted out"):
        catalog.record_composition("d" * 64, {}, [math], "moe")
    assert catalog.compositions() == []


def test_evaluations_stand_with_their_composition_latest_first(catalog: Catalog) -> None:
    math, _ = catalog.add_version(new())
    for digest in "de":
        catalog.record_composition(digest * 64, {"recipe": {}}, [math], "moe")
    assert catalog.has_composition("d" * 64)
    assert not catalog.has_composition("f" * 64)
    catalog.record_evaluation("d" * 64, "1" * 64, {"average": 1.5})
    catalog.record_evaluation("d" * 64, "2" * 64, {"average": 2.5})
    catalog.record_evaluation("e" * 64, "1" * 64, {"average": 3.5})
    found = catalog.evaluations("d" * 64)
    assert [(e.composition, e.asked, e.document) for e in found] == [
        ("d" * 64, "2" * 64, {"average": 2.5}),
        ("d" * 64, "1" * 64, {"average": 1.5}),
    ]
    catalog.record_evaluation("d" * 64, "1" * 64, {"average": 4.5})  # asked again: replaced, and the latest
    assert [e.document["average"] for e in catalog.evaluations("d" * 64)] == [4.5, 2.5]
    assert [e.document["average"] for e in catalog.evaluations("e" * 64)] == [3.5]
    assert catalog.events()[0].action == "evaluate"
    with pytest.raises(StorageError, match="cannot be used"):  # of a composition that was never made
        catalog.record_evaluation("f" * 64, "1" * 64, {})


def test_purge_forgets_what_was_measured_of_it(catalog: Catalog) -> None:
    math, _ = catalog.add_version(new(digest="a"))
    code, _ = catalog.add_version(new("code", digest="b"))
    catalog.record_composition("d" * 64, {}, [math, code], "moe")
    catalog.record_composition("e" * 64, {}, [code], "alone")
    catalog.record_evaluation("d" * 64, "1" * 64, {"experts": {}})
    catalog.record_evaluation("e" * 64, "2" * 64, {"experts": {"math": math.digest}})  # it is the yardstick
    catalog.record_evaluation("e" * 64, "3" * 64, {"experts": {"code": code.digest}})
    catalog.withdraw([math])
    assert len(catalog.evaluations("d" * 64) + catalog.evaluations("e" * 64)) == 3
    catalog.purge([math])
    assert catalog.evaluations("d" * 64) == []
    assert [e.asked[0] for e in catalog.evaluations("e" * 64)] == ["3"]
    assert [c.digest[0] for c in catalog.compositions([math])] == ["d"]
    assert (catalog.erase(), catalog.backups()) == (None, [])


def test_log_tells_everything_newest_first(catalog: Catalog) -> None:
    version, _ = catalog.add_version(new())
    catalog.set_alias(version, "stable")
    catalog.record_composition("d" * 64, {}, [version], "moe")
    catalog.withdraw([version])
    catalog.purge([version])
    catalog.forget_unreferenced(1, 24)
    actions = [event.action for event in catalog.events()]
    assert actions == ["gc", "purge", "opt-out", "compose", "alias", "add-expert"]
    assert [event.action for event in catalog.events("math")] == ["purge", "opt-out", "alias", "add-expert"]
    assert [event.action for event in catalog.events("math@1", limit=2)] == ["purge", "opt-out"]
    assert [event.action for event in catalog.events("d" * 64)] == ["compose"]
    catalog.add_version(new("a_b"))
    catalog.add_version(new("axb"))
    assert [event.subject for event in catalog.events("a_b")] == ["a_b@1"]
    ids = [event.id for event in catalog.events()]
    assert ids == sorted(ids, reverse=True)


def test_each_event_follows_from_the_one_before(catalog: Catalog) -> None:
    assert catalog.chain() == Chain(0, catalog.id)
    version, _ = catalog.add_version(new())
    catalog.set_alias(version, "stable")
    catalog.withdraw([version, catalog.add_version(new("code"))[0]])  # two lines in one transaction
    head = catalog.id
    for event in reversed(catalog.events()):
        line = [head, event.at, event.action, event.subject, event.details]
        head = hashlib.sha256(json.dumps(line, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        assert event.digest == head
    assert catalog.chain() == Chain(5, head)


CHANGES = {
    "subject": ("UPDATE events SET subject = 'law@1' WHERE id = {id}", "{id}"),
    "time": ("UPDATE events SET at = '2020' WHERE id = {id}", "{id}"),
    "details": ("UPDATE events SET details = '{{}}' WHERE id = {id}", "{id}"),
    "no JSON": ("UPDATE events SET details = '{{' WHERE id = {id}", "{id}"),
    "digest": ("UPDATE events SET digest = 'x' WHERE id = {id}", "{id}"),
    "removed": ("DELETE FROM events WHERE id = {id}", "{next}"),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_chain_breaks_where_an_event_was_changed_or_removed(catalog: Catalog, change: str) -> None:
    version, _ = catalog.add_version(new())
    for alias in ("a", "b", "c"):
        catalog.set_alias(version, alias)
    newest = [event.id for event in catalog.events()]
    statement, first = (part.format(id=newest[2], next=newest[1]) for part in CHANGES[change])
    with catalog._writing() as session:
        session.execute(text(statement))
    broken = catalog.chain().broken
    assert broken is not None
    assert broken.startswith(f"event {first} (alias ")
    assert catalog.chain().events == 1
    if change == "no JSON":
        with pytest.raises(DamagedError, match=f"event {first} of the log is not valid JSON"):
            catalog.events()


@pytest.mark.check
def test_writers_in_several_processes_make_one_chain(catalog: Catalog, tmp_path: Path) -> None:
    catalog.add_version(new())
    url = catalog.engine.url.render_as_string(hide_password=False)
    script = (
        "from pathlib import Path\n"
        "from store.catalog import Catalog\n"
        f"catalog = Catalog({url!r}, Path({str(tmp_path / 'lock')!r}))\n"
        "version = catalog.versions()[0]\n"
        "for number in range(20): catalog.set_alias(version, f'a{number}')\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE) for _ in range(2)]
    assert [writer.communicate()[1] for writer in writers] == [b""] * 2
    chain = catalog.chain()
    assert (chain.events, chain.broken) == (1 + 2 * 20, None)
    assert len({event.digest for event in catalog.events()}) == chain.events


def test_failed_transaction_leaves_nothing(catalog: Catalog) -> None:
    twice = new(arrays="11")  # the same role and name twice breaks a key halfway through
    with pytest.raises(StorageError, match="cannot be used"):
        catalog.add_version(twice)
    assert catalog.versions() == []
    assert catalog.names() == []
    assert catalog.events() == []


def test_foreign_keys_hold(catalog: Catalog) -> None:
    catalog.add_version(new())
    with pytest.raises(StorageError), catalog._writing() as session:
        session.execute(text("DELETE FROM versions"))


def test_address_that_is_none_is_refused(tmp_path: Path) -> None:
    for url in ("nonsense", "nosuchdb://x/y"):
        with pytest.raises(InvalidInputError, match="cannot use the database URL"):
            Catalog(url, tmp_path / "lock")


def test_database_that_cannot_be_reached_hides_the_password(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="unable to open database file"):
        Catalog(f"sqlite:///{tmp_path}/absent/catalog.sqlite", tmp_path / "lock")


def test_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"not a database at all, but long enough to be read as one" * 40)
    with pytest.raises(DamagedError, match="is damaged: file is not a database"):
        Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}", tmp_path / "lock")


def test_catalog_that_cannot_be_written_is_read_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    writer = Catalog(url, tmp_path / "lock")
    version, _ = writer.add_version(new())
    writer.close()
    before = files_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("store.catalog.engine.why_not_writable", lambda _: "Read-only file system")
        reader = Catalog(url, tmp_path / "lock")
    assert reader.versions() == [version]
    assert reader.events()[0].action == "add-expert"
    with pytest.raises(StorageError, match="cannot be used: attempt to write a readonly database"):
        reader.set_alias(version, "stable")
    with monkeypatch.context() as patch:
        patch.setattr("store.catalog.engine.why_not_writable", lambda _: "Read-only file system")
        with pytest.raises(StorageError) as caught:
            reader.set_alias(version, "stable")
    assert caught.value.message == f"the folder {tmp_path} cannot be written: Read-only file system"
    assert files_of(tmp_path) == before
    writer = Catalog(url, tmp_path / "lock")  # a writer elsewhere, whose log is not yet folded in
    writer.add_version(new("code"))
    assert [v.ref for v in reader.versions()] == ["code@1", "math@1"]
    reader.close()
    writer.close()
