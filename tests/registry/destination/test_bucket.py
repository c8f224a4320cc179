"""Proves: a composition in a bucket is the local folder, byte for byte, and is whole or not there."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import obstore
import pytest

from registry import Recipe, Registry
from registry.destination.address import fetched
from registry.destination.bucket import PARTIAL
from registry.errors import DamagedError, OutputError, RegError, StorageError
from registry.io import model_folder
from registry.progress import silent
from store import bucket as bucket_module
from store.bucket import Bucket
from tests.conftest import files_of
from tests.running import ROOT
from tests.s3_server import S3Server

MARKS = ("composition.json", "config.json", "model.safetensors.index.json")


@dataclass(frozen=True)
class Prefix:
    """A prefix of a bucket under test."""

    url: str

    @property
    def objects(self) -> dict[str, bytes]:
        """Key → content, read by ranges."""
        bucket = Bucket(self.url)
        return {key: b"".join(map(bytes, bucket.ranges(key, size))) for key, size in bucket.listed()[0].items()}


@pytest.fixture
def prefix(s3: S3Server) -> Prefix:
    return Prefix(f"s3://{s3.new_bucket()}/team/moe")


Act = Callable[[Bucket, str, Path], object]
Uploads = Callable[[Act, Act], None]


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> Uploads:
    """What does something before and after every upload."""

    def surround(before: Act, after: Act) -> None:
        upload = Bucket.upload

        def surrounded(self: Bucket, key: str, path: Path) -> None:
            before(self, key, path)
            upload(self, key, path)
            after(self, key, path)

        monkeypatch.setattr(Bucket, "upload", surrounded)

    return surround


def nothing(*_: object) -> None:
    pass


def changed(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of several files, each uploaded in several parts."""
    monkeypatch.setattr(model_folder, "ONE_FILE_BYTES", 0)
    monkeypatch.setattr(model_folder, "SHARD_BYTES", 60_000)


@pytest.mark.trust(after=2)
@pytest.mark.parametrize(
    ("recipe", "files"),
    [
        (Recipe(), "several"),
        (Recipe(), "one"),
        (Recipe(to="dense", trunk="mean"), "several"),
        (Recipe(to="ensemble"), "several"),
    ],
    ids=["mixture", "mixture of one file", "dense", "ensemble"],
)
def test_objects_are_the_files_of_the_folder(
    request: pytest.FixtureRequest, filled: Registry, prefix: Prefix, tmp_path: Path, recipe: Any, files: str
) -> None:
    if files == "several":
        request.getfixturevalue("several")
    filled.compose(["code", "math", "law"], tmp_path / "moe", recipe)
    plan = filled.compose(["code", "math", "law"], prefix.url, recipe)
    local = files_of(tmp_path / "moe")
    assert (sum(name.endswith(".safetensors") for name in local) > 1) == (files == "several")
    assert prefix.objects == local
    (record,) = filled.compositions()
    assert (record.digest, {*record.folders}) == (plan.digest, {str(tmp_path / "moe"), prefix.url})
    assert not list(filled.home.work.iterdir())


def test_uploads_in_parts_give_the_same_bytes(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(1 << 20) * 13 + b"rest")
    monkeypatch.setattr(bucket_module, "PART", 5 << 20)
    name = s3.new_bucket()
    bucket = Bucket(f"s3://{name}/a")
    bucket.upload("big", big)
    assert b"".join(map(bytes, bucket.ranges("big", big.stat().st_size))) == big.read_bytes()
    assert s3.client().head_object(Bucket=name, Key="a/big")["ETag"].strip('"').endswith("-3")
    assert s3.uploads(name) == []


