"""Proves: versions are compared by their summaries as by their arrays, and a summary goes with its version.

A damaged one is made again; a forged one changes nothing that is registered.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from registry import PassSettings, Registry
from registry.checkpoint import Checkpoint
from registry.errors import IncompatibleError
from registry.registration.lineage import Relation, pack_weights, weights_of_checkpoint
from registry.registration.summary_store import keep_summary, read_summary
from store.arrays import FolderArrays
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint

SETTINGS = PassSettings(tokens=512, seq_len=32, batch_size=8)


def digests(registry: Registry) -> set[str]:
    return {path.name.partition(".")[0] for path in registry.home.summaries.iterdir()}


def told(relations: tuple[Relation, ...]) -> list[tuple[str, str, dict[str, float]]]:
    return [(r.ref, r.verdict, dict(r.distances)) for r in relations]


DAMAGES: dict[str, Callable[[Path, bytes], object]] = {
    "empty": lambda path, data: path.write_bytes(b""),
    "short": lambda path, data: path.write_bytes(data[:40]),
    "changed": lambda path, data: path.write_bytes(data[:-1] + bytes([data[-1] ^ 1])),
    "no safetensors": lambda path, data: path.write_bytes(sealed(b"abc")),
    "a header without end": lambda path, data: path.write_bytes(sealed(b"\xff" * 64)),
    "other tensors": lambda path, data: path.write_bytes(sealed(save({"x": torch.ones(3)}))),
    "not finite": lambda path, data: path.write_bytes(sealed(poisoned(data))),
    "a link": lambda path, data: path.symlink_to("/dev/zero"),
    "a pipe": lambda path, data: os.mkfifo(path),
}


def sealed(data: bytes) -> bytes:
    """Return what a summary's file would hold of `data`."""
    return hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def poisoned(data: bytes) -> bytes:
    """Return a summary in which every float is NaN."""
    body = data[65:]
    begin = 8 + int.from_bytes(body[:8], "little")
    return body[:begin] + b"\xff" * (len(body) - begin)


@pytest.mark.check
def test_summaries_say_what_arrays_say_and_damaged_ones_are_made_anew(
    filled: Registry, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> object:
        check = filled.check(zoo.experts["code"], data=[zoo.train["code"]], settings=SETTINGS, allow_unrelated=True)
        assert check.overlaps
        return told(filled.relations("code")), told(check.relations), check.overlaps

    before, whole = found(), files_of(filled.home.summaries)
    for path in filled.home.summaries.iterdir():
        path.unlink()
    assert found() == before  # by arrays
    assert files_of(filled.home.summaries) == whole  # they were made again, the same
    for kind in ("weights", "tokens"):
        paths = sorted(filled.home.summaries.glob(f"*.{kind}"))
        for (name, damage), path in zip(DAMAGES.items(), paths * 3, strict=False):
            data = path.read_bytes()
            path.unlink()
            damage(path, data)
            if path == paths[-1] or name == list(DAMAGES)[-1]:
                assert found() == before, name
                assert files_of(filled.home.summaries) == whole, name

    def refuse(*_: object) -> None:
        raise AssertionError("an array was read")

    for reads in ("open", "read", "sample"):
        monkeypatch.setattr(FolderArrays, reads, refuse)
    assert found() == before


def test_summaries_that_cannot_be_kept_stand_in_nobodys_way(filled: Registry) -> None:
    before = told(filled.relations("code"))
    for path in list(filled.home.summaries.iterdir()):
        path.unlink()
        path.mkdir()
    assert told(filled.relations("code")) == before
    filled.opt_out("law")
    assert digests(filled) == {version.digest for version in filled.versions()}
    shutil.rmtree(filled.home.summaries)
    filled.home.summaries.write_bytes(b"in the way")
    assert told(filled.relations("code")) == [one for one in before if one[0] != "law@1"]


def test_a_summary_too_large_is_neither_read_nor_kept(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    before, whole = told(filled.relations("code")), files_of(filled.home.summaries)
    monkeypatch.setattr("registry.registration.summary_store.SUMMARY_BYTES", 1000)
    version = filled.resolve("code")
    assert read_summary(filled._workspace, version, "weights") is None
    keep_summary(filled._workspace, version, "weights", bytes(1001))
    assert told(filled.relations("code")) == before
    assert files_of(filled.home.summaries) == whole


@pytest.mark.check
def test_a_forged_summary_admits_nobody_and_refuses_nobody(
    filled: Registry, zoo: Zoo, tmp_path: Path, tokenizer: object
) -> None:
    stranger = save_checkpoint(make_model("llama", 701), tmp_path / "stranger", tokenizer)
    forged = sealed(pack_weights(weights_of_checkpoint(Checkpoint(stranger))))
    genuine = {path: path.read_bytes() for path in filled.home.summaries.glob("*.weights")}
    for path in genuine:
        path.write_bytes(forged)
    with pytest.raises(IncompatibleError, match="stranger is unrelated to every registered model"):
        filled.add_expert("stranger", stranger, settings=SETTINGS)
    arrays = files_of(filled.home.arrays)
    done = filled.add_expert("again", zoo.experts["math"], settings=SETTINGS)
    assert {relation.verdict for relation in done.relations} == {"unrelated"}  # what it says of others is all that lies
    for path in genuine:
        path.unlink()
    with Registry(tmp_path / "plain") as plain:
        plain.add_base("base", zoo.base)
        assert plain.add_expert("again", zoo.experts["math"], settings=SETTINGS).version.digest == done.version.digest
    assert {name: data for name, data in files_of(filled.home.arrays).items() if name in arrays} == arrays


def test_two_that_keep_the_same_summary_leave_it_whole(filled: Registry) -> None:
    version, data = filled.resolve("code"), bytes(2**20)

    def put() -> bool:
        with Registry(filled.home.path) as registry:
            for _ in range(5):
                keep_summary(registry._workspace, version, "weights", data)
                if read_summary(registry._workspace, version, "weights") != data:
                    return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: put(), range(4)))
    assert not list(filled.home.summaries.glob("*.new"))


@pytest.mark.parametrize("purge", [False, True])
def test_a_summary_goes_when_its_version_is_opted_out_and_others_stay(filled: Registry, purge: bool) -> None:
    math, before = filled.resolve("math"), digests(filled)
    assert math.digest in before
    (filled.home.summaries / f"{math.digest}.tokens.new").write_bytes(b"half")  # as a crash leaves it
    filled.opt_out("math", purge=purge)
    assert digests(filled) == before - {math.digest}
    keep_summary(filled._workspace, math, "weights", b"late")
    assert digests(filled) == before - {math.digest}


def test_gc_deletes_what_belongs_to_no_version(filled: Registry) -> None:
    before = files_of(filled.home.summaries)
    (filled.home.summaries / f"{'0' * 64}.weights").write_bytes(b"left")
    (filled.home.summaries / f"{filled.resolve('code').digest}.weights.new").write_bytes(b"half")
    assert (filled.gc(dry_run=True).cached, filled.gc(dry_run=True).cached_bytes) == (2, 8)
    assert len(files_of(filled.home.summaries)) == len(before) + 2
    assert filled.gc().cached == 2
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
