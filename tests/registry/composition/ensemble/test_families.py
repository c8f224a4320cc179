"""Proves: an ensemble of members that differ in family and size mixes what their dense models predict.

References are computed here from the dense models alone, loaded on their own, with the formulas written out again.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import EnsembleRecipe, Registry
from registry.errors import IncompatibleError
from registry.runtime.gates import record_routing
from registry.runtime.loading import has_our_code
from tests.conftest import Shared, Zoo, copy_home, files_of
from tests.models import make_model, save_checkpoint, train_tokenizer
from tests.registry.composition.hetero.hetero_world import SETTINGS, WIDE, World, config_of, dense, load, make_world

NAMES = ("biomed", "code", "law", "math")
IDS = torch.randint(1, 320, (2, 12), generator=torch.Generator().manual_seed(1))
FIRST = 5
GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
RECIPES: dict[str, dict[str, Any]] = {
    "posterior": {"temperature": 20.0, "top_k": 3, "weights": {"law": 3.0}},
    "perplexity": {"temperature": 500.0, "top_k": 2, "mixing": "logits"},
    "prompt-perplexity": {"temperature": 1e-3, "top_k": 2, "routing_tokens": FIRST},
}


@pytest.fixture(scope="module")
def world(shared: Shared, zoo: Zoo) -> World:
    return shared.get("hetero", lambda root: make_world(root, zoo, train_tokenizer()))


@pytest.fixture
def registry(world: World, tmp_path: Path) -> Iterator[Registry]:
    with Registry(copy_home(world.home, tmp_path / "home")) as opened:
        yield opened


@pytest.fixture(scope="module", params=RECIPES)
def routing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(world: World, routing: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("families")
    with Registry(copy_home(world.home, root / "home")) as registry:
        registry.compose(NAMES, root / "out", EnsembleRecipe(routing=routing, **RECIPES[routing]))
    return load(root / "out")


@pytest.fixture(scope="module")
def every(world: World) -> list[torch.Tensor]:
    """Return each member's log distributions (B, S, V), in float64."""
    with torch.no_grad():
        return [dense(world.experts[name])(input_ids=IDS).logits.double().log_softmax(-1) for name in NAMES]


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=ids, **arguments).logits
    return found


def weights_at(routing: str, every: list[torch.Tensor], row: int, place: int) -> list[float]:
    """Return the members' weights for the token after a place, in plain loops over the tokens so far."""
    last = min(place, FIRST - 1) if routing == "prompt-perplexity" else place
    gains = [sum(float(own[row, t - 1, IDS[row, t]]) for t in range(1, last + 1)) for own in every]
    prior = [3 / 6 if name == "law" else 1 / 6 for name in NAMES] if routing == "posterior" else [1 / 4] * 4
    if last == 0 or (routing == "prompt-perplexity" and place < FIRST - 1):
        return prior
    temperature, top_k = RECIPES[routing]["temperature"], RECIPES[routing]["top_k"]
    if routing == "posterior":  # BTM §2: p(D=j | x) ∝ p(D=j) p_j(x)^(1/T)
        scores = [gain / temperature + math.log(share) for gain, share in zip(gains, prior, strict=True)]
    elif routing == "perplexity":  # MergeME §3.1.3: softmax of −PPL / T
        scores = [-math.exp(-gain / last) / temperature for gain in gains]
    else:  # MergeME §3.1.3: softmax of 1 / (PPL T)
        scores = [math.exp(gain / last) / temperature for gain in gains]
    least = sorted(scores, reverse=True)[top_k - 1]
    shares = [math.exp(score - max(scores)) if score >= least else 0.0 for score in scores]
    return [share / sum(shares) for share in shares]


def test_predictions_are_mixed_as_the_routing_says(model: Any, routing: str, every: list[torch.Tensor]) -> None:
    found = logits_of(model, IDS).double()
    for row in range(2):
        for place in range(IDS.shape[1]):
            weights = weights_at(routing, every, row, place)
            mixed = torch.zeros(320, dtype=torch.float64)
            for weight, own in zip(weights, every, strict=True):
                mixed += weight * (own[row, place] if "mixing" in RECIPES[routing] else own[row, place].exp())
            expected = mixed.log_softmax(-1) if "mixing" in RECIPES[routing] else mixed.log()
            assert torch.allclose(found[row, place], expected, atol=1e-3), (row, place)  # of float32 likelihoods


def test_text_is_the_same_with_and_without_a_cache_alone_and_in_a_batch(model: Any) -> None:
    prompt = {"input_ids": IDS[:, :8].clone(), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    prompt["input_ids"][1, :5], prompt["attention_mask"][1, :5] = 0, 0
    cached = model.generate(**prompt, **GREEDY)
    assert torch.equal(cached, model.generate(**prompt, **GREEDY, use_cache=False))
    alone = model.generate(IDS[1:, 5:8], attention_mask=torch.ones(1, 3, dtype=torch.long), **GREEDY)
    assert torch.equal(cached[1:, 5:], alone)
    beams = GREEDY | {"max_new_tokens": 3, "num_beams": 2}
    assert torch.equal(model.generate(**prompt, **beams), model.generate(**prompt, **beams, use_cache=False))


def test_weights_are_recorded(model: Any) -> None:
    with torch.no_grad(), record_routing(model) as (routing,):
        model(input_ids=IDS)
    assert torch.allclose(routing.weights[0].sum(-1), torch.ones(24))


def test_each_member_is_whole(registry: Registry, world: World, tmp_path: Path) -> None:
    plan = registry.compose(NAMES, tmp_path / "out", EnsembleRecipe(top_k=1))
    assert has_our_code(tmp_path / "out")
    assert plan.parameters == sum(
        sum(p.numel() for p in dense(folder).parameters()) for folder in world.experts.values()
    )
    model = load(tmp_path / "out")
    for member, name in zip(model.members, NAMES, strict=True):
        assert torch.equal(logits_of(member, IDS), logits_of(dense(world.experts[name]), IDS))
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits_of(load(tmp_path / "saved"), IDS), logits_of(model, IDS))


