"""Proves: figures are stored with a composition that was made here and is unchanged, once for what was asked."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from registry import Recipe, Registry, TestSettings
from registry.evaluation.window_losses import losses_in
from registry.io.model_folder import MARKER
from tests.conftest import Zoo

SETTINGS = TestSettings(windows=2, seq_len=32, batch_size=3)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is remarked on about storing."""
    heard: list[str] = []
    monkeypatch.setattr("registry.evaluation.record.remark", lambda _, text: heard.append(text))
    return heard


@pytest.mark.check
def test_figures_are_stored_and_replaced(filled: Registry, zoo: Zoo, tmp_path: Path, said: list[str]) -> None:
    data = {name: [zoo.test[name]] for name in ("code", "math")}
    plan = filled.compose(["code", "math"], tmp_path / "moe")
    (made,) = filled.compositions()
    assert filled.composition(plan.digest[:8]) == made
    assert filled.composition("code") is None
    assert filled.evaluations(made) == []
    row, oracle = filled.evaluate([tmp_path / "moe"], data, SETTINGS, oracle=True)
    (stored,) = filled.evaluations(made)
    assert stored.document["figures"] == row.document()
    assert stored.document["oracle"] == oracle.document()
    assert stored.document["settings"]["seq_len"] == 32
    assert set(stored.document["experts"]) == {"code", "math"}
    assert stored.document["data"]["code"]["label"] == "code.test.jsonl"
    moved = shutil.copytree(tmp_path / "moe", tmp_path / "elsewhere")
    filled.evaluate([moved], data, SETTINGS)  # the same composition, text and settings
    (again,) = filled.evaluations(made)
    assert (again.asked, again.document["oracle"]) == (stored.asked, oracle.document())  # which it did not score again
    assert again.evaluated_at > stored.evaluated_at
    filled.evaluate([moved], data, replace(SETTINGS, windows=1))
    filled.evaluate([moved], {"code": data["code"]}, SETTINGS)
    found = filled.evaluations(made)
    assert [len(e.document["data"]) for e in found] == [1, 2, 2]
    assert [e.evaluated_at for e in found] == sorted((e.evaluated_at for e in found), reverse=True)
    assert said == []


