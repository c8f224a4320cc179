"""Proves: same base, same weights and unrelated models are told apart from samples, before a forward pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from registry import PassSettings, Registry
from registry.checkpoint import Checkpoint
from registry.errors import IncompatibleError
from registry.registration.lineage import Relation, relation, weights_of_checkpoint, weights_of_version
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint

COUNTS = PassSettings(tokens=64, seq_len=32, sites="counts")


@pytest.fixture
def stranger(tmp_path: Path, tokenizer: Any) -> Path:
    """A model of the zoo's shape that was made from other random numbers."""
    return save_checkpoint(make_model("llama", 701), tmp_path / "stranger", tokenizer)


def test_expert_knows_its_base_and_its_siblings(filled: Registry, zoo: Zoo) -> None:
    found = filled.relations("code")
    assert [r.verdict for r in found] == ["same base"] * 5
    assert [r.ref for r in found if r.kind == "base"] == [found[0].ref] == ["base@1"]
    assert 0.1 < found[0].distance < 0.3
    assert all(0.2 < r.distance < 0.5 for r in found[1:])
    mine, theirs = Checkpoint(zoo.experts["code"]), Checkpoint(zoo.base)
    for name, distance in found[0].distances.items():
        a, b = mine.tensor(name).double(), theirs.tensor(name).double()  # smaller than a sample, so taken whole
        assert distance == pytest.approx(float((a - b).norm() / (a.norm() ** 2 + b.norm() ** 2).sqrt()), rel=1e-12)
        assert (mine.sample(name, np.array([0, 3, 7])) == mine.tensor(name).numpy()[[0, 3, 7]]).all()


@pytest.mark.check
def test_unrelated_model_is_refused_before_anything_is_written(
    filled: Registry, stranger: Path, zoo: Zoo, tmp_path: Path, tokenizer: Any
) -> None:
    """It is taken where that is allowed, and with its own base."""
    before = files_of(filled.home.path / "arrays")
    with pytest.raises(
        IncompatibleError, match=r"stranger is unrelated to every registered model of its shape.*1\.0"
    ) as caught:
        filled.add_expert("law", stranger)
    assert "--allow-unrelated" in str(caught.value.hint)
    assert "reg add-base" in str(caught.value.hint)
    assert files_of(filled.home.path / "arrays") == before
    data = [zoo.train["law"]]
    registered = filled.add_expert("law", stranger, data=data, settings=COUNTS, allow_unrelated=True)
    assert registered.version.ref == "law@2"
    assert {r.verdict for r in registered.relations} == {"unrelated"}
    filled.opt_out("law@2")
    filled.add_base("other", save_checkpoint(make_model("llama", 700), tmp_path / "other", tokenizer))
    registered = filled.add_expert("new", stranger, data=data, settings=COUNTS)
    assert registered.relations[0].ref == "other@1"
    assert [r.verdict for r in registered.relations].count("unrelated") == 6


def test_model_of_another_shape_is_not_compared(filled: Registry, zoo: Zoo, tmp_path: Path, tokenizer: Any) -> None:
    wide = save_checkpoint(make_model("llama", 701, intermediate_size=96), tmp_path / "wide", tokenizer)
    assert filled.add_expert("wide", wide, data=[zoo.train["law"]], settings=COUNTS).relations == ()


def test_same_weights_under_another_name_are_recognised(filled: Registry, zoo: Zoo) -> None:
    (found, *_) = filled.add_expert("copy", zoo.experts["math"]).relations
    assert (found.ref, found.verdict, found.distance) == ("math@1", "same weights", 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_may_differ(filled: Registry, tmp_path: Path, tokenizer: Any, dtype: torch.dtype) -> None:
    half = save_checkpoint(make_model("llama", 101), tmp_path / "half", tokenizer, dtype=dtype)
    version = filled.resolve("code")
    mine, theirs = weights_of_checkpoint(Checkpoint(half)), weights_of_version(filled._workspace, version)
    found = relation(mine, version.ref, version.kind, theirs)
    assert found is not None
    assert 0 < found.distance < 0.01


def test_all_zero_tensors_are_equal(filled: Registry, zoo: Zoo) -> None:
    weights = weights_of_checkpoint(Checkpoint(zoo.base))
    flat = type(weights)(weights.shapes, weights.dtypes, lambda name, rows: weights.sample(name, rows) * 0)
    found = relation(flat, "code@1", "expert", flat)
    assert found is not None
    assert found.verdict == "same weights"


def test_norms_alone_have_a_distance_and_a_grown_vocabulary_is_not_the_same_weights() -> None:
    assert Relation("a@1", "expert", {"model.norm.weight": 0.5}).distance == 0.5
    equal = {"model.embed_tokens.weight": 0.0}
    assert Relation("a@1", "expert", equal).verdict == "same weights"
    assert Relation("a@1", "expert", equal, grown=True).verdict == "same base"
