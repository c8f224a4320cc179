"""Proves: only routers change; equal inputs, and an interrupted training that goes on, give equal bytes.

And: the result is a composition of its own; what cannot be trained is refused first.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import Recipe, Registry, TrainSettings, errors
from registry.io.model_folder import MARKER
from store.digest import json_digest
from tests.conftest import Zoo, files_of
from tests.digests import digests_of
from tests.models import logits
from tests.remarks import Remarks

SETTINGS = TrainSettings(steps=6, batch_size=2, seq_len=32, lr=0.05, balance=0.01, weight_decay=0.1)
IDS = torch.randint(1, 320, (2, 32), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    """A folder whose document tells what lam was chosen."""
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
    for key in ("members", "recipe", "host", "base"):
        assert document[key] == before[key]
    assert "whiten" not in document["training"]  # as early versions wrote it
    card = files["README.md"].decode()
    assert f"| composition | `{done.digest}` |\n| training | routers alone, 6 steps" in card
    assert "without training" not in card
    assert not list(filled.home.partial.glob("*"))
    assert not torch.equal(logits(tmp_path / "out", IDS), logits(moe, IDS))
    for changes in ({"seed": 1}, {"lr": 0.04}, {"top_k_train": 3}, {"balance": 0.0}, {"whiten": False}):
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
@pytest.mark.parametrize(("at", "damage"), [(4, None), (6, None), (4, b"\xff" * 64)], ids=range(3))
def test_interrupted_training_goes_on_to_the_same_bytes(
    filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path, at: int, damage: bytes | None
) -> None:
    whole = train(filled, moe, tmp_path / "whole", zoo)
    filled.progress = Remarks(until=at)
    with pytest.raises(KeyboardInterrupt):
        train(filled, moe, tmp_path / "out", zoo)
    assert not (tmp_path / "out").exists()
    (state,) = filled.home.partial.glob("*/state.safetensors")
    if damage is not None:  # it begins anew
        state.write_bytes(damage)
    filled.progress = heard = Remarks()
    assert train(filled, moe, tmp_path / "out", zoo) == whole
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert (f"goes on: {at} of 6" in heard.text) is (damage is None)
    assert not list(filled.home.partial.glob("*"))


@pytest.mark.check
def test_gates_of_equation_4_train_on_their_one_expert(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """DUME+ (§3.1): k = 1, no load balance, the weights as they are; in the gradient no other expert takes part."""
    recipe = Recipe(trunk="mean", router="ridge", top_k=1, gating="softmax-topk", temperature=1.0, host="remote-code")
    filled.compose(["code", "law", "math"], tmp_path / "moe", recipe)
    settings = TrainSettings(steps=30, batch_size=4, seq_len=32, lr=0.02, top_k_train=1, whiten=False)
    done = train(filled, tmp_path / "moe", tmp_path / "out", zoo, settings=settings)
    assert done.after < done.before
    assert (done.document["training"]["top_k_train"], done.document["training"]["whiten"]) == (1, False)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("moe", "out"))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        name for name in before if name.endswith("gate.weight")
    }
    assert filled.reproduce(tmp_path / "out").is_same


@pytest.mark.check
def test_kept_calibration_is_training_text(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    registry.add_expert("code", zoo.experts["code"], data=[zoo.train["code"]], keep_calibration=True)
    registry.add_expert("math", zoo.experts["math"], data=[zoo.train["math"]])
    registry.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    registry.train_router(tmp_path / "moe", tmp_path / "out", ["code"], SETTINGS)
    with pytest.raises(errors.CalibrationError, match="and the calibration tokens of math@1 were not kept"):
        registry.train_router(tmp_path / "moe", tmp_path / "no", ["code", "math"], SETTINGS)


@pytest.mark.check
def test_what_cannot_be_trained_is_refused(filled: Registry, moe: Path, zoo: Zoo, tmp_path: Path) -> None:
    def changed(name: str, file: str = MARKER, **entries: Any) -> Path:
        path = shutil.copytree(moe, tmp_path / name) / file
        path.write_text(json.dumps(json.loads(path.read_bytes()) | entries))
        return path.parent

    (changed("short") / "README.md").unlink()
    filled.compose(["code"], tmp_path / "one", Recipe(router="ridge"))
    filled.compose(["code", "math"], tmp_path / "default")
    cases: list[tuple[Path, type[errors.RegError], str]] = [
        (zoo.base, errors.CheckpointError, "has no composition.json"),
        (changed("edited", host="other"), errors.CheckpointError, "composition.json was changed"),
        (changed("digestless", digest=None), errors.CheckpointError, "digest"),
        (changed("outside", files={"../x": "0"}), errors.CheckpointError, r"is missing|is not a file"),
        (tmp_path / "short", errors.CheckpointError, "README.md is missing"),
        (changed("config", "config.json", more=1), errors.CheckpointError, "config.json was changed"),
        (tmp_path / "one", errors.InvalidInputError, "one expert has no router"),
        (tmp_path / "default", errors.InvalidInputError, "nothing to train: router method 'context' reads how often"),
    ]
    for folder, kind, message in cases:
        with pytest.raises(kind, match=message) as caught:
            train(filled, folder, tmp_path / "out", zoo)
        assert caught.value.hint
    with Registry(tmp_path / "elsewhere") as other:
        other.add_expert("code", zoo.experts["code"])
        with pytest.raises(errors.NotFoundError, match="which is not registered here"):
            train(other, moe, tmp_path / "out", zoo)
    for out in (moe, moe / "below", tmp_path):
        with pytest.raises(errors.OutputError):
            train(filled, moe, out, zoo, force=True)
    for settings, message in (
        ({"top_k_train": 4}, "top-k-train is 4"),
        ({"top_k_train": 1}, "from 2 to 3: .* at least 2"),
        ({"lr": 1e30}, "the loss in step|NaN"),
    ):
        with pytest.raises(errors.InvalidInputError, match=message):
            train(filled, moe, tmp_path / "out", zoo, settings=TrainSettings(**(vars(SETTINGS) | settings)))
    with pytest.raises(errors.CalibrationError, match="is not a file"):
        filled.train_router(moe, tmp_path / "out", ["nothing.txt"], SETTINGS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"warmup": 7, "steps": 6}, {"balance": -1.0}, {"dtype": "int8"},
     {"temperature": 0.0}, {"seq_len": 1}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidInputError) as caught:
        TrainSettings(**wrong)
    assert caught.value.hint


def test_rate_rises_and_falls() -> None:
    rates = [TrainSettings(steps=100, lr=1.0).rate(step) for step in range(100)]
    assert rates[:9] == sorted(rates[:9])
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert max(rates) > 0.97 > 0.01 > rates[-1] > 0
