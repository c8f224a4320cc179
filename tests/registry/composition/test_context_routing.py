"""Proves, for every host with a context layer: a loaded folder routes each token by the mean evidence of its context.

The expected experts are computed from counts alone (`prefix_means`), without a model. They are compared at every token
whose two best experts are not within `TIE` of one another, in nats; in 16 bits, evidence and attention are rounded, and
`HALF_TIE` is the limit.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import PassSettings, Recipe, Registry
from registry.calibration import Calibration
from registry.composition.plan import Plan
from registry.errors import InvalidInputError
from registry.hosts.context_mlp import ALARM
from registry.maths.context.prefix import context_scores, prefix_means
from registry.member import Member
from registry.methods.moe.context import (
    evidence_of,
    past_weights,
    scores_of,
    thresholds_of,
)
from registry.runtime.gates import record_routing
from tests.conftest import files_of
from tests.models import WORDS, sentences, write_jsonl
from tests.registry.composition.composed import tensors_of
from tests.registry.composition.test_vocabulary import grown
from tests.registry.hosts.test_hosts import CASES as HOST_CASES
from tests.registry.hosts.test_hosts import LONG, Case, Variant, load, variant_of
from tests.transformers4 import Transformers4

EXPERTS = ("code", "german", "math")
TIE, HALF_TIE = 1e-3, 0.05
ROWS = (0.25, 1.0, 4.0)
NEAR = 0.02
"""Nats from a threshold within which the rounding of evidence and of attention decides."""

WIDE: dict[str, Any] = {"hidden_size": 64, "max_position_embeddings": 96}  # heads of 16 channels have 8 rotary pairs
LONG_FACTORS = {"short_factor": [1.0] * 8, "long_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3, 3.5, 4]}
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "phi3 longrope": {"rope_parameters": LONG | LONG_FACTORS},
    "olmo3": {"sliding_window": 96},
    "gemma": {"head_dim": 16},
}
SAME = (
    *("llama tied, llama3 rope, wide heads", "llama yarn rope", "llama attention bias", "mistral window"),
    *("phi3 partial rotary", "qwen2", "qwen2 in granitemoe", "qwen2 window by layer", "qwen3", "qwen3 window by layer"),
    *("olmo2", "granite", "smollm3"),
)
CASES = {
    name: replace(HOST_CASES[name], config=HOST_CASES[name].config | WIDE | CHANGES.get(name, {}))
    for name in (*CHANGES, *SAME)
}
OLD = [name for name, case in CASES.items() if case.host in ("mixtral", "qwen3_moe", "flex_olmo")]
"""Cases whose context layers transformers 4.57 has too."""

WINDOWS = (0.0, 16.0, 48.0)

MANY = (*WORDS, *("-".join(pair) for pair in combinations(WORDS, 2)))
"""Fifteen experts, each of the words of one domain or of two."""


def narrow(queries: int, keys: int, channels: int = 4, theta: float = 30.0, **more: Any) -> dict[str, Any]:
    """Return sizes of heads of so few channels that several hold the evidence, and a rope that has both windows."""
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": theta}
    sizes = {"hidden_size": queries * channels, "num_attention_heads": queries, "num_key_value_heads": keys}
    return sizes | {"head_dim": channels, "max_position_embeddings": 96, "rope_parameters": rope} | more


SEVERAL_HEADS = {
    "each window has heads of its own": Case("llama", "mixtral", narrow(8, 4)),
    "windows share values": Case("llama", "mixtral", narrow(6, 3)),
    "windows share values, norms of each head": Case(
        "qwen3", "qwen3_moe", narrow(8, 2, channels=12, theta=10000.0, intermediate_size=256)
    ),
    "windows share values, norms of all heads": Case("olmo2", "flex_olmo", narrow(6, 2)),
    "the slow window alone": Case("llama", "mixtral", narrow(3, 3)),
    "stacked experts": Case("granite", "granitemoe", narrow(8, 4)),
    "two layers": Case("llama", "mixtral", narrow(6, 1)),
    "two layers, norms of each head": Case(
        "qwen3", "qwen3_moe", narrow(8, 1, channels=12, theta=10000.0, intermediate_size=256)
    ),
    "two layers, stacked experts": Case("granite", "granitemoe", narrow(6, 1)),
    "two layers, the slow window alone": Case("llama", "mixtral", narrow(1, 1)),
}
"""Cases whose heads have fewer channels than there are experts, or all heads of a layer together."""


@pytest.fixture(scope="module", params=CASES)
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tokenizer: Any
) -> Iterator[Variant]:
    with variant_of(CASES[request.param], tmp_path_factory.mktemp("variant"), tokenizer, EXPERTS) as made:
        yield made


Composed = tuple[Plan, Any, torch.Tensor]


@pytest.fixture
def composed(variant: Variant, tmp_path: Path, tokenizer: Any) -> Composed:
    """The plan of a mixture in `moe`, its model, and texts."""
    plan = variant.registry.compose(EXPERTS, tmp_path / "moe", variant.recipe(router="context", context_window=16.0))
    return plan, load(tmp_path / "moe"), texts(tokenizer)


def texts(tokenizer: Any, length: int = 80, names: Sequence[str] = EXPERTS) -> torch.Tensor:
    """Return texts that change their subject twice, one that begins with each, and one of random tokens."""
    words = {name: " ".join(sentences(name, 6, seed=5)) for name in names}
    rows = []
    for number in range(len(names)):
        parts = [tokenizer(words[name]).input_ids for name in (*names[number:], *names[:number])[:3]]
        rows.append([token for part in parts for token in part[: length // 3 + 1]][:length])
    noise = torch.randint(1, 320, (1, length), generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.tensor(rows), noise])


def expected(plan: Plan, ids: torch.Tensor, keep: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the expert of each token, (N, S), and by how many nats it leads.

    What exceeds a threshold is weighed by `ALARM` times the size of the token's embedding row over that of the mean
    row: where another weight within `ROWS` would choose another expert, the lead is 0.
    """
    keep = torch.ones_like(ids, dtype=torch.bool) if keep is None else keep
    slow, fast = past_weights(plan, ids.shape[1])
    means, evidence = prefix_means(ids, keep, evidence_of(plan), slow), evidence_of(plan)
    if fast is None:
        best = means.topk(2, dim=-1)
        return best.indices[..., 0], best.values[..., 0] - best.values[..., 1]
    recent, limits = prefix_means(ids, keep, evidence, fast), thresholds_of(plan)
    every = [context_scores(means, recent, limits, ALARM * size).topk(2, dim=-1) for size in ROWS]
    experts = torch.stack([best.indices[..., 0] for best in every])
    lead = torch.stack([best.values[..., 0] - best.values[..., 1] for best in every]).amin(dim=0)
    near = ((recent - limits.diagonal()).abs() < NEAR).any(dim=-1)
    for expert, beyond in enumerate(limits):
        near |= ((recent - recent[..., expert : expert + 1] - beyond).abs() < NEAR).any(dim=-1)
    return experts[1], lead.where((experts == experts[1]).all(dim=0) & ~near, 0.0)


