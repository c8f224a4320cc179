"""Proves: an adapter of a registered base model stays one, to the byte, and its weights are those of the merge.

It takes its own bytes alone, and goes without a trace of its own; the base model's arrays stay as long as it does.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from registry import PassSettings, Recipe, Registry
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.adapter import Adapter, Merged
from registry.checkpoint.version_files import VersionArrays
from registry.errors import CheckpointError, ConflictError, IncompatibleError, InvalidInputError
from registry.progress import silent
from registry.registration.register import Registration
from registry.statistics.collect import collect, collect_to
from tests.conftest import SETTINGS, Zoo, files_of
from tests.models import make_model, save_checkpoint
from tests.registry.checkpoint.test_adapter import CASES, CHANGES, train
from tests.remarks import Remarks

COUNTS = PassSettings(tokens=64, seq_len=32, batch_size=1, sites="counts")


@pytest.fixture(scope="module")
def lora(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA of every linear map of the zoo's base model."""
    return train(zoo.base, tmp_path_factory.mktemp("lora") / "lora", target_modules="all-linear")


@pytest.fixture
def registry(zoo: Zoo, lora: Path, tmp_path: Path) -> Iterator[Registry]:
    """A registry of the base model and the adapter, `law`."""
    with Registry(tmp_path / "home") as opened:
        opened.add_base("base", zoo.base)
        opened.add_expert("law", lora, base="base", data=[zoo.train["law"]], settings=COUNTS)
        yield opened


def stored(registry: Registry) -> set[str]:
    return set(registry.arrays.digests())


def loaded(registry: Registry, ref: str = "law") -> VersionArrays:
    return VersionArrays.load(registry._workspace, registry.resolve(ref))


def content_of(registered: Registration) -> dict[str, Any]:
    assert registered.version.content is not None
    return registered.version.content


@pytest.mark.parametrize("case", CASES)
def test_what_peft_wrote_comes_back_and_merges_to_the_same_bytes(case: str, tokenizer: Any, tmp_path: Path) -> None:
    family, options = CASES[case]
    base = save_checkpoint(make_model(family, 100), tmp_path / "base", tokenizer)
    adapter = train(base, tmp_path / "adapter", **options)
    if case in CHANGES:
        CHANGES[case](adapter)
    merged = Merged(Adapter.of_folder(adapter), Checkpoint(base, remote_code=True))
    merged.write(tmp_path / "merged", silent)
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", base, remote_code=True)
        before = stored(registry)
        text = tmp_path / "text.txt"
        text.write_text("the court finds the contract void\n" * 40)
        registry.add_expert("law", adapter, base="base", data=[text], settings=COUNTS)
        version = registry.resolve("law")
        own = {link.digest for link in registry.arrays_of(version) if link.role in ("adapter", "statistics", "file")}
        assert stored(registry) - before <= own
        registry.export("law", tmp_path / "back", as_lora=True)
        registry.export("law", tmp_path / "dense")
        found = loaded(registry)
        for name, shape in found.shapes.items():
            rows = np.arange(0, shape[0], 3)
            whole = np.concatenate(list(found.source(name).blocks()))
            assert np.array_equal(found.sample(name, rows), whole[rows]), name
        assert registry.verify().problems == ()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (adapter / name).read_bytes()
    dense, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("dense", "merged"))
    assert dense.keys() == expected.keys()
    assert all(torch.equal(dense[name].view(torch.uint8), expected[name].view(torch.uint8)) for name in expected)
    small = {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    for name in small & files_of(tmp_path / "merged").keys():
        assert (tmp_path / "dense" / name).read_bytes() == (tmp_path / "merged" / name).read_bytes()


def test_adapter_takes_its_own_bytes(registry: Registry, lora: Path) -> None:
    version = registry.resolve("law")
    sizes = dict.fromkeys(("adapter", "statistics"), 0)
    for link in registry.arrays_of(version):
        if link.role in sizes:
            sizes[link.role] += link.nbytes
    file = (lora / "adapter_model.safetensors").stat().st_size + (lora / "adapter_config.json").stat().st_size
    assert sizes["adapter"] == file
    assert not (registry.home.summaries / f"{version.digest}.weights").exists()
    assert list(registry.home.merged.glob("*")) == []


def test_repeat_is_the_same_version_and_other_factors_are_another(
    registry: Registry, zoo: Zoo, lora: Path, tmp_path: Path
) -> None:
    data = [zoo.train["law"]]
    again = registry.add_expert("law", lora, base="base", data=data, settings=COUNTS)
    assert not again.added
    changed = shutil.copytree(lora, tmp_path / "changed")
    tensors = load_file(changed / "adapter_model.safetensors")
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name][0, 0] += 1
    save_file(tensors, changed / "adapter_model.safetensors", metadata={"format": "pt"})
    other = registry.add_expert("law", changed, base="base", data=data, settings=COUNTS)
    assert other.added
    assert content_of(other)["weights"] != content_of(again)["weights"]


