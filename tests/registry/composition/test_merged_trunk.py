"""Proves: members of an ensemble that share a merged trunk are dense models of that trunk with their own MLPs.

The dense models are put together here by hand, from the members' checkpoints and the trunk of a composed dense model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Recipe, Registry, TestSettings
from registry.composition.found import TRUNKS
from registry.errors import IncompatibleError, InvalidInputError
from registry.evaluation.scoring import open_model
from tests.conftest import Zoo, files_of
from tests.models import make_model
from tests.registry.composition.composed import add_model, files_elsewhere, json_of, tensors_of
from tests.registry.composition.test_ensemble import FIRST, IDS, NAMES, mixed
from tests.registry.hosts.test_hosts import load

SETTINGS: dict[str, dict[str, Any]] = {
    "regmean": {"trunk_options": {"alpha": 0.9}},
    "mean": {"weights": {"law": 3.0}},
    "base": {},
    "ties": {"trunk_options": {"density": 0.5, "scale": 0.5}, "combine": "sum"},
    "dare": {"trunk_options": {"density": 0.7}},
    "task-arithmetic": {"coefficients": {"code": 0.7, "law": -0.2, "math": 0.0}},
}
"""Trunk method → settings of it that are not its defaults."""


def compose(registry: Registry, out: Path, names: Sequence[str] = NAMES, **recipe: Any) -> Path:
    registry.compose(names, out, Recipe(to="ensemble", **recipe), force=True)
    return out


def by_hand(registry: Registry, zoo: Zoo, work: Path, method: str, **settings: Any) -> list[Any]:
    """Return for each member the dense model of the merged trunk and the member's own MLPs."""
    registry.compose(NAMES, work, Recipe(to="dense", trunk=method, **settings), force=True)
    trunk, models = tensors_of(work), []
    for name in NAMES:
        own, model = tensors_of(zoo.experts[name]), load(zoo.experts[name])
        model.load_state_dict({key: (own if ".mlp." in key else trunk)[key] for key in own})
        models.append(model)
    return models


@torch.no_grad()
def distributions(models: Sequence[Any], ids: torch.Tensor = IDS) -> torch.Tensor:
    """Return each model's log distributions (B, S, E, V)."""
    return torch.stack([model(input_ids=ids).logits.log_softmax(-1) for model in models], dim=2)


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("method", TRUNKS)
def test_a_member_is_the_dense_model_of_that_trunk_and_its_mlps(
    filled: Registry, zoo: Zoo, tmp_path: Path, method: str
) -> None:
    settings = SETTINGS[method]
    own = distributions(by_hand(filled, zoo, tmp_path / "dense", method, **settings))
    folder = compose(filled, tmp_path / "out", trunk=method, top_k=1, routing="perplexity", **settings)
    model = load(folder)
    weigh = model._weigh
    for member in range(len(NAMES)):  # a weight of exactly 1, whose logarithm is exactly 0
        forced = torch.full((len(NAMES),), -torch.inf).index_fill(0, torch.tensor([member]), 0.0)
        model._weigh = lambda scores, known, forced=forced: forced.to(scores).expand_as(scores)
        assert torch.equal(mixed(model), own[:, :, member])
    model._weigh = weigh
    assert not torch.equal(mixed(model), own[:, :, 0])


@pytest.mark.check(after=1)
@pytest.mark.parametrize("method", ["mean", "base"])
def test_task_vectors_are_of_the_merged_trunk(filled: Registry, zoo: Zoo, tmp_path: Path, method: str) -> None:
    models, base = by_hand(filled, zoo, tmp_path / "dense", method), load(zoo.base)
    # MergeME, App. C, merged attention as in Table 3: cos(−∇L_0, θ_j − θ_0), θ_j the merged trunk and j's own MLPs.
    settings: dict[str, Any] = {"routing": "task-vector", "routing_tokens": FIRST, "top_k": 2, "temperature": 0.01}
    folder = compose(filled, tmp_path / "out", trunk=method, **settings)
    model, before = load(folder), list(base.parameters())
    for row in IDS[:, :FIRST]:
        loss = base(input_ids=row[None], labels=row[None]).loss
        downhill = -torch.cat([part.flatten() for part in torch.autograd.grad(loss, before)])
        expected = []
        for member in models:
            steps = [(own - start).detach().flatten() for own, start in zip(member.parameters(), before, strict=True)]
            expected.append(torch.cosine_similarity(downhill.double(), torch.cat(steps).double(), dim=0))
        assert torch.allclose(model._cosines(row).cpu(), torch.stack(expected).float(), atol=1e-5)
    own, prefix = tensors_of(zoo.base), "base."
    of_base = {key.removeprefix(prefix): one for key, one in tensors_of(folder).items() if key.startswith(prefix)}
    assert own.keys() - of_base.keys() == ({name for name in own if ".mlp." not in name} if method == "base" else set())
    assert all(torch.equal(tensor, own[name]) for name, tensor in of_base.items())


