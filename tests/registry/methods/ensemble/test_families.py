"""Proves: an ensemble of members that differ in family and size mixes what their dense models predict.

References are computed here from the dense models alone, loaded on their own, with the formulas written out again.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Recipe, Registry
from registry.errors import IncompatibleError
from registry.runtime.gates import record_routing
from registry.runtime.loading import has_our_code
from tests.conftest import Zoo, copy_home, files_of
from tests.models import make_model, train_tokenizer
from tests.registry.composition.composed import add_model, check_generated, json_of
from tests.registry.composition.test_ensemble import (
    FIRST,
    IDS,
    cut,
    gained,
    mixture,
    perplexity_weights,
    posterior_weights,
)
from tests.registry.hosts.test_hosts import load
from tests.registry.methods.hetero.hetero_world import WIDE, World, add_member, logits_of

NAMES = ("biomed", "code", "law", "math")
RECIPES: dict[str, dict[str, Any]] = {
    "posterior": {"temperature": 20.0, "top_k": 3, "weights": {"law": 3.0}},
    "perplexity": {"temperature": 500.0, "top_k": 2, "mixing": "logits"},
    "prompt-perplexity": {"temperature": 1e-3, "top_k": 2, "routing_tokens": FIRST},
}


@pytest.fixture(scope="module", params=RECIPES)
def routing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(world: World, routing: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("families")
    with Registry(copy_home(world.home, root / "home")) as registry:
        registry.compose(NAMES, root / "out", Recipe(to="ensemble", routing=routing, **RECIPES[routing]))
    return load(root / "out")


def expected(routing: str, own: torch.Tensor) -> torch.Tensor:
    """Return the predictions from each member's log distributions (B, S, E, V)."""
    if routing == "posterior":
        return mixture(own, posterior_weights(own, 3, 20.0, [1.0, 1.0, 3.0, 1.0]))
    if routing == "perplexity":
        weights = perplexity_weights(own, 2, 500.0)
        return (own.double() * weights.unsqueeze(-1)).sum(2).log_softmax(-1).float()
    weights = torch.full(own.shape[:3], 1 / len(NAMES), dtype=torch.float64)
    inverse = (gained(own)[:, FIRST - 1] / (FIRST - 1)).exp()  # MergeME §3.1.3: softmax of 1 / PPL; T: ours
    weights[:, FIRST - 1 :] = cut(inverse / 1e-3, 2).unsqueeze(1)
    return mixture(own, weights)


def test_predictions_are_mixed_as_the_routing_says(model: Any, routing: str, world: World) -> None:
    own = torch.stack([logits_of(load(world.experts[name]), IDS).log_softmax(-1) for name in NAMES], dim=2)
    with record_routing(model) as (recorded,):
        found = logits_of(model, IDS)
    assert torch.allclose(recorded.weights[0].sum(-1), torch.ones(IDS.numel()))
    assert torch.allclose(found, expected(routing, own), atol=1e-3)  # of float32 likelihoods


def test_text_is_the_same_with_and_without_a_cache_alone_and_in_a_batch(model: Any) -> None:
    check_generated(model, IDS[:, :8], left=5)


def test_each_member_is_whole(several: Registry, world: World, tmp_path: Path) -> None:
    plan = several.compose(NAMES, tmp_path / "out", Recipe(to="ensemble", top_k=1))
    assert has_our_code(tmp_path / "out")
    assert json_of(tmp_path / "out", "config.json")["model_type"] == "ensemble_families"
    sizes = [sum(p.numel() for p in load(folder).parameters()) for folder in world.experts.values()]
    assert plan.parameters == sum(sizes)
    model = load(tmp_path / "out")
    for member, name in zip(model.members, NAMES, strict=True):
        assert torch.equal(logits_of(member, IDS), logits_of(load(world.experts[name]), IDS))
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits_of(load(tmp_path / "saved"), IDS), logits_of(model, IDS))


@pytest.mark.check
def test_the_folder_is_a_function_of_members_and_recipe(
    several: Registry, world: World, zoo: Zoo, tmp_path: Path
) -> None:
    several.compose(NAMES, tmp_path / "one", Recipe(to="ensemble"))
    several.compose(NAMES[::-1], tmp_path / "two", Recipe(to="ensemble"))
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert several.reproduce(tmp_path / "one").is_same
    several.opt_out("math", purge=True)
    rest = ("biomed", "law")
    several.compose(rest, tmp_path / "rest", Recipe(to="ensemble"))
    with Registry(tmp_path / "other") as never:
        for name in rest:
            add_member(never, name, world.experts[name], zoo)
        never.compose(rest, tmp_path / "never", Recipe(to="ensemble"))
    assert files_of(tmp_path / "rest") == files_of(tmp_path / "never")


def test_shared_tensors_are_stored_once_and_tables_may_be_padded(several: Registry, zoo: Zoo, tmp_path: Path) -> None:
    twin, wide = make_model("qwen3", 402, **WIDE), make_model("qwen3", 501, vocab_size=352, **WIDE)
    with torch.no_grad():
        twin.model.embed_tokens.weight.copy_(make_model("qwen3", 401, **WIDE).model.embed_tokens.weight)
    twins = load(add_model(several, tmp_path / "twin", twin))
    several.compose(["code", "math", "twin"], tmp_path / "out", Recipe(to="ensemble"))
    assert json_of(tmp_path / "out", "config.json")["shared_tensors"] == {"model.embed_tokens.weight": [0, 1, 1]}
    model = load(tmp_path / "out")
    assert model.members[2].model.embed_tokens.weight is model.members[1].model.embed_tokens.weight
    assert torch.equal(logits_of(model.members[2], IDS), logits_of(twins, IDS))
    padded = load(add_model(several, tmp_path / "wide", wide, allow_unrelated=True))
    several.compose(["code", "wide"], tmp_path / "padded", Recipe(to="ensemble", top_k=1))
    found = logits_of(load(tmp_path / "padded"), IDS)
    assert found.shape[-1] == 320
    each = (logits_of(one, IDS)[:, 0, :320].softmax(-1) for one in (load(zoo.experts["code"]), padded))
    assert torch.allclose(found[:, 0].exp(), sum(each, torch.zeros(320)) / 2, atol=1e-6)


@pytest.mark.check
def test_other_architectures_or_tokens_are_refused(several: Registry, zoo: Zoo, tmp_path: Path) -> None:
    several.add_base("base", zoo.base)
    tokenizers = {"other": train_tokenizer(seed=1), "more": train_tokenizer()}
    tokenizers["more"].add_tokens([f"<{number}>" for number in range(16)])
    for name, tokenizer in tokenizers.items():
        model = make_model("qwen3", 601, vocab_size=352, **WIDE)
        add_model(several, tmp_path / name, model, tokenizer, allow_unrelated=True)
    refusals: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("math", {"routing": "task-vector"}, r"'task-vector' goes from weight to weight, .* \(llama, hid"),
        ("math", {"trunk": "mean"}, "trunk method 'mean' goes from weight to weight"),
        ("other", {}, r"their tokenizers differ: token \d+ is '.*' against '.*'"),
        ("more", {}, "the tokenizer of more@1 has 336 tokens, and code@1 predicts 320"),
    )
    for name, recipe, message in refusals:
        with pytest.raises(IncompatibleError, match=message) as caught:
            several.compose(["code", name], tmp_path / "out", Recipe(to="ensemble", **recipe))
        assert not recipe or "--routing posterior, perplexity or prompt-perplexity" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()