def chosen(model: Any, ids: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """Return the first expert that each layer's router chooses for each token, (N, S) a layer."""
    with torch.no_grad(), record_routing(model) as routings:
        model(input_ids=ids, **options)
    assert len(routings) == model.config.num_hidden_layers - len(getattr(model.config, "context_layers", ()))
    return [routing.chosen[0][:, 0].view(ids.shape) for routing in routings]


def assert_same(found: list[torch.Tensor], plan: Plan, ids: torch.Tensor, tie: float = TIE, **keep: Any) -> None:
    """Check the choices of all layers at every token that counts and is no tie."""
    experts, lead = expected(plan, ids, **keep)
    clear = (lead > tie) & keep.get("keep", torch.ones_like(ids, dtype=torch.bool))
    assert clear.sum() > 0.2 * clear.numel()
    for layer, choices in enumerate(found):
        assert torch.equal(choices[clear], experts[clear]), (layer, int((choices != experts)[clear].sum()))


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("tau", WINDOWS)
def test_every_layer_takes_the_expert_of_most_evidence(
    variant: Variant, tmp_path: Path, tokenizer: Any, tau: float
) -> None:
    plan = variant.registry.compose(EXPERTS, tmp_path / "moe", variant.recipe(router="context", context_window=tau))
    ids = texts(tokenizer)
    assert_same(chosen(load(tmp_path / "moe"), ids), plan, ids)
    assert len(expected(plan, ids)[0].unique()) == len(EXPERTS)  # the test can fail: all of them are chosen
    texts_of_length = Calibration(ids.int(), torch.tensor([80, 50, 20, 1], dtype=torch.int32), "text")
    choices = scores_of(plan, texts_of_length.ids, texts_of_length.keep, evidence_of(plan)).argmax(dim=-1)
    assert torch.equal(choices[0], expected(plan, ids)[0][0])


@pytest.mark.check(after=2)
@pytest.mark.trust(after=4)
@pytest.mark.parametrize("name", SEVERAL_HEADS)
def test_several_heads_and_layers_hold_the_evidence_of_more_experts_than_one_has_channels(
    name: str, tmp_path: Path, tokenizer: Any
) -> None:
    case = SEVERAL_HEADS[name]
    experts = MANY if case.family == "qwen3" else MANY[:5]
    assert len(experts) >= case.config["head_dim"]
    with variant_of(case, tmp_path, tokenizer, experts) as variant:
        recipe = variant.recipe(router="context", context_window=16.0)
        plan = variant.registry.compose(experts, tmp_path / "moe", recipe)
        ids = texts(tokenizer, names=experts)
        # Norms after the MLP bring the means of all experts to one length, at which activations bend sooner.
        tie = HALF_TIE if case.host == "flex_olmo" else TIE
        assert_same(chosen(load(tmp_path / "moe"), ids), plan, ids, tie)
        assert len(expected(plan, ids)[0].unique()) == len(experts)  # the test can fail: each head's are chosen
        is_slow = past_weights(plan, 80)[1] is None
        added = json.loads((tmp_path / "moe" / "config.json").read_text())["context_layers"]
    assert (1 in added) == name.startswith("two layers")
    heads, most = (1, 0) if name.startswith("two") else (3, 3)
    reason = f"attention of {heads} × 4 channels holds two windows of the evidence of at most {most} experts, not of 5"
    note = f"routers have no fast window, and notice a change of subject late: {reason}"
    assert is_slow == (note in plan.notes) == name.endswith("the slow window alone")


@pytest.mark.check
def test_rope_without_such_a_window_is_noted(tmp_path: Path, tokenizer: Any) -> None:
    narrow = Case("llama", "mixtral", {"head_dim": 8})  # four rotary pairs
    with variant_of(narrow, tmp_path, tokenizer, EXPERTS) as variant:
        plans = [
            variant.registry.compose(EXPERTS, tmp_path / str(tau), variant.recipe(router="context", context_window=tau))
            for tau in (0, 4)
        ]
        ids = texts(tokenizer)
        for plan, tau in zip(plans, (0, 4), strict=True):
            assert_same(chosen(load(tmp_path / str(tau)), ids), plan, ids)
    note = "its rope cannot weigh the past by a window of 4 tokens: routers read the mean of the whole text"
    assert [plan.parts.notes for plan in plans] == [(), (note,)]


@pytest.mark.check
def test_an_mlp_too_narrow_to_compare_pairs_notices_what_is_for_an_expert(tmp_path: Path, tokenizer: Any) -> None:
    ids, found, plans = texts(tokenizer), [], []
    for size in (8, 16):  # 3 experts take 9 activations
        case = Case("llama", "mixtral", WIDE | {"intermediate_size": size})
        with variant_of(case, tmp_path / str(size), tokenizer, EXPERTS) as variant:
            recipe = variant.recipe(router="context", context_window=48.0)
            plan = variant.registry.compose(EXPERTS, tmp_path / f"moe{size}", recipe)
            assert_same(chosen(load(tmp_path / f"moe{size}"), ids), plan, ids)
            found.append((thresholds_of(plan), expected(plan, ids)[0]))
            plans.append(plan)
    (narrow, late), (wide, soon) = found
    note = "a change of subject between experts that look alike is noticed late: MLPs of 8 activations do not compare"
    assert [any(text.startswith(note) for text in one.notes) for one in plans] == [True, False]
    assert torch.equal(narrow.diagonal(), wide.diagonal())
    assert int(narrow.isinf().sum()) == 6
    assert not wide.isinf().any()
    assert not torch.equal(late, soon)  # the test can fail: pairs change what is chosen


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("variant", ["llama", "mistral window", "qwen3", "olmo2", "smollm3", "granite"], indirect=True)
def test_padding_is_no_evidence_and_a_cache_step_by_step_is_one_pass(composed: Composed) -> None:
    plan, model, ids = composed
    padding = evidence_of(plan)[:, 0].argmax()  # it would be the most evidence that a token can be
    lengths = torch.tensor([80, 61, 33, 7])
    for keep in (torch.arange(80) < lengths[:, None], torch.arange(80) >= 80 - lengths[:, None]):
        padded = torch.where(keep, ids, padding)
        assert_same(chosen(model, padded, attention_mask=keep.long()), plan, padded, keep=keep)
    found = chosen(model, padded)
    with pytest.raises(AssertionError):  # the test can fail: to the left, and without a mask, it is evidence
        assert_same(found, plan, padded, keep=keep)
    with torch.no_grad(), record_routing(model) as routings:
        whole = model(input_ids=ids).logits
        done = model(input_ids=ids[:, :20], use_cache=True)
        steps = [done.logits]
        for place in range(20, ids.shape[1]):
            done = model(input_ids=ids[:, place : place + 1], cache=done.cache, use_cache=True)
            steps.append(done.logits)
    alike = torch.ones_like(ids, dtype=torch.bool)
    for routing in routings:
        one, *rest = (part[:, 0].view(len(ids), -1) for part in routing.chosen)
        assert_same([one, torch.cat(rest, dim=1)], plan, ids)
        alike &= one == torch.cat(rest, dim=1)
    before_ties = alike.long().cumprod(dim=1).bool()  # one that is decided by rounding changes what follows
    apart = (torch.cat(steps, dim=1) - whole).abs().amax(dim=-1)
    assert before_ties.sum() > 100
    assert apart[before_ties].max() < 1e-4 * whole.abs().max()


@pytest.mark.check(after=2)
@pytest.mark.trust(after=6)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("variant", ["llama", "qwen3", "granite", "gemma", "olmo2", "smollm3"], indirect=True)
def test_folders_in_16_bits_take_the_same_experts(variant: Variant, tmp_path: Path, tokenizer: Any, dtype: str) -> None:
    recipe = variant.recipe(router="context", context_window=16.0, dtype=dtype)
    plan = variant.registry.compose(EXPERTS, tmp_path / "moe", recipe)
    ids = texts(tokenizer)
    found = chosen(load(tmp_path / "moe", getattr(torch, dtype)), ids)
    assert_same(found, plan, ids, tie=HALF_TIE)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("variant", OLD, indirect=True)
def test_transformers_4_computes_the_same(composed: Composed, tmp_path: Path, transformers4: Transformers4) -> None:
    _, model, ids = composed
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    assert torch.equal(transformers4.logits(tmp_path / "moe", ids, "float32", tmp_path), expected)


@pytest.mark.check(after=2)
@pytest.mark.parametrize("variant", ["llama", "qwen2 in granitemoe", "qwen3", "smollm3"], indirect=True)
def test_two_experts_a_token_are_those_of_most_evidence(variant: Variant, tmp_path: Path, tokenizer: Any) -> None:
    recipe = variant.recipe(router="context", context_window=16.0, top_k=2)
    plan = variant.registry.compose(EXPERTS, tmp_path / "moe", recipe)
    model, ids = load(tmp_path / "moe"), texts(tokenizer)
    with torch.no_grad(), record_routing(model) as routings:
        model(input_ids=ids)
    _, lead = expected(plan, ids)
    means = scores_of(plan, ids, torch.ones_like(ids, dtype=torch.bool), evidence_of(plan))
    order = means.flatten(0, 1).topk(3, dim=-1)
    clear = ((order.values[:, :2] - order.values[:, 1:]).amin(dim=1) > TIE) & (lead.flatten() > TIE)
    for routing in routings:
        weights = routing.weights[0]
        assert torch.equal(routing.chosen[0][clear, 0], order.indices[clear, 0])
        both = clear & (weights[:, 1] > 0)  # where softmax is 0 for the others, any of them is the second
        assert torch.equal(routing.chosen[0][both, 1], order.indices[both, 1])
        assert torch.allclose(weights.sum(dim=1), torch.ones(len(weights)), atol=1e-5)
        assert bool((weights[clear, 0] >= weights[clear, 1]).all())


def assert_finite(folder: Path) -> None:
    """Check that weights and logits in float16 are finite."""
    model = load(folder, torch.float16)
    assert all(bool(torch.isfinite(weight).all()) for weight in model.parameters())
    with torch.no_grad():
        assert bool(torch.isfinite(model(input_ids=torch.arange(1, 33)[None]).logits).all())


def test_one_member_gets_no_context_layer(filled: Registry, tmp_path: Path) -> None:
    for router in ("context", "ridge"):
        filled.compose(["code"], tmp_path / router, Recipe(router=router, trunk="mean"))
    found, expected = (files_of(tmp_path / router) for router in ("context", "ridge"))
    assert found["config.json"] == expected["config.json"]
    one, other = tensors_of(tmp_path / "context"), tensors_of(tmp_path / "ridge")
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert weight.shape == other[name].shape
        assert "gate" in name or torch.equal(weight, other[name])


@pytest.mark.check(after=1)
@pytest.mark.parametrize("counts", [[9, 8, 7], [0, 0, 0], [5, -1, 3], [0, 0, 7], [2**60, 1, 1]], ids=str)
def test_hostile_counts_are_finite_in_float16(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int]
) -> None:
    own = vars(Member)["evidence_counts"].func

    def given(member: Member) -> torch.Tensor:
        found: torch.Tensor = own(member)
        return torch.tensor(counts, dtype=torch.int64) if member.name == "math" else found

    monkeypatch.setattr(Member, "evidence_counts", property(given))
    recipe = Recipe(router="context", trunk="mean", top_k=2, temperature=1e-6, dtype="float16")
    if sum(counts) > 0 <= min(counts):
        plan = filled.compose(["code", "math"], tmp_path / "moe", recipe)
        assert bool(torch.isfinite(evidence_of(plan)).all())
        assert float(evidence_of(plan).abs().max()) < 20
        assert_finite(tmp_path / "moe")
        return
    message = "math@1 counted no token, and --router context knows members by their tokens"
    with pytest.raises(InvalidInputError, match=message):
        filled.compose(["code", "math"], tmp_path / "moe", recipe)
    assert not (tmp_path / "moe").exists()
    assert list(filled.home.work.iterdir()) == []
    assert filled.compositions() == []


