"""Proves: kept products, sums and maps change no byte of a composition, are read in place of statistics, are bounded.

Nor do damage to them and the number of threads change a byte. An opt-out deletes all of them.
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
from torch import Tensor

from registry import Recipe, Registry
from registry.composition.plan import Plan
from registry.errors import ConflictError
from registry.families.sites import ATTENTION_INPUT, MLP_INPUT
from registry.hosts.remote_code import REMOTE_CODE
from registry.io.torch_blocks import to_tensor
from registry.maths.statistics import GramSum, gram_sum
from registry.member import Member
from registry.statistics import cache as kept_files
from registry.statistics.cache import MAPS, PRODUCTS, SUMS, FileCache, KeptTensors
from tests.conftest import files_of
from tests.registry.maths.drawn import with_threads

PAIR = ("code", "math")
NAMES = tuple(f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkv")
RIDGE = Recipe(trunk="mean", router="ridge")
REGMEAN = Recipe(trunk="regmean", router="ridge")
Members = tuple[Member, ...]
DAMAGE = ("none", "bit", "cut", "gone")


@pytest.fixture
def members(filled: Registry) -> Members:
    plan = filled.plan(PAIR, RIDGE)
    assert isinstance(plan, Plan)
    return plan.members


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder that is made when the first file is kept."""
    return tmp_path / "cache"


@pytest.fixture
def kept(cache: Path) -> KeptTensors:
    return KeptTensors(FileCache(cache), partial(mkdtemp, dir=cache.parent))


def product_rows(kept: KeptTensors, member: Member) -> dict[str, Tensor]:
    with kept.products(member, ATTENTION_INPUT, 1, NAMES) as rows:
        return {name: rows[name](0, member.weight(name).shape[0]) for name in NAMES}


def sum_of(members: Members, layer: int, weights: list[float]) -> GramSum:
    return gram_sum([member.packed_statistics(MLP_INPUT, layer) for member in members], weights)


def same(one: GramSum, other: GramSum) -> bool:
    return torch.equal(one.gram.triu(), other.gram.triu()) and torch.equal(one.moments, other.moments)


def damage(folder: Path, how: str) -> None:
    for path in folder.glob("*"):
        data = bytearray(path.read_bytes())
        if how == "bit":
            data[-9] ^= 1
            path.write_bytes(data)
        elif how == "cut":
            path.write_bytes(data[:-8])
        elif how == "gone":
            path.unlink()


def kinds(folder: Path) -> set[str]:
    return {path.name.split("-")[0] + "-" for path in folder.glob("*.safetensors")}


def refuse(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("what is kept was made again")


def test_products_are_those_of_weights_and_grams(members: Members) -> None:
    gram, found = members[0].statistics(ATTENTION_INPUT, 1).gram, product_rows(KeptTensors(), members[0])
    for name in NAMES:
        source = members[0].source(name)
        weight = torch.cat([to_tensor(block, source.dtype) for block in source.blocks()]).double()
        atol = 1e-12 * float((weight @ gram).abs().max())
        torch.testing.assert_close(found[name], weight @ gram, rtol=1e-12, atol=atol)
    with KeptTensors().products(members[0], ATTENTION_INPUT, 1, NAMES) as rows:
        assert torch.equal(rows[NAMES[0]](3, 7), found[NAMES[0]][3:7])


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_changes_no_product_and_no_sum(members: Members, kept: KeptTensors, cache: Path, how: str) -> None:
    products, total, inodes = product_rows(KeptTensors(), members[0]), sum_of(members, 1, [2.0, 2.0]), []
    for _ in range(3):
        found = product_rows(kept, members[0])
        assert all(torch.equal(found[name], products[name]) for name in NAMES)
        assert same(kept.gram(members, MLP_INPUT, 1, [2.0, 2.0]), total)
        assert kinds(cache) == {PRODUCTS, SUMS}
        inodes.append(sorted(path.stat().st_ino for path in cache.iterdir()))
        damage(cache, how)
    assert list(map(len, inodes)) == [2, 2, 2]
    assert how != "none" or inodes[0] == inodes[2]


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("first", [0, 1])
def test_maps_are_solved_once(kept: KeptTensors, cache: Path, how: str, first: int) -> None:
    shapes, solved = [(700, 3), (5, 3)], list[int]()
    whole = [torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) for shape in shapes]

    def solve(begin: int) -> Iterator[tuple[int, Tensor]]:
        solved.append(begin)
        for number, rows in enumerate(whole[begin:], begin):
            yield from ((number, few) for few in rows.split(100))

    for _ in range(2):
        found: dict[int, list[Tensor]] = {}
        for number, rows in kept.maps(shapes, "maps", solve, first):
            found.setdefault(number, []).append(rows)
        assert sorted(found) == list(range(first, 2))
        assert all(torch.equal(torch.cat(found[number]), whole[number]) for number in found)
        assert len(list(cache.iterdir())) == 1
        damage(cache, how)
    assert solved == ([0] if how == "none" else [0, 0])


