"""Proves: context routing is predicted from counts alone, by tokens read, and look-alikes are named.

And: compose warns of drowned and overlapping members with the figures of preview, and changes no byte by it.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from registry import PassSettings, Recipe, Registry
from registry.composition.plan import Plan, PlanWarning
from registry.errors import InvalidInputError
from registry.evaluation import TestSettings, text_windows
from registry.member import Member
from registry.methods.moe.context import evidence_of, scores_of
from registry.methods.moe.preview import INDISTINCT_COUNTS, LENGTHS
from tests.conftest import Zoo, files_of
from tests.models import sentences, write_jsonl
from tests.registry.composition.composed import reg

CONTEXT = Recipe()
NAMES = ["code", "german", "math"]


def warnings_of(plan: Plan) -> tuple[PlanWarning, ...]:
    return tuple(plan.output.warnings(plan))


def test_only_counts_are_read(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Member, *names: object) -> None:
        raise AssertionError(names)

    monkeypatch.setattr(Member, "source", refuse)
    monkeypatch.setattr(Member, "statistics", refuse)
    preview = filled.preview(NAMES, CONTEXT)
    assert preview.refs == ("code@1", "german@1", "math@1")
    assert (preview.layers, len(preview.confusion)) == ((0,), 1)
    assert [length.tokens for length in preview.by_tokens] == [n for n in LENGTHS if n <= 128]  # the models' context
    (typical,) = [length for length in preview.by_tokens if length.tokens == 32]
    assert (typical.confusion,) == preview.confusion
    assert preview.accuracy == typical.accuracy
    counts = [filled.member(filled.resolve(name)).evidence_counts for name in NAMES]
    assert [one.tokens for one in preview.members] == [int(own.sum()) for own in counts]
    assert [member.part for member in preview.members] == [1 / 3] * 3
    assert all(sum(row) == pytest.approx(1) for length in preview.by_tokens for row in length.confusion)
    accuracies = [length.accuracy for length in preview.by_tokens]
    assert accuracies == sorted(accuracies)
    assert "after 32 tokens" in preview.notes[0]
    document = preview.document()["by_tokens"]
    assert [length["accuracy"] for length in document] == accuracies


def test_order_and_trunk_do_not_matter(filled: Registry) -> None:
    preview = filled.preview(NAMES, CONTEXT)
    assert filled.preview(NAMES[::-1]) == preview
    assert filled.preview(NAMES, Recipe(router="context", trunk="mean")) == preview
    alone = filled.preview(["code"], CONTEXT)
    assert [length.confusion for length in alone.by_tokens] == [((1.0,),)] * len(preview.by_tokens)
    assert filled.preview(NAMES, Recipe(router="ridge")).document()["by_tokens"] == []  # they read no text so far
    whole = filled.preview(NAMES, Recipe(router="context", context_window=0.0))
    assert whole.by_tokens[0] == preview.by_tokens[0]  # one token has no past to weigh


def test_prediction_is_near_what_is_counted(filled: Registry, zoo: Zoo) -> None:
    plan, preview = filled.plan(NAMES, CONTEXT), filled.preview(NAMES, CONTEXT)
    data = {name: [zoo.test[name]] for name in NAMES}
    windows = text_windows(data, zoo.base, TestSettings(windows=24, seq_len=32))
    for number, name in enumerate(NAMES):
        scores = scores_of(plan, windows[name].ids, windows[name].keep, evidence_of(plan))
        counted = float((scores.argmax(dim=-1)[:, -1] == number).double().mean())
        assert preview.members[number].accuracy == pytest.approx(counted, abs=0.2)


@pytest.mark.check
def test_experts_of_one_text_are_named(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    registry.add_expert("code", zoo.experts["code"])
    registry.add_expert("math", zoo.experts["math"])
    text = write_jsonl(tmp_path / "code.jsonl", sentences("code", 200, seed=6))
    registry.add_expert("coder", zoo.experts["math"], data=[text])
    preview = registry.preview(["code", "coder", "math"], CONTEXT)
    assert preview.indistinct == (("code@1", "coder@1"),)
    assert preview.overlap["code@1", "coder@1"] >= INDISTINCT_COUNTS
    drowned = [member.drowned for member in preview.members if member.drowned]
    assert all("--balance" not in reason for reason in drowned)
    result = reg(registry, "preview", "--experts", "code,coder,math", "--router", "context")
    tables = [table.splitlines() for table in result.stdout.split("\n\n")]
    assert tables[0][0].split() == ["expert", "tokens", "routing", "accuracy", "load"]
    assert tables[2][0].split()[:5] == ["accuracy", "after", "…", "tokens", "1"]
    assert tables[2][1].split()[1:] == [f"{length.confusion[0][0]:.1%}" for length in preview.by_tokens]
    assert "code@1 and coder@1: routers can hardly separate their tokens" in result.stdout
    assert "after 32 tokens of a text" in result.stderr


def test_limits_of_the_prediction(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.methods.moe.preview.LENGTHS", (1, 16, 256))
    preview = filled.preview(NAMES, CONTEXT)
    assert [length.tokens for length in preview.by_tokens] == [1, 16]
    assert "after 16 tokens" in preview.notes[0]
    monkeypatch.setattr(Member, "evidence_counts", property(lambda self: torch.zeros(8, dtype=torch.int64)))
    with pytest.raises(InvalidInputError, match="code@1 counted no token"):
        filled.preview(NAMES, CONTEXT)


def test_counting_alone_is_enough(filled: Registry, bare: Path, zoo: Zoo) -> None:
    settings = PassSettings(tokens=512, seq_len=32, batch_size=4, sites="counts")
    filled.add_expert("counted", bare, data=[zoo.train["code"]], settings=settings)
    preview = filled.preview(["counted", "math"], Recipe(router="context", trunk="mean"))
    assert preview.members[0].tokens > 512  # of more text than a model would read
    assert preview.accuracy > 0.9


def test_members_of_one_text_overlap_and_few_tokens_are_drowned(filled: Registry, zoo: Zoo) -> None:
    """As preview says; distinct members bring no warning."""
    names, recipe = ["math", "code", "law"], Recipe(router="ridge", weights={"law": 0.01})
    for distinct in (Recipe(), Recipe(router="ridge"), Recipe(to="dense"), Recipe(to="ensemble")):
        assert warnings_of(filled.plan(names, distinct)) == ()
    assert warnings_of(filled.plan(["math"])) == ()
    (warning,) = warnings_of(filled.plan(names, recipe))
    assert warning.refs == ("law@1",)
    assert warning.figure == filled.preview(names, recipe).members[1].part
    assert "--weights law=X" in warning.remedy
    filled.add_expert("algebra", zoo.experts["math"])  # the same text under another name
    (warning,) = warnings_of(filled.plan(["algebra", "math", "code"]))
    assert warning.refs == ("algebra@1", "math@1")
    assert warning.figure == filled.preview(["algebra", "math", "code"]).overlap[warning.refs]
    assert "leave one out" in warning.remedy


def test_member_without_tokens_of_its_own_is_drowned(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the least share is: the figure is compared with it."""
    monkeypatch.setattr("registry.methods.moe.preview.LEAST_OWN", 1.1)
    warnings = warnings_of(filled.plan(["math", "code", "law"]))
    assert [warning.refs for warning in warnings] == [("code@1",), ("law@1",), ("math@1",)]
    members = filled.preview(["math", "code", "law"]).members
    assert [warning.figure for warning in warnings] == [member.accuracy for member in members]
    monkeypatch.setattr("registry.methods.moe.preview.MOST_WORK", 1)
    assert warnings_of(filled.plan(["math", "code", "law"])) == ()  # too long to predict beside a composition


@pytest.mark.check
def test_compose_prints_them_and_writes_the_same(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.add_expert("algebra", zoo.experts["math"])
    words, out = ("compose", "--experts", "algebra,math,code"), ("--out", tmp_path / "moe")
    for how in (("--plan",), out):
        (line,) = [line for line in reg(filled, *words, *how).stderr.splitlines() if line.startswith("warning: ")]
        assert line.startswith("warning: algebra@1 and math@1 overlap in token counts: ")
        assert "; to mend it: leave one out" in line
    before = files_of(tmp_path / "moe")
    shutil.rmtree(tmp_path / "moe")
    assert "warning" not in reg(filled, *words, *out, "--quiet").stderr
    assert files_of(tmp_path / "moe") == before
    (warning,) = json.loads(reg(filled, *words, "--plan", "--json").stdout)["warnings"]
    assert warning["refs"] == ["algebra@1", "math@1"]