def test_mixture_has_the_bytes_of_merged_experts(registry: Registry, zoo: Zoo, lora: Path, tmp_path: Path) -> None:
    """Statistics too: their pass runs the merged model."""
    Merged(Adapter.of_folder(lora), Checkpoint(zoo.base)).write(tmp_path / "merged", silent)
    made = []
    for number, checkpoint in enumerate((lora, tmp_path / "merged")):
        with Registry(tmp_path / f"home{number}") as each:
            each.add_base("base", zoo.base)
            each.add_expert("math", zoo.experts["math"])
            base = "base" if checkpoint == lora else None
            each.add_expert("law", checkpoint, data=[zoo.train["law"]], settings=SETTINGS, base=base)
            each.compose(["law", "math"], tmp_path / f"moe{number}")
            each.compose(["law", "math"], tmp_path / f"dense{number}", Recipe(to="dense", trunk="mean"))
            made.append(files_of(tmp_path / f"moe{number}") | files_of(tmp_path / f"dense{number}"))
    differ = {name for name in made[0] if made[0][name] != made[1][name]}
    assert differ <= {"composition.json", "README.md"}


def test_opt_out_deletes_the_adapter_and_no_array_of_the_base(
    registry: Registry, zoo: Zoo, lora: Path, tmp_path: Path
) -> None:
    own = {link.digest for link in registry.arrays_of(registry.resolve("law")) if link.role == "adapter"}
    before = stored(registry)
    registry.opt_out("law", purge=True, receipt=tmp_path / "receipt.json")
    assert own <= before - stored(registry)
    assert set(json.loads((tmp_path / "receipt.json").read_bytes())["deleted"]["arrays"]) >= own
    assert not registry.verify_receipt(tmp_path / "receipt.json").problems
    assert registry.verify().problems == ()
    registry.add_expert("law", lora, base="base", data=[zoo.train["law"]], settings=COUNTS)
    assert registry.verify_receipt(tmp_path / "receipt.json").problems


def test_adapter_outlives_its_base_model(registry: Registry, zoo: Zoo, lora: Path, tmp_path: Path) -> None:
    registry.export("law", tmp_path / "before")
    registry.opt_out("base", purge=True)
    registry.export("law", tmp_path / "after")
    assert files_of(tmp_path / "before") == files_of(tmp_path / "after")
    with pytest.raises(ConflictError, match="base@1 was opted out"):
        registry.add_expert("other", lora, base="base@1", data=[zoo.train["law"]], settings=COUNTS)


