"""Proves: members of an ensemble that share a merged trunk are dense models of that trunk with their own MLPs.

The dense models are put together here by hand, from the members' checkpoints and the trunk of a composed dense model.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from registry import EnsembleRecipe, Recipe, Registry, TestSettings
from registry.composition.ensemble.recipe import ROUTINGS
from registry.composition.manifest import CompositionManifest
from registry.composition.recipe import make_recipe, overlay, read_recipe, recipe_schema, write_recipe
from registry.composition.recipe.recipe_values import values_of
from registry.errors import IncompatibleError, InvalidInputError
from registry.evaluation.scoring import open_model
from registry.io.strict_yaml import parse_yaml
from registry.maths.trunk import TRUNKS
from registry.opt_out.receipt import recompose
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint
from tests.registry.composition.test_ensemble import FIRST, IDS, NAMES, gained, load, mixed, mixture, posterior_weights

SETTINGS: dict[str, dict[str, Any]] = {
    "regmean": {"trunk_options": {"alpha": 0.9}},
    "mean": {"weights": {"law": 3.0}},
    "base": {},
    "ties": {"trunk_options": {"density": 0.5, "scale": 0.5}, "combine": "sum"},
    "dare": {"trunk_options": {"density": 0.7}},
    "task-arithmetic": {"coefficients": {"code": 0.7, "law": -0.2, "math": 0.0}},
}
"""Trunk method → settings of it that are not its defaults."""

Members = Callable[..., list[Any]]


def compose(registry: Registry, out: Path, names: Sequence[str] = NAMES, **recipe: Any) -> Path:
    registry.compose(names, out, EnsembleRecipe(**recipe), force=True)
    return out


def by_hand(registry: Registry, zoo: Zoo, work: Path, method: str, **settings: Any) -> list[Any]:
    """Return for each member the dense model of the merged trunk and the member's own MLPs."""
    if method == "base":
        trunk = load_file(zoo.base / "model.safetensors")
    else:
        registry.compose(NAMES, work, Recipe(to="dense", trunk=method, **settings), force=True)
        trunk = load_file(work / "model.safetensors")
    models = []
    for name in NAMES:
        own = load_file(zoo.experts[name] / "model.safetensors")
        model = AutoModelForCausalLM.from_pretrained(zoo.experts[name], dtype=torch.float32)
        model.load_state_dict({key: (own if ".mlp." in key else trunk)[key] for key in own})
        models.append(model.eval())
    return models


