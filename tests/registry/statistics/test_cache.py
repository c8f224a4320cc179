"""Proves: the cache gives back what was put there, bit for bit, or nothing."""

from pathlib import Path

import pytest

from registry.errors import DamagedError
from registry.families.sites import MLP_INPUT
from registry.statistics import file as statistics_file
from registry.statistics.cache import Cached, StatisticsCache
from tests.conftest import Zoo

KEY = "ab" * 32


@pytest.fixture
def collected(zoo: Zoo) -> statistics_file.Collected:
    return statistics_file.load(zoo.experts["code"] / "statistics.safetensors")


def test_gives_back_what_was_put(tmp_path: Path, collected: statistics_file.Collected) -> None:
    cache = StatisticsCache(tmp_path / "cache")
    assert cache.get(KEY) is None
    cache.put(KEY, collected)
    found = cache.get(KEY)
    assert found is not None
    for layer, expected in enumerate(collected.sites[MLP_INPUT]):
        assert found.statistics(MLP_INPUT, layer) == expected
        assert found.folds(MLP_INPUT, layer) == collected.all_folds(MLP_INPUT, layer)
        assert len(found.folds(MLP_INPUT, layer)) == 2
    assert cache.get("cd" * 32) is None
    assert [path.name.split(".")[0] for path in cache.folder.iterdir()] == [KEY]


@pytest.mark.parametrize("place", [0, 100, -1])
def test_any_damage_is_found_out(tmp_path: Path, collected: statistics_file.Collected, place: int) -> None:
    cache = StatisticsCache(tmp_path)
    path = cache.put(KEY, collected).path
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[place] ^= 4
    path.write_bytes(damaged)
    assert cache.get(KEY) is None
    assert not path.exists()
    path.write_bytes(whole[:-9])
    assert cache.get(KEY) is None
    assert cache.put(KEY, collected).path.read_bytes() == whole


def test_file_that_goes_meanwhile_can_still_be_read(tmp_path: Path, collected: statistics_file.Collected) -> None:
    """Another process opts a version out, which empties the cache, while a composition reads."""
    cached = StatisticsCache(tmp_path).put(KEY, collected)
    cached.path.unlink()
    assert cached.statistics(MLP_INPUT, 0) == collected.sites[MLP_INPUT][0]
    with pytest.raises(DamagedError, match="is gone") as caught:
        Cached.open(cached.path)
    assert "repeat the command" in str(caught.value.hint)
