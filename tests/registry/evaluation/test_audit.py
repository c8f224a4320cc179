"""Proves: figures of an audit are stored with a composition that was made here, never text; an opt-out deletes them."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from registry import ExtractionSettings, Recipe, Registry
from registry.errors import CheckpointError, InvalidInputError
from registry.evaluation import Extraction
from registry.progress import Advance
from tests.conftest import Zoo

SETTINGS = ExtractionSettings(documents=2, prefix=8, continued=4, samples=2, device="cpu")


class Told:
    """A progress reporter that keeps the remarks."""

    def __init__(self) -> None:
        self.remarks: list[str] = []

    @contextmanager
    def __call__(self, label: str, total: int, unit: str) -> Iterator[Advance]:
        """Keep a remark."""
        if not unit:
            self.remarks.append(label)
        yield lambda amount: None


@pytest.fixture
def own(registry: Registry, zoo: Zoo, tmp_path: Path) -> Registry:
    """A registry whose experts have statistics of their training text, in windows of the default size."""
    for name in ("code", "math"):
        bare = shutil.copytree(zoo.experts[name], tmp_path / f"bare {name}")
        (bare / "statistics.safetensors").unlink()
        registry.add_expert(name, bare, data=[zoo.train[name]])
    return registry


@pytest.mark.check
def test_figures_are_stored_with_the_composition_and_replaced(own: Registry, zoo: Zoo, tmp_path: Path) -> None:
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
    own.audit_extraction([tmp_path / "moe"], [zoo.train["math"]], SETTINGS)
    (again,) = own.audits(made)
    assert (again.document, again.asked) == (stored.document, stored.asked)
    own.audit_extraction([tmp_path / "moe"], [zoo.test["math"]], SETTINGS)
    assert [audit.document["data"]["label"] for audit in own.audits(made)] == ["math.test.jsonl", "math.train.jsonl"]


@pytest.mark.check
def test_no_text_is_stored(own: Registry, zoo: Zoo, tmp_path: Path) -> None:
    plan = own.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    own.audit_extraction([tmp_path / "moe"], [zoo.train["math"]], SETTINGS)
    (made,) = own.compositions(plan.digest)
    words = {word for line in zoo.train["math"].read_text().splitlines() for word in json.loads(line)["text"].split()}
    written = json.dumps(own.audits(made)[0].document)
    assert not [word for word in words if len(word) > 3 and word in written]


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
def test_text_that_a_member_was_calibrated_on_is_no_unseen_text(own: Registry, zoo: Zoo, tmp_path: Path) -> None:
    own.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    own.compose(["code"], tmp_path / "code", Recipe(router="ridge"))
    renamed = shutil.copy(zoo.train["math"], tmp_path / "renamed.jsonl")
    told, moe = Told(), f"the composition in {tmp_path / 'moe'}"
    with Registry(own.home.path, progress=told) as registry:
        registry.audit_extraction([tmp_path / "moe", tmp_path / "code"], [zoo.test["math"]], SETTINGS)
        assert [text for text in told.remarks if "calibration" in text] == []
        registry.audit_extraction([tmp_path / "moe", tmp_path / "code"], [zoo.test["math"], renamed], SETTINGS)
    assert [text for text in told.remarks if "calibration" in text] == [
        f"math.test.jsonl, renamed.jsonl is calibration text of math@1, so it is no unseen text for {moe}"
    ]


@pytest.mark.check
def test_text_of_an_exported_expert_is_no_unseen_text_for_it(own: Registry, zoo: Zoo, tmp_path: Path) -> None:
    own.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    for name in ("code", "math"):
        own.export(name, tmp_path / name)
    renamed = shutil.copy(zoo.train["math"], tmp_path / "renamed.jsonl")
    told = Told()
    with Registry(own.home.path, progress=told) as registry:
        folders = [zoo.base, tmp_path / "moe", tmp_path / "code", tmp_path / "math"]
        registry.audit_extraction(folders, [renamed], SETTINGS)
        registry.audit_extraction(folders[2:], [renamed], SETTINGS)
    said = "renamed.jsonl is calibration text of math@1, so it is no unseen text for the"
    composition, expert = f"{said} composition in {tmp_path / 'moe'}", f"{said} expert in {tmp_path / 'math'}"
    assert [text for text in told.remarks if "calibration" in text] == [composition, expert, expert]


@pytest.mark.check
def test_folder_that_was_changed_or_made_elsewhere_is_audited_and_not_stored(
    own: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    plan = own.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    with Registry(tmp_path / "stranger") as stranger:
        (found,) = stranger.audit_extraction([tmp_path / "moe"], [zoo.test["math"]], SETTINGS)
        assert isinstance(found, Extraction)
        assert stranger.log() == []
    (tmp_path / "moe" / "README.md").write_text("mine")
    told = Told()
    with Registry(own.home.path, progress=told) as registry:
        registry.audit_extraction([tmp_path / "moe"], [zoo.test["math"]], SETTINGS)
    assert (
        told.remarks[-1]
        == f"the figures of moe are not stored: {tmp_path}/moe/README.md was changed since it was written"
    )
    assert own.audits(own.compositions(plan.digest)[0]) == []


@pytest.mark.check
def test_what_is_no_list_and_no_model_is_refused(own: Registry, zoo: Zoo) -> None:
    with pytest.raises(InvalidInputError, match="data must be a list"):
        own.audit_extraction([zoo.base], zoo.train["math"])  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="math") as caught:
        own.audit_extraction([Path("math")], [zoo.train["math"]])
    assert "reg export math@1" in str(caught.value.hint)
