"""Proves: versions are compared by their summaries as by their arrays, and a summary goes with its version."""

from pathlib import Path

import pytest

from registry import PassSettings, Registry
from registry.ancestry import Relation
from store.arrays import ArrayStore
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint

SETTINGS = PassSettings(tokens=512, seq_len=32, batch_size=8)


def digests(registry: Registry) -> set[str]:
    return {path.name.partition(".")[0] for path in registry.home.summaries.iterdir()}


def told(relations: tuple[Relation, ...]) -> list[tuple[str, str, dict[str, float]]]:
    return [(r.ref, r.verdict, dict(r.distances)) for r in relations]


def test_summaries_say_what_arrays_say_and_leave_them_alone(
    filled: Registry, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = files_of(filled.home.summaries)
    by_summaries = filled.relations("code"), filled.check(zoo.experts["code"], data=[zoo.train["code"]])
    for path in filled.home.summaries.iterdir():
        path.unlink()
    by_arrays = filled.relations("code"), filled.check(zoo.experts["code"], data=[zoo.train["code"]])
    assert told(by_summaries[0]) == told(by_arrays[0])
    assert told(by_summaries[1].relations) == told(by_arrays[1].relations)
    assert by_summaries[1].overlaps == by_arrays[1].overlaps
    assert by_summaries[1].overlaps
    assert files_of(filled.home.summaries) == kept  # they were made anew, the same

    def refuse(*_: object) -> None:
        raise AssertionError("an array was read")

    for reads in ("open", "read", "sample"):
        monkeypatch.setattr(ArrayStore, reads, refuse)
    assert told(filled.relations("code")) == told(by_arrays[0])
    assert filled.check(zoo.experts["code"], data=[zoo.train["code"]]).overlaps == by_arrays[1].overlaps


@pytest.mark.parametrize("damage", [b"", b"short", b"0" * 64 + b"\nabc"])
def test_a_damaged_summary_is_made_anew(filled: Registry, damage: bytes) -> None:
    before, whole = told(filled.relations("code")), files_of(filled.home.summaries)
    for path in filled.home.summaries.iterdir():
        if path.suffix == ".weights":
            path.write_bytes(damage or path.read_bytes()[:-1] + b"?")
    assert told(filled.relations("code")) == before
    assert files_of(filled.home.summaries) == whole


def test_a_summary_goes_when_its_version_is_opted_out_and_others_stay(filled: Registry) -> None:
    gone = filled.resolve("math").digest
    before = digests(filled)
    assert gone in before
    filled.opt_out("math")
    assert digests(filled) == before - {gone}


def test_a_summary_is_not_kept_of_what_was_opted_out_meanwhile(filled: Registry) -> None:
    math = filled.resolve("math")
    filled.opt_out("math")
    filled._summaries.put(math, "weights", b"late")
    assert math.digest not in digests(filled)


def test_gc_deletes_what_belongs_to_no_version(filled: Registry) -> None:
    before = files_of(filled.home.summaries)
    (filled.home.summaries / f"{'0' * 64}.weights").write_bytes(b"left")
    filled.gc(dry_run=True)
    assert len(digests(filled)) == len(before) // 2 + 2  # that, and the base model's, which has no statistics
    filled.gc()
    assert files_of(filled.home.summaries) == before


def test_a_grown_vocabulary_is_compared_by_arrays(
    registry: Registry, zoo: Zoo, tmp_path: Path, tokenizer: object
) -> None:
    registry.add_base("base", zoo.base)
    larger = save_checkpoint(make_model("llama", 101, vocab_size=400), tmp_path / "larger", tokenizer)
    (by_summary,) = registry.add_base("larger", larger).relations
    assert by_summary.grown
    for path in registry.home.summaries.iterdir():
        path.unlink()
    assert told(registry.relations("larger"))[0][2] == dict(by_summary.distances)


def test_a_home_that_keeps_none_is_compared_all_the_same(filled: Registry) -> None:
    before = told(filled.relations("code"))
    for path in filled.home.summaries.iterdir():
        path.unlink()
    filled.home.summaries.rmdir()
    filled.home.summaries.write_bytes(b"in the way")
    assert told(filled.relations("code")) == before
