"""Proves: each broken folder is named right, by one check alone, and healthy folders of every kind have no error."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from registry import PassSettings, Recipe, RegError, Registry, TestSettings
from registry.doctor import CHECKS, Diagnosis, diagnose
from registry.doctor.forward_checks import _repeats
from tests.catalogs import in_files
from tests.conftest import Shared, copy_home
from tests.models import save_checkpoint, train_tokenizer
from tests.registry.doctor.broken import ATTENTION, BROKEN, settings, tensors
from tests.tiny import ALL_RECIPES, BASE, BASE_NAME, CONTENTS, SETTINGS, SPARSE, WIDE, make, make_pool, with_others
from tests.trained_models import trained_base, trained_experts

RECIPES: dict[str, Recipe] = {
    "moe": Recipe(),
    "ridge": Recipe(router="ridge", trunk="mean", top_k=1),
    "ensemble": Recipe(to="ensemble"),
    "adapters": Recipe(to="adapters", rank=8),
}
DOMAINS = ("code", "math")


@dataclass(frozen=True)
class Ward:
    """Healthy model folders by name (`dense` is an expert), their registry's home, and text of each domain."""

    folders: dict[str, Path]
    home: Path
    data: dict[str, list[Path]]


@pytest.fixture(scope="session")
def ward(shared: Shared) -> Ward:
    return shared.get("ward", _make_ward)


def _make_ward(root: Path) -> Ward:
    experts, texts = trained_experts(root, DOMAINS)
    settings = PassSettings(tokens=512, seq_len=32, batch_size=4)
    with Registry(root / "home") as registry:
        registry.add_base("base", save_checkpoint(trained_base(DOMAINS), root / "base", train_tokenizer()))
        for name, folder in experts.items():
            registry.add_expert(name, folder, data=[texts[name]], settings=settings, keep_calibration=True)
        for name, recipe in RECIPES.items():
            registry.compose(list(experts), root / name, recipe)
    folders = {name: root / name for name in RECIPES} | {"dense": experts["code"]}
    return Ward(folders, root / "home", {name: [text] for name, text in texts.items()})


@pytest.fixture
def patient(ward: Ward, tmp_path: Path) -> dict[str, Path]:
    """Copies of the dense model and of two mixtures, which may be broken."""
    return {name: shutil.copytree(ward.folders[name], tmp_path / name) for name in ("dense", "moe", "ridge")}


@pytest.fixture
def ward_registry(ward: Ward, tmp_path: Path) -> Path:
    """The home of a registry of its own with the experts."""
    return copy_home(ward.home, tmp_path / "home")


def errors(diagnosis: Diagnosis) -> list[str]:
    return [finding.check for finding in diagnosis.of("error")]


@pytest.mark.check(after=2)
@pytest.mark.trust(after=6)
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(ward: Ward, patient: dict[str, Path], name: str) -> None:
    kind, breaking, check = BROKEN[name]
    breaking(patient[kind])
    diagnosis = diagnose(None, patient[kind], ward.data)
    assert errors(diagnosis) == [check], [finding.message for finding in diagnosis.of("error")]
    assert diagnosis.verdict == f"{patient[kind]} is broken: {diagnosis.of('error')[0].message}"
    assert diagnosis.next


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("name", ["dense", "moe", "ridge", "ensemble", "adapters"])
def test_healthy_folders_have_neither_error_nor_warning(ward: Ward, name: str) -> None:
    diagnosis = diagnose(None, ward.folders[name], ward.data)
    assert [(one.check, one.message) for one in diagnosis.findings if one.severity in ("error", "warning")] == []
    assert diagnosis.verdict.startswith(f"{ward.folders[name]} looks healthy: ")
    assert diagnosis.perplexity.keys() == ward.data.keys()


@pytest.mark.check
def test_mixture_of_one_expert_is_healthy_though_it_has_nothing_to_choose(ward: Ward, tmp_path: Path) -> None:
    with Registry(copy_home(ward.home, tmp_path / "home")) as registry:
        registry.compose(["code"], tmp_path / "one")
        assert errors(registry.doctor(tmp_path / "one", quick=True)) == []


@pytest.mark.check
def test_a_registry_knows_the_members_their_text_and_who_was_opted_out(ward: Ward, ward_registry: Path) -> None:
    folder = ward.folders["moe"]
    with Registry(ward_registry) as registry:
        diagnosis = registry.doctor(folder)
        registry.opt_out("math")
        after = registry.doctor(folder, ward.data)
    assert [finding.severity for finding in diagnosis.findings] == ["ok"] * len(diagnosis.findings)
    said = {finding.check: finding.message for finding in diagnosis.findings}
    assert said["loads"] == "transformers loads it; it is run on the members' kept text: code, math"
    assert "the averaged weights of its members" in said["comparison"]
    assert diagnosis.next == f"reg evaluate {folder} --data code=FILE --data math=FILE"
    assert errors(after) == ["members"]
    assert after.verdict.startswith(f"{folder} must not be used: it holds math@1, which was opted out at ")
    assert after.next == f"compose the others without it, and delete {folder}"


