"""Proves: a folder with its own modelling file routes by the text so far, alike with and without a cache.

What the routers choose is compared with `scores_of`, what experts compute with the dense experts, bit for bit, and what
head maps add to the stream with those of `HeadMaps`.
"""

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from registry import PassSettings, Recipe
from registry.calibration import Calibration
from registry.composition.plan import Plan
from registry.errors import InvalidInputError
from registry.hosts.context import MEAN, SHARPNESS
from registry.hosts.remote_code import REMOTE_CODE
from registry.methods.moe.context import evidence_of, scores_of
from registry.runtime.gates import force_expert, gates, record_routing
from registry.runtime.loading import has_our_code, load_model
from registry.training import TrainSettings
from tests.conftest import Shared
from tests.models import sentences, write_jsonl
from tests.registry.composition.composed import check_generated
from tests.registry.hosts.test_hosts import CASES, IDS, Variant, load, run, shared_variant, with_mlp_of
from tests.registry.maths.drawn import refused
from tests.transformers4 import Transformers4

REMOTE = sorted(name for name, case in CASES.items() if case.host.startswith("routed_"))
SEVERAL = ["gemma2", "gpt_neox", "llama MLP bias", "mistral window"]
"""A window in some layers, layers of another name, and families that transformers 4 loads alike."""


@dataclass(frozen=True)
class Composed:
    """A composition of two experts in a folder, and its members' registry."""

    variant: Variant
    folder: Path
    plan: Plan

    @property
    def means(self) -> torch.Tensor:
        """The mean evidence at each token of `IDS`."""
        return scores_of(self.plan, IDS, torch.ones_like(IDS).bool(), evidence_of(self.plan))


@pytest.fixture(scope="module", params=SEVERAL)
def composed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared: Shared
) -> Iterator[Composed]:
    root = tmp_path_factory.mktemp("context")
    with shared_variant(request.param, root, shared) as variant:
        yield compose(variant, root / "moe")


def compose(variant: Variant, out: Path, **settings: Any) -> Composed:
    """Compose two experts that were registered with different texts."""
    registry = variant.registry
    if len(registry.versions(kind="expert")) == 2:
        data = write_jsonl(out.with_name("math.jsonl"), sentences("math", 20))
        passes = PassSettings(tokens=128, seq_len=32, batch_size=2)
        registry.add_expert("math", variant.dense["math"], data=[data], settings=passes, remote_code=True)
    options: dict[str, Any] = {"trunk": "base", "context_window": 6.0} | settings
    recipe = Recipe(host=REMOTE_CODE, router="context", **options)
    return Composed(variant, out, registry.compose(["code", "math"], out, recipe))


