"""Proves: the catalog's contract, the same in SQLite and in PostgreSQL."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from store.catalog import ArrayLink, Catalog, Chain, NewVersion, StatisticsRecord
from store.errors import ConflictError, DamagedError, InvalidInputError, RegError, StorageError
from tests.conftest import files_of


@pytest.fixture
def catalog(catalog_url: str, tmp_path: Path) -> Iterator[Catalog]:
    with closing(Catalog(catalog_url, tmp_path / "lock")) as opened:
        yield opened


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
    assert catalog.add_version(new()) == (first, False)
    assert (first.ref, first.number, first.state, first.kind) == ("math@1", 1, "active", "expert")
    assert first.content == {"family": "llama"}
    assert first.tags == {"team": "x"}
    assert first.statistics == (StatisticsRecord("mlp_input", 100, 0, "c" * 64, "text.jsonl"),)
    assert catalog.add_version(new(digest="b"))[0].ref == "math@2"
    assert catalog.add_version(new("code"))[0].ref == "code@1"
    assert [v.ref for v in catalog.versions()] == ["code@1", "math@1", "math@2"]
    assert [v.ref for v in catalog.versions("math")] == ["math@1", "math@2"]
    assert catalog.versions("math")[0] == first
    with pytest.raises(ConflictError, match="code is registered as an expert, not as a base model"):
        catalog.add_version(new("code", kind="base"))
    assert catalog.add_version(new("base", kind="base"))[0].kind == "base"
    assert [v.ref for v in catalog.versions(kind="base")] == ["base@1"]
    assert catalog.names() == ["base", "code", "math"]


def test_arrays_of_a_trained_composition_go_with_any_member(catalog: Catalog) -> None:
    math, _ = catalog.add_version(new(arrays="12"))
    code, _ = catalog.add_version(new("code", arrays="3"))
    law, _ = catalog.add_version(new("law", arrays="14"))
    assert catalog.arrays_of(math) == [link("1", "w1"), link("2", "w2")]
    assert catalog.users_of("1" * 64) == ["law@1", "math@1"]
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


def test_purged_version_keeps_only_name_number_digest_and_times(catalog: Catalog) -> None:
    version, _ = catalog.add_version(new())
    catalog.set_alias(version, "stable")
    catalog.check_active([version])
    catalog.withdraw([version])
    with pytest.raises(ConflictError, match="math@1 was opted out"):
        catalog.check_active([version])
    catalog.purge([version])
    (purged,) = catalog.versions("math")
    assert (purged.ref, purged.digest, purged.created_at) == ("math@1", "a" * 64, version.created_at)
    assert str(purged.withdrawn_at) <= str(purged.purged_at)
    assert (purged.content, purged.parameters) == (None, 0)
    assert (purged.tags, purged.aliases, purged.statistics) == ({}, (), ())
    catalog.withdraw([purged])
    catalog.purge([purged])
    assert catalog.versions("math") == [purged]


def test_compositions_are_recorded_once_and_found_by_each_member(catalog: Catalog) -> None:
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
    catalog.withdraw([math])
    again, added = catalog.add_version(new())
    assert (added, again.ref) == (True, "math@2")
    catalog.record_composition("d" * 64, {}, [code, again], "new")
    (found,) = catalog.compositions([math])  # an opt-out still finds every folder with math@1
    assert (found.members, found.folders) == (("code@1", "math@1", "math@2"), ("moe", "new"))
    assert found.latest == found.current == ("code@1", "math@2")
    assert catalog.compositions([again]) == [found]


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


def test_protected_alias_moves_and_goes_on_purpose_alone(catalog: Catalog) -> None:
    first, second = catalog.add_version(new())[0], catalog.add_version(new("math", "2", "3"))[0]
    catalog.set_alias(first, "stable", protect=True)
    catalog.set_alias(first, "best")
    assert catalog.versions("math")[0].protected == ("stable",)
    assert catalog.set_alias(first, "stable") == "math@1"  # where it is
    assert catalog.events()[0].details["before"] == "math@1"
    count = len(catalog.events())
    calls: dict[str, Callable[[], object]] = {
        "reg alias math@2 stable --force": lambda: catalog.set_alias(second, "stable"),
        "reg alias math stable --delete --force": lambda: catalog.delete_alias("math", "stable"),
        "repeat without --alias, then: reg alias math@<number> stable --force": lambda: catalog.check_alias(
            "math", "stable"
        ),
    }
    for line, call in calls.items():
        with pytest.raises(ConflictError, match="math@stable is protected") as refused:
            call()
        assert refused.value.hint == line
    assert (catalog.alias_target("math", "stable"), len(catalog.events())) == (1, count)
    catalog.check_alias("math", "best")
    assert catalog.set_alias(second, "stable", force=True) == "math@1"
    assert [version.protected for version in catalog.versions("math")] == [(), ("stable",)]
    assert catalog.discrepancies(log=True) == []
    catalog.delete_alias("math", "stable", force=True)
    catalog.set_alias(first, "stable")
    assert [version.protected for version in catalog.versions("math")] == [(), ()]
    catalog.set_alias(first, "stable", protect=True)
    catalog.withdraw([first])
    catalog.purge([first])
    catalog.set_alias(second, "stable")
    assert catalog.versions("math")[1].protected == ()
    assert catalog.discrepancies(log=True) == []


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


@pytest.mark.parametrize(
    "change", ["subject = 'law@1'", "at = '2020'", "details = '{}'", "details = '{'", "digest = 'x'", "removed"]
)
def test_chain_breaks_where_an_event_was_changed_or_removed(catalog: Catalog, change: str) -> None:
    version, _ = catalog.add_version(new())
    for alias in ("a", "b", "c"):
        catalog.set_alias(version, alias)
    after, changed = (event.id for event in catalog.events()[1:3])
    with catalog._writing() as session:
        statement = "DELETE FROM events" if change == "removed" else f"UPDATE events SET {change}"
        session.execute(text(f"{statement} WHERE id = {changed}"))
    first = after if change == "removed" else changed
    assert str(catalog.chain().broken).startswith(f"event {first} (alias ")
    assert catalog.chain().events == 1
    if change == "details = '{'":
        with pytest.raises(DamagedError, match=f"event {first} of the log is not valid JSON"):
            catalog.events()


def test_failed_transaction_leaves_nothing_and_foreign_keys_hold(catalog: Catalog) -> None:
    twice = new(arrays="11")  # the same role and name twice breaks a key halfway through
    with pytest.raises(StorageError, match="cannot be used"):
        catalog.add_version(twice)
    assert (catalog.versions(), catalog.names(), catalog.events()) == ([], [], [])
    catalog.add_version(new())
    with pytest.raises(StorageError), catalog._writing() as session:
        session.execute(text("DELETE FROM versions"))


def test_what_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"not a database at all, but long enough to be read as one" * 40)
    told: list[tuple[str, type[RegError], str]] = [
        ("nonsense", InvalidInputError, "cannot use the database URL"),
        ("nosuchdb://x/y", InvalidInputError, "cannot use the database URL"),
        (f"sqlite:///{tmp_path}/absent/catalog.sqlite", StorageError, "unable to open database file"),
        (f"sqlite:///{tmp_path / 'x'}", DamagedError, "is damaged: file is not a database"),
    ]
    for url, error, message in told:
        with pytest.raises(error, match=message):
            Catalog(url, tmp_path / "lock")


def test_schema_that_is_no_text_is_damage(tmp_path: Path) -> None:
    file = tmp_path / "catalog.sqlite"
    with closing(Catalog(f"sqlite:///{file}", tmp_path / "lock")) as writer:
        writer.add_version(new())
    file.write_bytes(file.read_bytes().replace(b"NOT NULL", b"\xceOT NULL"))
    with pytest.raises(DamagedError, match="is damaged: "):
        Catalog(f"sqlite:///{file}", tmp_path / "lock").versions()


def test_catalog_that_cannot_be_written_is_read_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    with closing(Catalog(url, tmp_path / "lock")) as writer:
        version, _ = writer.add_version(new())
    before = files_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("store.catalog.engine.why_not_writable", lambda _: "Read-only file system")
        reader = Catalog(url, tmp_path / "lock")
        assert reader.versions() == [version]
        with pytest.raises(StorageError) as caught:
            reader.set_alias(version, "stable")
    assert caught.value.message == f"the folder {tmp_path} cannot be written: Read-only file system"
    assert files_of(tmp_path) == before
    with closing(Catalog(url, tmp_path / "lock")) as writer, closing(reader):
        writer.add_version(new("code"))  # a writer elsewhere, whose log is not yet folded in
        assert [v.ref for v in reader.versions()] == ["code@1", "math@1"]
