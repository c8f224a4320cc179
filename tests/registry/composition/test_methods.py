"""Proves: compositions by each method are what their equations say, computed here from raw features in float64."""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Recipe, Registry
from registry.composition.found import TRUNKS
from registry.errors import IncompatibleError
from registry.methods.moe.plan import statistics_weights
from registry.methods.moe.tensor_source import StoredSource
from registry.runtime.layerwise import watched
from registry.runtime.loading import load_model
from registry.statistics import file as statistics_file
from registry.statistics.collect import collect_to
from registry.statistics.settings import PassSettings
from tests.conftest import Zoo, files_of
from tests.registry.composition.composed import GATE, PAIR, files_elsewhere, tensors_of


def grams_of(zoo: Zoo, name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the Gram of every linear map's input, by its tensor's name, and how often each token came."""
    calibration = statistics_file.load(zoo.experts[name] / "statistics.safetensors").calibration
    assert calibration is not None
    model = load_model(zoo.experts[name], "float32", None)
    maps = {f"{key}.weight": module for key, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    with torch.no_grad(), watched(maps) as seen:
        model(input_ids=calibration.ids.long())
    rows = {key: x[calibration.keep].double() for key, (x, _) in seen.items()}
    tokens = calibration.ids.long()[calibration.keep]
    return {key: x.T @ x for key, x in rows.items()}, torch.bincount(tokens, minlength=model.config.vocab_size)


def regmean_by_hand(zoo: Zoo, weights: list[float], alpha: float) -> dict[str, torch.Tensor]:
    """Return Jin et al. (2022), eq. 2, of every tensor, its Grams shrunk by alpha (§3.3)."""
    own = [tensors_of(zoo.experts[name]) for name in PAIR]
    taken = [grams_of(zoo, name) for name in PAIR]
    made = {}
    for key in own[0]:
        stack = torch.stack([of[key].double() * w for of, w in zip(own, weights, strict=True)])
        mean = stack.sum(0) / sum(weights)
        if key == "model.embed_tokens.weight":
            times = [w * counts.double()[:, None] for (_, counts), w in zip(taken, weights, strict=True)]
            weighted = torch.stack([of[key] * t for of, t in zip(own, times, strict=True)]).sum(0)
            used = torch.stack(times).sum(0)
            mean = torch.where(used > 0, weighted / used, mean)
        elif key in taken[0][0] and "down_proj" not in key:
            parts = []
            for (grams, _), w in zip(taken, weights, strict=True):
                parts.append(w * (alpha * grams[key] + (1 - alpha) * torch.diag(grams[key].diagonal())))
            total = parts[0] + parts[1]
            ridge_strength = 1e-6 * total.diagonal().mean()
            right = sum(of[key].double() @ g for of, g in zip(own, parts, strict=True)) + ridge_strength * mean
            mean = torch.linalg.solve(total + ridge_strength * torch.eye(len(total)), right.T).T
        made[key] = mean
    return made


@pytest.mark.check(after=1)
@pytest.mark.parametrize(("weights", "alpha"), [([1.0, 1.0], 1.0), ([3.0, 1.0], 0.9)])
def test_regmean_is_its_equation_over_raw_features(
    filled: Registry, zoo: Zoo, tmp_path: Path, weights: list[float], alpha: float
) -> None:
    shares = dict(zip(PAIR, weights, strict=True))
    recipe = Recipe(router="ridge", trunk_options={"alpha": alpha}, weights=shares)
    expected = regmean_by_hand(zoo, weights, alpha)
    filled.compose(PAIR, tmp_path / "dense", recipe.replace(to="dense"))
    dense = tensors_of(tmp_path / "dense")
    assert dense.keys() == expected.keys()
    for name, weight in dense.items():
        # An activation is a multiple of 2^-11 or so; through the solve that comes to 1e-3 at most.
        assert torch.allclose(weight.double(), expected[name], rtol=0, atol=2e-3), name
    filled.compose(PAIR, tmp_path / "moe", recipe)
    moe, mean = tensors_of(tmp_path / "moe"), tensors_of(zoo.experts["code"])
    for name in dense:
        if ".mlp." not in name:
            assert torch.equal(moe[name], dense[name])
            assert not torch.allclose(mean[name], dense[name], atol=0.02)


def test_maps_of_one_input_have_the_same_bits_in_any_order(filled: Registry) -> None:
    plan = filled.plan(PAIR, Recipe())
    below = [f"model.layers.{layer}.self_attn.{name}_proj.weight" for layer in range(2) for name in "qkvo"]
    alone = {name: torch.cat(list(StoredSource(plan).combined(name))) for name in below}
    together = StoredSource(plan)
    for name in (*below, *reversed(below), *below[::2], below[1]):
        assert torch.equal(torch.cat(list(together.combined(name))), alone[name]), name


@pytest.mark.check
def test_dense_models_of_every_trunk_method(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """Where it is a short sum, it is that sum; MLPs are combined as the trunk is. All of them load and compute."""
    code, math, base = (tensors_of(path) for path in (zoo.experts["code"], zoo.experts["math"], zoo.base))
    weak: dict[str, Any] = {"trunk_options": {"density": 1.0, "scale": 0.3}, "combine": "sum"}  # nothing is dropped
    expected: list[tuple[str, dict[str, Any], Any]] = [
        ("mean", {}, lambda a, b, _: (a + b) / 2),
        ("base", {}, lambda _a, _b, o: o),
        ("task-arithmetic", {"trunk_options": {"scale": 0.4}}, lambda a, b, o: o + 0.4 * ((a - o) + (b - o))),
        ("ties", {"trunk_options": {"density": 1.0}}, ties_of_all),
        ("dare", weak, lambda a, b, o: o + 0.3 * ((a - o) + (b - o))),
        ("regmean", {}, None),
        ("dare", {"trunk_options": {"density": 1.0}}, lambda a, b, _: (a + b) / 2),
    ]
    assert {trunk for trunk, _, _ in expected} == set(TRUNKS)
    ids, seen = torch.arange(20)[None], []
    for trunk, options, equation in expected:
        plan = filled.compose(PAIR, tmp_path / "out", Recipe(trunk=trunk, to="dense", **options), force=True)
        assert plan.model_type == "llama"
        made = tensors_of(tmp_path / "out")
        assert made.keys() == base.keys()
        for name in made if equation else ():
            wanted = equation(code[name].double(), math[name].double(), base[name].double())
            assert torch.allclose(made[name].double(), wanted, rtol=0, atol=1e-6), (trunk, name)
        with torch.no_grad():
            seen.append(load_model(tmp_path / "out", "float32", None)(input_ids=ids).logits)
        assert bool(torch.isfinite(seen[-1]).all())
    apart = [(a, b) for a in range(7) for b in range(a) if torch.allclose(seen[a], seen[b], atol=1e-3)]
    assert apart == [(6, 0)]  # dare of all entries, and mean


@pytest.mark.check
def test_sums_of_task_vectors_replace_their_mean(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """Where another combination was in the same folder before, also where routers follow from the trunk."""
    mean = Recipe(trunk="ties", router="ridge", refine=1, trunk_options={"density": 1.0, "scale": 0.5})
    filled.compose(PAIR, tmp_path / "moe", mean)
    filled.compose(PAIR, tmp_path / "moe", mean.replace(combine="sum"), force=True)
    assert files_of(tmp_path / "moe") == files_elsewhere(zoo, tmp_path, PAIR, mean.replace(combine="sum"))
    code, math, base = (tensors_of(path) for path in (zoo.experts["code"], zoo.experts["math"], zoo.base))
    for name, tensor in tensors_of(tmp_path / "moe").items():
        if name in base and ".mlp." not in name:
            tasks = torch.stack([one[name].double() - base[name].double() for one in (code, math)])
            wanted = base[name].double() + 0.5 * (tasks * (tasks.sign() == tasks.sum(0).sign())).sum(0)
            assert torch.allclose(tensor.double(), wanted, rtol=0, atol=1e-6), name


def ties_of_all(a: torch.Tensor, b: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Return TIES without trimming (Yadav et al. 2023): the mean of those that have the sign of the sum."""
    tasks = torch.stack([a - base, b - base])
    same = tasks.sign() == tasks.sum(0).sign()
    return base + (tasks * same).sum(0) / same.sum(0).clamp_min(1)


@pytest.fixture
def narrow(filled: Registry, bare: Path, zoo: Zoo) -> Registry:
    """A registry with an expert that has statistics for routers only."""
    settings = PassSettings(tokens=512, seq_len=32, batch_size=4, sites="router")
    collect_to(bare, bare, data=[zoo.train["code"]], settings=settings)
    filled.add_expert("narrow", bare)
    return filled


def test_member_without_the_sites_of_a_method_is_refused(narrow: Registry, tmp_path: Path) -> None:
    for recipe in (Recipe(), Recipe(to="dense")):
        with pytest.raises(
            IncompatibleError, match="narrow@1 has no statistics of attention_input, which trunk method 'regmean' needs"
        ) as caught:
            narrow.compose(("math", "narrow"), tmp_path / "moe", recipe)
        assert "--trunk mean" in str(caught.value.hint)
    narrow.plan(("math", "narrow"), Recipe(trunk="mean", router="ridge"))
    narrow.plan(("narrow",))  # of one member nothing is solved
    assert not (tmp_path / "moe").exists()


@pytest.mark.check
def test_balance_weighs_statistics_by_their_tokens(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """What is solved is as with weights that make up for the tokens; what is not has the mean of the members."""
    few = PassSettings(tokens=128, seq_len=32, batch_size=4)
    registry.add_expert("math", zoo.experts["math"], data=[zoo.train["math"]], settings=few)
    registry.add_expert("code", zoo.experts["code"])
    balanced = Recipe(router="ridge", balance="tokens", lam=1e-6)
    weights = statistics_weights(registry.plan(PAIR, balanced))
    assert weights == pytest.approx([0.625, 2.5])  # 512 and 128 tokens
    by_hand = balanced.replace(balance="none", weights=dict(zip(PAIR, weights, strict=True)))
    found, expected, plain = (dict[str, torch.Tensor]() for _ in range(3))
    for tensors, recipe in ((found, balanced), (expected, by_hand), (plain, balanced.replace(balance="none"))):
        registry.compose(PAIR, tmp_path / "moe", recipe, force=True)
        tensors |= tensors_of(tmp_path / "moe")
    maps = {name for name in found if name.endswith("_proj.weight")}
    for name in (*maps, *map(GATE.format, range(2)), "lm_head.weight"):
        assert torch.allclose(found[name], expected[name], rtol=0, atol=1e-5), name
        assert not torch.allclose(found[name], plain[name], atol=1e-3), name
    assert torch.equal(found["model.norm.weight"], plain["model.norm.weight"])
