"""Proves: a bill of materials is valid CycloneDX 1.7, has the digests of the files, tells nothing that is not stored,
is the same for the same folder, and leaves a folder intact."""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry import ExtractionSettings, Recipe, Registry, TestSettings
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.composition.manifest import ComposedFolder
from registry.errors import CheckpointError, OutputError, StorageError
from registry.io.model_folder import BOM
from registry.progress import silent
from tests.conftest import Zoo, files_of

pytest.importorskip("cyclonedx")

TRAINING = {
    "format": 1,
    "training": {"steps": 2, "tokens": 64, "learning_rate": 0.001, "data": "d" * 64, "tensors": {"a": "b"}},
    "every": 1,
    "loss": [3.0, 2.0],
    "held_out": {"before": 3.5, "after": 2.25},
}


@pytest.fixture
def moe(world: tuple[Registry, Path], tmp_path: Path) -> Path:
    return shutil.copytree(world[1], tmp_path / "moe")


def written(registry: Registry, folder: Path) -> Any:
    """Write a bill, check it by the library's schema and in itself, and return it."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = registry.bom(folder).file.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_7).validate_str(text) is None
    bill = json.loads(text)
    refs = [one["bom-ref"] for one in (bill["metadata"]["component"], *bill["components"])]
    assert len({*refs}) == len(refs)
    assert {*named(bill)} <= {*refs}
    return bill


def named(bill: Any) -> Iterator[str]:
    """Yield every reference that a bill has to a part of itself."""
    yield from (ref for one in bill["dependencies"] for ref in (one["ref"], *one["dependsOn"]))
    for one in (bill["metadata"]["component"], *bill["components"]):
        yield from (text["ref"] for text in one.get("modelCard", {}).get("modelParameters", {}).get("datasets", ()))


def models(bill: Any) -> dict[str, Any]:
    return {one["name"]: one for one in bill["components"] if one["type"] == "machine-learning-model"}


def properties(component: Any) -> dict[str, str]:
    found = (component.get("modelCard") or component).get("properties", ())
    return {one["name"].removeprefix("expert-registry:"): one["value"] for one in found}


def test_it_has_the_model_its_members_and_every_file(world: tuple[Registry, Path], moe: Path) -> None:
    registry, _ = world
    files, (made,) = files_of(moe), registry.compositions()
    bill = written(registry, moe)
    whole, parts = bill["metadata"]["component"], models(bill)
    assert {one["name"]: one["hashes"][0]["content"] for one in whole["components"]} == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items()
    }
    assert (whole["name"], whole["version"], bill["metadata"]["timestamp"]) == (
        "code + german",
        made.digest,
        made.created_at,
    )
    assert "licenses" not in whole
    assert whole["description"].startswith("A sparse mixture of 2 experts (mixtral)")
    card, page = whole["modelCard"], (moe / "README.md").read_text()
    assert all(f"\n- {line}\n" in page for line in card["considerations"]["technicalLimitations"])
    assert len(card["considerations"]["technicalLimitations"]) >= 3
    assert card["modelParameters"]["modelArchitecture"] == "MixtralForCausalLM"
    assert "quantitativeAnalysis" not in card
    assert properties(whole)["recipe:router"] == made.document["recipe"]["router"]
    assert properties(whole)["parameters"] == str(registry.plan(["code", "german"]).parameters)
    assert parts.keys() == {"code", "german", "base"}
    for name, part in parts.items():
        assert part["hashes"][0]["content"] == registry.resolve(name).digest
        assert part["version"] == "1"
    assert parts["code"]["licenses"] == [{"license": {"id": "Apache-2.0", "acknowledgement": "declared"}}]
    assert [one["name"] for one in parts["code"]["pedigree"]["ancestors"]] == ["base"]
    assert "distance" in parts["code"]["pedigree"]["notes"]
    assert [one["name"] for one in whole["pedigree"]["ancestors"]] == ["code", "german"]
    texts = {one["name"]: properties(one) for one in bill["components"] if one["type"] == "data"}
    (statistics, *_) = registry.resolve("code").statistics
    assert texts[statistics.calibration_label]["calibrates"] == "code"
    assert registry.bom(moe).unknown == {
        "license": ("base", "german", "code + german"),
        "supplier": ("code + german",),
        "metrics": ("code + german",),
    }


def test_equal_folders_give_equal_bytes_and_stay_intact(
    world: tuple[Registry, Path], moe: Path, tmp_path: Path
) -> None:
    registry, _ = world
    first = registry.bom(moe)
    data = first.file.read_bytes()
    assert first.sha256 == hashlib.sha256(data).hexdigest()
    assert first.file == moe / BOM
    assert list(ComposedFolder.read(moe).problems(silent)) == []
    assert registry.doctor(moe, quick=True).is_healthy
    assert registry.reproduce(moe).is_same
    assert registry.bom(moe).file.read_bytes() == data
    other = shutil.copytree(world[1], tmp_path / "other")
    assert registry.bom(other, tmp_path / "other.json").file.read_bytes() == data
    assert not (other / BOM).exists()


@pytest.mark.check
def test_figures_are_those_of_stored_evaluations(world: tuple[Registry, Path], zoo: Zoo, moe: Path) -> None:
    registry, _ = world
    data = {name: [zoo.test[name]] for name in ("code", "german")}
    registry.evaluate([moe], data, TestSettings(windows=2, seq_len=32, batch_size=3))
    registry.audit_extraction([moe], [zoo.test["code"]], ExtractionSettings(documents=1, prefix=4, continued=4))
    (evaluation,) = registry.evaluations(registry.compositions()[0])
    figures, bill = evaluation.document["figures"], written(registry, moe)
    card = bill["metadata"]["component"]["modelCard"]
    found = {(one["type"], one["slice"]): one for one in card["quantitativeAnalysis"]["performanceMetrics"]}
    for domain in data:
        assert found["perplexity", domain]["value"] == str(round(figures["perplexity"][domain], 4))
        score = found["score (100: the domain's own expert)", domain]
        low, high = figures["interval"][domain]
        assert score["value"] == str(round(figures["score"][domain], 4))
        assert score["confidenceInterval"] == {"lowerBound": str(round(low, 4)), "upperBound": str(round(high, 4))}
    assert [kind for kind, _ in found].count("extraction rate") == 1
    texts = {one["bom-ref"]: properties(one) for one in bill["components"] if one["type"] == "data"}
    for domain, text in evaluation.document["data"].items():
        assert texts[f"data:{text['digest']}"]["evaluates"] == domain
    assert "metrics" not in registry.bom(moe).unknown


def test_trainings_addresses_and_licenses_are_told(world: tuple[Registry, Path], zoo: Zoo, tmp_path: Path) -> None:
    registry, _ = world
    folder = shutil.copytree(zoo.experts["math"], tmp_path / "math")
    weights = (registry.resolve("base").content or {})["weights"]
    record = TRAINING | {"training": TRAINING["training"] | {"base": weights}}  # type: ignore[operator]
    (folder / EXPERT_TRAINING).write_text(json.dumps(record))
    tags = {"hub": f"org/Math@{'a' * 40}", "language": "de"}
    registry.add_expert("math", folder, license="llama3.1", tags=tags)
    registry.compose(["code", "math"], tmp_path / "two", Recipe(trunk="base", router="ridge"))
    bill = written(registry, tmp_path / "two")
    math, whole = models(bill)["math"], bill["metadata"]["component"]
    assert math["licenses"] == [{"license": {"name": "llama3.1", "acknowledgement": "declared"}}]
    assert math["purl"] == f"pkg:huggingface/org/Math@{'a' * 40}"
    assert math["externalReferences"][0]["url"].endswith("/org/Math")
    assert "digest" in math["pedigree"]["notes"]
    told = properties(math)
    assert (told["training:learning_rate"], told["training:steps"], told["languages"]) == ("0.001", "2", "de")
    assert "training:tensors" not in told
    losses = math["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert [one["value"] for one in losses] == ["3.5", "2.25"]
    assert {"ref": f"data:{'d' * 64}"} in math["modelCard"]["modelParameters"]["datasets"]
    assert [one["name"] for one in whole["pedigree"]["ancestors"]] == ["code", "math", "base"]
    assert "license" in registry.bom(tmp_path / "two").unknown  # of the base model


@pytest.mark.check
@pytest.mark.parametrize("to", ["ensemble", "dense"])
def test_other_outputs_have_bills_too(world: tuple[Registry, Path], tmp_path: Path, to: str) -> None:
    registry, _ = world
    registry.compose(["code", "german"], tmp_path / "out", Recipe(to=to))
    whole = written(registry, tmp_path / "out")["metadata"]["component"]
    assert {one["name"] for one in whole["components"]} == files_of(tmp_path / "out").keys() - {BOM}
    assert int(properties(whole)["parameters"]) > 0


def test_of_a_member_that_was_opted_out_only_that_is_told(world: tuple[Registry, Path], moe: Path) -> None:
    registry, _ = world
    registry.opt_out("code", purge=True)
    code = models(written(registry, moe))["code"]
    assert code.keys() == {"type", "bom-ref", "name", "hashes", "properties"}
    assert properties(code).keys() == {"opted out"}
    assert "code" in registry.bom(moe).unknown["license"]


def test_members_of_elsewhere_are_named_by_their_digests(
    world: tuple[Registry, Path], moe: Path, tmp_path: Path
) -> None:
    with Registry(tmp_path / "empty") as empty:
        bill = written(empty, moe)
        assert models(bill)["code"].keys() == {"type", "bom-ref", "name", "hashes"}
        assert "timestamp" not in bill["metadata"]


def test_what_cannot_be_written_says_why_and_leaves_nothing(
    world: tuple[Registry, Path], moe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, _ = world
    before, taken = files_of(moe), tmp_path / "taken.json"
    taken.write_text("{}")
    for out, kind in ((moe / "other.json", OutputError), (taken, OutputError), (tmp_path / "no" / "x", OutputError)):
        with pytest.raises(kind):
            registry.bom(moe, out)
    with pytest.raises(CheckpointError, match="was not composed by this program"):
        registry.bom(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("registry.composition.manifest.ComposedFolder.serial_number", "urn:uuid:nonsense")
        with pytest.raises(Exception, match="is not valid: 'urn:uuid:nonsense'"):
            registry.bom(moe)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cyclonedx", None)
        patch.setitem(sys.modules, "cyclonedx.validation.json", None)
        with pytest.raises(StorageError, match="cyclonedx-python-lib") as missing:
            registry.bom(moe)
    assert missing.value.hint == "run: pip install 'expert-registry[bom]'"
    assert files_of(moe) == before
    assert taken.read_text() == "{}"
    registry.bom(moe, taken, replace=True)
    (moe / BOM).write_text(json.dumps({"serialNumber": "urn:uuid:another"}))
    with pytest.raises(CheckpointError, match="is not of this composition") as other:
        registry.bom(moe)
    assert other.value.hint == f"delete it, then: reg bom {moe}"
    assert not registry.doctor(moe, quick=True).is_healthy
    (moe / BOM).unlink()
    (moe / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json was changed"):
        registry.bom(moe)