def test_sums_of_other_factors_layers_and_members_are_others(members: Members, kept: KeptTensors, cache: Path) -> None:
    for given, layer, weights in (
        (members, 0, [1.0, 1.0]),
        (members, 1, [1.0, 1.0]),
        (members, 0, [2.0, 2.0]),
        (members[::-1], 0, [1.0, 1.0]),
        (members[:1], 0, [1.0]),
        (members, 0, [1.0, 3.0]),  # factors of their own: not kept
    ):
        for _ in range(2):
            assert same(kept.gram(given, MLP_INPUT, layer, weights), sum_of(given, layer, weights))
    assert len(list(cache.iterdir())) == 5


def test_files_in_use_stay_readable(members: Members, kept: KeptTensors, cache: Path) -> None:
    expected = product_rows(kept, members[0])
    with kept.products(members[0], ATTENTION_INPUT, 1, NAMES) as rows:
        shutil.rmtree(cache)  # an opt-out empties the cache
        assert torch.equal(rows[NAMES[0]](0, 4), expected[NAMES[0]][:4])


def test_the_last_used_stays(members: Members, kept: KeptTensors, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def use(*names: str, layer: int = 1) -> None:
        with kept.products(members[0], ATTENTION_INPUT, layer, names):
            pass

    for place, layer in enumerate((0, 1, 0)):
        use(*(name.replace("layers.1", f"layers.{layer}") for name in NAMES), layer=layer)
        files = sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        assert len(files) == min(place + 1, 2)
    monkeypatch.setattr(kept_files, "MOST_BYTES", sum(path.stat().st_size for path in files) + 10)
    use(NAMES[0])
    left = set(cache.iterdir())
    assert files[1] in left
    assert files[0] not in left
    monkeypatch.setattr(kept_files, "MOST_BYTES", 10)
    use(*NAMES[1:])
    assert set(cache.iterdir()) == left


def test_a_full_disk_and_maps_that_cannot_be_solved_leave_nothing(
    members: Members, kept: KeptTensors, cache: Path
) -> None:
    def full() -> str:
        raise OSError(ENOSPC, "no space left on device")

    def solve(begin: int) -> Iterator[tuple[int, Tensor]]:
        yield begin, torch.ones(2, 3, dtype=torch.float64)

    def fail(begin: int) -> Iterator[tuple[int, Tensor]]:
        yield begin, torch.zeros(1, 3, dtype=torch.float64)
        raise ValueError("not positive definite")

    sums = KeptTensors(FileCache(cache), full)
    assert same(sums.gram(members, MLP_INPUT, 0, [1.0, 1.0]), sum_of(members, 0, [1.0, 1.0]))
    ((number, rows),) = sums.maps([(2, 3)], "maps", solve)
    assert number == 0
    assert torch.equal(rows, torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="not positive definite"):
        next(kept.maps([(2, 3)], "maps", fail))
    assert not cache.exists()
    assert list(cache.parent.glob("tmp*")) == []


RECIPES: dict[str, tuple[Recipe, set[str] | None]] = {
    "regmean": (REGMEAN, {SUMS, PRODUCTS, MAPS}),
    "default": (Recipe(), {PRODUCTS, MAPS}),
    "ridge": (RIDGE, {SUMS}),
    "alpha": (Recipe(trunk="regmean", trunk_options={"alpha": 0.9}, dtype="bfloat16"), {PRODUCTS, MAPS}),
    "lam": (Recipe(trunk="mean", router="ridge", lam=0.5, normalize=False), {SUMS}),
    "weights": (Recipe(trunk="regmean", router="ridge", weights={"math": 2.0}), {PRODUCTS}),
    "balance": (Recipe(trunk="regmean", router="ridge", balance="tokens"), None),
    "remote-code": (Recipe(host=REMOTE_CODE), None),
    "refine": (Recipe(trunk="mean", router="ridge", refine=1), None),
}
"""Name → a recipe, and what compositions by it keep."""


@pytest.mark.check
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("name", RECIPES)
def test_compositions_have_the_same_bytes_whatever_is_kept(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("registry.io.model_folder.ONE_FILE_BYTES", 0)
    (recipe, expected), found = RECIPES[name], list[dict[str, bytes]]()

    def compose(how: str) -> None:
        damage(filled.home.cache, how)
        out = tmp_path / str(len(found))
        filled.compose(PAIR, out, recipe)
        found.append(files_of(out))

    for how in ("none", "none", "bit", "gone"):
        compose(how)
        assert expected is None or kinds(filled.home.cache) == expected
    if not recipe.refine:  # whose passes through models may round otherwise on more threads
        with_threads(lambda: compose("gone"), 2, 3)
    monkeypatch.setattr(kept_files, "MOST_BYTES", 10)
    compose("gone")
    assert not kinds(filled.home.cache) & {SUMS, PRODUCTS, MAPS}
    assert all(files == found[0] for files in found)


@pytest.mark.check(after=1)
@pytest.mark.parametrize(
    ("recipe", "other"),
    [
        (RIDGE, Recipe(trunk="mean", router="ridge", lam=3.0)),
        (REGMEAN, Recipe(trunk="regmean", router="ridge", lam=3.0)),
        (REGMEAN, Recipe(trunk="regmean", router="context")),
    ],
    ids=["mean", "regmean", "another router"],
)
def test_another_strength_or_router_reads_no_statistics(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, other: Recipe
) -> None:
    filled.compose(PAIR, tmp_path / "before", recipe)
    with monkeypatch.context() as patch:
        patch.setattr(Member, "packed_statistics", refuse)
        patch.setattr(KeptTensors, "products", refuse)
        filled.compose(PAIR, tmp_path / "warm", other)
    shutil.rmtree(filled.home.cache)
    filled.compose(PAIR, tmp_path / "cold", other)
    assert files_of(tmp_path / "warm") == files_of(tmp_path / "cold")
    assert files_of(tmp_path / "warm") != files_of(tmp_path / "before")


def test_an_opt_out_deletes_everything_that_is_kept(filled: Registry, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "one", REGMEAN)
    filled.opt_out("law")
    assert not filled.home.cache.exists()
    filled.compose(PAIR, tmp_path / "two", REGMEAN)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert kinds(filled.home.cache) == {SUMS, PRODUCTS, MAPS}
    parts = [path.read_bytes()[-64:] for path in filled.home.cache.glob("*.safetensors")]
    filled.opt_out("code", purge=True)
    left = [path.read_bytes() for path in filled.home.path.rglob("*") if path.is_file()]
    assert not any(part in data for part in parts for data in left)
    with pytest.raises(ConflictError):
        filled.compose(("code@1", "math"), tmp_path / "three", REGMEAN)
