"""Proves: copies of chunks never take more than they may, for several processes at once, and none outlives a purge."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from store.arrays import ArraySource, open_arrays
from store.arrays.chunk_cache import ChunkCache, cache_bytes
from store.errors import InvalidInputError

ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64


def held_by(cache: ChunkCache) -> int:
    return sum(size for _, size, _ in cache._files())


def test_what_was_read_last_stays(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, 100)
    for age, digest in enumerate((ONE, TWO)):
        cache.keep(digest, "c.0", b"x" * 40)
        os.utime(cache.path(digest, "c.0"), (age, age))
    assert cache.read(ONE, "c.0", 100) == b"x" * 40  # which makes it the newest
    cache.keep(THREE, "c.0", b"y" * 40)
    assert cache.digests() == [ONE, THREE]
    assert held_by(cache) == 80


def test_more_than_may_be_kept_is_not_kept_and_nothing_where_nobody_may_write(tmp_path: Path) -> None:
    for size, data in ((100, b"x" * 101), (0, b"x")):
        ChunkCache(tmp_path, size).keep(ONE, "c.0", data)
        assert ChunkCache(tmp_path, 100).digests() == []
    (tmp_path / "file").write_text("")
    ChunkCache(tmp_path / "file", 100).keep(ONE, "c.0", b"x")
    assert ChunkCache(tmp_path / "file", 100).read(ONE, "c.0", 9) is None


def test_file_that_is_open_stays_readable(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, 100)
    cache.keep(ONE, "c.0", b"x" * 60)
    with cache.path(ONE, "c.0").open("rb") as file:
        cache.keep(TWO, "c.0", b"y" * 60)
        assert cache.digests() == [TWO]
        assert file.read() == b"x" * 60


def test_figure_that_a_crash_left_is_mended(tmp_path: Path) -> None:
    for left in ("", "nonsense", "99999999"):
        cache = ChunkCache(tmp_path / f"x{left}", 100)
        cache.keep(ONE, "c.0", b"x" * 40)
        (tmp_path / f"x{left}" / "bytes").write_text(left)
        cache.keep(TWO, "c.0", b"y" * 40)
        assert cache.digests() == [ONE, TWO]
        cache.keep(THREE, "c.0", b"z" * 40)
        assert held_by(cache) <= 100


_KEEPER = """
import sys
from pathlib import Path
from store.arrays.chunk_cache import ChunkCache
cache = ChunkCache(Path(sys.argv[1]), 10_000)
for number in range(150):
    cache.keep(f"{int(sys.argv[2]) * 1000 + number:064x}", "c.0", bytes(700))
    held = sum(size for _, size, _ in cache._files())
    assert held <= 10_000, held
"""


@pytest.mark.check
def test_limit_holds_for_several_processes(tmp_path: Path) -> None:
    keepers = [
        subprocess.Popen([sys.executable, "-c", _KEEPER, tmp_path, str(number)], env={**os.environ, "PYTHONPATH": "."})
        for number in range(3)
    ]
    assert [keeper.wait() for keeper in keepers] == [0, 0, 0]
    assert 5_000 < held_by(ChunkCache(tmp_path)) <= 10_000


def test_nothing_is_kept_of_what_was_deleted_for_good(tmp_path: Path) -> None:
    cache = ChunkCache(tmp_path, 100)
    cache.keep(ONE, "c.0", b"x")
    cache.drop(ONE, for_good=True)
    cache.keep(ONE, "c.1", b"y")  # by a reader that had fetched it before
    assert cache.digests() == [] or held_by(cache) == 0
    cache.allow(ONE)
    cache.keep(ONE, "c.1", b"y")
    assert cache.read(ONE, "c.1", 9) == b"y"
    cache.drop(ONE, for_good=True)
    cache.keep_only({ONE})
    cache.keep(ONE, "c.1", b"y")
    assert held_by(cache) == 1
    cache.keep_only(set())
    assert cache.digests() == []


def test_array_that_does_not_fit_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REG_CACHE_BYTES", "50000")
    store = open_arrays(f"memory://{tmp_path.name}", tmp_path)
    data = np.arange(30_000, dtype=np.int64).reshape(-1, 100)
    monkeypatch.setattr("store.arrays.source.CHUNK_ELEMENTS", 3000)
    digest = store.put(ArraySource.of(data, "int64"))
    for _ in range(3):
        assert store.read(digest).tobytes() == data.tobytes()
        assert 0 < held_by(ChunkCache(tmp_path)) <= 50_000


def test_size_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REG_CACHE_BYTES", "10 GB")
    with pytest.raises(InvalidInputError, match="REG_CACHE_BYTES is '10 GB', and not a number of bytes"):
        open_arrays("memory://x", Path("chunks"))
    monkeypatch.setenv("REG_CACHE_BYTES", "7")
    assert cache_bytes() == 7