def routed(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return the logits of the routers (B, S, E), which all layers share."""
    with record_routing(model) as routings:
        run(model, ids, **options)
    assert len(routings) == model.config.num_hidden_layers
    assert all(torch.equal(routing.logits[0], routings[0].logits[0]) for routing in routings)
    return routings[0].logits[0].view(*ids.shape, -1)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("name", REMOTE)
def test_every_family_routes_by_the_mean_evidence_to_its_own_experts(name: str, tmp_path: Path, shared: Shared) -> None:
    with shared_variant(name, tmp_path, shared) as variant:
        made = compose(variant, tmp_path / "moe", vocabulary="shared")
        moe, trunk = load(made.folder), load(variant.dense["base"])
        means = made.means
        assert set(means.argmax(-1).unique().tolist()) == {0, 1}  # the test can fail: both experts have tokens
        assert torch.allclose(routed(moe, IDS) / moe.config.context_sharpness, means.float(), atol=1e-6)
        for index, expert in enumerate(("code", "math")):
            dense = with_mlp_of(trunk, load(variant.dense[expert]))
            with force_expert(moe, index):
                assert torch.equal(run(moe), run(dense))


@pytest.mark.check(after=2)
@pytest.mark.trust(after=4)
@pytest.mark.parametrize("window", [0.0, 1.0, 300.0])
def test_the_expert_of_a_token_is_that_of_most_evidence(composed: Composed, tmp_path: Path, window: float) -> None:
    composed = compose(composed.variant, tmp_path / "moe", context_window=window)
    moe, means = load(composed.folder), composed.means
    with record_routing(moe) as routings:
        run(moe)
    calibration = Calibration(IDS.int(), torch.full((2,), IDS.shape[1], dtype=torch.int32), "")
    foretold = scores_of(composed.plan, calibration.ids, calibration.keep, evidence_of(composed.plan)).argmax(-1)
    clear = (means[..., 0] - means[..., 1]).abs() > 1e-6
    for chosen in (foretold, *(routing.chosen[0].view_as(IDS) for routing in routings)):
        assert torch.equal(chosen[clear], means.argmax(-1)[clear])
    assert all(torch.equal(routing.weights[0], torch.ones(IDS.numel(), 1)) for routing in routings)


@pytest.mark.check(after=3)
def test_several_experts_are_mixed_by_softmax(composed: Composed, tmp_path: Path) -> None:
    made = compose(composed.variant, tmp_path / "moe", top_k=2, temperature=2.0)
    moe = load(made.folder)
    with record_routing(moe) as routings:
        run(moe)
    weights = routings[0].weights[0].gather(1, routings[0].chosen[0].argsort(dim=1)).view(*IDS.shape, 2)
    assert moe.config.context_sharpness == SHARPNESS * MEAN / 2.0
    assert torch.allclose(weights, (made.means * moe.config.context_sharpness).softmax(-1).float(), atol=1e-5)
    assert 0.1 < float(weights.min(-1).values.max()) < 0.9  # neither equal nor one alone


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_no_evidence(composed: Composed, side: str) -> None:
    moe, order = load(composed.folder), slice(None, None, 1 if side == "left" else -1)
    # Padding that would be evidence.
    ids = torch.cat([IDS[:, :5], IDS][order], dim=1)
    mask = torch.cat([torch.zeros_like(IDS[:, :5]), torch.ones_like(IDS)][order], dim=1)
    alone, padded = routed(moe, IDS), routed(moe, ids, attention_mask=mask)
    assert torch.allclose(padded[mask.bool()].view_as(alone), alone, atol=1e-4)
    logits = run(moe, ids, attention_mask=mask)[mask.bool()]
    assert torch.allclose(logits, run(moe).flatten(0, 1), atol=1e-3)
    if side == "left":
        assert not torch.allclose(routed(moe, ids)[mask.bool()].view_as(alone), alone, atol=1e-4)
        assert bool((padded[:, :5] == 0).all())


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("cuts", [range(1, 48), (20, 21, 47), (40,)])
def test_a_cache_gives_what_the_whole_text_does(composed: Composed, cuts: Any) -> None:
    moe = load(composed.folder)
    whole, caches = routed(moe, IDS), list[Any]((None, DynamicCache(), DynamicCache(config=moe.config)))
    for cache in caches:
        parts, logits = [], []
        with torch.no_grad(), record_routing(moe) as routings:
            for start, stop in itertools.pairwise([0, *cuts, 48]):
                output = moe(input_ids=IDS[:, start:stop], cache=cache, use_cache=True)
                cache = output.cache
                parts.append(routings[0].logits[-1].view(2, stop - start, -1))
                logits.append(output.logits)
        assert torch.allclose(torch.cat(logits, dim=1), run(moe), atol=1e-3)
        assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-4)
        assert cache.get_seq_length() == 48


def test_what_a_cache_does_its_evidence_does(composed: Composed) -> None:
    moe = load(composed.folder)
    if "sliding_window" in composed.variant.case.config:
        pytest.skip("layers of a window forget what comes before it, and cannot be cropped")

    def after(change: Any, ids: torch.Tensor, past: int = 24) -> None:
        with torch.no_grad():
            cache = moe(input_ids=IDS[:, :past]).cache
            other = copy.deepcopy(cache)
            change(cache)
        assert torch.allclose(run(moe, ids[:, 24:], cache=cache), run(moe, ids)[:, 24:], atol=1e-3)
        assert other.get_seq_length() == past

    def begin_again(cache: Any) -> None:
        cache.reset()
        run(moe, IDS[:, :24], cache=cache)

    after(lambda cache: cache.reorder_cache(torch.tensor([1, 0])), IDS[[1, 0]])
    after(lambda cache: cache.batch_repeat_interleave(2), IDS.repeat_interleave(2, dim=0))
    after(lambda cache: cache.batch_select_indices(torch.tensor([1])), IDS[1:])
    after(lambda cache: cache.crop(-6), IDS, past=30)
    after(begin_again, IDS, past=30)


@pytest.mark.check(after=1)
def test_generation_is_that_of_each_text_alone_and_that_without_a_cache(composed: Composed) -> None:
    check_generated(load(composed.folder), IDS[:, :12], left=5, tokens=12)


@pytest.mark.check(after=1)
@pytest.mark.parametrize("composed", ["llama MLP bias", "mistral window"], indirect=True)
def test_transformers_4_agrees(composed: Composed, tmp_path: Path, transformers4: Transformers4) -> None:
    moe = load(composed.folder)
    whole = run(moe)
    assert torch.equal(transformers4.logits(composed.folder, IDS, "float32", tmp_path), whole)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    for beams in (1, 3):
        ours = moe.generate(IDS[:, :8], attention_mask=torch.ones_like(IDS[:, :8]), num_beams=beams, **options)
        theirs = transformers4.logits(composed.folder, IDS[:, :8], "float32", tmp_path, num_beams=beams, **options)
        assert torch.equal(theirs, ours)


def test_what_cannot_be_routed_is_refused(composed: Composed) -> None:
    moe = load(composed.folder)
    embedded, static = moe.get_input_embeddings()(IDS), StaticCache(config=moe.config, max_cache_len=64)
    whole = {"attention_mask": torch.ones_like(IDS), "max_new_tokens": 2}
    refused("takes input_ids", moe, inputs_embeds=embedded)
    refused("attention mask of", run, moe, attention_mask=torch.ones(2, 1, 48, 48))
    refused("a cache that grows", run, moe, cache=((embedded, embedded),))
    refused("of another model", run, moe, cache=load(composed.variant.dense["base"])(input_ids=IDS).cache)
    refused("no static one", moe.generate, IDS, cache_implementation="static", **whole)
    refused("no static one", run, moe, cache=static)
    refused("does not support", moe.activation_checkpointing_enable)


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
def test_evidence_stays_exact_and_is_not_trained(composed: Composed, tmp_path: Path) -> None:
    exact = evidence_of(composed.plan).float()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        moe = load(composed.folder, dtype)
        assert torch.equal(moe.evidence, exact)
        assert moe.get_input_embeddings().weight.dtype == dtype
        assert torch.equal(routed(moe, IDS), routed(load(composed.folder), IDS))
    moe = load(composed.folder)
    moe(input_ids=IDS, labels=IDS).loss.backward()
    assert moe.get_input_embeddings().weight.grad.abs().sum() > 0
    moe.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again")
    assert torch.equal(run(again), run(moe))


def test_the_folder_is_ours_and_has_no_router_to_train(composed: Composed, tmp_path: Path) -> None:
    registry, folder = composed.variant.registry, composed.folder
    assert has_our_code(folder)
    assert [path.name for path in folder.glob("*.py")] == ["modeling_context.py"]
    loaded = load_model(folder, "float32", "cpu")
    assert [(gate.experts, gate.top_k) for gate in gates(loaded)] == [(2, 1)] * loaded.config.num_hidden_layers
    with pytest.raises(InvalidInputError, match="nothing to train"):
        registry.train_router(folder, tmp_path / "trained", ["code"], TrainSettings())
    assert not (tmp_path / "trained").exists()
    assert not registry.reproduce(folder).differing


def test_one_expert_needs_no_evidence(composed: Composed, tmp_path: Path) -> None:
    variant = composed.variant
    variant.registry.compose(["math"], tmp_path / "one", Recipe(host=REMOTE_CODE, router="context"))
    one, own = load(tmp_path / "one"), load(variant.dense["math"])
    assert not (tmp_path / "one" / "modeling_context.py").exists()
    assert torch.equal(run(one), run(own))
