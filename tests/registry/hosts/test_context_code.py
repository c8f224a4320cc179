"""Proves: a folder with its own modelling file routes by the text so far, alike with and without a cache.

What the routers choose is compared with `scores_of`, what experts compute with the dense experts, bit for bit, and what
head maps add to the stream with those of `HeadMaps`.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, StaticCache

from registry import PassSettings, Recipe
from registry.calibration import Calibration
from registry.composition.context_routing.member_evidence import choices_of, evidence_of, scores_of
from registry.composition.plan import Plan
from registry.errors import InvalidInputError
from registry.hosts.context import MEAN, SHARPNESS
from registry.hosts.remote_code import REMOTE_CODE
from registry.runtime.gates import force_expert, gates, record_routing
from registry.runtime.loading import has_our_code, load_model
from registry.training import TrainSettings
from tests.conftest import Shared
from tests.models import sentences, write_jsonl
from tests.registry.hosts.test_hosts import CASES, IDS, Variant, load, shared_variant, with_mlp_of
from tests.transformers4 import Transformers4

REMOTE = sorted(name for name, case in CASES.items() if case.host.startswith("routed_"))
PAD = torch.zeros(2, 5, dtype=torch.int64)
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
    with torch.no_grad(), record_routing(model) as routings:
        model(input_ids=ids, **options)
    assert len(routings) == model.config.num_hidden_layers
    assert all(torch.equal(routing.logits[0], routings[0].logits[0]) for routing in routings)
    return routings[0].logits[0].view(*ids.shape, -1)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("name", REMOTE)
def test_every_family_routes_by_the_mean_evidence_and_experts_compute_what_they_do_by_themselves(
    name: str, tmp_path: Path, shared: Shared
) -> None:
    with shared_variant(name, tmp_path, shared) as variant:
        made = compose(variant, tmp_path / "moe", vocabulary="shared")
        moe, trunk = load(made.folder), load(variant.dense["base"])
        means = made.means
        assert set(means.argmax(-1).unique().tolist()) == {0, 1}  # the test can fail: both experts have tokens
        assert torch.allclose(routed(moe, IDS) / moe.config.context_sharpness, means.float(), atol=1e-6)
        for index, expert in enumerate(("code", "math")):
            dense = with_mlp_of(trunk, load(variant.dense[expert]))
            with torch.no_grad(), force_expert(moe, index):
                assert torch.equal(moe(input_ids=IDS).logits, dense(input_ids=IDS).logits)


@pytest.mark.check(after=2)
@pytest.mark.trust(after=4)
@pytest.mark.parametrize("window", [0.0, 1.0, 300.0])
def test_the_expert_of_a_token_is_that_of_most_evidence(composed: Composed, tmp_path: Path, window: float) -> None:
    composed = compose(composed.variant, tmp_path / "moe", context_window=window)
    moe, means = load(composed.folder), composed.means
    with torch.no_grad(), record_routing(moe) as routings:
        moe(input_ids=IDS)
    clear = (means[..., 0] - means[..., 1]).abs() > 1e-6
    for routing in routings:
        assert torch.equal(routing.chosen[0].view_as(IDS)[clear], means.argmax(-1)[clear])
        assert torch.equal(routing.weights[0], torch.ones(IDS.numel(), 1))
    calibration = Calibration(IDS.int(), torch.full((2,), IDS.shape[1], dtype=torch.int32), "")
    assert torch.equal(
        choices_of(composed.plan, calibration, evidence_of(composed.plan))[clear], means.argmax(-1)[clear]
    )


@pytest.mark.check(after=3)
def test_several_experts_are_mixed_by_softmax(composed: Composed, tmp_path: Path) -> None:
    made = compose(composed.variant, tmp_path / "moe", top_k=2, temperature=2.0)
    moe = load(made.folder)
    with torch.no_grad(), record_routing(moe) as routings:
        moe(input_ids=IDS)
    weights = routings[0].weights[0].gather(1, routings[0].chosen[0].argsort(dim=1)).view(*IDS.shape, 2)
    assert moe.config.context_sharpness == SHARPNESS * MEAN / 2.0
    assert torch.allclose(weights, (made.means * moe.config.context_sharpness).softmax(-1).float(), atol=1e-5)
    assert 0.1 < float(weights.min(-1).values.max()) < 0.9  # neither equal nor one alone


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_no_evidence(composed: Composed, side: str) -> None:
    moe, ones, zeros = load(composed.folder), torch.ones_like(IDS), torch.zeros_like(PAD)
    noise = IDS[:, :5]  # padding that would be evidence
    parts = ((noise, zeros), (IDS, ones))
    ids, mask = (torch.cat(part if side == "left" else part[::-1], dim=1) for part in zip(*parts, strict=True))
    alone, padded = routed(moe, IDS), routed(moe, ids, attention_mask=mask)
    assert torch.allclose(padded[mask.bool()].view_as(alone), alone, atol=1e-4)
    with torch.no_grad():
        logits = moe(input_ids=ids, attention_mask=mask).logits[mask.bool()]
        assert torch.allclose(logits, moe(input_ids=IDS).logits.flatten(0, 1), atol=1e-3)
    assert not torch.allclose(routed(moe, ids)[mask.bool()].view_as(alone), alone, atol=1e-4) or side == "right"
    if side == "left":
        assert bool((padded[:, :5] == 0).all())


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("cuts", [range(1, 48), (20, 21, 47), (40,)])
def test_a_cache_gives_what_the_whole_text_does(composed: Composed, cuts: Any) -> None:
    moe = load(composed.folder)
    whole = routed(moe, IDS)
    caches: list[Any] = [None, DynamicCache(), DynamicCache(config=moe.config)]
    for cache in caches:
        parts, logits = [], []
        for start, stop in zip([0, *cuts], [*cuts, 48], strict=True):
            with torch.no_grad(), record_routing(moe) as routings:
                output = moe(input_ids=IDS[:, start:stop], cache=cache, use_cache=True)
            cache = output.cache
            parts.append(routings[0].logits[0].view(2, stop - start, -1))
            logits.append(output.logits)
        assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-4)
        assert cache.get_seq_length() == 48
        with torch.no_grad():
            assert torch.allclose(torch.cat(logits, dim=1), moe(input_ids=IDS).logits, atol=1e-3)


def test_what_a_cache_does_its_evidence_does(composed: Composed) -> None:
    moe, step = load(composed.folder), IDS[:, 24:]
    if "sliding_window" in composed.variant.case.config:
        pytest.skip("layers of a window forget what comes before it, and cannot be cropped")
    swapped, twice = IDS[[1, 0]], IDS.repeat_interleave(2, dim=0)

    def after(change: Any, ids: torch.Tensor, past: int = 24) -> None:
        with torch.no_grad():
            cache = moe(input_ids=IDS[:, :past]).cache
            change(cache)
            got = moe(input_ids=ids[:, 24:], cache=cache).logits
            assert torch.allclose(got, moe(input_ids=ids).logits[:, 24:], atol=1e-3)

    after(lambda cache: cache.reorder_cache(torch.tensor([1, 0])), swapped)
    after(lambda cache: cache.batch_repeat_interleave(2), twice)
    after(lambda cache: cache.batch_select_indices(torch.tensor([1])), IDS[1:])
    after(lambda cache: cache.crop(-6), IDS, past=30)
    with torch.no_grad():
        cache = moe(input_ids=IDS[:, :30]).cache
        other = copy.deepcopy(cache)
        cache.reset()
        moe(input_ids=IDS[:, :24], cache=cache)
        assert torch.allclose(moe(input_ids=step, cache=cache).logits, moe(input_ids=IDS).logits[:, 24:], atol=1e-3)
        assert other.get_seq_length() == 30


@pytest.mark.check(after=1)
def test_generation_is_that_of_each_text_alone_and_that_without_a_cache(composed: Composed) -> None:
    moe = load(composed.folder)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ids = torch.stack([torch.cat([PAD[0], IDS[0, :7]]), IDS[1, :12]])
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    for beams in (1, 3):
        batch = moe.generate(ids, attention_mask=mask, num_beams=beams, **options)
        slow = moe.generate(ids, attention_mask=mask, num_beams=beams, use_cache=False, **options)
        assert torch.equal(batch, slow)
        for row, prompt in ((0, IDS[:1, :7]), (1, IDS[1:, :12])):
            alone = moe.generate(prompt, attention_mask=torch.ones_like(prompt), num_beams=beams, **options)
            assert torch.equal(batch[row, 12:], alone[0, prompt.shape[1] :])


@pytest.mark.check(after=1)
@pytest.mark.parametrize("composed", ["llama MLP bias", "mistral window"], indirect=True)
def test_transformers_4_computes_and_generates_alike(
    composed: Composed, tmp_path: Path, transformers4: Transformers4
) -> None:
    moe = load(composed.folder)
    with torch.no_grad():
        whole = moe(input_ids=IDS).logits
    assert torch.equal(transformers4.logits(composed.folder, IDS, "float32", tmp_path), whole)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    for beams in (1, 3):
        ours = moe.generate(IDS[:, :8], attention_mask=torch.ones_like(IDS[:, :8]), num_beams=beams, **options)
        theirs = transformers4.logits(composed.folder, IDS[:, :8], "float32", tmp_path, num_beams=beams, **options)
        assert torch.equal(theirs, ours)


def test_what_cannot_be_routed_is_refused(composed: Composed) -> None:
    moe = load(composed.folder)
    embedded = moe.get_input_embeddings()(IDS)
    with pytest.raises(ValueError, match="takes input_ids"):
        moe(inputs_embeds=embedded)
    with pytest.raises(ValueError, match="attention mask of"):
        moe(input_ids=IDS, attention_mask=torch.ones(2, 1, 48, 48))
    with pytest.raises(ValueError, match="a cache that grows"):
        moe(input_ids=IDS, cache=((embedded, embedded),))
    with torch.no_grad():
        foreign = load(composed.variant.dense["base"])(input_ids=IDS).cache
        with pytest.raises(ValueError, match="of another model"):
            moe(input_ids=IDS, cache=foreign)
        with pytest.raises(ValueError, match="no static one"):
            moe.generate(IDS, attention_mask=torch.ones_like(IDS), cache_implementation="static", max_new_tokens=2)
        with pytest.raises(ValueError, match="no static one"):
            moe(input_ids=IDS, cache=StaticCache(config=moe.config, max_cache_len=64))
    with pytest.raises(ValueError, match="does not support"):
        moe.activation_checkpointing_enable()


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
    with torch.no_grad():
        assert torch.equal(again(input_ids=IDS).logits, copy.deepcopy(moe)(input_ids=IDS).logits)


def test_the_folder_is_ours_and_has_no_router_to_train(composed: Composed, tmp_path: Path) -> None:
    registry, folder = composed.variant.registry, composed.folder
    assert has_our_code(folder)
    loaded = load_model(folder, "float32", "cpu")
    assert [gate.experts for gate in gates(loaded)] == [2] * loaded.config.num_hidden_layers
    assert [gate.top_k for gate in gates(loaded)] == [1] * loaded.config.num_hidden_layers
    with pytest.raises(InvalidInputError, match="nothing to train"):
        registry.train_router(folder, tmp_path / "trained", ["code"], TrainSettings())
    assert not (tmp_path / "trained").exists()
    assert not registry.reproduce(folder).differing
    source = (folder / "modeling_context.py").read_bytes()
    (folder / "modeling_context.py").write_bytes(source + b"raise SystemExit\n")
    assert not has_our_code(folder)
    (folder / "modeling_context.py").write_bytes(source)
    assert has_our_code(folder)
    assert [path.name for path in folder.glob("*.py")] == ["modeling_context.py"]


def test_one_expert_needs_no_evidence(composed: Composed, tmp_path: Path) -> None:
    variant = composed.variant
    variant.registry.compose(["math"], tmp_path / "one", Recipe(host=REMOTE_CODE, router="context"))
    one, own = load(tmp_path / "one"), load(variant.dense["math"])
    assert not (tmp_path / "one" / "modeling_context.py").exists()
    with torch.no_grad():
        assert torch.equal(one(input_ids=IDS).logits, own(input_ids=IDS).logits)
