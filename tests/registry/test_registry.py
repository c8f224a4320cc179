"""Proves: registering, resolving, aliases, tags, opting out, purge, verification and garbage, by the library."""

import json
import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy
import torch
from safetensors.torch import load_file

import registry as package
from registry import PassSettings, Recipe, Registry, SimoeTraining, SoupTraining
from registry.errors import ConflictError, InvalidInputError, NotFoundError, OutputError, RegError, StorageError
from store.actor import actor
from store.arrays import ArraySource
from store.catalog import CompositionRecord, NewVersion
from store.catalog.records import Kind
from tests.conftest import SETTINGS, Zoo


@pytest.mark.check
def test_versions_count_up_share_equal_arrays_and_are_recognised(registry: Registry, zoo: Zoo) -> None:
    one = registry.add_expert("math", zoo.experts["math"], license="mit", tags={"team": "x"})
    assert (one.version.ref, one.added, one.self_sampled) == ("math@1", True, False)
    assert one.version.content is not None
    assert one.version.content["license"] == "mit"
    assert one.version.statistics[0].tokens > 500
    again = registry.add_expert("math", zoo.experts["math"], license="mit", tags={"run": "7"}, alias="stable")
    assert (again.version.ref, again.added, again.version.digest) == ("math@1", False, one.version.digest)
    assert (again.version.tags, again.version.aliases) == ({"run": "7", "team": "x"}, ("stable",))
    before = set(registry.arrays.digests())
    assert registry.add_expert("math", zoo.experts["math"], license="apache-2.0").version.ref == "math@2"
    assert set(registry.arrays.digests()) == before
    assert registry.add_expert("math", zoo.experts["law"]).version.ref == "math@3"
    assert [registry.add_base("base", zoo.base, tags={"team": "x"}).added for _ in range(2)] == [True, False]
    assert [version.ref for version in registry.versions()] == ["base@1", "math@1", "math@2", "math@3"]
    assert [version.ref for version in registry.versions(kind="base")] == ["base@1"]
    assert [version.ref for version in registry.versions(tags={"team": "x"})] == ["base@1", "math@1"]
    assert [version.ref for version in registry.versions(tags={"team": "x", "run": "7"})] == ["math@1"]
    with pytest.raises(ConflictError, match="base is registered as a base model, not as an expert"):
        registry.add_expert("base", zoo.base)
    with pytest.raises(InvalidInputError, match="math is an expert, not a base model"):
        registry.plan(["math"], Recipe(router="random", trunk="base"), base="math")