@pytest.mark.check
def test_losses_are_stored_window_by_window(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    data = {name: [zoo.test[name]] for name in ("code", "math")}
    filled.compose(["code", "math"], tmp_path / "moe")
    rows = filled.evaluate([tmp_path / "moe"], {**data, "other": data["code"]}, SETTINGS, baselines=True)
    (made,) = filled.compositions()
    document = filled.evaluations(made)[0].document
    assert set(document["losses"]) == {"code", "math", "other"}
    assert "own" not in document["losses"]["other"]
    by_name = {row.name: row for row in rows}
    for domain in data:
        found = losses_in(document, domain)
        assert found is not None
        assert found.own is not None
        assert sum(found.model.tokens) == document["data"][domain]["tokens"]
        assert len(found.model.tokens) == SETTINGS.windows
        # rounded to 1e-4 nats a window
        assert math.isclose(found.model.perplexity, by_name["moe"].perplexity[domain], rel_tol=1e-5)
        assert math.isclose(found.own.perplexity, by_name[f"expert {domain}"].perplexity[domain], rel_tol=1e-5)


@pytest.mark.check
def test_a_comparison_with_averaged_weights_stays_with_their_row(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    data = {name: [zoo.test[name]] for name in ("code", "math")}
    filled.compose(["code", "math"], tmp_path / "moe")
    filled.evaluate([tmp_path / "moe"], data, SETTINGS, baselines=True)
    (made,) = filled.compositions()
    before = filled.evaluations(made)[0].document
    assert before["figures"]["ahead_of_average"] is not None
    filled.evaluate([tmp_path / "moe"], data, SETTINGS)
    assert filled.evaluations(made)[0].document == before


def test_figures_are_stored_where_the_document_tells_what_lam_was_chosen(
    filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    plan = filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge", lam="auto"))
    filled.evaluate([tmp_path / "moe"], {"code": [zoo.test["code"]]}, SETTINGS)
    (made,) = filled.compositions(plan.digest)
    assert len(filled.evaluations(made)) == 1


@pytest.mark.check
def test_folder_that_was_changed_is_scored_and_not_stored(
    filled: Registry, zoo: Zoo, tmp_path: Path, said: list[str]
) -> None:
    data = {"code": [zoo.test["code"]]}
    filled.compose(["code"], tmp_path / "other")
    filled.compose(["code", "math"], tmp_path / "moe")
    weights = "model.safetensors"
    shutil.copy(tmp_path / "other" / "README.md", tmp_path / "moe" / "README.md")
    filled.evaluate([tmp_path / "moe"], data, SETTINGS)
    assert said == [f"the figures of moe are not stored: {tmp_path}/moe/README.md was changed since it was written"]
    filled.compose(["code", "math"], tmp_path / "moe", force=True)
    shutil.copy(tmp_path / "moe" / weights, tmp_path / "moe" / "more.safetensors")
    filled.evaluate([tmp_path / "moe"], data, SETTINGS)
    assert (
        said[1]
        == f"the figures of moe are not stored: {tmp_path}/moe/more.safetensors is not a file of the composition"
    )
    for composition in filled.compositions():
        assert filled.evaluations(composition) == []


@pytest.mark.check
def test_what_was_not_made_here_is_not_stored(
    filled: Registry, registry: Registry, zoo: Zoo, tmp_path: Path, said: list[str]
) -> None:
    data = {"code": [zoo.test["code"]]}
    filled.compose(["code"], tmp_path / "moe")
    filled.compose(["math"], tmp_path / "forged")
    with Registry(tmp_path / "stranger") as stranger:
        stranger.evaluate([tmp_path / "moe", zoo.base], data, SETTINGS)
        assert stranger.log() == []
    document = json.loads((tmp_path / "moe" / MARKER).read_text())
    forged = json.loads((tmp_path / "forged" / MARKER).read_text()) | {"digest": document["digest"]}
    for content in (json.dumps(forged), "[]", "{", "{}"):
        (tmp_path / "forged" / MARKER).write_text(content)
        filled.evaluate([tmp_path / "forged"], data, SETTINGS)
    assert [event.action for event in filled.log()][:2] == ["compose", "compose"]
    assert said == [
        f"the figures of forged are not stored: {tmp_path}/forged/{MARKER} was changed since it was written"
    ]


@pytest.mark.check
def test_base_models_and_experts_are_stored_until_one_is_opted_out(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe")
    (made,) = filled.compositions()
    rows = filled.evaluate([tmp_path / "moe"], {"code": [zoo.test["code"]]}, SETTINGS, baselines=True)
    (stored,) = filled.evaluations(made)
    named = {row.name: row.document() for row in rows}
    single = {row["name"]: row for row in stored.document["single_models"]}
    assert single == {name: named[name] for name in ("base base@1", "expert code")}
    assert stored.document["bases"] == {"base@1": filled.resolve("base").digest}
    assert [row.name for row in filled.report(tmp_path / "moe").scores] == ["moe", "base base@1", "expert code"]
    filled.evaluate([tmp_path / "moe"], {"code": [zoo.test["code"]]}, SETTINGS)  # without them: they stay
    (again,) = filled.evaluations(made)
    assert again.document == stored.document
    other = filled.catalog.evaluations(made.digest)[0]
    changed = {**other.document, "figures": other.document["figures"] | {"perplexity": {"code": 1.5}}}
    filled.catalog.record_evaluation(made.digest, other.asked, changed)  # of other figures: they do not
    filled.evaluate([tmp_path / "moe"], {"code": [zoo.test["code"]]}, SETTINGS)
    assert "single_models" not in filled.evaluations(made)[0].document
    filled.evaluate([tmp_path / "moe"], {"code": [zoo.test["code"]]}, SETTINGS, baselines=True)
    filled.opt_out("base")
    filled.opt_out("base", purge=True)
    assert filled.evaluations(made) == []
