"""Proves: with a context layer, a host computes for each expert what it computes without it.

Compared are two compositions of the same experts and trunk, one routed by context, with each expert forced. In float64
they differ by what the context layer rounds: norm weights times √(H/H′) are written in float32, 6e-8 of them, and the
reserved channels add at most 1e-6 to a row's mean square. Some layers of norms give 1e-5 of the largest logit at most,
which is the tolerance; in float32, sums of another width are rounded otherwise, and the tolerance is 4e-5. A folder
whose norms are not scaled for the width fails it a thousandfold.
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.errors import UnsupportedFamilyError
from registry.hosts.architecture import Architecture
from registry.hosts.context import CONTEXT_LAYERS, constant_size, evidence_size, most_experts, reserved_channels
from registry.runtime.gates import force_expert, gates
from registry.runtime.loading import quiet_transformers
from tests.conftest import Shared
from tests.registry.hosts.test_hosts import CASES, Variant, load, run, shapes, shared_variant, tensors_of, variant_of

NATIVE = sorted(name for name, case in CASES.items() if not case.host.startswith("routed_"))
NO_CONTEXT = ("cohere", "cohere2")
"""Cases whose native host has no context layer."""

CARRIED = [name for name in NATIVE if name not in NO_CONTEXT]
EPSILON = {
    "llama, large epsilon": replace(CASES["llama"], config={"rms_norm_eps": 0.05}),
    "gemma, large epsilon": replace(CASES["gemma"], config={"rms_norm_eps": 0.05, "head_dim": 8}),
    "olmo2, small epsilon": replace(CASES["olmo2"], config={"rms_norm_eps": 1e-9}),
}
"""Cases in which the epsilon of norms matters, or, where norms of queries share it, does not."""

Folders = tuple[Path, Path]
EXACT, ALARMED, SHARED = 1e-5, 1e-4, 2e-4
"""Largest difference of a logit over the largest logit: in float64; where a text has alarms, here of 20 nats, which the
norms read; and with a shared epsilon: norms of queries and keys share the one that is scaled for the width, which here
doubles."""


@pytest.fixture
def variant(request: pytest.FixtureRequest, tmp_path: Path, shared: Shared) -> Iterator[Variant]:
    with shared_variant(request.param, tmp_path, shared) as made:
        yield made


@pytest.fixture(scope="module", params=CARRIED)
def folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared: Shared
) -> Iterator[Folders]:
    """Folders of one composition without a context layer and with it."""
    root = tmp_path_factory.mktemp("folders")
    with shared_variant(request.param, root, shared) as variant:
        yield pair(variant, root)


def pair(variant: Variant, folder: Path, **settings: Any) -> Folders:
    """Compose both experts without a context layer and with it, on one trunk; return the folders."""
    recipe = {"trunk": "mean"} | settings
    variant.registry.compose(["code", "math"], folder / "plain", variant.recipe(**recipe))
    variant.registry.compose(
        ["code", "math"], folder / "context", variant.recipe(router="context", vocabulary="shared", **recipe)
    )
    return folder / "plain", folder / "context"


def forced(model: Any, expert: int) -> torch.Tensor:
    """Return the logits of a model with every token sent to one expert."""
    with force_expert(model, expert):
        return run(model)


def apart(plain: Any, context: Any) -> float:
    """Return the largest difference of a logit over the largest logit, each expert forced in turn."""
    found = []
    for expert in range(2):
        expected = forced(plain, expert)
        found.append(float((forced(context, expert) - expected).abs().max() / expected.abs().max()))
    return max(found)


def double(folder: Path) -> Any:
    """Load a folder to compute in float64."""
    return load(folder, torch.float64, experts_implementation="eager")


@pytest.mark.check
@pytest.mark.trust(after=1)
def test_each_expert_computes_what_it_computes_without_the_layer(folders: Folders) -> None:
    shares_epsilon = "flex_olmo" in (folders[0] / "config.json").read_text()
    assert apart(*map(load, folders)) < (SHARED if shares_epsilon else ALARMED)
    plain, context = map(double, folders)
    assert apart(plain, context) < (SHARED if shares_epsilon else ALARMED)
    assert (forced(plain, 0) - forced(plain, 1)).abs().max() > 0.05  # the test can fail: experts differ
    with torch.no_grad():  # and it fails on norms that are scaled for another width
        for name, weight in context.named_parameters():
            if "norm" in name and weight.shape == (context.config.hidden_size,):
                weight.mul_(1.01)
    assert apart(plain, context) > SHARED * 10


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("name", EPSILON)
def test_epsilon_is_scaled_for_the_width(name: str, tmp_path: Path, tokenizer: Any) -> None:
    with variant_of(EPSILON[name], tmp_path, tokenizer) as variant:
        plain, context = map(double, pair(variant, tmp_path))
    assert apart(plain, context) < EXACT


@pytest.mark.check(after=4)
@pytest.mark.trust(after=9)
def test_weights_are_those_of_the_members_and_zeros(folders: Folders) -> None:
    """Bit for bit, one layer later; norms of the stream are scaled, and routers and reserved channels are our own."""
    plain, context = map(tensors_of, folders)
    hidden, wide = (int(config_of(folder)["hidden_size"]) for folder in folders)
    assert wide - hidden in [reserved_channels(hidden, 2, fast=fast) for fast in (False, True)]
    compared: set[str] = set()
    for name, own in plain.items():
        later = re.sub(r"(?<=layers\.)\d+", lambda found: str(int(found[0]) + 1), name)
        found, compared = context[later], compared | {later}
        if ".gate.weight" in name or ".router." in name:
            continue
        if name == "model.embed_tokens.weight":
            assert torch.equal(found[:, :hidden], own)
            continue
        inner = found[tuple(slice(size) for size in own.shape)]
        if "layernorm" in name or name == "model.norm.weight":  # which the mean, unrounded, is scaled by
            assert torch.allclose(inner, own * (hidden / wide) ** 0.5, rtol=2e-7, atol=0), name
            assert not found[hidden:].any() or name.endswith("post_attention_layernorm.weight"), name
        else:
            assert torch.equal(inner, own), name
            if "shared_expert_gate" in name:  # of an expert that is zero
                continue
            rest = found.clone()
            rest[tuple(slice(size) for size in own.shape)] = 0
            assert not rest.any(), name
        assert all(a == b or (a, b) == (hidden, wide) for a, b in zip(own.shape, found.shape, strict=True)), name
    new = {name for name in context if name not in compared}
    assert all(name.startswith("model.layers.0.") or name == "lm_head.weight" for name in new)
    if "lm_head.weight" in new:  # tied without the layer
        assert torch.equal(context["lm_head.weight"][:, :hidden], plain["model.embed_tokens.weight"])
        assert not context["lm_head.weight"][:, hidden:].any()
    routers = [weight for name, weight in context.items() if re.search(r"\.gate\.weight|\.router\.", name)]
    assert sum(bool(router.any()) for router in routers) == len(routers) - 1
    assert all(int(router.count_nonzero()) in (0, 2) and not router[:, :hidden].any() for router in routers)


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


@pytest.mark.check(after=3)
@pytest.mark.trust(after=7)
def test_config_names_the_layer_and_transformers_writes_the_same_names(folders: Folders, tmp_path: Path) -> None:
    plain, context = map(config_of, folders)
    changed = {key: (plain.get(key), value) for key, value in context.items() if value != plain.get(key)}
    hidden, layers = plain["hidden_size"], plain["num_hidden_layers"]
    wide = context["hidden_size"]
    assert changed.pop(CONTEXT_LAYERS) == (None, [0])
    assert changed.pop("hidden_size") == (hidden, wide)
    assert changed.pop("num_hidden_layers") == (layers, layers + 1)
    assert changed.pop("rms_norm_eps")[1] == pytest.approx(plain["rms_norm_eps"] * hidden / wide, rel=1e-12)
    changed.pop("tie_word_embeddings", None)
    assert context["tie_word_embeddings"] is False
    for key in ("layer_types", "layer_rope_theta", "mlp_layer_types"):
        if key in changed:
            before, after = changed.pop(key)
            assert after[1:] == before
            assert after[0] in before
    if "max_window_layers" in changed:
        assert changed.pop("max_window_layers") == (plain["max_window_layers"], plain["max_window_layers"] + 1)
    assert changed == {}
    without, model = map(load, folders)
    assert [gate.layer for gate in gates(model)] == [gate.layer for gate in gates(without)]  # those of the members
    assert all(gate.weight.any() for gate in gates(model))
    with quiet_transformers():
        model.save_pretrained(tmp_path)
    assert shapes(folders[1]) == shapes(tmp_path)


@pytest.mark.check(after=1)
@pytest.mark.parametrize("variant", NO_CONTEXT, indirect=True)
def test_hosts_without_a_context_layer_say_so(variant: Variant, tmp_path: Path) -> None:
    message = "context cannot be used here: cohere2_moe has no context"
    with pytest.raises(UnsupportedFamilyError, match=message) as raised:
        variant.registry.compose(["code", "math"], tmp_path / "moe", variant.recipe(router="context"))
    assert "choose --router ridge, or add --remote-code" in str(raised.value.hint)
    assert not (tmp_path / "moe").exists()


@pytest.mark.check
def test_two_context_layers_change_no_expert(tmp_path: Path, tokenizer: Any) -> None:
    narrow = replace(CASES["llama"], config={"num_attention_heads": 16, "num_key_value_heads": 1})
    with variant_of(narrow, tmp_path, tokenizer) as variant:
        folders = pair(variant, tmp_path)
    assert config_of(folders[1])[CONTEXT_LAYERS] == [0, 1]
    plain, context = map(double, folders)
    assert apart(plain, context) < EXACT
    assert [gate.layer for gate in gates(context)] == [gate.layer for gate in gates(plain)]
    assert all(gate.weight.any() for gate in gates(context))


@pytest.mark.check
def test_more_experts_than_all_heads_have_channels_are_refused_where_norms_follow(
    tmp_path: Path, tokenizer: Any
) -> None:
    narrow = replace(CASES["olmo2"], config={"num_attention_heads": 16, "num_key_value_heads": 1})
    message = "1 key-value heads of 2 channels hold the evidence of at most 1 experts, not of 2"
    with variant_of(narrow, tmp_path, tokenizer) as variant:
        with pytest.raises(UnsupportedFamilyError, match=message) as raised:
            variant.registry.compose(["code", "math"], tmp_path / "moe")
        assert "choose --router ridge" in str(raised.value.hint)
        assert "name fewer experts" in str(raised.value.hint)
        assert not (tmp_path / "moe").exists()


@pytest.mark.parametrize(
    ("heads", "keys", "channels", "both", "slow"),
    [(9, 3, 64, 191, 191), (32, 8, 128, 1023, 1023), (16, 16, 8, 63, 127)],
)
def test_values_hold_the_evidence_of_as_many_experts_as_they_have_channels(
    heads: int, keys: int, channels: int, both: int, slow: int
) -> None:
    """A constant takes one; windows share the values of grouped query heads, and halve those of others."""
    sizes = Architecture(heads * channels, 64, 2, heads, keys, channels, 320, 128, "silu", {}, False)
    assert [most_experts(sizes, fast=fast) for fast in (True, False)] == [both, slow]


def test_hidden_sizes_are_multiples_that_kernels_and_quantizers_take() -> None:
    """Of 64, and of 256 where that costs less than 2 %."""
    found = {size: size + reserved_channels(size, 7, fast=True) for size in (32, 576, 2048, 4096, 14336)}
    assert found == {32: 64, 576: 640, 2048: 2112, 4096: 4160, 14336: 14592}
    assert [reserved_channels(4096, count, fast=False) for count in (2, 31, 32, 64, 120)] == [64, 64, 128, 256, 256]
    for size, fast, count in itertools.product((16, 640, 896, 2560, 5120), (False, True), range(2, 70)):
        assert reserved_channels(size, count, fast=fast) >= (3 * count + 2 if fast else 2 * count + 1)


@pytest.mark.check(after=3)
@pytest.mark.trust(after=6)
@pytest.mark.parametrize(("dtype", "limit"), [("float16", 0.02), ("bfloat16", 0.2)])
@pytest.mark.parametrize("variant", ["llama", "qwen2", "olmo2", "granite"], indirect=True)
def test_in_16_bits_weights_are_rounded_once_more(variant: Variant, tmp_path: Path, dtype: str, limit: float) -> None:
    """Evaluated in float64, so that the difference is that of the weights: 2^-9 of them in bfloat16."""
    found = apart(*map(double, pair(variant, tmp_path, dtype=dtype)))
    assert found < limit


def test_blocks_of_8_bits_hold_the_constant_of_small_embeddings() -> None:
    """A row of a token that every expert uses alike has the constant alone; this is the scale of its block."""
    for hidden, row in ((256, 0.005), (1024, 0.003), (4096, 0.002)):
        scale = torch.tensor(constant_size(hidden) * row / 127)
        assert float(scale.half()) == pytest.approx(float(scale), rel=0.1)
        assert evidence_size(hidden) * 8 >= constant_size(hidden)  # evidence of 8 nats is no smaller
        assert (evidence_size(hidden) ** 2 * 64 + constant_size(hidden) ** 2) / hidden <= 2.0**-20
