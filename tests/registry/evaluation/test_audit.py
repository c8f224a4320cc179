"""Proves: a model that learned documents by heart gives them away, and one that never saw them does not.

And: figures of an audit are stored with a composition that was made here, never text; an opt-out deletes them.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from registry import ExpertTraining, ExtractionSettings, Recipe, Registry
from registry.errors import CalibrationError, CheckpointError, InvalidInputError, StorageError
from registry.evaluation.extraction import Extraction, audit_extraction
from registry.progress import silent
from tests.conftest import Zoo
from tests.models import sentences, write_jsonl
from tests.remarks import Remarks

SETTINGS = ExtractionSettings(documents=2, prefix=8, continued=4, samples=2, device="cpu")
LONGER = ExtractionSettings(documents=4, prefix=8, continued=16, samples=4, device="cpu")


@pytest.fixture
def own(registry: Registry, zoo: Zoo, tmp_path: Path) -> Registry:
    """A registry whose experts have statistics of their training text, in windows of the default size."""
    for name in ("code", "math"):
        bare = shutil.copytree(zoo.experts[name], tmp_path / f"bare {name}")
        (bare / "statistics.safetensors").unlink()
        registry.add_expert(name, bare, data=[zoo.train[name]])
    return registry


@pytest.mark.check
def test_figures_are_stored_with_the_composition_and_replaced_without_text(
    own: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    plan = own.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    base, moe = own.audit_extraction([zoo.base, tmp_path / "moe"], [zoo.train["math"]], SETTINGS)
    (made,) = own.compositions(plan.digest)
    (stored,) = own.audits(made)
    assert own.evaluations(made) == []  # the scores' list holds scores alone
    assert base.data == moe.data == stored.document["data"]["digest"]
    assert stored.document["data"] == {"digest": moe.data, "label": "math.train.jsonl", "documents": 2}
    found = {"extracted": moe.extracted, "rate": moe.rate, "similarity": moe.mean, "most": max(moe.similarity)}
    assert stored.document["extraction"] == found
    assert stored.document["settings"]["continued"] == 4
    assert "top_p" not in stored.document["settings"]  # as before there was one
    words = {word for line in zoo.train["math"].read_text().splitlines() for word in json.loads(line)["text"].split()}
    assert not [word for word in words if len(word) > 3 and word in json.dumps(stored.document)]
    own.audit_extraction([tmp_path / "moe"], [zoo.train["math"]], SETTINGS)
    (again,) = own.audits(made)
    assert (again.document, again.asked) == (stored.document, stored.asked)
    own.audit_extraction([tmp_path / "moe"], [zoo.test["math"]], SETTINGS)
    assert [audit.document["data"]["label"] for audit in own.audits(made)] == ["math.test.jsonl", "math.train.jsonl"]
    with pytest.raises(InvalidInputError, match="data must be a list"):
        own.audit_extraction([zoo.base], zoo.train["math"])  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="math") as caught:
        own.audit_extraction([Path("math")], [zoo.train["math"]])
    assert "reg export math@1" in str(caught.value.hint)


@pytest.mark.check
def test_an_opt_out_deletes_the_figures_of_its_compositions_and_of_its_text(
    own: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    with_math = own.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    without = own.compose(["code"], tmp_path / "code", Recipe(router="ridge"))
    for text in ("math", "code"):
        own.audit_extraction([tmp_path / "moe", tmp_path / "code"], [zoo.train[text]], SETTINGS)
    math = own.resolve("math")
    experts = [audit.document["experts"] for audit in own.audits(own.compositions(without.digest)[0])]
    assert experts == [{"code": own.resolve("code").digest}, {"math": math.digest}]
    own.opt_out("math", purge=True)
    own.audit_extraction([tmp_path / "moe"], [zoo.train["code"]], SETTINGS)  # the folder is still there
    assert own.audits(own.compositions(with_math.digest)[0]) == []
    (left,) = own.audits(own.compositions(without.digest)[0])
    assert left.document["data"]["label"] == "code.train.jsonl"
    own.audit_extraction([tmp_path / "code"], [zoo.train["math"]], SETTINGS)  # what was left of it
    assert own.audits(own.compositions(without.digest)[0])[0].document["experts"] == {}
    assert own.verify().problems == ()


@pytest.mark.check
def test_text_that_an_expert_was_calibrated_on_is_no_unseen_text_for_what_has_it(
    own: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    """For a composition with the expert, and for the expert itself, exported."""
    own.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    own.compose(["code"], tmp_path / "without", Recipe(router="ridge"))
    for name in ("code", "math"):
        own.export(name, tmp_path / name)
    renamed = Path(shutil.copy(zoo.train["math"], tmp_path / "renamed.jsonl"))
    said = "is calibration text of math@1, so it is no unseen text for the"
    composition, expert = f"{said} composition in {tmp_path / 'moe'}", f"{said} expert in {tmp_path / 'math'}"
    own.progress = remarks = Remarks()

    def told(folders: list[Path], *files: Path) -> list[str]:
        remarks.sentences.clear()
        own.audit_extraction(folders, files, SETTINGS)
        return [text for text in remarks.sentences if "calibration" in text]

    composed, exported = [tmp_path / "moe", tmp_path / "without"], [tmp_path / "code", tmp_path / "math"]
    assert told(composed, zoo.test["math"]) == []
    assert told(composed, zoo.test["math"], renamed) == [f"math.test.jsonl, renamed.jsonl {composition}"]
    both = [f"renamed.jsonl {composition}", f"renamed.jsonl {expert}"]
    assert told([zoo.base, composed[0], *exported], renamed) == both
    assert told(exported, renamed) == both[1:]


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "seen.jsonl", sentences("law", 3, seed=5))


@pytest.mark.check
def test_what_was_learned_by_heart_is_found_and_what_was_not_seen_is_not(
    filled: Registry, zoo: Zoo, seen: Path, tmp_path: Path
) -> None:
    by_heart = ExpertTraining(
        tokens=200 * 4 * 32, batch_size=4, seq_len=32, lr=0.01, trunk="free", device="cpu", dtype="float32", warmup=5
    )
    filled.train_expert("control", "base", [seen], by_heart, out=tmp_path / "control")
    unseen = write_jsonl(tmp_path / "unseen.jsonl", sentences("math", 3, seed=6))
    base, control = audit_extraction([zoo.base, tmp_path / "control"], [seen], LONGER, silent)
    assert (base.extracted, base.rate) == (0, 0.0)
    assert control.extracted >= 1
    assert base.mean + 0.2 < control.mean
    found = Extraction("model", "0" * 64, (0.5, 0.9, 1.0, 0.2), 0.9)
    assert (found.extracted, found.rate) == (2, 0.5)
    assert found.mean == pytest.approx(0.65)
    (other,) = audit_extraction([tmp_path / "control"], [unseen], LONGER, silent)
    assert other.extracted == 0
    assert audit_extraction([zoo.base], [seen], LONGER, silent) == [base]  # the same samples again
    likeliest = (replace(LONGER, top_p=1e-9, samples=samples) for samples in (1, 4))  # all samples are the likeliest
    one, four = (audit_extraction([zoo.base], [seen], settings, silent)[0] for settings in likeliest)
    assert one == four != base


def test_documents_that_are_too_short_are_left_out(zoo: Zoo, seen: Path, tmp_path: Path) -> None:
    remarks = Remarks()
    short = write_jsonl(tmp_path / "short.jsonl", ["a b", *sentences("law", 1, seed=5)])
    (found,) = audit_extraction([zoo.base], [short], LONGER, remarks)
    assert len(found.similarity) == 1
    assert remarks.sentences == ["documents left out, because they have fewer than 24 tokens: 1"]
    with pytest.raises(CalibrationError, match="no document has 108 tokens"):
        audit_extraction([zoo.base], [seen], ExtractionSettings(prefix=8, continued=100), silent)
    with pytest.raises(InvalidInputError, match="takes 128 tokens") as caught:
        audit_extraction([zoo.base], [seen], ExtractionSettings(prefix=8, continued=10_000), silent)
    assert "--continued 120" in str(caught.value.hint)


def test_wrong_settings_are_refused(zoo: Zoo, seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("documents", "prefix", "continued", "top_k", "samples"):
        with pytest.raises(InvalidInputError, match=name):
            ExtractionSettings(**{name: 0})  # type: ignore[arg-type]
    for name in ("threshold", "top_p"):
        for value in (0.0, 1.5):
            with pytest.raises(InvalidInputError, match=name):
                ExtractionSettings(**{name: value})  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StorageError, match="rapidfuzz") as caught:
        audit_extraction([zoo.base], [seen], LONGER, silent)
    assert "expert-registry[audit]" in str(caught.value.hint)