def test_the_folder_is_a_function_of_members_and_recipe(registry: Registry, world: World, tmp_path: Path) -> None:
    registry.compose(NAMES, tmp_path / "one", EnsembleRecipe())
    registry.compose(tuple(reversed(NAMES)), tmp_path / "two", EnsembleRecipe())
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert registry.reproduce(tmp_path / "one").is_same
    assert config_of(tmp_path / "one")["model_type"] == "ensemble_families"
    registry.opt_out("math", purge=True)
    rest = ("biomed", "law")
    registry.compose(rest, tmp_path / "rest", EnsembleRecipe())
    with Registry(tmp_path / "other") as never:
        for name in rest:
            never.add_expert(name, world.experts[name], **own_text(world, name))
        never.compose(rest, tmp_path / "never", EnsembleRecipe())
    assert files_of(tmp_path / "rest") == files_of(tmp_path / "never")


def own_text(world: World, name: str) -> dict[str, Any]:
    text = world.experts["code"].parent / f"{name}.train.jsonl"  # beside the zoo's checkpoints
    return {"data": [text], "settings": SETTINGS, "keep_calibration": True, "allow_unrelated": True}


def test_what_members_share_is_stored_once(registry: Registry, zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    twin = make_model("qwen3", 402, **WIDE)
    with torch.no_grad():
        twin.model.embed_tokens.weight.copy_(make_model("qwen3", 401, **WIDE).model.embed_tokens.weight)
    folder = save_checkpoint(twin, tmp_path / "twin", tokenizer)
    registry.add_expert("twin", folder, data=[zoo.train["law"]], settings=SETTINGS)
    registry.compose(["code", "math", "twin"], tmp_path / "out", EnsembleRecipe())
    assert config_of(tmp_path / "out")["shared_tensors"] == {"model.embed_tokens.weight": [0, 1, 1]}
    model = load(tmp_path / "out")
    assert model.members[2].model.embed_tokens.weight is model.members[1].model.embed_tokens.weight
    assert torch.equal(logits_of(model.members[2], IDS), logits_of(dense(folder), IDS))


def test_tables_may_be_padded_by_different_numbers_of_rows(
    registry: Registry, zoo: Zoo, tokenizer: Any, tmp_path: Path
) -> None:
    folder = save_checkpoint(make_model("qwen3", 501, vocab_size=352, **WIDE), tmp_path / "wide", tokenizer)
    registry.add_expert("wide", folder, data=[zoo.train["law"]], settings=SETTINGS, allow_unrelated=True)
    registry.compose(["code", "wide"], tmp_path / "out", EnsembleRecipe(top_k=1))
    model = load(tmp_path / "out")
    assert logits_of(model, IDS).shape[-1] == 320
    expected = (logits_of(dense(zoo.experts["code"]), IDS).softmax(-1) / 2)[:, 0]
    expected += logits_of(dense(folder), IDS)[:, 0, :320].softmax(-1) / 2
    assert torch.allclose(logits_of(model, IDS)[:, 0].exp(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"routing": "task-vector"}, r"routing method 'task-vector' goes from weight to weight, .* \(llama, hid"),
        ({"trunk": "mean"}, "trunk method 'mean' goes from weight to weight"),
    ],
)
def test_what_needs_one_architecture_is_refused(
    registry: Registry, zoo: Zoo, tmp_path: Path, recipe: dict[str, Any], message: str
) -> None:
    registry.add_base("base", zoo.base)
    with pytest.raises(IncompatibleError, match=message) as caught:
        registry.compose(["code", "math"], tmp_path / "out", EnsembleRecipe(**recipe))
    assert "--routing posterior, perplexity or prompt-perplexity" in str(caught.value.hint)
    assert not (tmp_path / "out").exists()


@pytest.mark.check
def test_other_tokens_are_refused(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    tokenizers = {"other": train_tokenizer(seed=1), "more": train_tokenizer()}
    tokenizers["more"].add_tokens([f"<{number}>" for number in range(16)])
    for name, tokenizer in tokenizers.items():
        folder = save_checkpoint(make_model("qwen3", 601, vocab_size=352, **WIDE), tmp_path / name, tokenizer)
        registry.add_expert(name, folder, data=[zoo.train["law"]], settings=SETTINGS, allow_unrelated=True)
    with pytest.raises(IncompatibleError, match=r"their tokenizers differ: token \d+ is '.*' against '.*'"):
        registry.plan(["code", "other"], EnsembleRecipe())
    with pytest.raises(IncompatibleError, match="the tokenizer of more@1 has 336 tokens, and code@1 predicts 320"):
        registry.plan(["code", "more"], EnsembleRecipe())