def test_composition_is_replaced_with_force_only_and_its_files_disappear(
    filled: Registry, prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(model_folder, "ONE_FILE_BYTES", 0)
        filled.compose(["code", "math"], prefix.url)
    before = prefix.objects
    with pytest.raises(OutputError, match=f"{prefix.url} holds a composition") as caught:
        filled.compose(["code"], prefix.url)
    assert "--force" in str(caught.value.hint)
    assert prefix.objects == before
    filled.compose(["code", "law"], prefix.url, force=True)
    filled.compose(["code", "law"], tmp_path / "fresh")
    assert prefix.objects == files_of(tmp_path / "fresh")


def test_other_objects_are_never_replaced_nor_deleted(filled: Registry, prefix: Prefix) -> None:
    bucket, other = Bucket(prefix.url), r"is not empty and has no composition\.json|holds other objects"
    for key, force in product(("notes.txt", "other/model.safetensors"), (False, True)):
        bucket.write(key, b"mine")
        with pytest.raises(OutputError, match=other):
            filled.compose(["code"], prefix.url, force=force)
        assert bucket.read(key) == b"mine"
        assert set(prefix.objects) <= {key}
        bucket.delete([key])
    assert filled.compositions() == []
    filled.compose(["code"], prefix.url)
    bucket.write("other/model", b"mine")
    before = prefix.objects
    with pytest.raises(OutputError, match="holds other objects, below other/"):
        filled.compose(["math"], prefix.url, force=True)
    assert prefix.objects == before


@pytest.mark.usefixtures("several")
def test_no_moment_shows_a_mix(
    filled: Registry, prefix: Prefix, monkeypatch: pytest.MonkeyPatch, uploads: Uploads
) -> None:
    """At every request of a replacement: composition.json, if there, lists the objects that are there."""
    filled.compose(["code", "math"], prefix.url)
    old = prefix.objects
    seen: list[set[str]] = []

    def watched(name: str) -> None:
        original = getattr(Bucket, name)

        def call(self: Bucket, *arguments: Any) -> Any:
            seen.append(set(Bucket(prefix.url).listed()[0]))
            now = Bucket(prefix.url).read("composition.json")
            if now is not None and now != old["composition.json"]:
                assert set(json.loads(now)["files"]) <= seen[-1]
            elif now is not None:
                assert set(old) <= seen[-1]
            if now is None:
                assert name == "delete" or "config.json" not in seen[-1] or "composition.partial.json" in seen[-1]
            return original(self, *arguments)

        monkeypatch.setattr(Bucket, name, call)

    for name in ("upload", "write", "delete"):
        watched(name)
    uploaded: list[bool] = []
    uploads(lambda bucket, *_: uploaded.append(not set(MARKS) & set(bucket.listed()[0])), nothing)
    filled.compose(["code", "law"], prefix.url, force=True)
    assert uploaded
    assert all(uploaded)


@pytest.mark.usefixtures("several")
def test_failure_of_the_storage_is_resumed(filled: Registry, prefix: Prefix, tmp_path: Path, uploads: Uploads) -> None:
    calls: list[str] = []

    def fails(_: Bucket, key: str, path: Path) -> None:
        calls.append(key)
        if len(calls) == 3:
            raise StorageError("the network is gone", "repeat")

    uploads(fails, nothing)
    with pytest.raises(StorageError, match="the network is gone"):
        filled.compose(["code", "math"], prefix.url)
    assert set(prefix.objects) == {*calls[:2], PARTIAL}
    assert filled.compositions() == []
    with pytest.raises(RegError, match="is not finished"), fetched(prefix.url, filled.home, silent):
        pass
    filled.compose(["code", "math"], prefix.url)
    assert not set(calls[:2]) & set(calls[3:])  # uploaded once
    filled.compose(["code", "math"], tmp_path / "moe")
    assert prefix.objects == files_of(tmp_path / "moe")


@pytest.mark.usefixtures("several")
def test_damaged_shards_are_uploaded_again(filled: Registry, prefix: Prefix, tmp_path: Path) -> None:
    filled.compose(["code", "math"], prefix.url)
    name = next(name for name in sorted(prefix.objects) if name.endswith(".safetensors"))
    Bucket(prefix.url).write(name, changed(prefix.objects[name]))
    filled.compose(["code", "math"], prefix.url, force=True)
    filled.compose(["code", "math"], tmp_path / "moe")
    assert prefix.objects == files_of(tmp_path / "moe")


@pytest.mark.usefixtures("several")
def test_bucket_that_lies_is_found_out(filled: Registry, prefix: Prefix, uploads: Uploads) -> None:
    uploads(lambda _, key, path: path.write_bytes(changed(path.read_bytes())), nothing)
    with pytest.raises(DamagedError, match="the bytes read back are not the bytes written"):
        filled.compose(["code", "math"], prefix.url)
    assert prefix.objects == {}


def test_member_withdrawn_meanwhile_leaves_nothing(filled: Registry, prefix: Prefix, uploads: Uploads) -> None:
    uploads(nothing, lambda *_: filled.opt_out("math"))
    with pytest.raises(RegError, match="math@1 was opted out"):
        filled.compose(["code", "math"], prefix.url)
    assert prefix.objects == {}
    assert filled.compositions() == []


def test_second_registry_does_not_write_into_an_unfinished_prefix(
    filled: Registry, prefix: Prefix, tmp_path: Path
) -> None:
    Bucket(prefix.url).write(PARTIAL, json.dumps({"home": "another", "writer": "1"}).encode())
    with pytest.raises(OutputError, match="is being written by another registry") as caught:
        filled.compose(["code"], prefix.url)
    assert "--force" in str(caught.value.hint)
    filled.compose(["code"], prefix.url, force=True)
    filled.compose(["code"], tmp_path / "moe")
    assert prefix.objects == files_of(tmp_path / "moe")


def test_writer_that_lost_its_prefix_stops(filled: Registry, prefix: Prefix, uploads: Uploads) -> None:
    other = json.dumps({"home": "another", "writer": "1"}).encode()
    uploads(nothing, lambda bucket, *_: bucket.write(PARTIAL, other))
    with pytest.raises(OutputError, match="another process has taken it over"):
        filled.compose(["code"], prefix.url)
    assert "composition.json" not in prefix.objects
    assert prefix.objects[PARTIAL] == other


def test_wrong_bucket_is_an_error_before_anything_is_rendered(
    filled: Registry, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.object_store.RETRIES", 1)
    monkeypatch.setattr("registry.destination.bucket.write_shards", None)
    for url, name, value, message in (
        ("s3://no-such-bucket/moe", "AWS_ENDPOINT_URL", s3.endpoint, "there is no bucket no-such-bucket"),
        ("s3://bucket/moe", "AWS_ENDPOINT_URL", "http://127.0.0.1:1", "does not answer"),
        ("s3://bucket/moe", "AWS_ACCESS_KEY_ID", None, "no credentials"),
    ):
        with monkeypatch.context() as patch:
            patch.delenv(name) if value is None else patch.setenv(name, value)
            with pytest.raises(RegError, match=message) as caught:
                filled.compose(["code"], url)
        assert caught.value.hint
    assert filled.compositions() == []


def test_prefix_without_permission_is_an_error_before_anything_is_rendered(
    filled: Registry, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self: Bucket, key: str, data: bytes) -> bool:
        raise StorageError(f"{self.url}/{key} cannot be written: the bucket's server denies it", "check")

    monkeypatch.setattr(Bucket, "create", denied)
    monkeypatch.setattr("registry.destination.bucket.write_shards", None)
    with pytest.raises(StorageError, match="denies it"):
        filled.compose(["code"], f"s3://{s3.new_bucket()}/moe")


@pytest.mark.usefixtures("several")
def test_disk_holds_one_shard_at_a_time(filled: Registry, prefix: Prefix, uploads: Uploads) -> None:
    held: list[list[str]] = []
    uploads(lambda *_: held.append([file.name for file in filled.home.work.rglob("*.safetensors")]), nothing)
    filled.compose(["code", "math"], prefix.url)
    assert len(held) > 2
    assert all(len(names) == 1 for names in held)


_KILLED = """
import os, signal, sys
from pathlib import Path
from registry import Registry
from registry.io import model_folder
from store.bucket import Bucket
model_folder.ONE_FILE_BYTES, model_folder.SHARD_BYTES = 0, 60_000
home, url, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
count = 0
def killing(name):
    original = getattr(Bucket, name)
    def call(self, *arguments):
        global count
        count += 1
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *arguments)
    setattr(Bucket, name, call)
for name in ("upload", "write", "create", "delete"):
    killing(name)
with Registry(home) as registry:
    registry.compose(["code", "math"], url, force="force" in sys.argv)
print(count)
"""


@pytest.mark.sqlite
@pytest.mark.trust(after=1)
@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("force", [False, True])
def test_process_killed_at_any_step_leaves_no_half_composition(
    filled: Registry, s3: S3Server, tmp_path: Path, force: bool, thorough: bool
) -> None:
    """Killed at steps over the whole run; after each the prefix is whole or says that it is not; the last one ends.

    One step is tried in CI, of a new prefix and of one that is replaced another; all tiers together try five.
    """
    name = s3.new_bucket()
    prefix = Prefix(f"s3://{name}/moe")
    filled.compose(["code", "math"], tmp_path / "moe")
    local = files_of(tmp_path / "moe")
    if force:
        filled.compose(["code", "law"], prefix.url)
    old = prefix.objects

    def run(step: int) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-c", _KILLED, str(filled.home.path), prefix.url, str(step)]
        words += ["force"] if force else []
        return subprocess.run(words, cwd=ROOT, env={**os.environ, **s3.environment}, capture_output=True, text=True)

    some = (14,) if force else (9,)
    for step in (3, 4, 6, 9, 14) if thorough else some:
        done = run(step)
        assert done.returncode == -signal.SIGKILL, done.stderr
        found = prefix.objects
        if "composition.json" in found:
            assert {key: value for key, value in found.items() if not key.startswith((PARTIAL, ".reg-"))} in (
                local,
                old,
            )
    last = run(0)
    assert last.returncode == 0, last.stderr
    assert prefix.objects == local


def test_local_copy_is_checked(filled: Registry, prefix: Prefix, tmp_path: Path) -> None:
    filled.compose(["code", "math"], prefix.url)
    filled.compose(["code", "math"], tmp_path / "moe")
    with fetched(prefix.url, filled.home, silent) as folder:
        assert files_of(folder) == files_of(tmp_path / "moe")
        assert folder.is_relative_to(filled.home.work)
    assert not folder.exists()
    bucket = Bucket(prefix.url)
    for name, data in prefix.objects.items():
        if name == "composition.json":
            continue
        bucket.write(name, changed(data))
        with pytest.raises(DamagedError, match=f"{name} was changed"), fetched(prefix.url, filled.home, silent):
            pass
        bucket.delete([name])
        with pytest.raises(RegError, match=f"{name} is missing"), fetched(prefix.url, filled.home, silent):
            pass
        bucket.write(name, data)


def test_reader_that_gets_too_few_bytes_says_so(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(prefix.url)
    bucket.write("x", b"12345")
    get = obstore.get_range
    monkeypatch.setattr(obstore, "get_range", lambda *a, end, **k: get(*a, end=end - 1, **k))
    with pytest.raises(StorageError, match="the server sent 4 of 5 bytes"):
        list(bucket.ranges("x", 5))
