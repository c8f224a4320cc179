"""Proves: same base, same weights and unrelated models are told apart from samples, before a forward pass."""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Registry
from registry.checkpoint import Checkpoint
from registry.errors import DamagedError, IncompatibleError
from registry.registration.lineage import Relation, relation, weights_of_checkpoint, weights_of_version
from tests.conftest import SETTINGS, Zoo, array_folder, files_of
from tests.models import make_model, save_checkpoint


@pytest.fixture
def stranger(tmp_path: Path, tokenizer: Any) -> Path:
    """A model of the zoo's shape that was made from other random numbers."""
    return save_checkpoint(make_model("llama", 701), tmp_path / "stranger", tokenizer)


def test_expert_knows_its_base_and_its_siblings(filled: Registry) -> None:
    found = filled.relations("code")
    assert [r.verdict for r in found] == ["same base"] * 5
    assert found[0].ref == "base@1"
    assert 0.1 < found[0].distance < 0.3
    assert all(0.2 < r.distance < 0.5 for r in found[1:])


def test_distance_is_that_of_the_whole_tensors(filled: Registry, zoo: Zoo) -> None:
    (base,) = (r for r in filled.relations("code") if r.kind == "base")
    mine, theirs = Checkpoint(zoo.experts["code"]), Checkpoint(zoo.base)
    for name, distance in base.distances.items():
        a, b = mine.tensor(name).double(), theirs.tensor(name).double()  # smaller than a sample, so taken whole
        assert distance == pytest.approx(float((a - b).norm() / (a.norm() ** 2 + b.norm() ** 2).sqrt()), rel=1e-12)


@pytest.mark.check
def test_unrelated_model_is_refused_before_anything_is_written(filled: Registry, stranger: Path) -> None:
    before = files_of(filled.home.path / "arrays")
    with pytest.raises(
        IncompatibleError, match=r"stranger is unrelated to every registered model of its shape.*1\.0"
    ) as caught:
        filled.add_expert("law", stranger)
    assert "--allow-unrelated" in str(caught.value.hint)
    assert "reg add-base" in str(caught.value.hint)
    assert files_of(filled.home.path / "arrays") == before
    registered = filled.add_expert("law", stranger, settings=SETTINGS, allow_unrelated=True)
    assert registered.version.ref == "law@2"
    assert {r.verdict for r in registered.relations} == {"unrelated"}


@pytest.mark.check
def test_unrelated_model_is_taken_with_its_own_base(
    filled: Registry, stranger: Path, tmp_path: Path, tokenizer: Any
) -> None:
    filled.add_base("other", save_checkpoint(make_model("llama", 700), tmp_path / "other", tokenizer))
    registered = filled.add_expert("new", stranger, settings=SETTINGS)
    assert registered.relations[0].ref == "other@1"
    assert [r.verdict for r in registered.relations].count("unrelated") == 6


@pytest.mark.check
def test_model_of_another_shape_is_not_compared(filled: Registry, tmp_path: Path, tokenizer: Any) -> None:
    wide = save_checkpoint(make_model("llama", 701, intermediate_size=96), tmp_path / "wide", tokenizer)
    assert filled.add_expert("wide", wide, settings=SETTINGS).relations == ()


def test_same_weights_under_another_name_are_recognised(filled: Registry, zoo: Zoo) -> None:
    registered = filled.add_expert("copy", zoo.experts["math"])
    assert registered.relations[0].ref == "math@1"
    assert registered.relations[0].verdict == "same weights"
    assert registered.relations[0].distance == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_may_differ(filled: Registry, tmp_path: Path, tokenizer: Any, dtype: torch.dtype) -> None:
    half = save_checkpoint(make_model("llama", 101), tmp_path / "half", tokenizer, dtype=dtype)
    version = filled.resolve("code")
    mine, theirs = weights_of_checkpoint(Checkpoint(half)), weights_of_version(filled.arrays_of(version), filled.arrays)
    found = relation(mine, version, theirs)
    assert found is not None
    assert 0 < found.distance < 0.01


def test_sample_reads_whole_rows_across_chunks(filled: Registry, monkeypatch: pytest.MonkeyPatch, zoo: Zoo) -> None:
    import numpy as np

    name = "model.layers.0.mlp.gate_proj.weight"
    tensor = Checkpoint(zoo.experts["code"]).tensor(name).numpy()
    rows = np.array([0, 3, 63])
    (link,) = (link for link in filled.arrays_of(filled.resolve("code")) if link.name == name)
    assert (filled.arrays.sample(link.digest, rows) == tensor[rows]).all()
    assert (Checkpoint(zoo.experts["code"]).sample(name, rows) == tensor[rows]).all()
    monkeypatch.setattr("store.arrays.source.CHUNK_ELEMENTS", 20 * 32)
    with Registry(filled.home.path.with_name("chunked")) as chunked:
        chunked.add_base("code", zoo.experts["code"])
        assert len(list(array_folder(chunked, link.digest).glob("c.*"))) == 4
        assert (chunked.arrays.sample(link.digest, rows) == tensor[rows]).all()
        (array_folder(chunked, link.digest) / "c.3.0").write_bytes(b"short")
        with pytest.raises(DamagedError, match="cannot be sampled"):
            chunked.arrays.sample(link.digest, rows)
        (array_folder(chunked, link.digest) / "c.3.0").unlink()
        with pytest.raises(DamagedError, match="cannot be sampled"):
            chunked.arrays.sample(link.digest, rows)


def test_all_zero_tensors_are_equal(filled: Registry, zoo: Zoo) -> None:
    weights = weights_of_checkpoint(Checkpoint(zoo.base))
    flat = type(weights)(weights.shapes, weights.dtypes, lambda name, rows: weights.sample(name, rows) * 0)
    found = relation(flat, filled.resolve("code"), flat)
    assert found is not None
    assert found.verdict == "same weights"


def test_norms_alone_still_have_a_distance() -> None:
    assert Relation("a@1", "expert", {"model.norm.weight": 0.5}).distance == 0.5


def test_grown_vocabulary_is_not_the_same_weights() -> None:
    equal = {"model.embed_tokens.weight": 0.0}
    assert Relation("a@1", "expert", equal).verdict == "same weights"
    assert Relation("a@1", "expert", equal, grown=True).verdict == "same base"
