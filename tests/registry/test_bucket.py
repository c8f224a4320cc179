"""Proves: a registry whose arrays are in a bucket composes, verifies, exports and forgets as one on a disk does."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Recipe, Registry
from registry.errors import ConflictError, InvalidInputError, NotFoundError
from registry.maintenance.array_copy import copy_arrays
from store.arrays import FolderArrays, open_arrays
from store.arrays.object_arrays import ObjectArrays
from tests.conftest import Zoo, files_of
from tests.s3_server import S3Server
from tests.store.test_object_arrays import files_in

RECIPES = [Recipe(), Recipe(trunk="regmean"), Recipe(router="ridge"), Recipe(to="dense")]


def run(*words: object, arrays: str | None = None) -> Result:
    return CliRunner().invoke(main, list(map(str, words)), env={"REG_ARRAYS": arrays})


@pytest.fixture
def one(registry: Registry, zoo: Zoo) -> Registry:
    """A registry with one expert on a disk."""
    registry.add_expert("code", zoo.experts["code"])
    return registry


@pytest.mark.sqlite
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.to}-{recipe.trunk}-{recipe.router}")
def test_composed_folders_are_the_same_bytes(
    filled: Registry, filled_bucket: Registry, tmp_path: Path, recipe: Recipe
) -> None:
    """On a disk, in a bucket, again from copies, and on another machine: nothing is in its home."""
    home = filled_bucket.home
    database = f"sqlite:///{home.path / 'catalog.sqlite'}"
    with Registry(tmp_path / "new" / "home", database=database, arrays=home.arrays_place, create=False) as other:
        places = {"disk": filled, "bucket": filled_bucket, "again": filled_bucket, "there": other}
        for name, registry in places.items():
            registry.compose(["math", "code", "law"], tmp_path / name, recipe)
    assert all(files_of(tmp_path / name) == files_of(tmp_path / "disk") for name in places)


def test_what_is_registered_into_a_bucket_is_the_same_bytes(
    zoo: Zoo, arrays_url: str, s3: S3Server, tmp_path: Path
) -> None:
    for home, arrays in ((tmp_path / "disk", None), (tmp_path / "other", arrays_url)):
        with Registry(home, arrays=arrays) as registry:
            registry.add_base("base", zoo.base)
            version = registry.add_expert("code", zoo.experts["code"]).version
            assert registry.verify().problems == ()
            registry.export("code", home / "exported")
    assert not (tmp_path / "other" / "arrays").exists()
    on_disk, in_bucket = files_of(tmp_path / "disk" / "arrays"), files_in(s3, arrays_url)
    owner = in_bucket.pop("registry"), on_disk.pop("registry")
    assert owner[0] != owner[1]
    assert in_bucket == on_disk
    assert files_of(tmp_path / "other" / "exported") == files_of(tmp_path / "disk" / "exported")
    assert version.ref == "code@1"


def test_purge_leaves_no_byte_of_it_in_bucket_or_copies(filled_bucket: Registry, s3: S3Server, tmp_path: Path) -> None:
    registry, store = filled_bucket, filled_bucket.arrays
    assert isinstance(store, ObjectArrays)
    needed = {link.digest for v in registry.versions() if v.name != "law" for link in registry.arrays_of(v)}
    own = {link.digest for link in registry.arrays_of(registry.resolve("law"))} - needed
    windows = [data for key, data in files_in(s3, store.place).items() if "/c." in key and key.split("/")[1] in own]
    registry.compose(["law", "math"], tmp_path / "with")
    shutil.rmtree(tmp_path / "with")
    assert own & set(store.cache.digests() if store.cache else ())
    done = registry.opt_out("law", purge=True, receipt=tmp_path / "receipt.json")
    assert set(done.deleted_digests) == own
    assert (done.remains, done.old_versions) == ((), ())
    left = [*files_in(s3, store.place).values(), *files_of(registry.home.path).values()]
    assert windows
    assert not [True for window in windows if len(window) > 64 and any(window in data for data in left)]
    assert registry.verify_receipt(tmp_path / "receipt.json").problems == []
    assert registry.verify().problems == ()
    assert set(store.digests()) == needed
    assert registry.gc().digests == ()


@pytest.mark.sqlite
def test_versioned_bucket_is_told_by_purge_and_receipt(zoo: Zoo, s3: S3Server, tmp_path: Path) -> None:
    url = f"s3://{s3.new_bucket(versioned=True)}/team"
    with Registry(tmp_path / "home", arrays=url) as registry:
        registry.add_expert("law", zoo.experts["law"])
    words = ("--home", tmp_path / "home", "--arrays", url)
    result = run(*words, "opt-out", "law", "--purge", "--yes", "--receipt", tmp_path / "receipt.json")
    assert result.exit_code == 0, result.output
    assert "  not deleted: the bucket bucket-" in result.stdout
    assert "keeps versions" in result.stdout
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    assert "keeps versions" in receipt["not_erased"]["remains"][0]


def test_gc_deletes_leftovers_of_a_crash_in_the_bucket(filled_bucket: Registry) -> None:
    store = filled_bucket.arrays
    assert isinstance(store, ObjectArrays)
    stray = "ab" + "0" * 62
    store.bucket.put(f"ab/{stray}/c.0", b"x" * 1000)  # without zarr.json
    assert filled_bucket.gc(dry_run=True).digests == (stray,)
    assert filled_bucket.verify().orphans == 1
    found = filled_bucket.gc()
    assert (found.digests, found.nbytes) == ((stray,), 1000)
    assert not store.has(stray)


def test_verify_reads_the_bucket_and_a_repeat_repairs(filled_bucket: Registry, zoo: Zoo, tmp_path: Path) -> None:
    store = filled_bucket.arrays
    assert isinstance(store, ObjectArrays)
    filled_bucket.compose(["math", "code"], tmp_path / "before")  # everything is copied
    link = next(link for link in filled_bucket.arrays_of(filled_bucket.resolve("math")) if link.role == "mlp")
    key = f"{link.digest[:2]}/{link.digest}/c.0.0"
    store.bucket.put(key, bytes(len(store.bucket.read(key) or b"")))
    (problem,) = filled_bucket.verify().problems
    assert f"math@1, mlp {link.name}: array {link.digest[:12]} is damaged" in problem
    filled_bucket.add_expert("math", zoo.experts["math"])
    assert filled_bucket.verify().problems == ()


def test_forgotten_arrays_are_refused(filled_bucket: Registry, zoo: Zoo) -> None:
    home = filled_bucket.home.path
    filled_bucket.close()
    result = run("--home", home, "add-expert", "new", zoo.experts["law"])
    assert result.exit_code == 1
    assert f"is below {home / 'arrays'}" in result.stderr
    assert "next: name where they are with --arrays or REG_ARRAYS" in result.stderr
    assert not (home / "arrays").exists()


def test_arrays_are_copied_there_and_back(one: Registry, arrays_url: str, s3: S3Server, tmp_path: Path) -> None:
    home, folder = one.home.path, one.home.arrays
    result = run("--home", home, "arrays", "copy", folder, arrays_url)
    assert result.exit_code == 0, result.output
    assert files_in(s3, arrays_url) == files_of(folder)
    assert f"next: reg --home {home} --arrays {arrays_url} verify" in result.stderr
    assert f"export REG_ARRAYS={arrays_url}" in result.stderr
    assert run("--home", home, "verify", arrays=arrays_url).stdout.startswith("intact: ")
    back = run("--home", home, "--json", "arrays", "copy", arrays_url, tmp_path / "back")
    assert files_of(tmp_path / "back") == files_of(folder)
    number = len(list(one.arrays.digests()))
    document = json.loads(back.stdout)
    assert (document["copied"], document["kept"], document["problems"]) == (number, 0, [])


def test_interrupted_copy_goes_on(one: Registry, arrays_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, write, left = one.home.arrays, ObjectArrays._write, [7]

    def dying(*args: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        write(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ObjectArrays, "_write", dying)
        with pytest.raises(KeyboardInterrupt):
            copy_arrays(folder, arrays_url)
    there = list(open_arrays(arrays_url).digests())
    again = copy_arrays(folder, arrays_url)
    assert again.kept == len(there) == 7
    assert again.copied + again.kept == len(list(one.arrays.digests()))
    assert again.problems == ()
    assert copy_arrays(folder, arrays_url).copied == 0


def test_damaged_array_is_not_copied(one: Registry, tmp_path: Path) -> None:
    source = FolderArrays(tmp_path / "source")
    copy_arrays(one.home.arrays, source.root)
    digest = next(source.digests())
    chunk = next(source.path(digest).glob("c.*"))
    chunk.write_bytes(bytes(chunk.stat().st_size - 1) + b"\x01")
    result = run("--home", tmp_path / "home", "arrays", "copy", source.root, tmp_path / "target")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"problem: array {digest[:12]} is damaged")
    assert set(source.digests()) - set(FolderArrays(tmp_path / "target").digests()) == {digest}


def test_copy_to_a_wrong_place_is_refused(one: Registry, arrays_url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="already"):
        copy_arrays(one.home.arrays, one.home.arrays)
    with pytest.raises(NotFoundError, match="there are no arrays below"):
        copy_arrays(tmp_path / "nosuch", arrays_url)
    open_arrays(arrays_url).set_owner("0" * 32)
    with pytest.raises(ConflictError, match="belong to another catalog"):
        copy_arrays(one.home.arrays, arrays_url)


def test_config_shows_where_arrays_and_copies_are(tmp_path: Path) -> None:
    found = json.loads(run("--home", tmp_path, "config", "--json", arrays="s3://bucket/team").stdout)["settings"]
    assert found["arrays"] == {"value": "s3://bucket/team", "source": "environment variable REG_ARRAYS"}
    assert found["chunk_cache"]["value"] == f"{tmp_path / 'chunks'}, at most 10,737,418,240 bytes"
    plain = json.loads(run("--home", tmp_path, "config", "--json").stdout)["settings"]
    assert plain["arrays"] == {"value": str(tmp_path / "arrays"), "source": "default"}
    assert "chunk_cache" not in plain


@pytest.mark.sqlite
def test_server_that_is_gone_is_a_message(filled_bucket: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    home, arrays = filled_bucket.home.path, filled_bucket.home.arrays_place
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("store.object_store.RETRIES", 0)
    assert run("--home", home, "list", arrays=arrays).exit_code == 0
    for word in ("verify", "gc"):
        result = run("--home", home, word, arrays=arrays)
        assert result.exit_code == 1
        assert f"error: {arrays}" in result.stderr
        assert "does not answer\n  next: check the network" in result.stderr
