"""Proves: kept sums and solved maps change no byte of a composition, are read in place of statistics, and are bounded.

An opt-out deletes all of them.
"""

import shutil
from collections.abc import Iterator
from errno import ENOSPC
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from registry import Recipe, Registry
from registry.composition.plan import Plan
from registry.errors import ConflictError
from registry.families.sites import MLP_INPUT
from registry.maths.gram_sum import GramSum, gram_sum
from registry.member import Member
from registry.statistics import kept_tensors
from registry.statistics.cache import FileCache
from registry.statistics.input_products import InputProducts
from registry.statistics.kept_tensors import MAPS, PRODUCTS, SUMS, KeptTensors
from registry.statistics.subset_sums import SubsetSums
from tests.conftest import files_of

PAIR = ("code", "math")
RIDGE = Recipe(trunk="mean", router="ridge")
REGMEAN = Recipe(trunk="regmean", router="ridge")


@pytest.fixture
def members(filled: Registry) -> tuple[Member, ...]:
    plan = filled.plan(PAIR, RIDGE)
    assert isinstance(plan, Plan)
    return plan.members


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder that is made when the first file is kept."""
    return tmp_path / "cache"


@pytest.fixture
def sums(cache: Path) -> SubsetSums:
    return SubsetSums(KeptTensors(FileCache(cache), partial(mkdtemp, dir=cache.parent)))


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "bit":
        data[-9] ^= 1
        path.write_bytes(data)
    elif how == "cut":
        path.write_bytes(data[:-8])
    elif how == "gone":
        path.unlink()


def same(one: GramSum, other: GramSum) -> bool:
    return torch.equal(one.gram.triu(), other.gram.triu()) and torch.equal(one.moments, other.moments)


def kinds(home: Path) -> set[str]:
    return {path.name.split("-")[0] + "-" for path in home.glob("*.safetensors")}


def refuse(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("what is kept was made again")


@pytest.mark.parametrize("how", ["none", "bit", "cut", "gone"])
def test_a_kept_sum_is_the_sum_whatever_happened_to_it(
    members: tuple[Member, ...], sums: SubsetSums, cache: Path, how: str
) -> None:
    expected = gram_sum([member.packed_statistics(MLP_INPUT, 1) for member in members], [2.0, 2.0])
    for _ in range(2):
        assert same(sums.gram(members, MLP_INPUT, 1, [2.0, 2.0]), expected)
        (path,) = cache.iterdir()
        assert path.name.startswith(SUMS)
        damage(path, how)
    assert same(sums.gram(members, MLP_INPUT, 1, [2.0, 2.0]), expected)
    assert [path.name for path in cache.iterdir()] == [path.name]


def test_sums_of_other_factors_layers_and_members_are_others(
    members: tuple[Member, ...], sums: SubsetSums, cache: Path
) -> None:
    for given, layer, weights in (
        (members, 0, [1.0, 1.0]),
        (members, 1, [1.0, 1.0]),
        (members, 0, [2.0, 2.0]),
        (members[::-1], 0, [1.0, 1.0]),
        (members[:1], 0, [1.0]),
    ):
        expected = gram_sum([member.packed_statistics(MLP_INPUT, layer) for member in given], weights)
        for _ in range(2):
            assert same(sums.gram(given, MLP_INPUT, layer, weights), expected)
    assert len(list(cache.iterdir())) == 5


def test_sums_with_factors_of_their_own_are_not_kept(
    members: tuple[Member, ...], sums: SubsetSums, cache: Path
) -> None:
    expected = gram_sum([member.packed_statistics(MLP_INPUT, 0) for member in members], [1.0, 3.0])
    assert same(sums.gram(members, MLP_INPUT, 0, [1.0, 3.0]), expected)
    assert not cache.exists()


@pytest.mark.parametrize("how", ["none", "bit", "cut", "gone"])
@pytest.mark.parametrize("first", [0, 1])
def test_maps_are_solved_once(sums: SubsetSums, cache: Path, how: str, first: int) -> None:
    shapes, solved = [(700, 3), (5, 3)], list[int]()
    whole = [torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) for shape in shapes]

    def solve(begin: int) -> Iterator[tuple[int, torch.Tensor]]:
        solved.append(begin)
        for number, rows in enumerate(whole[begin:], begin):
            yield from ((number, few) for few in rows.split(100))

    for _ in range(2):
        found: dict[int, list[torch.Tensor]] = {}
        for number, rows in sums.maps(shapes, "maps", solve, first):
            found.setdefault(number, []).append(rows)
        assert sorted(found) == list(range(first, 2))
        assert all(torch.equal(torch.cat(found[number]), whole[number]) for number in found)
        (path,) = cache.iterdir()
        damage(path, how)
    assert solved == ([0] if how == "none" else [0, 0])


def test_a_full_disk_only_keeps_nothing(members: tuple[Member, ...], cache: Path) -> None:
    def full() -> str:
        raise OSError(ENOSPC, "no space left on device")

    def solve(begin: int) -> Iterator[tuple[int, torch.Tensor]]:
        yield begin, torch.ones(2, 3, dtype=torch.float64)

    sums = SubsetSums(KeptTensors(FileCache(cache), full))
    expected = gram_sum([member.packed_statistics(MLP_INPUT, 0) for member in members], [1.0, 1.0])
    assert same(sums.gram(members, MLP_INPUT, 0, [1.0, 1.0]), expected)
    ((number, rows),) = sums.maps([(2, 3)], "maps", solve)
    assert number == 0
    assert torch.equal(rows, torch.ones(2, 3, dtype=torch.float64))
    assert not cache.exists()


def test_maps_that_cannot_be_solved_leave_nothing(sums: SubsetSums, cache: Path) -> None:
    def solve(begin: int) -> Iterator[tuple[int, torch.Tensor]]:
        yield begin, torch.zeros(1, 3, dtype=torch.float64)
        raise ValueError("not positive definite")

    with pytest.raises(ValueError, match="not positive definite"):
        next(sums.maps([(2, 3)], "maps", solve))
    assert not cache.exists()
    assert list(cache.parent.glob("tmp*")) == []


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (RIDGE, {SUMS}),
        (REGMEAN, {SUMS, PRODUCTS, MAPS}),
        (Recipe(), {PRODUCTS, MAPS}),
        (Recipe(trunk="regmean", trunk_options={"alpha": 0.9}, dtype="bfloat16"), {PRODUCTS, MAPS}),
        (Recipe(trunk="mean", router="ridge", lam="auto", normalize=False), {SUMS}),
        (Recipe(trunk="regmean", router="ridge", weights={"math": 2.0}), {PRODUCTS}),
        (Recipe(trunk="regmean", router="ridge", balance="tokens"), None),
        (Recipe(trunk="mean", router="ridge", refine=1), None),
    ],
    ids=["ridge", "regmean", "default", "alpha", "lam", "weights", "balance", "refine"],
)
def test_compositions_have_the_same_bytes_cold_warm_and_after_damage(
    filled: Registry, tmp_path: Path, recipe: Recipe, expected: set[str] | None, threads: int
) -> None:
    before, found = torch.get_num_threads(), list[Any]()
    torch.set_num_threads(threads)
    try:
        for how in ("cold", "none", "bit", "gone"):
            for path in filled.home.cache.glob("*"):
                damage(path, how)
            filled.compose(PAIR, tmp_path / how, recipe)
            found.append(files_of(tmp_path / how))
            assert expected is None or kinds(filled.home.cache) == expected
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.check(after=1)
@pytest.mark.parametrize("recipe", [RIDGE, REGMEAN], ids=["mean", "regmean"])
def test_another_ridge_strength_reads_no_statistics_and_solves_no_map(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe
) -> None:
    settings: dict[str, Any] = {"trunk": recipe.trunk, "router": "ridge", "lam": 3.0}
    filled.compose(PAIR, tmp_path / "before", recipe)
    with monkeypatch.context() as patch:
        patch.setattr(Member, "packed_statistics", refuse)
        patch.setattr(InputProducts, "of", refuse)
        filled.compose(PAIR, tmp_path / "warm", Recipe(**settings))
    shutil.rmtree(filled.home.cache)
    filled.compose(PAIR, tmp_path / "cold", Recipe(**settings))
    assert files_of(tmp_path / "warm") == files_of(tmp_path / "cold")
    assert files_of(tmp_path / "warm") != files_of(tmp_path / "before")


@pytest.mark.check
def test_a_composed_trunk_serves_every_router(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.compose(PAIR, tmp_path / "before", REGMEAN)
    with monkeypatch.context() as patch:
        patch.setattr(InputProducts, "of", refuse)
        filled.compose(PAIR, tmp_path / "warm", Recipe(trunk="regmean", router="context"))
    shutil.rmtree(filled.home.cache)
    filled.compose(PAIR, tmp_path / "cold", Recipe(trunk="regmean", router="context"))
    assert files_of(tmp_path / "warm") == files_of(tmp_path / "cold")


def test_an_opt_out_of_a_member_deletes_every_sum(filled: Registry, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "one", REGMEAN)
    assert kinds(filled.home.cache) == {SUMS, PRODUCTS, MAPS}
    parts = [path.read_bytes()[-64:] for path in filled.home.cache.glob("*.safetensors")]
    filled.opt_out("code", purge=True)
    left = [path.read_bytes() for path in filled.home.path.rglob("*") if path.is_file()]
    assert not any(part in data for part in parts for data in left)
    with pytest.raises(ConflictError):
        filled.compose(("code@1", "math"), tmp_path / "two", REGMEAN)


@pytest.mark.check
def test_the_cache_is_bounded(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.compose(PAIR, tmp_path / "whole", REGMEAN)
    files = list(filled.home.cache.iterdir())
    most = sum(path.stat().st_size for path in files) // 2
    shutil.rmtree(filled.home.cache)
    for number, room in enumerate((most, 10)):
        monkeypatch.setattr(kept_tensors, "MOST_BYTES", room)
        filled.compose(PAIR, tmp_path / str(number), REGMEAN)
        assert files_of(tmp_path / str(number)) == files_of(tmp_path / "whole")
        assert sum(path.stat().st_size for path in filled.home.cache.iterdir()) <= most
