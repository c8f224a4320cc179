"""Proves: what is frozen in a mixture's training stays to the byte; one that stopped ends in the same bytes and curve.

And: it says first how many weights get gradients, a trained folder is reproduced from stored tensors, and what cannot
be trained is refused first.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers.loss.loss_utils import ForCausalLMLoss

from registry import MixtureTraining, Recipe, Registry, TrainSettings, errors
from registry.composition import read_recipe
from registry.io.model_folder import MARKER
from registry.runtime.gates import gates
from registry.runtime.loading import load_model
from registry.training import weight_trainer
from registry.training.mixture_weights import let_train
from store.arrays import FolderArrays
from tests.conftest import Zoo, array_folder, files_of
from tests.models import make_model, save_checkpoint, train_tokenizer
from tests.remarks import Remarks
from tests.writable_hub import WritableHub, writable_hub

TINY: dict[str, Any] = {
    "tokens": 6 * 2 * 32, "batch_size": 2, "seq_len": 32, "lr": 0.01, "device": "cpu", "dtype": "float32"
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    yield from writable_hub(monkeypatch, tmp_path / "huggingface")


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(["code", "law", "math"], tmp_path / "moe", Recipe(router="random", trunk="mean", top_k=2))
    return tmp_path / "moe"


def train(registry: Registry, moe: Path, out: Path, zoo: Zoo, what: str = "mlps", **changes: Any) -> Any:
    data = [str(zoo.train[name]) for name in ("code", "math")]
    return registry.train(moe, out, data, MixtureTraining(what, **(TINY | changes)))


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("family", ["granite", "gpt_neox", "llama", "qwen2", "olmo2", "cohere2"])
def test_mixtures_of_every_kind_of_host_train_and_what_is_frozen_stays(
    registry: Registry, zoo: Zoo, tmp_path: Path, family: str
) -> None:
    """Fused experts, a shared expert, norms after the MLP, a tied head, and a modelling file; routers alone as well."""
    is_remote = family == "gpt_neox"
    for number, name in enumerate(("code", "law"), start=1):
        folder = save_checkpoint(make_model(family, 900 + number), tmp_path / name, train_tokenizer())
        registry.add_expert(name, folder, data=[zoo.train[name]], remote_code=is_remote)
    recipe = Recipe(router="ridge", trunk="mean", top_k=2, host="remote-code" if is_remote else None)
    registry.compose(["code", "law"], tmp_path / "moe", recipe)
    before, old = files_of(tmp_path / "moe"), load_file(tmp_path / "moe" / "model.safetensors")
    model = load_model(tmp_path / "moe", "float32", "cpu")
    routers = {name for name in old if re.search(r"\.(gate|router)(\.layer)?\.weight$", name)}
    experts = {name for name in old if re.search(r"\.(mlp|block_sparse_moe)\.", name) and "shared" not in name}
    for what, named, trained in (
        ("routers", "routers alone", routers),
        ("mlps", "the experts' MLPs and the routers", experts),
        ("all", "all weights", {name for name in old if "shared" not in name}),
    ):
        registry.progress = heard = Remarks()
        done = train(registry, tmp_path / "moe", tmp_path / what, zoo, what, tokens=2 * 2 * 32)
        parts = [gate.weight for gate in gates(model)]
        if what != "routers":
            let_train(model, what)
            parts = [part for part in model.parameters() if part.requires_grad]
        weights = sum(part.numel() for part in parts)
        told = f"training {named}: {weights:,} weights, 2 steps, 128 tokens, on cpu"
        assert heard.labels[1] == told  # the check of the folder is first
        assert files_of(tmp_path / "moe") == before
        new = load_file(tmp_path / what / "model.safetensors")
        assert old.keys() == new.keys()
        changed = {name for name in old if not torch.equal(old[name], new[name])}
        assert changed == trained == {link.name for link in registry.catalog.trained_arrays(done.digest)}
        assert registry.reproduce(tmp_path / what).is_same


@pytest.mark.check
def test_the_loss_falls_and_balance_counts_once_a_step(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    done = train(filled, moe, tmp_path / "out", zoo, "all", tokens=20 * 4 * 32, batch_size=4)
    assert done.after < done.before
    assert done.document["training"]["held_out"] == {"before": done.before, "after": done.after}
    assert done.document["training"]["balance"] == 0.01
    two_ways: tuple[dict[str, Any], ...] = ({"batch_size": 2}, {"batch_size": 1, "accumulate": 2})  # to the same step
    curves = [
        train(filled, moe, tmp_path / str(number), zoo, tokens=2 * 32, **changes).document["training"]["loss"]
        for number, changes in enumerate([step | {"balance": weight} for step in two_ways for weight in (0.0, 100.0)])
    ]
    # Of two layers the balance loss is at least 2 and at most 2 E; the same of two batches together.
    for plain, balanced in (curves[:2], curves[2:]):
        assert 150 < balanced[0] - plain[0] < 600
    assert curves[2][0] == pytest.approx(curves[0][0], abs=1e-3)


@pytest.mark.check
def test_what_was_trained_is_reproduced_from_stored_tensors(
    filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path
) -> None:
    """Of a chain of three: all weights, then routers, then MLPs; the folders of the parents are gone."""
    train(filled, moe, tmp_path / "first", zoo, "all")
    settings = TrainSettings(steps=3, batch_size=2, seq_len=32, lr=0.05)
    filled.train_router(tmp_path / "first", tmp_path / "second", [str(zoo.train["law"])], settings)
    done = train(filled, tmp_path / "second", tmp_path / "third", zoo, "mlps")
    for name in ("moe", "first", "second"):
        shutil.rmtree(tmp_path / name)
    found = filled.reproduce(tmp_path / "third", tmp_path / "again")
    assert (found.is_same, found.digest) == (True, done.digest)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "third")
    assert str(tmp_path / "again") in filled.compositions()[-1].folders
    assert filled.reproduce(tmp_path / "third").is_same
    assert list(filled.home.work.iterdir()) == []
    assert filled.verify().problems == ()
    before = set(filled.arrays.digests())
    assert filled.gc().digests == ()
    assert set(filled.arrays.digests()) == before
    (weights,) = [name for name in files_of(tmp_path / "third") if name.endswith(".safetensors")]
    data = bytearray((tmp_path / "third" / weights).read_bytes())
    data[-1] ^= 1
    (tmp_path / "third" / weights).write_bytes(data)
    assert [(file.name, file.at) for file in filled.reproduce(tmp_path / "third").differing] == [
        (weights, len(data) - 1)
    ]


@pytest.mark.check
def test_routers_alone_are_those_of_train_router(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    done = train(filled, moe, tmp_path / "out", zoo, "routers")
    data = [str(zoo.train[name]) for name in ("code", "math")]
    settings = TrainSettings(steps=6, batch_size=2, seq_len=32, lr=0.01, device="cpu")
    assert filled.train_router(moe, tmp_path / "same", data, settings) == done
    assert filled.reproduce(tmp_path / "out").is_same


@pytest.mark.check
def test_an_opt_out_taints_what_was_trained(
    filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: WritableHub
) -> None:
    others = [version for version in filled.versions() if version.name != "law"]
    untouched = {link.digest for version in others for link in filled.arrays_of(version)}
    first = train(filled, moe, tmp_path / "first", zoo, "all")
    second = train(filled, tmp_path / "first", tmp_path / "second", zoo, "mlps")
    trained = {link.digest for done in (first, second) for link in filled.catalog.trained_arrays(done.digest)}
    assert len(trained) > 20
    filled.opt_out("law", receipt=tmp_path / "withdrawn.json")
    assert all(filled.arrays.is_intact(digest) for digest in trained)
    refused: list[Callable[[], object]] = [
        lambda: filled.reproduce(tmp_path / "second"),
        lambda: train(filled, tmp_path / "second", tmp_path / "third", zoo),
        lambda: train(filled, tmp_path / "second", tmp_path / "third", zoo, "routers"),
        lambda: filled.push(tmp_path / "second", "org/second", license="mit"),
    ]
    for use in refused:
        with pytest.raises(errors.ConflictError, match=r"holds law@1, which was opted out") as caught:
            use()
        assert "compose the others without it, and delete" in str(caught.value.hint)
    with pytest.raises(errors.InvalidInputError, match="describes a trained composition"):
        read_recipe(tmp_path / "second" / MARKER)
    delete, left = FolderArrays.delete, 5

    def dying(store: FolderArrays, digest: str) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return delete(store, digest)

    with monkeypatch.context() as patch:
        patch.setattr(FolderArrays, "delete", dying)
        with pytest.raises(KeyboardInterrupt):
            filled.opt_out("law", purge=True)
    assert any(filled.arrays.has(digest) for digest in trained)
    filled.opt_out("law", purge=True, receipt=tmp_path / "receipt.json")
    assert not any(array_folder(filled, digest).exists() for digest in trained)
    for use in refused:  # the member is named, not the tensors that are gone with it
        with pytest.raises(errors.ConflictError, match=r"holds law@1, which was opted out"):
            use()
    assert untouched <= set(filled.arrays.digests())
    receipt = json.loads((tmp_path / "receipt.json").read_bytes())
    assert trained <= set(receipt["deleted"]["arrays"])
    found = {one["digest"]: one for one in receipt["compositions"]}
    for done, name in ((first, "first"), (second, "second")):
        assert found[done.digest]["folders"] == [str(tmp_path / name)]
        assert found[done.digest]["recomposed"] is None
        assert "no composition of the others has them" in found[done.digest]["why"]
        assert filled.catalog.trained_arrays(done.digest) == []
    assert filled.verify().problems == ()
    assert filled.verify_receipt(tmp_path / "receipt.json").problems == []
    filled.add_expert("law", zoo.experts["law"])  # the same content again: its composition, not what was trained
    with pytest.raises(errors.NotFoundError, match="are not stored: a member was purged") as lost:
        filled.reproduce(tmp_path / "second")
    assert "reg train" in str(lost.value.hint)
    train(filled, moe, tmp_path / "again", zoo, "all")
    problems = filled.verify_receipt(tmp_path / "receipt.json").problems
    assert any("exist again, such as" in one and "law@2 uses them as trained" in one for one in problems)


@pytest.mark.check
def test_a_crash_before_the_record_leaves_what_an_opt_out_deletes(
    filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def died(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    before = set(filled.arrays.digests())
    with monkeypatch.context() as patch:
        patch.setattr(type(filled.catalog), "record_composition", died)
        patch.setattr(FolderArrays, "delete", died)  # a process that is killed cleans nothing up
        with pytest.raises(KeyboardInterrupt):
            train(filled, moe, tmp_path / "out", zoo)
    assert not (tmp_path / "out").exists()
    assert set(filled.arrays.digests()) > before
    filled.opt_out("law", purge=True)
    assert set(filled.arrays.digests()) < before


@pytest.mark.check
def test_a_loss_that_is_not_finite_stops_and_keeps_the_state_that_another_run_goes_on_from(
    filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(filled, moe, tmp_path / "whole", zoo)
    assert len(whole.document["training"]["loss"]) == 6
    monkeypatch.setattr("registry.training.loop.SAVE_SECONDS", 0.0)
    compute, left = ForCausalLMLoss, 3

    def diverging(*words: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        return compute(*words, **options) * (1.0 if left >= 0 else float("nan"))

    arrays, compositions = set(filled.arrays.digests()), len(filled.compositions())
    with monkeypatch.context() as patch:
        patch.setattr(weight_trainer, "ForCausalLMLoss", diverging)
        with pytest.raises(errors.InvalidInputError, match="the loss in step 4 is nan") as caught:
            train(filled, moe, tmp_path / "out", zoo)
    assert "--lr" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()
    assert set(filled.arrays.digests()) == arrays
    assert len(filled.compositions()) == compositions
    (state,) = filled.home.partial.glob("*/state.safetensors")
    weights = load_file(state)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    filled.progress = heard = Remarks()
    assert train(filled, moe, tmp_path / "out", zoo) == whole
    assert "goes on: 3 of 6" in heard.text
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert not list(filled.home.partial.iterdir())
    assert not list(filled.home.merged.iterdir())


@pytest.mark.check
def test_tied_heads_stay_tied_and_bfloat16_stays(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    for number, name in enumerate(("code", "law"), start=1):
        model = make_model("llama", 800 + number, tie_word_embeddings=True)
        registry.add_expert(name, save_checkpoint(model, tmp_path / name, train_tokenizer()), data=[zoo.train[name]])
    recipe = Recipe(router="ridge", trunk="mean", top_k=2, dtype="bfloat16")
    registry.compose(["code", "law"], tmp_path / "moe", recipe)
    done = train(registry, tmp_path / "moe", tmp_path / "out", zoo, "all", dtype="bfloat16")
    assert done.document["training"]["dtype"] == "bfloat16"
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert "lm_head.weight" not in tensors
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert registry.reproduce(tmp_path / "out").is_same


@pytest.mark.check
def test_what_cannot_be_trained_is_refused(
    filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Besides what `train_router` refuses too: both open the folder alike."""
    filled.compose(["code"], tmp_path / "one", Recipe(router="ridge"))
    filled.compose(["code", "law"], tmp_path / "top-1", Recipe(router="ridge", top_k=1))
    filled.compose(["code", "law"], tmp_path / "dense", Recipe(to="dense"))
    filled.compose(["code", "law"], tmp_path / "context")
    for name, message, hint in (
        ("one", "composition of one expert", "train-expert"),
        ("top-1", "its routers would get no gradient", "--top-k 2"),
        ("dense", "is not a mixture of experts", "reg compose"),
        ("context", "has nothing to train", "--router ridge"),
    ):
        with pytest.raises(errors.InvalidInputError, match=message) as caught:
            train(filled, tmp_path / name, tmp_path / "out", zoo)
        assert hint in str(caught.value.hint)
    with pytest.raises(errors.OutputError):
        train(filled, moe, moe / "below", zoo)
    with pytest.raises(errors.InvalidInputError, match="nothing to train on"):
        filled.train(moe, tmp_path / "out", [], MixtureTraining("all"))
    with pytest.raises(errors.CalibrationError, match="is not a file, and moe has no member of that name"):
        filled.train(moe, tmp_path / "out", ["nothing.txt"], MixtureTraining("all"))
    for wrong in ({"train": "heads"}, {"balance": -1.0}, {"lr": 0.0}, {"tokens": 0}, {"dtype": "float16"}):
        with pytest.raises(errors.InvalidInputError) as refused:
            MixtureTraining(**({"train": "mlps"} | wrong))
        assert refused.value.hint
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.StorageError, match="accelerate"):
        train(filled, moe, tmp_path / "out", zoo)
    assert not (tmp_path / "out").exists()