@pytest.mark.check
def test_what_was_evaluated_is_said_and_reported_next(
    ward: Ward, ward_registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of test text stand in place of a comparison on little text."""
    folder, settings = ward.folders["moe"], TestSettings(windows=2, seq_len=16)
    monkeypatch.chdir(tmp_path)
    with Registry(ward_registry) as registry:
        rows = registry.evaluate([folder], ward.data, settings, baselines=True)
        average = next(row.average for row in rows if row.name == "average")
        said = [one.message for one in registry.doctor(folder).findings if one.check == "comparison"]
        given = [one.message for one in registry.doctor(folder, ward.data).findings if one.check == "comparison"]
        assert registry.doctor(folder, quick=True).next == f"reg report {folder} --out report.html"
        Path("report.html").touch()
        assert registry.doctor(folder, quick=True).next == f"reg report {folder} --out report-2.html"
    assert [line.startswith("its stored evaluation has scores of code ") for line in said] == [True]
    assert said[0].endswith(f"; their averaged weights have a mean of {average:.1f}")
    assert len(given) == 2  # text that was given is worth a comparison


def test_an_error_skips_what_it_makes_useless_and_says_so(patient: dict[str, Path]) -> None:
    tensors(lambda found: found.pop(ATTENTION))(patient["dense"])
    found = {finding.check: finding for finding in diagnose(None, patient["dense"]).findings}
    assert list(found) == [check.name for check in CHECKS]
    assert (found["loads"].severity, found["loads"].message) == ("skipped", "keys has an error, which comes first")
    assert (found["perplexity"].severity, found["perplexity"].message) == ("skipped", "logits was skipped")
    assert found["values"].severity == "ok"


def test_quick_runs_nothing(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.doctor.examination.open_model", None)
    diagnosis = diagnose(None, ward.folders["moe"], quick=True)
    assert {one.check for one in diagnosis.of("skipped") if one.message == "--quick runs nothing"} == {
        check.name for check in CHECKS if check.cost == "forward"
    }
    assert diagnosis.is_healthy


def test_mixed_dtypes_and_a_missing_end_token_are_warnings(ward: Ward, patient: dict[str, Path]) -> None:
    tensors(lambda found: found.update({ATTENTION: found[ATTENTION].half()}))(patient["dense"])
    settings(eos_token_id=None)(patient["dense"])
    settings("generation_config.json", eos_token_id=None)(patient["dense"])
    diagnosis = diagnose(None, patient["dense"], ward.data)
    assert errors(diagnosis) == []
    assert [finding.check for finding in diagnosis.of("warning")] == ["dtypes", "special-tokens"]
    assert f"layer 1's attention ({ATTENTION}) has F16, most tensors have F32" in diagnosis.verdict


def test_code_of_others_is_never_run(patient: dict[str, Path], tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (patient["dense"] / "modeling_x.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\n")
    settings(auto_map={"AutoModelForCausalLM": "modeling_x.X", "AutoConfig": "modeling_x.C"})(patient["dense"])
    diagnosis = diagnose(None, patient["dense"])
    assert not ran.exists()
    [keys] = [finding for finding in diagnosis.findings if finding.check == "keys"]
    assert (keys.severity, keys.message) == ("skipped", "it has modelling code of its author, which is never run here")


def test_wrong_requests_are_errors_of_their_own(ward: Ward, tmp_path: Path) -> None:
    with pytest.raises(RegError, match="nowhere is not a folder"):
        diagnose(None, tmp_path / "nowhere")
    with pytest.raises(RegError, match=r"absent\.txt is not a file"):
        diagnose(None, ward.folders["dense"], {"code": [tmp_path / "absent.txt"]})
    with pytest.raises(RegError, match="device 'nowhere' cannot be used"):
        diagnose(None, ward.folders["dense"], device="nowhere")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(RegError, match="holds an adapter, not a whole model") as caught:
        diagnose(None, tmp_path)
    assert "reg add-expert NAME" in str(caught.value.hint)


@pytest.mark.check
def test_any_file_of_noise_is_a_finding(ward: Ward, tmp_path: Path) -> None:
    for name in ("config", "generation_config", "tokenizer", "tokenizer_config", "composition"):
        folder = shutil.copytree(ward.folders["moe"], tmp_path / name)
        for noise in (b"\xff\x00", b"[]", b'{"a": NaN}', json.dumps({"members": [1], "eos_token_id": {}}).encode()):
            (folder / f"{name}.json").write_bytes(noise)
            assert diagnose(None, folder, quick=True).verdict


@pytest.mark.parametrize(
    ("tokens", "repeats"),
    [
        ([5, 6, 7] * 8, True),
        ([1, 2, 3, 4, 5, 6, 7, 8, *[9, 10, 11, 12] * 4], True),  # after words of its own
        (list(range(8)) * 3, True),
        (list(range(9)) * 3, False),
        ([7] * 23 + [8], False),
        (list(range(24)), False),
    ],
)
def test_a_text_that_repeats_itself(tokens: list[int], repeats: bool) -> None:
    assert _repeats(tokens) is repeats


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("kind", [*ALL_RECIPES, "copies"])
def test_every_kind_of_composition_has_files_and_weights_without_fault(
    members: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    home, text = members
    refs = {"simoe": list(SPARSE), "hetero": [CONTENTS[0], WIDE]}.get(kind, list(CONTENTS[:2]))
    with in_files(), Registry(home) as registry:
        make(registry, refs, tmp_path / kind, kind, text)
    diagnosis = diagnose(None, tmp_path / kind, quick=True)
    assert [(one.check, one.message) for one in diagnosis.findings if one.severity in ("error", "warning")] == []
    assert [one.check for one in diagnosis.of("skipped") if one.cost != "forward"] == ["members"]


@pytest.fixture(scope="session")
def members(shared: Shared) -> tuple[Path, Path]:
    return shared.get("members of every kind", _register_members)


def _register_members(root: Path) -> tuple[Path, Path]:
    """Return a home that has members for every kind, and a text."""
    pool = with_others(make_pool(root), root)
    with Registry(root / "home") as registry:
        registry.add_base(BASE_NAME, pool.checkpoints[BASE])
        for name, folder in pool.checkpoints.items():
            if name != BASE:  # those without statistics would write text for them, slowly
                given: dict[str, Any] = {"data": [pool.text], "settings": SETTINGS} if name in SPARSE else {}
                registry.add_expert(name, folder, **given)
    return root / "home", pool.text
