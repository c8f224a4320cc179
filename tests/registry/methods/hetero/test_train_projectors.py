"""Proves: a training of projectors moves them and the router alone, begins at their closed form, and is reproduced."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import MixtureTraining, Registry
from registry.errors import InvalidInputError
from tests.conftest import Zoo, files_of
from tests.registry.composition.composed import add_model, tensors_of
from tests.registry.hosts.test_hosts import load
from tests.registry.methods.hetero.hetero_world import SETTINGS, World, compose

TINY: dict[str, Any] = {
    "tokens": 8 * 2 * 32, "batch_size": 2, "seq_len": 32, "lr": 0.003, "device": "cpu", "dtype": "float32"
}  # fmt: skip
PROJECTORS = {
    *(f"members.{index}.embed_tokens.projector.weight" for index in (0, 1, 2)),
    *(f"outputs.{index}.weight" for index in (0, 1, 2)),
}
"""Those of every member but the lead, which is the last one."""


def train(registry: Registry, folder: Path, out: Path, zoo: Zoo, what: str = "projectors", **changes: Any) -> Any:
    data = [str(zoo.train[name]) for name in ("code", "law")]
    return registry.train(folder, out, data, MixtureTraining(what, **(TINY | changes)))


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("top_k", [1, 2])
def test_projectors_and_router_move_alone(several: Registry, zoo: Zoo, tmp_path: Path, top_k: int) -> None:
    compose(several, tmp_path / "start", top_k=top_k)
    before = files_of(tmp_path / "start")
    done = train(several, tmp_path / "start", tmp_path / "out", zoo)
    assert files_of(tmp_path / "start") == before
    old, new = tensors_of(tmp_path / "start"), tensors_of(tmp_path / "out")
    assert old.keys() == new.keys()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    # The weight of a single member is 1, whatever the router gives: it has no gradient.
    assert changed == PROJECTORS | ({"router.weight"} if top_k > 1 else set())
    assert changed == set(done.document["training"]["tensors"])
    assert (done.document["training"]["train"], done.document["training"]["balance"]) == ("projectors", 0.0)
    assert done.after < done.before
    load(tmp_path / "out")
    card = " ".join((tmp_path / "out" / "README.md").read_text().split())
    assert "The projectors and the router were then trained" in card
    assert "without training" not in card
    shutil.rmtree(tmp_path / "start")
    found = several.reproduce(tmp_path / "out", tmp_path / "again")
    assert found.is_same
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out")


def test_the_first_step_follows_the_gradient_of_the_loss(
    world: World, several: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    """One step of AdamW moves every weight by the rate, against the sign of its gradient."""
    done = train(several, world.folder, tmp_path / "out", zoo, tokens=2 * 32, lr=1e-4, weight_decay=0.0)
    old, new = tensors_of(world.folder), tensors_of(tmp_path / "out")
    steps = torch.cat([(new[name] - old[name]).flatten() for name in sorted(PROJECTORS)])
    moved = steps.abs() > 1e-7
    assert moved.float().mean() > 0.9
    assert torch.allclose(steps.abs()[moved].median(), torch.tensor(1e-4), rtol=0.05)
    assert done.document["training"]["steps"] == 1


def test_what_cannot_be_trained_is_refused(
    world: World, several: Registry, filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    compose(several, tmp_path / "whole", routing_tokens=0)
    with pytest.raises(InvalidInputError, match="a loss would see what it predicts") as refused:
        train(several, tmp_path / "whole", tmp_path / "out", zoo)
    assert "--routing-tokens" in str(refused.value.hint)
    for what in ("mlps", "routers"):
        with pytest.raises(InvalidInputError, match="members of several architectures") as refused:
            train(several, world.folder, tmp_path / "out", zoo, what)
        assert "--train projectors" in str(refused.value.hint)
    filled.compose(["code", "law"], tmp_path / "moe")
    with pytest.raises(InvalidInputError, match="has no projectors"):
        train(filled, tmp_path / "moe", tmp_path / "out", zoo)
    for wrong in ({"balance": 0.1}, {"fsdp": True}):
        with pytest.raises(InvalidInputError, match="has no part in a training of projectors"):
            MixtureTraining("projectors", **wrong)
    assert not (tmp_path / "out").exists()


@pytest.mark.check
def test_shared_tables_leave_nothing_to_train(several: Registry, world: World, zoo: Zoo, tmp_path: Path) -> None:
    twin = load(world.experts["math"])
    with torch.no_grad():
        twin.model.layers[0].mlp.down_proj.weight.add_(0.01)
    add_model(several, tmp_path / "twin", twin, settings=SETTINGS, keep_calibration=True)
    compose(several, tmp_path / "same", ("math", "twin"), top_k=1)
    with pytest.raises(InvalidInputError, match="share one embedding and head already") as refused:
        train(several, tmp_path / "same", tmp_path / "out", zoo)
    assert "--top-k 2" in str(refused.value.hint)
    compose(several, tmp_path / "two", ("math", "twin"), top_k=2)
    assert set(train(several, tmp_path / "two", tmp_path / "out", zoo).document["training"]["tensors"]) == {
        "router.weight"
    }
