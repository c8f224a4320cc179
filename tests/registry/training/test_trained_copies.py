"""Proves: routers of equal copies of a base model are not trained alone, and trained copies differ and say so.

In the model card, the report and `reg show`; the card of what is not of copies keeps its bytes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from cli.main import main
from registry import ExpertTraining, MixtureTraining, Recipe, Registry, TestSettings, TrainSettings
from registry.composition.manifest import ComposedFolder, CompositionManifest
from registry.composition.trained import EQUAL_COPIES, trained_card
from registry.errors import InvalidInputError
from registry.report import page
from registry.report.charts import charts
from tests.conftest import Zoo, files_of

ROUTERS = TrainSettings(steps=2, batch_size=2, seq_len=32, device="cpu")
AMOUNT: dict[str, Any] = {"tokens": 4 * 2 * 32, "batch_size": 2, "seq_len": 32, "lr": 0.01, "device": "cpu"}


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose([], tmp_path / "moe", from_base=3)
    return tmp_path / "moe"


def train(registry: Registry, moe: Path, out: Path, zoo: Zoo, what: str) -> Any:
    return registry.train(moe, out, [str(zoo.train["code"]), str(zoo.train["law"])], MixtureTraining(what, **AMOUNT))


def test_routers_of_equal_copies_are_not_trained_alone(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    before, data = files_of(filled.home.path / "arrays"), [str(zoo.train["law"])]
    for call in (
        lambda: train(filled, moe, tmp_path / "out", zoo, "routers"),
        lambda: filled.train_router(moe, tmp_path / "out", data, ROUTERS),
    ):
        with pytest.raises(InvalidInputError, match="equal until they are trained") as refused:
            call()
        assert refused.value.hint == f"train the copies with them: reg train {moe} --train all --data FILE --out DIR"
    assert not (tmp_path / "out").exists()
    assert files_of(filled.home.path / "arrays") == before
    assert len(filled.compositions()) == 1
    filled.compose([], tmp_path / "top-1", Recipe(router="random", trunk="base", top_k=1), from_base=2)
    with pytest.raises(InvalidInputError, match="no gradient") as refused:
        train(filled, tmp_path / "top-1", tmp_path / "out", zoo, "all")
    assert refused.value.hint == "compose it again with --top-k 2, as BTX does, and train that"


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(("what", "named"), [("mlps", "the experts' MLPs and the routers"), ("all", "all weights")])
def test_copies_differ_once_they_were_trained_and_card_and_show_say_so(
    filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path, what: str, named: str
) -> None:
    untrained = (moe / "README.md").read_text()
    assert f"- {EQUAL_COPIES}\n" in untrained
    done = train(filled, moe, tmp_path / "out", zoo, what)
    old, new = (load_file(folder / "model.safetensors") for folder in (moe, tmp_path / "out"))
    first, second = (f"model.layers.0.block_sparse_moe.experts.{number}.w1.weight" for number in (0, 1))
    assert torch.equal(old[first], old[second])
    assert not torch.equal(new[first], new[second])
    card, parent = (tmp_path / "out" / "README.md").read_text(), ComposedFolder.read(moe).digest
    row = f"{named}, 4 steps, 256 tokens on data `{done.document['training']['data']}`, from composition `{parent}`"
    assert f"| training | {row} |\n" in card
    assert f"| composition | `{done.digest}` |\n" in card
    assert "which began as copies of one base model and were trained together, by expert-registry." in card
    assert "It knows what its base model knows, and what it was trained on." in card
    for untrue in (EQUAL_COPIES, "closed form", "without training", "Nobody tuned the whole", "pure function"):
        assert untrue not in card
    for digest, router in ((parent, "random"), (done.digest, "random, before the training")):
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), "show", digest])
        rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in result.stdout.splitlines()}
        assert rows["router"] == router
        assert rows.get("trained") == (None if digest == parent else f"{what}, 4 steps, 256 tokens")
    # the routers of trained copies, trained twice more
    once, twice = tmp_path / "once", tmp_path / "twice"
    digest = filled.train_router(tmp_path / "out", once, [str(zoo.train["law"])], ROUTERS).digest
    assert "| training | routers alone, 2 steps, 128 tokens on data" in (once / "README.md").read_text()
    assert EQUAL_COPIES not in (once / "README.md").read_text()
    assert filled.train_router(once, twice, [str(zoo.train["law"])], ROUTERS).document["parent"] == digest
    assert filled.reproduce(twice).is_same
    # routers of equal copies, which an earlier version of this program trained: the copies are equal still
    alone = done.document | {"training": {**done.document["training"], "train": "routers"}}
    assert f"- {EQUAL_COPIES}\n" in trained_card(untrained, alone, done.digest)


@pytest.mark.check
def test_a_composition_of_experts_has_its_own_card_and_training(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """The bytes of such cards are as they were before there were copies; losses stand beside those of the members."""
    filled.train_expert("fresh", "base", [zoo.train["code"]], ExpertTraining(**AMOUNT))
    filled.compose(["fresh", "law"], tmp_path / "moe", Recipe(router="random", trunk="mean", top_k=2))
    done = train(filled, tmp_path / "moe", tmp_path / "out", zoo, "all")
    before, parent = (tmp_path / "moe" / "README.md").read_text(), ComposedFolder.read(tmp_path / "moe").digest
    text = done.document["training"]["data"]
    row = f"| training | all weights, 4 steps on data `{text}`, from composition `{parent}` |"
    expected = before.replace("composed in closed form, without training, by", "composed in closed form by").replace(
        f"| composition | `{parent}` |", f"| composition | `{done.digest}` |\n{row}"
    )
    sentence = "\nAll weights were then trained on the language-model loss.\n"
    assert (tmp_path / "out" / "README.md").read_text() == expected + sentence
    figures = filled.report(tmp_path / "out")
    assert [one.name for one in figures.trainings] == ["fresh"]
    assert (figures.training is None, figures.from_base) == (False, None)
    for part in ("The diagonal is routing accuracy", 'id="h-losses"', 'id="h-training"'):
        assert part in page(figures)


@pytest.mark.check
def test_the_report_of_trained_copies(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    amount, general = ExpertTraining(**AMOUNT), tmp_path / "general"
    filled.train_expert("general", "base", [zoo.train["math"]], amount, out=general)
    filled.add_base("grown", general)  # a base model with a loss curve of its own
    filled.compose([], tmp_path / "of-grown", base="grown", from_base=2)
    done = train(filled, tmp_path / "of-grown", tmp_path / "out", zoo, "all")
    data, settings = {"law": [zoo.test["law"]]}, TestSettings(windows=2, seq_len=32, batch_size=2, device="cpu")
    before, after = (filled.report(tmp_path / name, data, settings) for name in ("of-grown", "out"))
    for figures in (before, after):
        assert figures.trainings == ()
        assert figures.from_base == 2
        text = page(figures)
        assert "Copies of a base model have no domain of their own" in text
        assert "largest confusion" not in text
        assert "The diagonal is routing accuracy" not in text
    untold = "copies of one base model have no statistics, so their routing is not predicted"
    assert f"{untold}; before training it is random" in before.notes
    assert untold in after.notes
    assert before.training is None
    assert "training" not in charts(before)
    own = after.training
    assert own is not None
    assert (own.name, own.steps, own.tokens) == ("all weights", 4, 256)
    assert (own.before, own.after) == (done.before, done.after)
    assert own.loss == tuple(done.document["training"]["loss"])
    assert [point["loss"] for point in charts(after)["training"]["data"]["values"]] == list(own.loss)
    assert 'data-chart="training" role="img" aria-label=' in page(after)
    assert f"{own.after:.4f}" in page(after)


@pytest.mark.check
def test_windows_that_the_model_shortens_make_more_steps(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    settings = MixtureTraining("all", tokens=2 * 2 * 256, batch_size=2, seq_len=256, device="cpu")
    training = filled.train(moe, tmp_path / "out", [str(zoo.train["law"])], settings).document["training"]
    assert (training["seq_len"], training["steps"], len(training["loss"])) == (128, 4, 4)


def test_what_copies_cannot_have_is_refused_and_read(filled: Registry, moe: Path, tmp_path: Path) -> None:
    unbalanced = Recipe(router="random", trunk="base")
    wrong: list[tuple[int, dict[str, Any], str, str]] = [
        (3, {"balance": "tokens"}, "copies of one base model have no statistics", "drop --balance"),
        (2, {"top_k": 3}, "top-k is 3, it must be from 1 to 2", "give --top-k 2, or --from-base 3"),
        (4, {"top_k": 9}, "top-k is 9, it must be from 1 to 4", "give --top-k 4 or less, or --from-base 9"),
    ]
    for count, changes, message, hint in wrong:
        with pytest.raises(InvalidInputError, match=message) as refused:
            filled.compose([], tmp_path / "out", unbalanced.replace(**changes), from_base=count)
        assert refused.value.hint == hint
    document = dict(ComposedFolder.read(moe).content)
    document["recipe"] = document["recipe"] | {"balance": "tokens"}  # as it was possible before
    assert CompositionManifest.from_document(document, "it").from_base == 3
