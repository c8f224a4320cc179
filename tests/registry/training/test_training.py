"""Proves: only routers change; equal inputs, and an interrupted training that goes on, give equal bytes.

And: the result is a composition of its own, which opting a member out lists; what cannot be trained is refused first.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import Recipe, Registry, TrainSettings
from registry.errors import (
    CalibrationError,
    CheckpointError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutputError,
    RegError,
)
from registry.io.model_folder import MARKER
from registry.progress import Advance, silent
from registry.training.parent import read_parent
from store.digest import json_digest
from tests.conftest import Zoo, files_of
from tests.digests import digests_of
from tests.models import logits

SETTINGS = TrainSettings(steps=6, batch_size=2, seq_len=32, lr=0.05, balance=0.01, weight_decay=0.1)
IDS = torch.randint(1, 320, (2, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(["code", "law", "math"], tmp_path / "moe", Recipe(router="ridge", dtype="bfloat16"))
    return tmp_path / "moe"


def train(registry: Registry, moe: Path, out: Path, zoo: Zoo, **changes: Any) -> Any:
    data = [str(zoo.train[name]) for name in ("code", "math")]
    return registry.train_router(moe, out, data, **({"settings": SETTINGS} | changes))


@pytest.mark.check
def test_only_routers_change_and_equal_inputs_give_equal_bytes(
    filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path
) -> None:
    parent = files_of(moe)
    done = train(filled, moe, tmp_path / "out", zoo)
    files, document = files_of(tmp_path / "out"), json.loads((tmp_path / "out" / MARKER).read_bytes())
    assert files_of(moe) == parent
    assert train(filled, moe, tmp_path / "again", zoo) == done
    assert files_of(tmp_path / "again") == files
    old, new = load_file(moe / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert torch.equal(tensor, new[name]) is not name.endswith("gate.weight"), name
    assert {name for name in files if files[name] != parent[name]} == {"model.safetensors", "README.md", MARKER}
    assert document.pop("files") == digests_of(files)
    assert document.pop("format") == 2
    assert document.pop("digest") == json_digest(document | {"format": 1}) == done.digest
    before = json.loads(parent[MARKER])
    assert document["parent"] == before["digest"]
    assert document["training"]["lr"] == 0.05
    assert {key: document[key] for key in ("members", "recipe", "host", "base")} == {
        key: before[key] for key in ("members", "recipe", "host", "base")
    }
    card = files["README.md"].decode()
    assert f"| composition | `{done.digest}` |\n| training | routers alone, 6 steps" in card
    assert "without training" not in card
    assert not list(filled.home.partial.glob("*"))
    assert not torch.equal(logits(tmp_path / "out", IDS), logits(moe, IDS))
    for changes in ({"seed": 1}, {"lr": 0.04}, {"top_k_train": 3}, {"balance": 0.0}):
        other = TrainSettings(**(vars(SETTINGS) | changes))
        assert train(filled, moe, tmp_path / "other", zoo, settings=other, force=True).digest != done.digest
        assert files_of(tmp_path / "other")["model.safetensors"] != files["model.safetensors"], changes


@pytest.mark.check
def test_training_lowers_the_loss_that_it_tells(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    settings = TrainSettings(steps=30, batch_size=4, seq_len=32, lr=0.02)
    done = train(filled, moe, tmp_path / "out", zoo, settings=settings)
    assert done.after < done.before
    assert done.tokens > 0
    further = train(filled, tmp_path / "out", tmp_path / "further", zoo, settings=settings)
    assert further.document["parent"] == done.digest
    assert further.before == done.after  # what was told is what the folder does


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("at", [0, 4, 6])
def test_interrupted_training_goes_on_to_the_same_bytes(
    filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path, at: int
) -> None:
    whole = train(filled, moe, tmp_path / "whole", zoo)
    told = []

    def interrupting(at: int | None) -> Callable[..., Any]:
        @contextmanager
        def progress(label: str, total: int, unit: str) -> Iterator[Advance]:
            told.append(label)
            steps = 0

            def advance(amount: int) -> None:
                nonlocal steps
                steps += amount
                if unit == "step" and steps == at:
                    raise KeyboardInterrupt

            yield advance

        return progress

    filled.progress = interrupting(at)
    with pytest.raises(KeyboardInterrupt):
        train(filled, moe, tmp_path / "out", zoo)
    assert not (tmp_path / "out").exists()
    kept = list(filled.home.partial.glob("*"))
    assert len(kept) == (at > 0)
    filled.progress = interrupting(None)
    assert train(filled, moe, tmp_path / "out", zoo) == whole
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert any(f"goes on: {at} of 6" in label for label in told) is (at > 0)
    assert not list(filled.home.partial.glob("*"))


@pytest.mark.check
def test_damaged_training_under_way_begins_anew(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    from registry.training import state

    whole = train(filled, moe, tmp_path / "whole", zoo)
    names: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "load", lambda way, shapes, steps: names.append(way))
        train(filled, moe, tmp_path / "named", zoo)
    names[0].parent.mkdir(exist_ok=True)
    names[0].write_bytes(b"\xff" * 64)
    assert train(filled, moe, tmp_path / "out", zoo) == whole


@pytest.mark.check
def test_opting_a_member_out_lists_it_and_ends_training(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    done = train(filled, moe, tmp_path / "out", zoo)
    assert done.digest in [made.digest for made in filled.compositions("law")]
    gone = filled.opt_out("law")
    assert {made.digest for made in gone.compositions} == {done.digest, done.document["parent"]}
    assert str(tmp_path / "out") in [folder for made in gone.compositions for folder in made.folders]
    with pytest.raises(ConflictError, match="law@1, which was opted out"):
        train(filled, moe, tmp_path / "late", zoo)


def test_parent_with_a_chosen_lam_is_whole(filled: Registry, tmp_path: Path) -> None:
    plan = filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge", lam="auto"))
    parent = read_parent(tmp_path / "moe", "routers", silent)
    assert (parent.composed.digest, parent.composed.document) == (plan.digest, plan.document)


@pytest.mark.check
def test_kept_calibration_is_training_text(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    registry.add_expert("code", zoo.experts["code"], data=[zoo.train["code"]], keep_calibration=True)
    registry.add_expert("math", zoo.experts["math"], data=[zoo.train["math"]])
    registry.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    registry.train_router(tmp_path / "moe", tmp_path / "out", ["code"], SETTINGS)
    with pytest.raises(
        CalibrationError, match="math is not a file, and the calibration tokens of math@1 were not kept"
    ):
        registry.train_router(tmp_path / "moe", tmp_path / "no", ["code", "math"], SETTINGS)


@pytest.mark.check
def test_what_cannot_be_trained_is_refused(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    def changed(name: str, change: Callable[[Path], object]) -> Path:
        folder = shutil.copytree(moe, tmp_path / name)
        change(folder)
        return folder

    def edit(**entries: Any) -> Callable[[Path], object]:
        def change(folder: Path) -> None:
            document = json.loads((folder / MARKER).read_bytes()) | entries
            (folder / MARKER).write_text(json.dumps(document))

        return change

    filled.compose(["code"], tmp_path / "one", Recipe(router="ridge"))
    filled.compose(["code", "math"], tmp_path / "default")
    cases: list[tuple[Path, type[RegError], str]] = [
        (zoo.base, CheckpointError, "has no composition.json"),
        (changed("edited", edit(host="other")), CheckpointError, "composition.json was changed"),
        (changed("digestless", edit(digest=None)), CheckpointError, "digest"),
        (changed("outside", edit(files={"../x": "0"})), CheckpointError, r"is missing|is not a file"),
        (changed("short", lambda f: (f / "README.md").unlink()), CheckpointError, "README.md is missing"),
        (changed("config", lambda f: (f / "config.json").write_text("{}")), CheckpointError, "config.json was changed"),
        (tmp_path / "one", InvalidInputError, "one expert has no router"),
        (tmp_path / "default", InvalidInputError, "nothing to train: router method 'context' reads how often"),
    ]
    for folder, kind, message in cases:
        with pytest.raises(kind, match=message) as caught:
            train(filled, folder, tmp_path / "out", zoo)
        assert caught.value.hint
    with Registry(tmp_path / "elsewhere") as other:
        other.add_expert("code", zoo.experts["code"])
        with pytest.raises(NotFoundError, match="which is not registered here"):
            train(other, moe, tmp_path / "out", zoo)
    for out in (moe, moe / "below", tmp_path):
        with pytest.raises(OutputError):
            train(filled, moe, out, zoo, force=True)
    for settings, message in ({"top_k_train": 4}, "top-k-train is 4"), ({"lr": 1e30}, "the loss is|NaN"):
        with pytest.raises(InvalidInputError, match=message):
            train(filled, moe, tmp_path / "out", zoo, settings=TrainSettings(**(vars(SETTINGS) | settings)))
    with pytest.raises(CalibrationError, match="is not a file"):
        filled.train_router(moe, tmp_path / "out", ["nothing.txt"], SETTINGS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"warmup": 7, "steps": 6}, {"balance": -1.0}, {"dtype": "int8"},
     {"temperature": 0.0}, {"seq_len": 1}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        TrainSettings(**wrong)
    assert caught.value.hint


def test_rate_rises_and_falls() -> None:
    rates = [TrainSettings(steps=100, lr=1.0).rate(step) for step in range(100)]
    assert rates[:9] == sorted(rates[:9])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert max(rates) > 0.97 > 0.01 > rates[-1] > 0