def test_a_protected_alias_is_refused_before_anything_runs(
    filled: Registry, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target in ("statistics.collect.load_for_pass", "training.from_base.open_checkpoint", "member.load_member"):
        monkeypatch.setattr(f"registry.{target}", lambda *_, **__: pytest.fail("it ran"))
    kinds: dict[str, Kind] = {"math": "expert", "base": "base", "mix": "base", "pair-2": "expert", "hk-2": "expert"}
    for name, kind in kinds.items():
        if name not in filled.catalog.names():
            content: dict[str, Any] = {"soup": {}, "simoe": {}}
            filled.catalog.add_version(NewVersion(name, kind, "1" * 64, content, 0, (), (), {}))
        filled.alias(name, "best", protect=True)
    before, text = filled.log(), {name: [zoo.train[name]] for name in ("code", "math")}
    calls: dict[str, Callable[[], object]] = {
        "math": lambda: filled.add_expert("math", zoo.experts["law"], data=[zoo.train["law"]], alias="best"),
        "base": lambda: filled.add_base("base", zoo.experts["law"], own_text=100, alias="best"),
        "math ": lambda: filled.train_expert("math", "base", [zoo.train["law"]], alias="best"),
        "mix": lambda: filled.train_soup("mix", "base", text, SoupTraining(experts=2), alias="best"),
        "pair-2": lambda: filled.train_soup("pair", "base", text, SoupTraining(experts=2), alias="best"),
        "hk-2": lambda: filled.train_simoe("hk", "base", text["math"], SimoeTraining(experts=2), alias="best"),
    }
    for name, call in calls.items():
        with pytest.raises(ConflictError, match=f"{name.strip()}@best is protected") as refused:
            call()
        assert "repeat without --alias" in str(refused.value.hint)
    assert filled.log() == before
    same = filled.add_expert("math", zoo.experts["math"], alias="best")  # it points there
    assert (same.added, same.version.protected) == (False, ("best",))


@pytest.mark.check
def test_same_data_is_recognised_without_another_pass(
    bare: Path, zoo: Zoo, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [zoo.train["code"]]
    registry.add_expert("code", bare, data=data, settings=SETTINGS)
    kept = registry.add_expert("code", bare, data=data, settings=SETTINGS, keep_calibration=True)
    assert kept.version.ref == "code@2"
    other = registry.add_expert("code", bare, data=data, settings=PassSettings(tokens=256, seq_len=32))
    assert other.version.ref == "code@3"
    monkeypatch.setattr("registry.statistics.collect.load_for_pass", lambda *_, **__: pytest.fail("another pass began"))
    for keep, ref in ((False, "code@1"), (True, "code@2")):
        again = registry.add_expert("code", bare, data=data, settings=SETTINGS, keep_calibration=keep)
        assert (again.version.ref, again.added) == (ref, False)


def test_resolving(filled: Registry, zoo: Zoo) -> None:
    filled.add_expert("math", zoo.experts["math"], license="mit", alias="good")
    assert filled.resolve("math").ref == "math@2"
    assert filled.resolve("math@1").ref == "math@1"
    assert filled.resolve("math@good").ref == "math@2"
    assert filled.alias("math@1", "good") == "math@2"
    assert filled.resolve("math@good").ref == "math@1"
    filled.remove_alias("math", "good")
    for ref, message, hint in (
        ("mth", "there is no expert 'mth'; did you mean 'math'?", "reg list"),
        ("zzz", "there is no expert 'zzz'", "reg list"),
        ("math@7", "math has no version 7; it has 1, 2", "reg show math"),
        ("math@good", "math has no alias 'good'; it has none", "reg alias math@2 good"),
    ):
        with pytest.raises(NotFoundError) as caught:
            filled.resolve(ref)
        assert (str(caught.value), caught.value.hint) == (message, hint)
    with pytest.raises(NotFoundError, match="math has no alias 'good'; it has none") as caught:
        filled.remove_alias("math", "good")
    assert caught.value.hint == "reg list --all, which shows the aliases there are"


@pytest.mark.check
def test_other_settings_of_the_pass_make_another_version(tmp_path: Path, bare: Path, zoo: Zoo) -> None:
    made: dict[str, set[str]] = {"first": set(), "second": set()}
    plain, half = PassSettings(tokens=128, seq_len=32), PassSettings(tokens=128, seq_len=32, dtype="bfloat16")
    for home, order in (("first", (plain, half)), ("second", (half, plain))):
        with Registry(tmp_path / home) as registry:
            for data in ([zoo.train["code"]], []):  # given, and written by the expert itself
                for settings in order:
                    registration = registry.add_expert("code", bare, data=data, settings=settings)
                    assert registration.added
                    made[home].add(registration.version.digest)
                again = registry.add_expert("code", bare, data=data, settings=order[0])
                assert not again.added
                assert again.newest != again.version.ref
    assert made["first"] == made["second"]
    assert len(made["first"]) == 4


def test_bad_annotations_are_refused_before_anything_is_read(registry: Registry) -> None:
    told: list[tuple[dict[str, Any], str]] = [
        ({"name": "Not A Name"}, "name 'Not A Name' is not of the form"),
        ({"alias": "5"}, "alias '5' is a number"),
        ({"tags": {"Bad Key": "x"}}, "tag 'Bad Key' is not of the form"),
        ({"tags": {"key": "line\nbreak"}}, "tag key has a value that is"),
        ({"license": "a\nb"}, "license 'a\\\\nb' is not an identifier"),
    ]
    for options, message in told:
        with pytest.raises(InvalidInputError, match=message):
            registry.add_expert(**({"name": "math", "checkpoint": "/absent"} | options))
    assert registry.log() == []


def test_export_gives_back_every_tensor_and_file_and_the_calibration_is_kept(
    bare: Path, zoo: Zoo, registry: Registry, tmp_path: Path
) -> None:
    data = [zoo.train["code"]]
    version = registry.add_expert("code", bare, data=data, settings=SETTINGS, keep_calibration=True).version
    registry.export("code", tmp_path / "back")
    original, back = load_file(bare / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert original.keys() == back.keys()
    assert all(torch.equal(original[name], back[name]) for name in original)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (bare / name).read_bytes()
    member = registry.member(version)
    ids, lengths = (member.store.read(member.link("calibration", name).digest) for name in ("ids", "lengths"))
    assert ids.shape == (16, 32)
    assert int(lengths.sum()) == version.statistics[0].tokens == 512


@pytest.mark.check
def test_opt_out_withdraws_and_lists_what_was_made(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe")
    filled.compose(["code", "law"], tmp_path / "other")
    done = filled.opt_out("math")
    assert [version.ref for version in done.versions] == ["math@1"]
    assert [composition.members for composition in done.compositions] == [("code@1", "math@1")]
    assert not done.purged
    assert "math" not in [version.name for version in filled.versions()]
    assert [v.state for v in filled.versions(everything=True) if v.name == "math"] == ["withdrawn"]
    with pytest.raises(ConflictError, match="every version of math was opted out"):
        filled.resolve("math")
    with pytest.raises(ConflictError, match="math@1 was opted out at 20"):
        filled.plan(["math@1"])
    assert filled.verify().problems == ()
    assert filled.opt_out("math").versions == done.versions  # again: nothing more happens


def test_purge_deletes_what_only_it_needed(filled: Registry, zoo: Zoo) -> None:
    filled.add_expert("copy", zoo.experts["math"], license="mit")  # shares every weight with math
    size = sum(path.stat().st_size for path in filled.home.arrays.rglob("*") if path.is_file())
    done = filled.opt_out("math", purge=True)
    assert done.purged
    assert done.deleted_arrays == 0
    assert done.shared_arrays > 10
    filled.opt_out("copy")
    done = filled.opt_out("copy", purge=True)
    assert done.deleted_arrays > 10
    assert filled.opt_out("copy", purge=True).deleted_arrays == 0
    left = sum(path.stat().st_size for path in filled.home.arrays.rglob("*") if path.is_file())
    assert left == size - done.deleted_bytes
    assert done.shared_arrays > 0  # the tokenizer is everybody's
    verification = filled.verify()
    assert (verification.problems, verification.orphans) == ((), 0)
    (version,) = [v for v in filled.versions(everything=True) if v.name == "copy"]
    assert (version.state, filled.member(version).arrays) == ("purged", ())
    with pytest.raises(RegError, match="copy@1 was purged"):
        _ = filled.member(version).content


def test_verify_names_a_changed_content_and_the_event_that_does_not_follow(filled: Registry) -> None:
    assert (filled.verify().events, filled.verify().problems) == (6, ())
    version = filled.resolve("law")
    changed = json.dumps(dict(version.content or {}, license="stolen"))
    with filled.catalog._writing() as session:
        session.execute(sqlalchemy.text(f"UPDATE versions SET content = :c WHERE id = {version.id}"), {"c": changed})
        session.execute(sqlalchemy.text("UPDATE events SET subject = 'x@1' WHERE subject = 'code@1'"))
    found = filled.verify()
    problems = "\n".join(found.problems)
    assert "law@1: its content in the catalog does not match its digest" in problems
    assert "the log: event 2 (add-expert x@1, " in problems
    assert "does not follow from the event before it" in problems
    assert found.events == 1


def test_garbage_is_what_nobody_needs(filled: Registry) -> None:
    orphan = filled.arrays.put(ArraySource.of(np.ones(3, dtype=np.float32), "float32"))
    found = filled.gc(dry_run=True)
    assert found.digests == (orphan,)
    assert found.nbytes > 0
    assert filled.verify().orphans == 1
    assert filled.gc() == found
    assert filled.gc().digests == ()
    assert (filled.verify().problems, filled.verify().orphans) == ((), 0)
    assert filled.log(limit=1)[0].details == {"arrays": 1, "bytes": found.nbytes, "actor": actor()}


def test_garbage_of_registrations_is_what_is_not_being_written(filled: Registry) -> None:
    old, young = time.time() - 25 * 3600, time.time() - 23 * 3600
    files = {
        "merged/merged-old/model/config.json": old,
        "merged/merged-busy/model/config.json": young,
        "partial/old.safetensors.partial": old,
        "partial/busy.safetensors.partial": young,
        "partial/pass.safetensors": young,
    }
    for name, written in files.items():
        path = filled.home.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1234")
        os.utime(path, (written, written))
    for name in ("merged/merged-old/model", "merged/merged-old", "merged/merged-busy/model", "merged/merged-busy"):
        os.utime(filled.home.path / name, (old, old))
    found = filled.gc(dry_run=True)
    assert (found.passes, found.pass_bytes, found.merged, found.merged_bytes) == (2, 8, 1, 4)
    assert all((filled.home.path / name).exists() for name in files)
    assert filled.gc() == found
    assert {name for name in files if (filled.home.path / name).exists()} == {
        "merged/merged-busy/model/config.json",
        "partial/busy.safetensors.partial",
    }
    assert not (filled.home.merged / "merged-old").exists()


def test_log_and_compositions_are_narrowed_to_what_there_is(filled: Registry, tmp_path: Path) -> None:
    one = filled.compose(["math", "code"], tmp_path / "one", Recipe(router="ridge", lam=0.5)).digest
    filled.compose(["math", "code"], tmp_path / "again", Recipe(router="ridge", lam=0.5))
    two = filled.compose(["law"], tmp_path / "two", Recipe(trunk="base")).digest
    assert [made.members for made in filled.compositions()] == [("code@1", "math@1"), ("base@1", "law@1")]
    assert [made.digest for made in filled.compositions("base")] == [two]
    assert filled.compositions("math")[0].document["recipe"]["lam"] == 0.5
    assert filled.compositions("german") == []
    filled.alias("math", "stable")
    assert [event.action for event in filled.log("math@stable")] == ["alias", "add-expert"]
    assert [event.subject for event in filled.log(one[:12])] == [one, one]
    assert [event.subject for event in filled.log(two)] == [two]
    assert [made.digest for made in filled.compositions(one[:6])] == [one]
    assert [made.digest for made in filled.compositions("math@stable")] == [one]
    unknown = "0" * 6 if not {one[:6], two[:6]} & {"0" * 6} else "1" * 6
    for look in (filled.log, filled.compositions):
        for text, message in (
            ("math@old", "math has no alias 'old'; it has stable"),
            (unknown, f"there is no composition and no expert '{unknown}'"),
            (one[:5], f"there is no expert '{one[:5]}'"),
        ):
            with pytest.raises(NotFoundError) as caught:
                look(text)
            assert str(caught.value).split(", and a digest is named by")[0] == message
            assert caught.value.hint


def test_beginning_of_several_digests_is_refused_and_a_name_stays_one(
    registry: Registry, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add_expert("facade", zoo.experts["code"])
    assert [event.subject for event in registry.log("facade")] == ["facade@1"]
    assert registry.compositions("facade") == []
    made = [CompositionRecord(f"abcdef{n}" + "0" * 57, {}, "", (), ()) for n in (1, 2)]
    monkeypatch.setattr(type(registry.catalog), "compositions", lambda *_: made)
    with pytest.raises(InvalidInputError, match="2 compositions begin with abcdef") as caught:
        registry.compositions("abcdef")
    assert caught.value.hint == "give more digits, such as abcdef1000000000"
    assert registry.compositions("abcdef2") == made[1:]


def test_export_never_offers_to_replace(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code"], tmp_path / "moe")
    with pytest.raises(OutputError, match="exists and is not empty") as caught:
        filled.export("code", tmp_path / "moe")
    assert caught.value.hint == "choose another --out"
    with pytest.raises(OutputError) as caught:
        filled.compose(["code"], tmp_path / "moe")
    assert caught.value.hint == "choose another --out, or replace that composition: --force"


def test_disk_that_fills_up_while_registering_leaves_nothing(
    registry: Registry, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, write = count(1), registry.arrays._write

    def fail(_: object, *args: Any) -> None:
        if next(calls) > 7:
            raise OSError(28, "No space left on device")
        write(*args)

    monkeypatch.setattr(type(registry.arrays), "_write", fail)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        registry.add_expert("code", zoo.experts["code"])
    assert caught.value.hint is not None
    assert registry.versions() == []
    assert list(registry.arrays.digests()) == []
    monkeypatch.undo()
    registry.add_expert("code", zoo.experts["code"])
    assert registry.verify().problems == ()


def test_package_offers_what_it_says() -> None:
    assert {name for name in package.__all__ if not hasattr(package, name)} == set()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = package.nonsense  # type: ignore[attr-defined]