def test_base_model_that_leaves_meanwhile_stops_the_registration(
    registry: Registry, zoo: Zoo, lora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaving(*given: Any, **named: Any) -> Any:
        registry.opt_out("base")
        return collect(*given, **named)

    monkeypatch.setattr("registry.registration.register.collect", leaving)
    with pytest.raises(ConflictError, match="base@1 was opted out"):
        registry.add_expert("other", lora, base="base", data=[zoo.train["law"]], settings=COUNTS)


def test_base_model_is_known_by_its_weights(
    registry: Registry, zoo: Zoo, lora: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """An adapter's configuration names a folder, here the one that the base model was registered from."""
    registered = registry.add_expert("named", lora, data=[zoo.train["law"]], settings=COUNTS)
    assert content_of(registered)["adapter"] == {"base": hash_checkpoint(Checkpoint(zoo.base), silent).weights}
    other, told = save_checkpoint(make_model("llama", 7), tmp_path / "other", tokenizer), Remarks()
    registry.progress = told
    whole = registry.add_expert(
        "whole", lora, base=other, data=[zoo.train["law"]], settings=COUNTS, allow_unrelated=True
    )
    assert "adapter" not in content_of(whole)
    assert f"{lora} is merged into whole weights, as its base model is not registered" in told.text
    told.sentences.clear()
    registry.add_expert("twice", lora, base="law", data=[zoo.train["law"]], settings=COUNTS)
    assert f"{lora} is merged into whole weights, as its base model is an adapter itself" in told.text
    assert "law@1 is an expert, which is taken as the base model" in told.sentences


def test_statistics_of_the_merged_model_are_taken_over(
    registry: Registry, zoo: Zoo, lora: Path, tmp_path: Path
) -> None:
    carried = shutil.copytree(lora, tmp_path / "carried")
    collect_to(carried, carried, data=[zoo.train["law"]], settings=SETTINGS, base=zoo.base)
    registered = registry.add_expert("carried", carried, base="base")
    assert registered.version.statistics
    other = shutil.copytree(carried, tmp_path / "other")
    shutil.copy(train(zoo.base, tmp_path / "again", r=2) / "adapter_model.safetensors", other)
    shutil.copy(tmp_path / "again" / "adapter_config.json", other)
    with pytest.raises(CheckpointError, match="has statistics of weights"):
        registry.add_expert("carried", other, base="base")


def test_weights_that_are_not_finite_are_refused(registry: Registry, zoo: Zoo, lora: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(lora, tmp_path / "bad")
    tensors = load_file(bad / "adapter_model.safetensors")
    next(iter(tensors.values()))[0, 0] = torch.nan
    save_file(tensors, bad / "adapter_model.safetensors")
    before = stored(registry)
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        registry.add_expert("bad", bad, base="base", data=[zoo.train["law"]], settings=COUNTS)
    assert stored(registry) == before


def test_digest_of_its_weights_is_that_of_what_they_are_made_from(registry: Registry, zoo: Zoo) -> None:
    links = {link.name: link for link in loaded(registry).arrays if link.role in ("trunk", "mlp")}
    base = hash_checkpoint(Checkpoint(zoo.base), silent).tensors
    assert links.keys() == base.keys()
    changed = {name for name, link in links.items() if link.digest != base[name]}
    assert changed == {name for name in base if "_proj" in name}
    assert not changed & {name for name in links if registry.arrays.has(links[name].digest)}


def test_exports_that_cannot_be_are_refused(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="base@1 is a base model, which is no change of another"):
        registry.export("base", tmp_path / "out", as_lora=True)
    with pytest.raises(IncompatibleError, match="base@1 changes no matrix of base@1") as caught:
        registry.export("base", tmp_path / "out", as_lora=True, base="base")
    assert caught.value.hint == "export it whole: reg export base@1 --out DIR"
    with pytest.raises(InvalidInputError, match="law@1 is an adapter, which is written as it came"):
        registry.export("law", tmp_path / "out", as_lora=True, rank=2)
    with pytest.raises(InvalidInputError, match="are of adapters alone"):
        registry.export("law", tmp_path / "out", rank=2)
    with pytest.raises(InvalidInputError, match="the rank is 0"):
        registry.export("base", tmp_path / "out", as_lora=True, rank=0)
    assert not (tmp_path / "out").exists()
