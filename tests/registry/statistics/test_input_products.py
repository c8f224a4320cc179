"""Proves: products of weights and Grams are the same bits from the cache and without it, and the cache is bounded."""

import shutil
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from registry import Recipe, Registry
from registry.composition.plan import Plan
from registry.families.sites import ATTENTION_INPUT
from registry.hosts.remote_code import REMOTE_CODE
from registry.io.torch_blocks import to_tensor
from registry.member import Member
from registry.statistics import kept_tensors
from registry.statistics.cache import FileCache
from registry.statistics.input_products import InputProducts
from registry.statistics.kept_tensors import PRODUCTS, KeptTensors
from tests.conftest import files_of

PAIR = ("code", "math")
NAMES = tuple(f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkv")
REGMEAN = Recipe(trunk="regmean", router="ridge")


@pytest.fixture
def member(filled: Registry) -> Member:
    plan = filled.plan(PAIR, REGMEAN)
    assert isinstance(plan, Plan)
    return plan.members[0]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder that is made when the first file is kept."""
    return tmp_path / "cache"


def taken(products: InputProducts, member: Member) -> dict[str, torch.Tensor]:
    with products.of(member, ATTENTION_INPUT, 1, NAMES) as rows:
        return {name: rows[name](0, member.weight(name).shape[0]) for name in NAMES}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_products_are_those_of_weights_and_grams(member: Member) -> None:
    gram = member.statistics(ATTENTION_INPUT, 1).gram
    for name, found in taken(InputProducts(), member).items():
        source = member.open_weight(name)
        weight = torch.cat([to_tensor(block, source.dtype) for block in source.blocks()]).double()
        torch.testing.assert_close(found, weight @ gram, rtol=1e-12, atol=1e-12 * float((weight @ gram).abs().max()))


def test_some_rows(member: Member) -> None:
    with InputProducts().of(member, ATTENTION_INPUT, 1, NAMES) as rows:
        whole = rows[NAMES[0]](0, member.weight(NAMES[0]).shape[0])
        assert torch.equal(rows[NAMES[0]](3, 7), whole[3:7])


@pytest.mark.parametrize("damage", ["none", "bit", "cut", "gone"])
def test_the_cache_gives_the_same_bits_whatever_happened_to_it(member: Member, cache: Path, damage: str) -> None:
    cached, expected = (
        InputProducts(KeptTensors(FileCache(cache), partial(mkdtemp, dir=cache.parent))),
        taken(InputProducts(), member),
    )
    assert same(taken(cached, member), expected)
    (path,) = cache.iterdir()
    assert path.name.startswith(PRODUCTS)
    data = bytearray(path.read_bytes())
    if damage == "bit":
        data[-9] ^= 1
        path.write_bytes(data)
    elif damage == "cut":
        path.write_bytes(data[:-8])
    elif damage == "gone":
        path.unlink()
    inode = path.stat().st_ino if damage == "none" else None
    assert same(taken(cached, member), expected)
    (path,) = cache.iterdir()
    assert inode in (None, path.stat().st_ino)


def test_files_in_use_stay_readable(member: Member, cache: Path) -> None:
    cached = InputProducts(KeptTensors(FileCache(cache), partial(mkdtemp, dir=cache.parent)))
    expected = taken(cached, member)
    with cached.of(member, ATTENTION_INPUT, 1, NAMES) as rows:
        shutil.rmtree(cache)  # an opt-out empties the cache
        assert torch.equal(rows[NAMES[0]](0, 4), expected[NAMES[0]][:4])


def test_the_cache_keeps_what_was_used_last(member: Member, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = InputProducts(KeptTensors(FileCache(cache), partial(mkdtemp, dir=cache.parent)))
    for place, layer in enumerate((0, 1, 0)):
        names = [name.replace("layers.1", f"layers.{layer}") for name in NAMES]
        with cached.of(member, ATTENTION_INPUT, layer, names):
            pass
        files = sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        assert len(files) == min(place + 1, 2)
    room = sum(path.stat().st_size for path in files) + 10
    monkeypatch.setattr(kept_tensors, "MOST_BYTES", room)
    with cached.of(member, ATTENTION_INPUT, 1, NAMES[:1]):
        pass
    kept = set(cache.iterdir())
    assert files[1] in kept
    assert files[0] not in kept
    monkeypatch.setattr(kept_tensors, "MOST_BYTES", 10)
    with cached.of(member, ATTENTION_INPUT, 1, NAMES[1:]):
        pass
    assert set(cache.iterdir()) == kept


def test_compositions_keep_products_and_an_opt_out_deletes_them(filled: Registry, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "one", REGMEAN)
    kept = list(filled.home.cache.glob(f"{PRODUCTS}*"))
    assert kept
    filled.compose(PAIR, tmp_path / "two", REGMEAN)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    filled.opt_out("law")
    assert not filled.home.cache.exists()
    filled.compose(PAIR, tmp_path / "three", REGMEAN)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "three")


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    "recipe",
    [
        REGMEAN,
        Recipe(),
        Recipe(trunk="mean", router="ridge", lam="auto"),
        Recipe(trunk="regmean", trunk_options={"alpha": 0.9}, dtype="bfloat16"),
        Recipe(host=REMOTE_CODE),
    ],
    ids=["regmean", "default", "lam", "alpha", "remote-code"],
)
def test_bytes_do_not_depend_on_the_number_of_threads(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe
) -> None:
    monkeypatch.setattr("registry.io.model_folder.ONE_FILE_BYTES", 0)
    before, found = torch.get_num_threads(), list[Any]()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            shutil.rmtree(filled.home.cache, ignore_errors=True)
            filled.compose(PAIR, tmp_path / str(threads), recipe)
            assert torch.get_num_threads() == threads
            found.append(files_of(tmp_path / str(threads)))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]
