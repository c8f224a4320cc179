"""Proves: a model that learned documents by heart gives them away, and one that never saw them does not."""

from pathlib import Path

import pytest

from registry import ExpertTraining, Registry
from registry.errors import CalibrationError, InvalidInputError, StorageError
from registry.evaluation.extraction import Extraction, audit_extraction
from registry.evaluation.extraction_settings import ExtractionSettings
from registry.progress import silent
from tests.conftest import Zoo
from tests.models import sentences, write_jsonl

SETTINGS = ExtractionSettings(documents=4, prefix=8, continued=16, samples=4, device="cpu")


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
    base, control = audit_extraction([zoo.base, tmp_path / "control"], [seen], SETTINGS, silent)
    assert (base.extracted, base.rate) == (0, 0.0)
    assert control.extracted >= 1
    assert base.mean + 0.2 < control.mean
    (other,) = audit_extraction([tmp_path / "control"], [unseen], SETTINGS, silent)
    assert other.extracted == 0
    assert audit_extraction([zoo.base], [seen], SETTINGS, silent) == [base]  # the same samples again


def test_figures_are_those_of_the_documents() -> None:
    found = Extraction("model", "0" * 64, (0.5, 0.9, 1.0, 0.2), 0.9)
    assert (found.extracted, found.rate) == (2, 0.5)
    assert found.mean == pytest.approx(0.65)


def test_documents_that_are_too_short_are_left_out(zoo: Zoo, seen: Path, tmp_path: Path) -> None:
    told: list[str] = []

    def progress(label: str, total: int, unit: str) -> object:
        told.append(label)
        return silent(label, total, unit)

    short = write_jsonl(tmp_path / "short.jsonl", ["a b", *sentences("law", 1, seed=5)])
    (found,) = audit_extraction([zoo.base], [short], SETTINGS, progress)  # type: ignore[arg-type]
    assert len(found.similarity) == 1
    assert "documents left out, because they have fewer than 24 tokens: 1" in told
    with pytest.raises(CalibrationError, match="no document has 108 tokens"):
        audit_extraction([zoo.base], [seen], ExtractionSettings(prefix=8, continued=100), silent)
    with pytest.raises(InvalidInputError, match="takes 128 tokens") as caught:
        audit_extraction([zoo.base], [seen], ExtractionSettings(prefix=8, continued=10_000), silent)
    assert "--continued 120" in str(caught.value.hint)


def test_wrong_settings_are_refused(zoo: Zoo, seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("documents", "prefix", "continued", "top_k", "samples"):
        with pytest.raises(InvalidInputError, match=name):
            ExtractionSettings(**{name: 0})  # type: ignore[arg-type]
    for threshold in (0.0, 1.5):
        with pytest.raises(InvalidInputError, match="threshold"):
            ExtractionSettings(threshold=threshold)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StorageError, match="rapidfuzz") as caught:
        audit_extraction([zoo.base], [seen], SETTINGS, silent)
    assert "expert-registry[audit]" in str(caught.value.hint)