@torch.no_grad()
def distributions(models: Sequence[Any], ids: torch.Tensor = IDS) -> torch.Tensor:
    """Return each model's log distributions (B, S, E, V)."""
    return torch.stack([model(input_ids=ids).logits.log_softmax(-1) for model in models], dim=2)


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("method", TRUNKS)
def test_forced_member_is_the_dense_model_of_that_trunk_and_its_mlps(
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
@pytest.mark.parametrize("mixing", ["probabilities", "logits"])
def test_mixtures_are_of_these_models(filled: Registry, zoo: Zoo, tmp_path: Path, mixing: str) -> None:
    models = by_hand(filled, zoo, tmp_path / "dense", "mean", weights={"law": 3.0})
    own = distributions(models)
    weights = posterior_weights(own, 2, 20.0, [1.0, 3.0, 1.0])  # ω is the prior too
    expected = mixture(own, weights)
    if mixing == "logits":
        expected = (own.double() * weights.unsqueeze(-1)).sum(2).log_softmax(-1).float()
    settings: dict[str, Any] = {"top_k": 2, "temperature": 20.0, "mixing": mixing, "weights": {"law": 3.0}}
    found = mixed(load(compose(filled, tmp_path / "out", trunk="mean", **settings)))
    assert torch.allclose(found, expected, atol=2e-5)
    separate = mixed(load(compose(filled, tmp_path / "separate", **settings)))
    assert not torch.allclose(found, separate, atol=1e-2)


@pytest.mark.check
def test_perplexity_of_the_prompt_is_that_of_these_models(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    own = distributions(by_hand(filled, zoo, tmp_path / "dense", "ties"))
    folder = compose(filled, tmp_path / "out", trunk="ties", routing="prompt-perplexity", top_k=1, routing_tokens=FIRST)
    best = gained(own)[:, FIRST - 1].argmax(-1)  # MergeME, section 3.1.3: the least perplexity on the first tokens
    expected = own[torch.arange(len(IDS)), :, best]
    assert torch.allclose(mixed(load(folder))[:, FIRST - 1 :], expected[:, FIRST - 1 :], atol=2e-5)


@pytest.mark.check(after=1)
@pytest.mark.parametrize("method", ["mean", "base"])
def test_task_vectors_are_of_the_merged_trunk_and_own_mlps(
    filled: Registry, zoo: Zoo, tmp_path: Path, method: str
) -> None:
    models = by_hand(filled, zoo, tmp_path / "dense", method)
    base = AutoModelForCausalLM.from_pretrained(zoo.base, dtype=torch.float32)
    # MergeME, section 3.1.3: cos(−∇L_0, θ_j − θ_0), θ_j the merged trunk and j's own MLPs.
    folder = compose(
        filled, tmp_path / "out", trunk=method, routing="task-vector", routing_tokens=FIRST, top_k=2, temperature=0.01
    )
    model, before = load(folder), dict(base.named_parameters())
    for row in IDS:
        gradients = dict(
            zip(
                before,
                torch.autograd.grad(
                    base(input_ids=row[None, :FIRST], labels=row[None, :FIRST]).loss, [*before.values()]
                ),
                strict=True,
            )
        )
        expected = []
        for member in models:
            theirs, dot, norm, length = dict(member.named_parameters()), 0.0, 0.0, 0.0
            for name, weight in before.items():
                step = (theirs[name] - weight).detach()
                dot += float((-gradients[name] * step).sum())
                norm += float(step.square().sum())
                length += float(gradients[name].square().sum())
            expected.append(dot / (norm * length) ** 0.5)
        assert torch.allclose(model._cosines(row[:FIRST]).cpu(), torch.tensor(expected), atol=1e-5)
    stored = load_file(folder / "model.safetensors")
    of_base = {name.removeprefix("base."): tensor for name, tensor in stored.items() if name.startswith("base.")}
    own = load_file(zoo.base / "model.safetensors")
    assert {name for name in own if name not in of_base} == (
        {name for name in own if ".mlp." not in name} if method == "base" else set()
    )
    assert all(torch.equal(tensor, own[name]) for name, tensor in of_base.items())


def test_trunk_is_stored_once(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    plan = filled.plan(NAMES, EnsembleRecipe(trunk="mean", routing="prompt-perplexity", top_k=2))
    folder = compose(filled, tmp_path / "out", trunk="mean", routing="prompt-perplexity", top_k=2)
    stored, own = load_file(folder / "model.safetensors"), load_file(zoo.base / "model.safetensors")
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


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("mixing", ["probabilities", "logits"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_kind_is_reproduced_and_loads(filled: Registry, tmp_path: Path, routing: str, mixing: str) -> None:
    recipe = EnsembleRecipe(trunk="dare", routing=routing, mixing=mixing, routing_tokens=FIRST)
    plan = filled.compose(NAMES[::-1], tmp_path / "out", recipe)
    assert filled.reproduce(tmp_path / "out").is_same
    assert filled.plan(NAMES, recipe).digest == plan.digest
    document = json.loads((tmp_path / "out" / "composition.json").read_bytes())
    assert CompositionManifest.from_document(document, "x").recipe.document(NAMES) == document["recipe"]
    assert document["base"]["name"] == "base"
    assert mixed(load(tmp_path / "out")).isfinite().all()


@pytest.mark.check
def test_bytes_forget_an_expert_that_was_withdrawn(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    for name in NAMES:
        registry.add_expert(name, zoo.experts[name])
    recipe = EnsembleRecipe(trunk="regmean", top_k=1)
    compose_all = registry.compose(NAMES, tmp_path / "all", recipe)
    registry.opt_out("law")
    registry.compose(["math", "code"], tmp_path / "rest", recipe)
    with Registry(tmp_path / "other") as other:
        for name in ("math", "code"):
            other.add_expert(name, zoo.experts[name])
        other.compose(["code", "math"], tmp_path / "never", recipe)
    assert files_of(tmp_path / "rest") == files_of(tmp_path / "never")
    assert compose_all.digest != registry.plan(["code", "math"], recipe).digest


def test_document_config_and_card(filled: Registry, tmp_path: Path) -> None:
    folder = compose(
        filled, tmp_path / "out", routing="perplexity", trunk="task-arithmetic", **SETTINGS["task-arithmetic"]
    )
    document, config = (json.loads((folder / name).read_bytes()) for name in ("composition.json", "config.json"))
    assert document["recipe"] == {
        "to": "ensemble",
        "routing": "perplexity",
        "top_k": 3,
        "temperature": 1.0,
        "weights": {"code": 1.0, "law": 1.0, "math": 1.0},
        "routing_tokens": None,
        "dtype": None,
        "trunk": "task-arithmetic",
        "trunk_options": {},
        "coefficients": {"code": 0.7, "law": -0.2, "math": 0.0},
    }
    assert config["routing_prior"] is None
    assert config["shared_tensors"]["lm_head.weight"] == [0, 0, 0]
    page = (folder / "README.md").read_text()
    assert "3 dense models that share one trunk whose next-token" in page
    assert (
        "| trunk | task-arithmetic (coefficient 0.7 of code, coefficient -0.2 of law, coefficient 0 of math), " in page
    )
    assert f"with the base model base `{filled.resolve('base').digest}`: one for all members" in page
    assert "2212.04089" in page
    mean = (compose(filled, tmp_path / "mean", routing="task-vector", trunk="mean") / "README.md").read_text()
    assert "| trunk | mean: one for all members, who keep their own MLPs |" in mean
    assert "a gradient of the base model base" in mean


def test_coefficients_lose_that_of_who_left(filled: Registry, tmp_path: Path) -> None:
    recipe = EnsembleRecipe(trunk="task-arithmetic", weights={}, **SETTINGS["task-arithmetic"])
    filled.compose(NAMES, tmp_path / "out", recipe)
    manifest = CompositionManifest.from_document(json.loads((tmp_path / "out" / "composition.json").read_bytes()), "x")
    rest = replace(recipe, coefficients={"code": 0.7, "math": 0.0})
    expected = filled.plan(["code", "math"], rest).digest
    assert recompose(filled._workspace, manifest, [manifest.members[0], manifest.members[2]]) == expected


def test_files_and_values_hold_it(tmp_path: Path) -> None:
    schema = jsonschema.Draft202012Validator(recipe_schema())
    for method, settings in SETTINGS.items():
        recipe = EnsembleRecipe(trunk=method, routing="perplexity", **settings)
        assert make_recipe(values_of(recipe)) == recipe
        write_recipe(tmp_path / "r.yaml", recipe, force=True)
        assert read_recipe(tmp_path / "r.yaml").recipe == recipe
        schema.validate(parse_yaml((tmp_path / "r.yaml").read_bytes(), "r").plain)
    dense = {"to": "dense", "trunk": "ties", "density": 0.5, "weights": {"a": 2.0}}
    assert overlay(dense, {"to": "ensemble"}) == {"to": "ensemble", "weights": {"a": 2.0}}
    assert overlay(dense, {"to": "ensemble", "trunk": "ties"}) == dense | {"to": "ensemble"}
    shared = {"to": "ensemble", "trunk": "ties", "density": 0.5}
    assert overlay(shared, {"routing": "perplexity"}) == shared | {"routing": "perplexity"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "trunk_options: {alpha: 0.5}",
            "trunk_options.alpha has no part in an ensemble whose members keep their own trunk",
        ),
        ("trunk: mean\ntrunk_options: {density: 0.5}", "trunk method 'mean' has no option 'density'"),
        ("combine: sum", "combine has no part in an ensemble whose members keep their own trunks"),
        ("coefficients: {a: 1}", "coefficients has no part in an ensemble whose members keep their own trunks"),
        ("trunk: men", "trunk method 'men' is not one of"),
        ("routing: perplexity\nweights: {a: 2}", "weights has no part in routing method 'perplexity'"),
        ("trunk: mean\nbalance: tokens", "balance has no part in output 'ensemble'"),
        ("trunk: mean\nbase: zero", "this recipe takes no base model"),
        ("trunk: task-arithmetic\ncoefficients: {a: 1}\nfit: {}", "coefficients are fitted for one dense model"),
        ("trunk: task-arithmetic\ncoefficients: {a: 1}\nweights: {a: 2}", "weights multiply task vectors"),
    ],
)
def test_what_has_no_part_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"to: ensemble\n{text}\n")
    with pytest.raises(InvalidInputError, match=message.replace("{", r"\{").replace("(", r"\(")) as caught:
        assert read_recipe(path).recipe
    assert caught.value.hint


@pytest.mark.check
def test_members_that_cannot_share_a_trunk_are_refused(
    filled: Registry, zoo: Zoo, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(IncompatibleError, match=r"base@1 .* trunk method 'regmean'") as caught:
        filled.plan(["base", "code"], EnsembleRecipe(trunk="regmean"))
    assert "--trunk mean" in str(caught.value.hint)
    # Rows that some members lack are the others': the head is one.
    save_checkpoint(make_model("llama", 107, vocab_size=352), tmp_path / "wide", tokenizer)
    filled.add_expert("wide", tmp_path / "wide", data=[zoo.train["code"]], allow_unrelated=True)
    assert filled.plan(["code", "wide"], EnsembleRecipe(trunk="mean")).config["vocab_size"] == 352
    folder = compose(filled, tmp_path / "out", ["code", "wide"], trunk="mean")
    assert mixed(load(folder)).shape[-1] == 352
    with pytest.raises(IncompatibleError, match="vocab_size 352 against 320") as caught:
        filled.plan(["code", "wide"], EnsembleRecipe(trunk="mean", routing="task-vector"))
    assert "--routing" in str(caught.value.hint)
    with pytest.raises(InvalidInputError, match="there is no coefficient for math"):
        filled.plan(["code", "math"], EnsembleRecipe(trunk="task-arithmetic", coefficients={"code": 1.0}))