@pytest.mark.check
def test_members_with_tokens_of_their_own(filled: Registry, tmp_path: Path) -> None:
    more = write_jsonl(tmp_path / "more.jsonl", ["<call> def <result> return <call>"] * 20)
    settings = PassSettings(tokens=128, seq_len=32, batch_size=2)
    agent = grown(tmp_path / "agent", 107, "<call>", "<result>")
    filled.add_expert("agent", agent, data=[more], settings=settings)
    plan = filled.compose(["agent", "math"], tmp_path / "moe", Recipe(router="context", trunk="mean"))
    evidence = evidence_of(plan)
    assert evidence.shape == (plan.lead.architecture.vocab_size, 2)
    assert evidence[320, 0] > 1 > -1 > evidence[320, 1]
    ids = torch.tensor([[320, 321] * 8])
    for choices in chosen(load(tmp_path / "moe"), ids):
        assert not choices.any()


@pytest.mark.check(after=1)
@pytest.mark.parametrize("variant", ["llama", "granite"], indirect=True)
def test_blocks_of_rows_are_the_same_bytes(variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of one tensor for each expert, and of a stacked one, land in the same places however it is cut."""
    recipe = variant.recipe(router="context", context_window=48.0)
    variant.registry.compose(EXPERTS, tmp_path / "whole", recipe)
    cut: list[tuple[int, ...]] = []

    def few(shape: tuple[int, ...]) -> int:
        cut.append(shape)
        return 3

    monkeypatch.setattr("registry.methods.moe.render.rows_per_block", few)
    variant.registry.compose(EXPERTS, tmp_path / "cut", recipe)
    assert cut
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")


def in_blocks_of_8_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor rounded as in q8_0 of GGUF: blocks of 32 numbers of a row, 8 bits each, and a float16 scale."""
    rows = tensor.double().flatten(0, -2)
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[-1] % 32)).view(len(rows), -1, 32)
    scale = (padded.abs().amax(-1, keepdim=True) / 127).half().double()
    rounded = torch.where(scale > 0, (padded / scale).round().clamp(-127, 127) * scale, 0.0)
    return rounded.flatten(1)[:, : rows.shape[-1]].view(tensor.shape)


@pytest.mark.check(after=4)
@pytest.mark.trust(after=10)
def test_blocks_of_8_bits_keep_what_the_added_layer_computes_with(variant: Variant, tmp_path: Path) -> None:
    """float16 holds the scales of blocks, which are 0 below 3e-8, with embeddings as small as those of large models."""
    recipe = variant.recipe(router="context", trunk="mean", context_window=16.0)
    variant.registry.compose(EXPERTS, tmp_path / "moe", recipe)
    written = tensors_of(tmp_path / "moe")
    row = float(written["model.embed_tokens.weight"][:, :64].double().square().mean().sqrt())
    outputs = (
        () if variant.case.host == "flex_olmo" else ("o_proj.weight", "down_proj.weight", "down_proj", "w2.weight")
    )
    compared = set()
    for name, weight in written.items():
        if weight.dim() > 1 and name.startswith("model.layers.0.") and weight.any():
            own = weight.double() * (0.003 / row if name.endswith((*outputs, "output_linear.weight")) else 1.0)
            lost = (in_blocks_of_8_bits(own) - own).abs().amax(-1)
            assert (lost <= 0.2 * own.abs().amax(-1)).all(), name
            compared.add(name)
    assert {"model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.v_proj.weight"} <= compared