def test_trunk_is_stored_once_and_described(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"trunk": "task-arithmetic", "routing": "prompt-perplexity", "top_k": 2}
    settings |= SETTINGS["task-arithmetic"]
    plan, folder = filled.plan(NAMES, Recipe(to="ensemble", **settings)), compose(filled, tmp_path / "out", **settings)
    stored, own = tensors_of(folder), tensors_of(zoo.base)
    trunk = {name for name in own if ".mlp." not in name}
    mlps = own.keys() - trunk
    assert stored.keys() == {f"members.0.{name}" for name in trunk} | {
        f"members.{index}.{name}" for index in range(3) for name in mlps
    }
    sizes = [sum(own[name].numel() for name in names) for names in (trunk, mlps)]
    assert plan.parameters == sum(tensor.numel() for tensor in stored.values()) == sizes[0] + 3 * sizes[1]
    assert plan.nbytes == sum(tensor.nbytes for tensor in stored.values())
    assert plan.active_parameters == sizes[0] + 2 * sizes[1]
    assert open_model("e", folder, TestSettings(device="cpu")).active_parameters == plan.active_parameters
    model = load(folder)
    assert len({id(member.model.embed_tokens.weight) for member in model.members}) == 1
    assert len({id(member.model.layers[0].mlp.up_proj.weight) for member in model.members}) == 3
    settings |= {"trunk_options": {}, "weights": dict.fromkeys(NAMES, 1.0)}
    assert json_of(folder)["recipe"].items() >= settings.items()
    config, page = json_of(folder, "config.json"), (folder / "README.md").read_text()
    assert (config["routing_prior"], config["shared_tensors"]["lm_head.weight"]) == (None, [0, 0, 0])
    assert "| trunk | task-arithmetic (coefficient 0.7 of code, coefficient -0.2 of law, coefficient 0 of math)" in page
    assert f"with the base model base `{filled.resolve('base').digest}`: one for all members" in page


@pytest.mark.check
def test_bytes_forget_an_expert_that_was_withdrawn(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    for name in NAMES:
        registry.add_expert(name, zoo.experts[name])
    recipe = Recipe(to="ensemble", trunk="regmean", top_k=1)
    compose_all = registry.compose(NAMES, tmp_path / "all", recipe)
    registry.opt_out("law")
    registry.compose(["math", "code"], tmp_path / "rest", recipe)
    assert files_of(tmp_path / "rest") == files_elsewhere(zoo, tmp_path, ("math", "code"), recipe)
    assert compose_all.digest != registry.plan(["code", "math"], recipe).digest


@pytest.mark.check
def test_members_that_cannot_share_a_trunk_are_refused(filled: Registry, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError, match=r"base@1 .* trunk method 'regmean'") as caught:
        filled.plan(["base", "code"], Recipe(to="ensemble", trunk="regmean"))
    assert "--trunk mean" in str(caught.value.hint)
    # Rows that some members lack are the others': the head is one.
    add_model(filled, tmp_path / "wide", make_model("llama", 107, vocab_size=352), allow_unrelated=True)
    folder = compose(filled, tmp_path / "out", ["code", "wide"], trunk="mean")
    assert mixed(load(folder)).shape[-1] == 352
    with pytest.raises(IncompatibleError, match="vocab_size 352 against 320") as caught:
        filled.plan(["code", "wide"], Recipe(to="ensemble", trunk="mean", routing="task-vector"))
    assert "--routing" in str(caught.value.hint)
    with pytest.raises(InvalidInputError, match="there is no coefficient for math"):
        filled.plan(["code", "math"], Recipe(to="ensemble", trunk="task-arithmetic", coefficients={"code": 1.0}))
    with pytest.raises(InvalidInputError, match="coefficients has no part in an ensemble whose members keep their own"):
        Recipe(to="ensemble", coefficients={"code": 1.0})
