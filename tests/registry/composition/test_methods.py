"""Proves: compositions by each method are what their equations say, computed here from raw features in float64."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import Recipe, Registry
from registry.composition.tensor_source import StoredSource
from registry.errors import IncompatibleError
from registry.families.sites import MLP_INPUT
from registry.io.model_folder import MARKER
from registry.maths.router.ridge import ridge
from registry.maths.trunk import TRUNKS
from registry.runtime.loading import load_model
from registry.statistics import file as statistics_file
from registry.statistics.collect import collect_to
from registry.statistics.file import Collected
from registry.statistics.settings import PassSettings
from tests.conftest import Zoo, files_of

GATE = "model.layers.{}.block_sparse_moe.gate.weight"
PAIR = ("code", "math")
INPUTS = {"self_attn.q_proj": "q", "self_attn.k_proj": "q", "self_attn.v_proj": "q", "self_attn.o_proj": "o"}
"""Linear map below a layer → the map whose input is its own."""
MLP_INPUTS = {"mlp.gate_proj": "g", "mlp.up_proj": "g"}


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def grams_of(zoo: Zoo, name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the Gram of every linear map's input, by its tensor's name, and how often each token came."""
    calibration = statistics_file.load(zoo.experts[name] / "statistics.safetensors").calibration
    assert calibration is not None
    model, seen = load_model(zoo.experts[name], "float32", None), {}
    handles = [
        module.register_forward_pre_hook(lambda _m, given, key=key: seen.update({f"{key}.weight": given[0]}))
        for key, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    with torch.no_grad():
        model(input_ids=calibration.ids.long())
    for handle in handles:
        handle.remove()
    rows = {key: x[calibration.keep].double() for key, x in seen.items()}
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
    filled.compose(PAIR, tmp_path / "dense", replace(recipe, to="dense"))
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
    below = [f"model.layers.{layer}.{name}.weight" for layer in range(2) for name in INPUTS]
    alone = {name: torch.cat(list(StoredSource(plan).combined(name))) for name in below}
    together = StoredSource(plan)
    for name in (*below, *reversed(below), *below[::2], below[1]):
        assert torch.equal(torch.cat(list(together.combined(name))), alone[name]), name


@pytest.mark.check
def test_dense_models_of_every_trunk_method(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """Where it is a short sum, it is that sum; MLPs are combined as the trunk is. All of them load and compute."""
    code, math, base = (tensors_of(path) for path in (zoo.experts["code"], zoo.experts["math"], zoo.base))
    expected: dict[str, tuple[dict[str, float], Any]] = {
        "mean": ({}, lambda a, b, _: (a + b) / 2),
        "base": ({}, lambda _a, _b, o: o),
        "task-arithmetic": ({"scale": 0.4}, lambda a, b, o: o + 0.4 * ((a - o) + (b - o))),
        "dare": ({"density": 1.0}, lambda a, b, _: (a + b) / 2),  # nothing is dropped
        "ties": ({"density": 1.0}, ties_of_all),
        "regmean": ({}, None),
    }
    assert set(expected) == set(TRUNKS)
    ids, seen = torch.arange(20)[None], []
    for trunk, (options, equation) in expected.items():
        plan = filled.compose(PAIR, tmp_path / trunk, Recipe(trunk=trunk, to="dense", trunk_options=options))
        assert plan.model_type == "llama"
        made = tensors_of(tmp_path / trunk)
        assert made.keys() == base.keys()
        for name in made if equation else ():
            wanted = equation(code[name].double(), math[name].double(), base[name].double())
            assert torch.allclose(made[name].double(), wanted, rtol=0, atol=1e-6), (trunk, name)
        with torch.no_grad():
            seen.append(load_model(tmp_path / trunk, "float32", None)(input_ids=ids).logits)
        assert bool(torch.isfinite(seen[-1]).all())
    apart = [(a, b) for a in range(6) for b in range(a) if torch.allclose(seen[a], seen[b], atol=1e-3)]
    assert apart == [(3, 0)]  # dare of all entries, and mean


@pytest.mark.check
def test_sums_of_task_vectors_are_written(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """Into mixtures and dense models, and where another combination was in the same folder before."""
    code, math, base = (tensors_of(path) for path in (zoo.experts["code"], zoo.experts["math"], zoo.base))
    options = {"density": 1.0, "scale": 0.5}

    def summed(name: str, trunk: str) -> torch.Tensor:
        tasks = torch.stack([one[name].double() - base[name].double() for one in (code, math)])
        if trunk == "ties":
            tasks = tasks * (tasks.sign() == tasks.sum(0).sign())
        return base[name].double() + 0.5 * tasks.sum(0)

    for trunk in ("ties", "dare"):
        dense = Recipe(trunk=trunk, to="dense", trunk_options=options, combine="sum")
        filled.compose(PAIR, tmp_path / f"{trunk} dense", dense)
        for name, tensor in tensors_of(tmp_path / f"{trunk} dense").items():
            assert torch.allclose(tensor.double(), summed(name, trunk), rtol=0, atol=1e-6), name
        mean = Recipe(trunk=trunk, router="ridge", refine=1, trunk_options=options)
        sums = replace(mean, combine="sum")
        filled.compose(PAIR, tmp_path / trunk, mean)
        filled.compose(PAIR, tmp_path / trunk, sums, force=True)
        for name, tensor in tensors_of(tmp_path / trunk).items():
            if name in base and ".mlp." not in name:
                assert torch.allclose(tensor.double(), summed(name, trunk), rtol=0, atol=1e-6), name
        assert filled.reproduce(tmp_path / trunk).is_same
        with Registry(tmp_path / f"{trunk} home") as fresh:  # routers are not those of the mean either
            fresh.add_base("base", zoo.base)
            for name in PAIR:
                fresh.add_expert(name, zoo.experts[name])
            fresh.compose(PAIR, tmp_path / f"{trunk} fresh", sums)
        assert files_of(tmp_path / f"{trunk} fresh") == files_of(tmp_path / trunk)


def ties_of_all(a: torch.Tensor, b: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """Return TIES without trimming (Yadav et al. 2023): the mean of those that have the sign of the sum."""
    tasks = torch.stack([a - base, b - base])
    same = tasks.sign() == tasks.sum(0).sign()
    return base + (tasks * same).sum(0) / same.sum(0).clamp_min(1)


@pytest.fixture
def narrow(filled: Registry, bare: Path, zoo: Zoo) -> Registry:
    """A registry with an expert that has statistics for routers only, in one fold."""
    settings = PassSettings(tokens=512, seq_len=32, batch_size=4, sites="router", folds=1)
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
        assert not (tmp_path / "moe").exists()
    narrow.plan(("math", "narrow"), Recipe(trunk="mean", router="ridge"))
    narrow.plan(("narrow",))  # of one member nothing is solved


def test_member_without_folds_leaves_nothing_to_choose_lam_by(narrow: Registry, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError, match=r"in as many folds, 2 or more: math@1 2, narrow@1 1$") as caught:
        narrow.compose(("narrow", "math"), tmp_path / "moe", Recipe(router="ridge", trunk="mean", lam="auto"))
    assert "--folds 2" in str(caught.value.hint)
    assert not (tmp_path / "moe").exists()
    with pytest.raises(IncompatibleError, match="in as many folds, 2 or more: narrow@1 1"):
        narrow.lam_curve(("narrow",))


@pytest.mark.check
def test_lam_auto_takes_the_least_error_and_tells_its_curve(filled: Registry, tmp_path: Path) -> None:
    plan = filled.compose(PAIR, tmp_path / "moe", Recipe(router="ridge", lam="auto"))
    document = json.loads((tmp_path / "moe" / MARKER).read_text())
    assert document["recipe"]["lam"] == "auto"
    assert [of["layer"] for of in document["lam"]] == [0, 1]
    curves = filled.lam_curve(PAIR)
    for layer, (of, curve) in enumerate(zip(document["lam"], curves, strict=True)):
        assert of == {"layer": layer, **json.loads(json.dumps(curve.document()))}
        assert of["best"] == of["lams"][min(range(len(of["lams"])), key=of["errors"].__getitem__)]
        assert 0 < min(of["errors"]) < 0.6 < max(of["accuracies"]) <= 1
        statistics = [member.statistics(MLP_INPUT, layer) for member in plan.members]
        gate = tensors_of(tmp_path / "moe")[GATE.format(layer)]
        assert torch.equal(gate, (ridge(statistics, [1.0, 1.0], of["best"], normalize=False) / 0.05).float())
    filled.compose(PAIR, tmp_path / "plain", Recipe(router="ridge"))
    assert "lam" not in json.loads((tmp_path / "plain" / MARKER).read_text())


def times(collected: Collected, number: int) -> Collected:
    """Return the statistics of a calibration that is repeated so many times."""

    def repeated(part: Any) -> Any:
        total = part
        for _ in range(number - 1):
            total = total + part
        return total

    assert collected.token_counts is not None
    return replace(
        collected,
        sites={site: tuple(map(repeated, layers)) for site, layers in collected.sites.items()},
        folds={site: tuple(tuple(map(repeated, f)) for f in of) for site, of in collected.folds.items()},
        token_counts=collected.token_counts * number,
        calibration=None,
    )


@pytest.mark.check
def test_balance_makes_an_expert_with_more_tokens_count_no_more(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """Its statistics times ten: the Grams of both grow by one factor, beside which lam stays next to nothing."""
    registry.add_expert("math", zoo.experts["math"])
    registry.add_expert("code", zoo.experts["code"])
    folder = shutil.copytree(zoo.experts["code"], tmp_path / "code")
    where = folder / "statistics.safetensors"
    statistics_file.save(where, times(statistics_file.load(where), 10))
    found = {}
    for name, balance in (("plain", "tokens"), ("many", "tokens"), ("drowned", "none")):
        if name == "many":
            registry.add_expert("code", folder)
        registry.compose(PAIR, tmp_path / name, Recipe(router="ridge", balance=balance, lam=1e-6))
        found[name] = tensors_of(tmp_path / name)
    for name, weight in found["plain"].items():
        assert torch.allclose(found["many"][name], weight, rtol=0, atol=1e-5), name
    felt = [
        name for name, weight in found["plain"].items() if not torch.allclose(found["drowned"][name], weight, atol=1e-2)
    ]
    assert {GATE.format(0), "model.embed_tokens.weight", "lm_head.weight"} <= set(felt)
    assert registry.plan(PAIR, Recipe(balance="tokens")).statistics_weights == pytest.approx([0.55, 5.5], rel=0.1)


@pytest.mark.check
def test_bias_moves_tokens_between_members(filled: Registry, tmp_path: Path) -> None:
    gates = []
    for name, bias in (("plain", {}), ("towards", {"code": 0.5}), ("all", {"code": 0.5, "math": 0.5})):
        filled.compose(PAIR, tmp_path / name, Recipe(router="domain-embedding", bias=bias))
        gates.append(tensors_of(tmp_path / name)[GATE.format(0)])
    plain, towards, both = gates
    assert torch.equal(towards[1], plain[1])
    assert not torch.allclose(towards[0], plain[0], atol=1e-3)
    assert torch.allclose(both[0] - both[1], plain[0] - plain[1], atol=1e-6)  # equal biases change no choice
