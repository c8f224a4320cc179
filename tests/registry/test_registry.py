"""Proves: registering, resolving, aliases, tags, opting out, purge, verification and garbage, by the library."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy
import torch
from safetensors.torch import load_file

import registry as package
from registry import PassSettings, Recipe, Registry
from registry.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutputError,
    RegError,
    StorageError,
)
from store.actor import actor
from store.arrays import ArraySource
from store.catalog import CompositionRecord
from tests.conftest import EXPERTS, SETTINGS, Zoo, array_folder, files_of, overwrite
from tests.models import make_model, save_checkpoint, sentences, write_jsonl


@pytest.mark.check
def test_versions_count_up_and_share_equal_arrays(registry: Registry, zoo: Zoo) -> None:
    one = registry.add_expert("math", zoo.experts["math"], license="mit", tags={"team": "x"}, alias="stable")
    assert (one.version.ref, one.added, one.self_sampled) == ("math@1", True, False)
    assert one.version.tags == {"team": "x"}
    assert one.version.aliases == ("stable",)
    assert one.version.content is not None
    assert one.version.content["license"] == "mit"
    assert one.version.statistics[0].tokens > 500
    before = set(registry.arrays.digests())
    two = registry.add_expert("math", zoo.experts["math"], license="apache-2.0")
    assert two.version.ref == "math@2"
    assert set(registry.arrays.digests()) == before
    three = registry.add_expert("math", zoo.experts["law"])
    assert three.version.ref == "math@3"
    assert [version.ref for version in registry.versions()] == ["math@1", "math@2", "math@3"]


def test_same_content_is_recognised_and_only_annotated(registry: Registry, zoo: Zoo) -> None:
    first = registry.add_expert("math", zoo.experts["math"])
    again = registry.add_expert("math", zoo.experts["math"], tags={"run": "7"}, alias="stable")
    assert not again.added
    assert again.version.ref == "math@1"
    assert again.version.tags == {"run": "7"}
    assert again.version.aliases == ("stable",)
    assert again.version.digest == first.version.digest
    assert registry.add_base("base", zoo.base).added
    assert not registry.add_base("base", zoo.base).added


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
    assert registry.add_expert("code", bare, data=data, settings=SETTINGS).version.ref == "code@1"
    assert (
        registry.add_expert("code", bare, data=data, settings=SETTINGS, keep_calibration=True).version.ref == "code@2"
    )


def test_repeat_of_a_pass_gives_the_same_digest(bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    digests = []
    for home in ("one", "two"):
        with Registry(tmp_path / home) as registry:
            digests.append(
                registry.add_expert("code", bare, data=[zoo.train["code"]], settings=SETTINGS).version.digest
            )
    assert digests[0] == digests[1]


def test_kept_calibration_comes_back(bare: Path, zoo: Zoo, registry: Registry) -> None:
    version = registry.add_expert(
        "code", bare, data=[zoo.train["code"]], settings=SETTINGS, keep_calibration=True
    ).version
    member = registry.member(version)
    ids, lengths = (member.store.read(member.link("calibration", name).digest) for name in ("ids", "lengths"))
    assert ids.shape == (16, 32)
    assert int(lengths.sum()) == version.statistics[0].tokens == 512


def test_name_is_of_one_kind(registry: Registry, zoo: Zoo) -> None:
    registry.add_base("base", zoo.base)
    with pytest.raises(ConflictError, match="base is registered as a base model, not as an expert"):
        registry.add_expert("base", zoo.base)
    registry.add_expert("law", zoo.experts["law"])
    with pytest.raises(InvalidInputError, match="law is an expert, not a base model"):
        registry.plan(["law"], Recipe(router="random", trunk="base"), base="law")


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "Not A Name"}, "name 'Not A Name' is not of the form"),
        ({"alias": "5"}, "alias '5' is a number"),
        ({"tags": {"Bad Key": "x"}}, "tag 'Bad Key' is not of the form"),
        ({"tags": {"key": "line\nbreak"}}, "tag key has a value that is"),
        ({"license": "a\nb"}, "license 'a\\\\nb' is not an identifier"),
    ],
)
def test_bad_annotations_are_refused_before_anything_is_read(
    registry: Registry, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        registry.add_expert(**({"name": "math", "checkpoint": "/absent"} | options))
    assert registry.log() == []


def test_export_gives_back_every_tensor_and_file(bare: Path, zoo: Zoo, registry: Registry, tmp_path: Path) -> None:
    registry.add_expert("code", bare, data=[zoo.train["code"]], settings=SETTINGS)
    registry.export("code", tmp_path / "back")
    original, back = load_file(bare / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert original.keys() == back.keys()
    assert all(torch.equal(original[name], back[name]) for name in original)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (bare / name).read_bytes()


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


def test_opt_out_of_one_version_leaves_the_others(filled: Registry, zoo: Zoo) -> None:
    filled.add_expert("math", zoo.experts["law"], alias="new")
    filled.opt_out("math@new")
    assert filled.resolve("math").ref == "math@1"
    assert filled.add_expert("math", zoo.experts["law"]).version.ref == "math@3"


def test_purge_deletes_what_only_it_needed(filled: Registry, zoo: Zoo) -> None:
    filled.add_expert("copy", zoo.experts["math"], license="mit")  # shares every weight with math
    size = sum(path.stat().st_size for path in filled.home.arrays.rglob("*") if path.is_file())
    done = filled.opt_out("math", purge=True)
    assert done.purged
    assert done.deleted_arrays == 0
    assert done.shared_arrays > 10
    done = filled.opt_out("copy", purge=True)
    assert done.deleted_arrays > 10
    left = sum(path.stat().st_size for path in filled.home.arrays.rglob("*") if path.is_file())
    assert left == size - done.deleted_bytes
    assert done.shared_arrays > 0  # the tokenizer is everybody's
    verification = filled.verify()
    assert (verification.problems, verification.orphans) == ((), 0)
    with pytest.raises(RegError, match="copy@1 was purged"):
        _ = filled.member(done.versions[0]).content


def test_purge_after_withdrawal_and_twice(filled: Registry) -> None:
    filled.opt_out("math")
    assert filled.opt_out("math", purge=True).deleted_arrays > 10
    assert filled.opt_out("math", purge=True).deleted_arrays == 0
    (version,) = [v for v in filled.versions(everything=True) if v.name == "math"]
    assert version.state == "purged"
    assert filled.member(version).arrays == ()


def test_after_purge_no_weight_of_it_is_left_in_the_store(filled: Registry, zoo: Zoo) -> None:
    tensors = load_file(zoo.experts["math"] / "model.safetensors")
    needle = tensors["model.layers.0.mlp.gate_proj.weight"].numpy().tobytes()[:64]
    assert any(needle in data for data in files_of(filled.home.path).values())
    filled.opt_out("math", purge=True)
    assert not any(needle in data for data in files_of(filled.home.path).values())


def test_verify_names_whom_damage_concerns(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    version = filled.resolve("math")
    link = next(link for link in filled.arrays_of(version) if link.role == "mlp")
    chunk = array_folder(filled, link.digest) / "c.0.0"
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    overwrite(chunk, bytes(data))
    verification = filled.verify()
    assert len(verification.problems) == 1
    assert f"math@1, mlp {link.name}: array {link.digest[:12]} is damaged" in verification.problems[0]
    with pytest.raises(RegError, match="is damaged"):
        filled.compose(["code", "math"], tmp_path / "moe")
    assert not (tmp_path / "moe").exists()
    assert list(tmp_path.glob(".moe*")) == []
    assert filled.compositions() == []
    filled.add_expert("math", zoo.experts["math"], license="mit")  # the same weights again: they are mended
    assert filled.verify().problems == ()


@pytest.mark.sqlite
def test_verify_finds_missing_arrays_and_changed_rows(filled: Registry) -> None:
    import sqlite3

    link = next(link for link in filled.arrays_of(filled.resolve("law")) if link.role == "statistics")
    filled.arrays.delete(link.digest)
    with sqlite3.connect(filled.home.path / "catalog.sqlite") as connection:
        row = connection.execute("SELECT id, content FROM versions WHERE content LIKE '%llama%' LIMIT 1").fetchone()
        document = json.loads(row[1]) | {"license": "stolen"}
        connection.execute("UPDATE versions SET content = ? WHERE id = ?", (json.dumps(document), row[0]))
    connection.close()
    problems = "\n".join(filled.verify().problems)
    assert f"array {link.digest[:12]} is not below" in problems
    assert "its content in the catalog does not match its digest" in problems


def test_verify_names_the_event_that_does_not_follow(filled: Registry) -> None:
    assert filled.verify().events == 6
    with filled.catalog._writing() as session:
        session.execute(sqlalchemy.text("UPDATE events SET subject = 'x@1' WHERE subject = 'code@1'"))
    found = filled.verify()
    (problem,) = found.problems
    assert problem.startswith("the log: event 2 (add-expert x@1, ")
    assert "does not follow from the event before it" in problem
    assert found.events == 1


def test_garbage_is_what_nobody_needs(filled: Registry) -> None:
    orphan = filled.arrays.put(ArraySource.of(np.ones(3, dtype=np.float32), "float32"))
    partial = filled.home.partial / "x.safetensors"
    partial.parent.mkdir()
    partial.write_bytes(b"x")
    assert filled.verify().orphans == 1
    found = filled.gc(dry_run=True)
    assert found.digests == (orphan,)
    assert found.nbytes > 0
    assert (found.passes, found.pass_bytes) == (1, 1)
    assert partial.exists()
    assert filled.verify().orphans == 1
    assert filled.gc() == found
    assert not partial.exists()
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


@pytest.mark.check
def test_compositions_are_recorded_and_found_by_member(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["math", "code"], tmp_path / "moe", Recipe(router="ridge", lam=0.5))
    filled.compose(["math", "code"], tmp_path / "again", Recipe(router="ridge", lam=0.5))
    filled.compose(["law"], tmp_path / "law", Recipe(trunk="base"))
    assert [c.members for c in filled.compositions()] == [("code@1", "math@1"), ("base@1", "law@1")]
    assert [c.members for c in filled.compositions("base")] == [("base@1", "law@1")]
    assert filled.compositions("math")[0].document["recipe"]["lam"] == 0.5
    assert filled.compositions("german") == []


def test_log_is_whole(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["math", "code"], tmp_path / "moe")
    filled.opt_out("math", purge=True)
    actions = [event.action for event in filled.log()]
    assert actions == ["gc", "purge", "opt-out", "compose", *["add-expert"] * 5, "add-base"]
    assert [event.subject for event in filled.log("math")] == ["math@1"] * 3


def test_log_and_compositions_are_narrowed_to_what_there_is(filled: Registry, tmp_path: Path) -> None:
    one = filled.compose(["math", "code"], tmp_path / "one").digest
    two = filled.compose(["law"], tmp_path / "two").digest
    filled.alias("math", "stable")
    assert [event.action for event in filled.log("math@stable")] == ["alias", "add-expert"]
    assert [event.subject for event in filled.log(one[:12])] == [one]
    assert [event.subject for event in filled.log(two)] == [two]
    assert [made.digest for made in filled.compositions(one[:6])] == [one]
    assert [made.digest for made in filled.compositions("math@stable")] == [one]
    unknown = "0" * 6 if not {one[:6], two[:6]} & {"0" * 6} else "1" * 6
    for look in (filled.log, filled.compositions):
        for text, message in (
            ("mth", "there is no expert 'mth'; did you mean 'math'?"),
            ("math@7", "math has no version 7; it has 1"),
            ("math@old", "math has no alias 'old'; it has stable"),
            (unknown, f"there is no composition and no expert '{unknown}'"),
            (one[:5], f"there is no expert '{one[:5]}'"),
        ):
            with pytest.raises(NotFoundError) as caught:
                look(text)
            assert str(caught.value).split(", and a digest is named by")[0] == message
            assert caught.value.hint


def test_beginning_of_several_digests_is_refused(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [CompositionRecord(f"abcdef{n}" + "0" * 57, {}, "", (), ()) for n in (1, 2)]
    monkeypatch.setattr(type(filled.catalog), "compositions", lambda *_: made)
    with pytest.raises(InvalidInputError, match="2 compositions begin with abcdef") as caught:
        filled.compositions("abcdef")
    assert caught.value.hint == "give more digits, such as abcdef1000000000"
    assert filled.compositions("abcdef2") == made[1:]


def test_name_that_looks_like_a_digest_stays_a_name(registry: Registry, zoo: Zoo) -> None:
    registry.add_expert("facade", zoo.experts["code"])
    assert [event.subject for event in registry.log("facade")] == ["facade@1"]
    assert registry.compositions("facade") == []


def test_export_never_offers_to_replace(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code"], tmp_path / "moe")
    with pytest.raises(OutputError, match="exists and is not empty") as caught:
        filled.export("code", tmp_path / "moe")
    assert caught.value.hint == "choose another --out"
    with pytest.raises(OutputError) as caught:
        filled.compose(["code"], tmp_path / "moe")
    assert caught.value.hint == "choose another --out, or replace that composition: --force"


def test_listing_narrows(registry: Registry, zoo: Zoo) -> None:
    registry.add_base("base", zoo.base, tags={"size": "tiny"})
    registry.add_expert("code", zoo.experts["code"], tags={"size": "tiny", "team": "a"})
    registry.add_expert("law", zoo.experts["law"], tags={"team": "b"})
    assert [v.name for v in registry.versions(kind="expert")] == ["code", "law"]
    assert [v.name for v in registry.versions(tags={"size": "tiny"})] == ["base", "code"]
    assert [v.name for v in registry.versions(tags={"size": "tiny", "team": "a"})] == ["code"]


def test_disk_that_fills_up_while_registering_leaves_nothing(
    registry: Registry, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    flush = registry.arrays._write

    def fail(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 7:
            raise OSError(28, "No space left on device")
        flush(*args)

    monkeypatch.setattr(type(registry.arrays), "_write", lambda self, *args: fail(*args))
    with pytest.raises(StorageError, match="No space left on device") as caught:
        registry.add_expert("code", zoo.experts["code"])
    assert caught.value.hint is not None
    assert registry.versions() == []
    assert list(registry.arrays.digests()) == []
    monkeypatch.undo()
    registry.add_expert("code", zoo.experts["code"])
    assert registry.verify().problems == ()


@pytest.mark.check
def test_experts_of_tied_sharded_bfloat16_checkpoints(tmp_path: Path, tokenizer: Any, registry: Registry) -> None:
    data = write_jsonl(tmp_path / "data.jsonl", sentences("law", 20))
    for number, name in enumerate(("a", "b"), start=1):
        model = make_model("llama", 100 + number, tie_word_embeddings=True)
        folder = save_checkpoint(model, tmp_path / name, tokenizer, dtype=torch.bfloat16, max_shard_size="30KB")
        registry.add_expert(name, folder, data=[data], settings=SETTINGS)
    plan = registry.compose(["a", "b"], tmp_path / "moe")
    assert plan.dtype == "bfloat16"
    assert {tensor.dtype for tensor in plan.tensors} == {"bfloat16"}


def test_package_offers_what_it_says() -> None:
    assert {name for name in package.__all__ if not hasattr(package, name)} == set()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = package.nonsense  # type: ignore[attr-defined]
    assert len(EXPERTS) == 5
