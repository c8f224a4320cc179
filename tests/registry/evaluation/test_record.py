"""Proves: figures are stored with a composition that was made here and is unchanged, once for what was asked.

And: the evaluation on most text of its own experts is the one whose score is shown for a composition.
"""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.evaluation.results import DomainLoss, losses_in
from registry.evaluation.stored import widest
from registry.io.model_folder import MARKER
from store.catalog import EvaluationRecord
from tests.conftest import Zoo
from tests.registry.evaluation.conftest import PAIR, SETTINGS, Data
from tests.remarks import Remarks


@pytest.mark.check
def test_figures_are_stored_and_replaced(filled: Registry, data: Data, tmp_path: Path, remarks: Remarks) -> None:
    """Also where the document tells what lam was chosen."""
    plan = filled.compose(PAIR, tmp_path / "moe", Recipe(router="ridge"))
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
    assert remarks.sentences == []


@pytest.mark.check
def test_folder_that_was_changed_is_scored_and_not_stored(
    filled: Registry, moe: Path, data: Data, tmp_path: Path, remarks: Remarks
) -> None:
    filled.compose(["code"], tmp_path / "other")
    shutil.copy(tmp_path / "other" / "README.md", moe / "README.md")
    filled.evaluate([moe], data, SETTINGS)
    filled.compose(PAIR, moe, force=True)
    shutil.copy(moe / "model.safetensors", moe / "more.safetensors")
    filled.evaluate([moe], data, SETTINGS)
    said = "the figures of moe are not stored:"
    assert remarks.sentences == [
        f"{said} {moe}/README.md was changed since it was written",
        f"{said} {moe}/more.safetensors is not a file of the composition",
    ]
    for composition in filled.compositions():
        assert filled.evaluations(composition) == []


@pytest.mark.check
def test_what_was_not_made_here_is_not_stored(filled: Registry, zoo: Zoo, tmp_path: Path, remarks: Remarks) -> None:
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
    assert [text for text in remarks.sentences if "stored" in text] == [
        f"the figures of forged are not stored: {tmp_path}/forged/{MARKER} was changed since it was written"
    ]


@pytest.mark.check
def test_rows_to_compare_with_are_stored_until_one_is_opted_out(filled: Registry, moe: Path, data: Data) -> None:
    (made,) = filled.compositions()
    rows = filled.evaluate([moe], data, SETTINGS, baselines=True)
    (stored,) = filled.evaluations(made)
    by_name = {row.name: row for row in rows}
    for domain in data:  # losses window by window, rounded to 1e-4 nats
        found = losses_in(stored.document, domain)
        assert found is not None
        assert found.own is not None
        assert sum(found.tokens) == stored.document["data"][domain]["tokens"]
        assert len(found.tokens) == SETTINGS.windows
        assert math.isclose(found.perplexity, by_name["moe"].perplexity[domain], rel_tol=1e-5)
        own = DomainLoss(found.own, found.tokens)
        assert math.isclose(own.perplexity, by_name[f"expert {domain}"].perplexity[domain], rel_tol=1e-5)
    named = {row.name: row.document() for row in rows}
    single = {row["name"]: row for row in stored.document["single_models"]}
    assert single == {name: named[name] for name in ("base base@1", "expert code", "expert math")}
    assert stored.document["bases"] == {"base@1": filled.resolve("base").digest}
    assert stored.document["figures"]["ahead_of_average"] is not None
    assert {row.name for row in filled.report(moe).scores} == {"moe", "average", *single}
    filled.evaluate([moe], data, SETTINGS)  # without them: they stay
    (again,) = filled.evaluations(made)
    assert again.document == stored.document
    other = filled.catalog.evaluations(made.digest)[0]
    changed = {**other.document, "figures": other.document["figures"] | {"perplexity": {"code": 1.5}}}
    filled.catalog.record_evaluation(made.digest, other.asked, changed)  # of other figures: they do not
    filled.evaluate([moe], data, SETTINGS)
    assert "single_models" not in filled.evaluations(made)[0].document
    filled.evaluate([moe], data, SETTINGS, baselines=True)
    filled.opt_out("base")
    filled.opt_out("base", purge=True)
    assert filled.evaluations(made) == []


def evaluated(at: str, **tokens: int) -> EvaluationRecord:
    """Return an evaluation of so many tokens by domain."""
    document: dict[str, Any] = {"data": {domain: {"tokens": count} for domain, count in tokens.items()}}
    return EvaluationRecord("c" * 64, at, at, document)


def test_most_domains_of_own_experts_then_most_tokens_then_the_latest_is_shown() -> None:
    look, long, short = evaluated("4", code=900), evaluated("1", code=60, law=40), evaluated("3", code=50, law=40)
    late, more, foreign = (
        evaluated("5", code=50, law=50),
        evaluated("2", code=50, law=40, math=90),
        evaluated("3", math=900),
    )
    experts = {"code", "law"}
    assert widest([look, short, long], experts) is long
    assert widest([look, short], experts) is short
    assert widest([late, look, short, long], experts) is late  # as many tokens as the long one
    assert widest([long, late], experts) is late
    assert widest([], experts) is None
    assert widest([more, short, foreign], experts) is short  # domains without an own expert do not count
    assert widest([more, foreign], experts) is more
    assert widest([more, short, foreign], {"copy-1"}) is more  # no domain is of an own expert: the most domains
