"""Proves: a SIMoE's folder is the sum over its members, by the prompt of each sequence alone; subsets and opting out.

It has those rows of D alone that a member opens, and gives with them what all of D gives.

An expert that was opted out stops what was made with it, as any other expert, and the receipt lists where it is still.
References are dense models whose weights are summed in plain loops: θ_pre + Σ_m α_m (z_m ∘ δ), Chen et al. 2025.
Tolerances are for float32 sums in another order: W x + g ∘ (D x) against (W + diag(g) D) x, through all layers.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from registry import Recipe, Registry
from registry.composition.plan import Plan
from registry.composition.route import route
from registry.doctor import diagnose
from registry.errors import ConflictError, IncompatibleError, InvalidInputError
from registry.evaluation import TestSettings as ScoreSettings
from registry.io.model_folder import MARKER
from registry.io.torch_blocks import to_tensor
from registry.maths.interpolation import unpack_bits
from registry.member import Member
from registry.methods.simoe.model import Simoe
from registry.methods.simoe.plan import OpenRows
from registry.methods.simoe.versions import DELTA, MASK
from registry.runtime.gates import record_routing
from registry.runtime.loading import has_our_code, load_model
from store.arrays import ArraySource
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint
from tests.pages import served
from tests.registry.methods.simoe.conftest import NAMES, settings_with, text_of
from tests.registry.methods.simoe.test_train_simoe import member_of, tensor_of
from tests.transformers4 import Transformers4
from tests.writable_hub import WritableHub, writable_hub

TWO = NAMES[:2]
CLOSE: dict[str, Any] = {"atol": 2e-4, "rtol": 1e-4}
PROMPT = 8
IDS = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(_simoe_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A composition of all three experts."""
    out = tmp_path_factory.mktemp("simoe") / "all"
    with Registry(_simoe_home) as registry:
        plan = registry.plan(NAMES, Recipe(to="simoe"))
        registry.write(plan, out)
    return out


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load_model(folder, "float32", "cpu")


def logits(model: Any, ids: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=ids, use_cache=False, **options).logits
    return found


def dense_logits(registry: Registry, folder: Path, alpha: list[float], ids: Tensor) -> Tensor:
    """Return the logits of the base model with Σ_m α_m diag(z_m) D added, experts and rows in plain loops."""
    base, experts = member_of(registry, "base"), [member_of(registry, name) for name in NAMES]
    layers = base.family.layer_matrices(base.architecture)
    outputs = [base.weight(name).shape[0] for name in layers]
    masks = [unpack_bits(tensor_of(one, "simoe", MASK), sum(outputs)).split(outputs) for one in experts]
    dense = load_model(folder, "float32", "cpu")
    with torch.no_grad():
        for layer, name in enumerate(layers):
            delta, weight = tensor_of(experts[0], "simoe", f"{DELTA}{name}"), dense.get_parameter(name)
            for row in range(len(weight)):
                for m, share in enumerate(alpha):
                    weight[row] += share * float(masks[m][layer][row]) * delta[row]
    return logits(dense, ids)


def test_folder_loads_and_has_what_it_is_made_of(simoe: Registry, folder: Path, model: Any) -> None:
    plan = simoe.plan(NAMES[::-1], Recipe(to="simoe"))  # in any order
    assert isinstance(plan, Plan)
    assert plan.digest == json.loads((folder / MARKER).read_bytes())["digest"]
    assert plan.parameters == sum(part.numel() for part in model.parameters())
    assert model.config.members == NAMES
    assert has_our_code(folder)
    experts = [member_of(simoe, name) for name in NAMES]
    for number, expert in enumerate(experts):
        assert torch.equal(model.masks[number], tensor_of(expert, "simoe", MASK))
        assert torch.equal(model.router[number], tensor_of(expert, "simoe", "router"))
    card = (folder / "README.md").read_text()
    assert "2506.12597" in card
    assert "trained by 3 experts together" in card
    assert plan.document["base"] == {"name": "base", "digest": simoe.resolve("base").digest}


def test_logits_are_those_of_the_weighted_sum_of_experts(simoe: Registry, zoo: Zoo, model: Any) -> None:
    found, embedding = logits(model, IDS), model.get_input_embeddings().weight.detach()
    for b in range(2):
        prompt = [math.fsum(float(embedding[token, h]) for token in IDS[b, :PROMPT]) / PROMPT for h in range(32)]
        rows = model.router.tolist()
        scores = [math.exp(sum(r * h for r, h in zip(row, prompt, strict=True))) for row in rows]
        alpha = [score / sum(scores) for score in scores]  # softmax(router(mean of the prompt's embeddings))
        assert max(alpha) > 0.34
        expected = dense_logits(simoe, zoo.base, alpha, IDS[b : b + 1])[0]
        torch.testing.assert_close(found[b, PROMPT - 1 :], expected[PROMPT - 1 :], **CLOSE)
        alike = dense_logits(simoe, zoo.base, [1 / 3] * 3, IDS[b : b + 1])[0]  # before the prompt is complete
        torch.testing.assert_close(found[b, : PROMPT - 1], alike[: PROMPT - 1], **CLOSE)


def test_all_weight_on_an_expert_gives_its_dense_model(simoe: Registry, folder: Path, tmp_path: Path) -> None:
    own = load_model(folder, "float32", "cpu")
    mean = own.get_input_embeddings()(IDS[:1, :PROMPT]).mean(dim=1)[0].detach()
    for m, name in enumerate(NAMES):
        simoe.export(name, tmp_path / name)
        with torch.no_grad():
            own.router.zero_()
            own.router[m] = mean * 1e4 / (mean @ mean)
        expected = logits(load_model(tmp_path / name, "float32", "cpu"), IDS[:1])
        torch.testing.assert_close(logits(own, IDS[:1])[:, PROMPT - 1 :], expected[:, PROMPT - 1 :], **CLOSE)
    simoe.compose(["mix-2"], tmp_path / "one", Recipe(to="simoe"))  # of one member all tokens have it
    one = load_model(tmp_path / "one", "float32", "cpu")
    torch.testing.assert_close(logits(one, IDS), logits(load_model(tmp_path / "mix-2", "float32", "cpu"), IDS), **CLOSE)


def faults(folder: Path) -> list[str]:
    """Return what reg doctor says against a folder without running it."""
    found = diagnose(None, folder, quick=True).findings
    return [one.message for one in found if one.severity in ("error", "warning")]


def opened(registry: Registry, names: list[str]) -> dict[str, list[int]]:
    """Return for each layer the outputs that the mask of a member opens, found bit by bit."""
    base, first = member_of(registry, "base"), 0
    masks, found = [tensor_of(member_of(registry, name), "simoe", MASK).tolist() for name in names], {}
    for name in base.family.layer_matrices(base.architecture):
        outputs = range(base.weight(name).shape[0])
        found[name] = [o for o in outputs if any(mask[(first + o) // 8] >> (first + o) % 8 & 1 for mask in masks)]
        first += len(outputs)
    return found


@pytest.mark.check(after=1)
@pytest.mark.parametrize("names", [NAMES, ["mix-2"]], ids=("all", "one"))
def test_rows_that_no_member_opens_are_left_out(simoe: Registry, tmp_path: Path, names: list[str]) -> None:
    plan = simoe.compose(names, tmp_path / "out", Recipe(to="simoe"))
    stored, rows, expert = (
        load_file(tmp_path / "out" / "model.safetensors"),
        opened(simoe, names),
        member_of(simoe, "mix-3"),
    )
    for name, own in rows.items():
        delta = stored.get(f"{name.removesuffix('.weight')}.delta", torch.zeros(0, stored[name].shape[1]))
        assert torch.equal(delta, tensor_of(expert, "simoe", f"{DELTA}{name}")[own])
    kept, outputs = sum(map(len, rows.values())), sum(len(stored[name]) for name in rows)
    assert kept < outputs if len(names) == 3 else kept < sum(map(len, opened(simoe, NAMES).values()))
    assert json.loads((tmp_path / "out" / "config.json").read_bytes())["interpolated_rows"] == [
        *map(len, rows.values())
    ]
    assert plan.nbytes == sum(tensor.nbytes for tensor in stored.values())
    assert f"{kept:,} of {outputs:,}" in (tmp_path / "out" / "README.md").read_text()
    assert faults(tmp_path / "out") == []
    assert simoe.reproduce(tmp_path / "out").is_same


@pytest.mark.check(after=1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_those_of_all_rows(simoe: Registry, folder: Path, dtype: str) -> None:
    own, whole = (load_model(folder, dtype, "cpu") for _ in range(2))
    base, expert = member_of(simoe, "base"), member_of(simoe, "mix-1")
    for name in base.family.layer_matrices(base.architecture):
        layer = whole.get_submodule(name.removesuffix(".weight"))
        delta = tensor_of(expert, "simoe", f"{DELTA}{name}").to(layer.weight)

        def forward(x: Tensor, layer: Any = layer, delta: Tensor = delta) -> Tensor:
            gates = torch.zeros(len(x), layer.out_features).to(x).index_copy(1, layer.rows, layer.gates)
            return functional.linear(x, layer.weight) + (gates[:, None, :] * functional.linear(x, delta)).to(x.dtype)

        layer.forward = forward
    # the library may sum a product of fewer rows in another order
    close: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5} if dtype == "float32" else {"atol": 0.05, "rtol": 0.05}
    torch.testing.assert_close(logits(own, IDS), logits(whole, IDS), **close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [[], [0], [1, 2, 6], [*range(7)]])
def test_layer_adds_each_row_to_its_output(model: Any, rows: list[int], dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(len(rows))

    def whole(*shape: int) -> Tensor:  # numbers whose sums are exact in any order
        return torch.randint(-2, 3, shape, generator=draw).to(dtype)

    like = torch.nn.Linear(5, 7, dtype=dtype)
    layer = type(model.get_submodule("model.layers.0.mlp.up_proj"))(like, len(rows))
    weight, bias, delta, x, gates = whole(7, 5), whole(7), whole(7, 5), whole(2, 3, 5), whole(2, 7)
    layer.load_state_dict({"weight": weight, "bias": bias} | ({"delta": delta[rows]} if rows else {}))
    layer.rows, layer.gates = torch.tensor(rows, dtype=torch.int64), gates[:, rows]
    gates[:, [row for row in range(7) if row not in rows]] = 0
    assert torch.equal(layer(x), functional.linear(x, weight, bias) + gates[:, None, :] * functional.linear(x, delta))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_are_taken_block_by_block(dtype: str) -> None:
    delta = torch.arange(30.0).view(10, 3)

    def blocks() -> Iterator[np.ndarray[Any, Any]]:
        yield from (part.numpy() for part in delta.split(2))

    stored = Mock(Member)
    stored.open.return_value = ArraySource("float32", (10, 3), blocks)
    stored.link.return_value = delta
    kept = torch.tensor([0, 0, 1, 1, 0, 1, 0, 0, 1, 0]).bool()  # of two blocks nothing, of one all
    stream = OpenRows(stored, "delta", kept).stream("delta", dtype)
    assert stream.shape == (4, 3)
    parts = [to_tensor(block, dtype) for block in stream.blocks()]
    assert [len(part) for part in parts] == [2, 1, 1]
    assert torch.equal(torch.cat(parts).float(), delta[kept])


@pytest.mark.check
def test_layer_of_which_no_row_is_open_has_no_delta(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = Simoe.final

    def closed(self: Simoe) -> tuple[Tensor, int]:
        masks, count = final(self)
        masks[:, : self.outputs[0]] = False
        masks[:, -self.outputs[-1] :] = False
        return masks, count

    monkeypatch.setattr(Simoe, "final", closed)
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", zoo.base)
        registry.train_simoe("mix", "base", text_of(zoo), settings_with(tokens=2 * 2 * 32, lr=1e-2, sparsity=0.3))
        plan = registry.compose(["mix-1"], tmp_path / "out", Recipe(to="simoe"))
        registry.export("mix-1", tmp_path / "dense")
    own = load_model(tmp_path / "out", "float32", "cpu")
    assert [own.config.interpolated_rows[layer] for layer in (0, -1)] == [0, 0]
    assert own.get_submodule(own.config.interpolated_layers[0]).delta is None
    assert plan.parameters == sum(part.numel() for part in own.parameters())
    torch.testing.assert_close(logits(own, IDS), logits(load_model(tmp_path / "dense", "float32", "cpu"), IDS), **CLOSE)
    assert faults(tmp_path / "out") == []


@pytest.mark.parametrize("length", [1, 7, 8, 9, 19])
def test_no_token_depends_on_later_ones(model: Any, length: int) -> None:
    torch.testing.assert_close(logits(model, IDS[:, :length]), logits(model, IDS)[:, :length], **CLOSE)


@pytest.mark.parametrize("parts", [[20], [12, 8], [8, 12], [5, 12, 3], [7, 1, 12], [1] * 20])
def test_cache_changes_nothing(model: Any, parts: list[int]) -> None:
    cache: Any = None
    found, start = [], 0
    with torch.no_grad():
        for size in parts:
            output = model(input_ids=IDS[:, start : start + size], cache=cache, use_cache=True)
            cache, start = output.cache, start + size
            found.append(output.logits)
    assert cache.get_seq_length() == 20
    assert "ids" not in cache.rows
    torch.testing.assert_close(torch.cat(found, dim=1), logits(model, IDS), **CLOSE)


@pytest.mark.parametrize("short", [3, 8, 11])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_the_rest_of_the_batch_change_nothing(model: Any, short: int, side: str) -> None:
    ids, mask = torch.zeros((2, 20), dtype=torch.int64), torch.zeros((2, 20), dtype=torch.int64)
    own = slice(20 - short, 20) if side == "left" else slice(0, short)
    ids[0], mask[0] = IDS[0], 1
    ids[1, own], mask[1, own] = IDS[1, :short], 1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    found = logits(model, ids, attention_mask=mask, position_ids=positions)
    # a product of more rows may be summed in another order
    torch.testing.assert_close(found[1, own], logits(model, IDS[1:, :short])[0], **CLOSE)
    torch.testing.assert_close(found[0], logits(model, IDS[:1])[0], **CLOSE)


@pytest.mark.parametrize("start", [3, 12])
def test_generation_with_a_cache_is_that_without(model: Any, start: int) -> None:
    ids, mask = torch.zeros((2, start + 2), dtype=torch.int64), torch.ones((2, start + 2), dtype=torch.int64)
    ids[0], ids[1, 2:], mask[1, :2] = IDS[0, : start + 2], IDS[1, :start], 0
    greedy: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for beams in (1, 2):
        kinds = [
            model.generate(ids, attention_mask=mask, num_beams=beams, use_cache=use, **greedy) for use in (True, False)
        ]
        assert torch.equal(*kinds)
    alone = model.generate(IDS[1:, :start], attention_mask=mask[:1, :start], **greedy)
    both = model.generate(ids, attention_mask=mask, **greedy)
    assert torch.equal(both[1, 2:], alone[0])


def test_logits_to_keep_and_labels(model: Any) -> None:
    whole = logits(model, IDS)
    for keep in (1, 5, 15):
        torch.testing.assert_close(logits(model, IDS, logits_to_keep=keep), whole[:, -keep:], **CLOSE)
    places = torch.tensor([2, 10])
    torch.testing.assert_close(logits(model, IDS, logits_to_keep=places), whole[:, places], **CLOSE)
    output = model(input_ids=IDS, labels=IDS, use_cache=False)
    expected = torch.nn.functional.cross_entropy(whole[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert output["loss"] is output[0] is output.loss  # as trainers ask for it


def test_calls_that_cannot_be_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="takes input_ids"):
        model(inputs_embeds=torch.zeros(1, 3, 32))
    with pytest.raises(ValueError, match="attention mask of"):
        model(input_ids=IDS, attention_mask=torch.ones(2, 1, 20, 20))
    cache = model(input_ids=IDS, use_cache=True).cache
    with pytest.raises(NotImplementedError, match="cannot forget"):
        cache.crop(5)


def test_weights_of_each_token_are_recorded(folder: Path, model: Any, zoo: Zoo, simoe: Registry) -> None:
    with record_routing(model) as (routing,):
        logits(model, IDS)
    weights = torch.zeros(40, 3).scatter(1, routing.chosen[0], routing.weights[0]).view(2, 20, 3)
    torch.testing.assert_close(weights[:, : PROMPT - 1], torch.full((2, PROMPT - 1, 3), 1 / 3))
    assert torch.equal(weights[:, PROMPT - 1 : -1], weights[:, PROMPT:])
    assert float((weights[:, -1] - 1 / 3).abs().max()) > 1e-3
    found = route(folder, "def return self import class for in if else none true", "cpu")
    assert (found.experts, found.layers) == (tuple(NAMES), 1)
    rows = simoe.evaluate([folder], {"code": [zoo.test["code"]]}, ScoreSettings(windows=2, seq_len=32, device="cpu"))
    row = next(row for row in rows if row.load)
    assert sum(layers[0] for layers in row.load.values()) == pytest.approx(1)


def test_composition_is_reproduced_and_reported(simoe: Registry, tmp_path: Path) -> None:
    simoe.compose(NAMES, tmp_path / "out", Recipe(to="simoe"))
    assert simoe.reproduce(tmp_path / "out").is_same
    report = simoe.report(tmp_path / "out")
    masks = [unpack_bits(tensor_of(member_of(simoe, name), "simoe", MASK), 8 * 500).tolist() for name in NAMES]
    for one, other, overlap in report.mask_overlap:
        a, b = masks[NAMES.index(one)], masks[NAMES.index(other)]
        both = sum(x and y for x, y in zip(a, b, strict=True))
        assert overlap == pytest.approx(both / math.sqrt(sum(a) * sum(b)), abs=1e-6)
    assert len(report.mask_overlap) == 3
    assert [join.overlap for join in report.mask_joins] == sorted((j.overlap for j in report.mask_joins), reverse=True)
    assert sorted(report.mask_joins[-1].first + report.mask_joins[-1].second) == NAMES
    assert [training.name for training in report.trainings] == NAMES
    assert simoe.verify().problems == ()


@pytest.mark.check
def test_pages_show_it(simoe: Registry, tmp_path: Path) -> None:
    plan = simoe.compose(NAMES, tmp_path / "out", Recipe(to="simoe"))
    with served(simoe) as pages:
        assert "experts of a SIMoE, as they were trained" in pages.read("compositions", plan.digest).text
        assert "Overlap of masks" in pages.read("compositions", plan.digest, "report").text
        assert plan.digest[:12] in pages.read("compose", e=NAMES, to="simoe").text
        assert "shared weights, mask and router row of a SIMoE" in pages.read("versions", "mix-1@1").text


def test_folder_in_another_dtype_keeps_router_and_masks(simoe: Registry, tmp_path: Path) -> None:
    simoe.compose(NAMES[:2], tmp_path / "out", Recipe(to="simoe", dtype="bfloat16"))
    own = load_model(tmp_path / "out", "bfloat16", "cpu")
    assert (own.router.dtype, own.masks.dtype) == (torch.float32, torch.uint8)
    assert own.get_parameter("model.layers.0.mlp.up_proj.delta").dtype == torch.bfloat16
    assert torch.equal(own.masks[1], tensor_of(member_of(simoe, "mix-2"), "simoe", MASK))
    assert bool(logits(own, IDS).isfinite().all())


@pytest.mark.check
def test_transformers_4_loads_it(folder: Path, model: Any, transformers4: Transformers4, tmp_path: Path) -> None:
    torch.testing.assert_close(transformers4.logits(folder, IDS, "float32", tmp_path), logits(model, IDS), **CLOSE)
    greedy: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    generated = transformers4.logits(folder, IDS[:, :5], "float32", tmp_path, **greedy)
    assert torch.equal(generated, model.generate(IDS[:, :5], **greedy))


@pytest.mark.check
def test_members_that_do_not_go_together_are_refused(simoe: Registry, zoo: Zoo, tmp_path: Path) -> None:
    simoe.add_expert("law", zoo.experts["law"])
    with pytest.raises(IncompatibleError, match="law@1 was not trained with others as one SIMoE") as caught:
        simoe.plan(["law", "mix-1"], Recipe(to="simoe"))
    assert "reg train-simoe" in str(caught.value.hint)
    simoe.train_simoe("other", "base", text_of(zoo), settings_with(seed=3, tokens=2 * 2 * 32))
    with pytest.raises(IncompatibleError, match="mix-1@1 and other-2@1 are experts of different trainings"):
        simoe.plan(["mix-1", "other-2"], Recipe(to="simoe"))
    simoe.add_base("second", zoo.experts["code"])
    with pytest.raises(IncompatibleError, match="second@1 has") as caught:
        simoe.plan(["mix-1"], Recipe(to="simoe"), base="second")
    assert "--base" in str(caught.value.hint)
    assert _base_ref(simoe.plan(["mix-1"], Recipe(to="simoe"))) == "base@1"  # found by its weights
    simoe.add_base("third", zoo.base)
    with pytest.raises(InvalidInputError, match=r"several base models have the weights .*: base@1, third@1"):
        simoe.plan(["mix-1"], Recipe(to="simoe"))
    assert _base_ref(simoe.plan(["mix-1"], Recipe(to="simoe"), base="third")) == "third@1"
    for name in ("base", "third"):
        simoe.opt_out(name)
    with pytest.raises(IncompatibleError, match="and none is registered here") as caught:
        simoe.plan(["mix-1"], Recipe(to="simoe"))
    assert "reg add-base" in str(caught.value.hint)
    with pytest.raises(InvalidInputError, match="at least one expert"):
        simoe.plan([], Recipe(to="simoe"))
    with pytest.raises(InvalidInputError, match="dtype 'int8' is not one of"):
        Recipe(to="simoe", dtype="int8")


def _base_ref(plan: Plan) -> str:
    assert plan.base is not None
    return plan.base.version.ref


def test_experts_go_into_other_compositions(simoe: Registry, tmp_path: Path) -> None:
    simoe.compose(NAMES, tmp_path / "out", Recipe(to="dense", trunk="mean"))
    found = load_model(tmp_path / "out", "float32", "cpu")
    experts = [member_of(simoe, name) for name in NAMES]
    for name in ("model.layers.0.mlp.up_proj.weight", "model.norm.weight"):
        role = experts[0].weight(name).role
        expected = sum(tensor_of(expert, role, name).double() for expert in experts) / 3
        torch.testing.assert_close(found.get_parameter(name).double(), expected, atol=1e-6, rtol=1e-6)
    with pytest.raises(IncompatibleError, match=r"mix-1@1 has no statistics.*it is an expert of a SIMoE") as caught:
        simoe.plan(NAMES)
    assert "--to simoe" in str(caught.value.hint)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("family", ["gpt_neox", "gemma"])
def test_other_families_run_as_they_were_trained(family: str, zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    base = save_checkpoint(make_model(family, 500), tmp_path / "base", tokenizer)
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", base, remote_code=True)
        settings = settings_with(tokens=4 * 2 * 32, lr=1e-2, experts=1, sparsity=0.3)
        registry.train_simoe("mix", "base", text_of(zoo), settings)
        registry.compose(["mix-1"], tmp_path / "out", Recipe(to="simoe"))
        registry.export("mix-1", tmp_path / "dense")
    found = logits(load_model(tmp_path / "out", "float32", "cpu"), IDS)
    expected = logits(load_model(tmp_path / "dense", "float32", "cpu"), IDS)
    assert float((expected - logits(load_model(base, "float32", "cpu"), IDS)).abs().max()) > 1e-2
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    yield from writable_hub(monkeypatch, tmp_path / "huggingface")


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("purge", [True, False])
def test_expert_that_was_opted_out_is_refused_wherever_it_is_asked_for(
    simoe: Registry, hub: WritableHub, tmp_path: Path, purge: bool
) -> None:
    folders = {"one": NAMES[2:], "two": TWO, "all": NAMES}
    made = {name: simoe.compose(members, tmp_path / name, Recipe(to="simoe")) for name, members in folders.items()}
    simoe.push(tmp_path / "two", "org/two")
    sent, composed = hub.files("org/two"), files_of(tmp_path / "two")
    assert {name for name in sent.keys() | composed.keys() if sent[name] != composed[name]} == {"README.md"}
    assert "license: mit" in sent["README.md"].decode()
    before, gone = files_of(tmp_path / "one"), member_of(simoe, "mix-1")
    result = simoe.opt_out("mix-1", purge=purge, receipt=tmp_path / "receipt.json")
    assert result.trained_together == ("mix-2@1", "mix-3@1")
    if purge:  # a mask and a row; the weights that the experts share stay
        stays = {link.name for link in gone.arrays if link.role == "simoe" and simoe.arrays.has(link.digest)}
        assert stays == {link.name for link in gone.arrays if link.name.startswith(DELTA)}

    receipt = json.loads((tmp_path / "receipt.json").read_bytes())
    assert receipt["not_erased"]["trained_together"] == ["mix-2@1", "mix-3@1"]
    assert [push["repo"] for push in receipt["not_erased"]["pushed"]] == ["org/two"]
    alone = simoe.plan(["mix-2"], Recipe(to="simoe")).digest
    remaining = simoe.plan(NAMES[1:], Recipe(to="simoe")).digest
    assert {one["digest"]: one["recomposed"]["digest"] for one in receipt["compositions"]} == {
        made["two"].digest: alone,
        made["all"].digest: remaining,
    }
    assert not simoe.verify_receipt(tmp_path / "receipt.json", [tmp_path / "one"]).problems
    assert simoe.verify_receipt(tmp_path / "receipt.json", [tmp_path / "two"]).problems

    for name in ("two", "all"):
        with pytest.raises(ConflictError, match="was opted out"):
            simoe.compose(folders[name], tmp_path / "late", Recipe(to="simoe"))
        with pytest.raises(ConflictError, match="was opted out"):
            simoe.reproduce(tmp_path / name)
        with pytest.raises(ConflictError, match="was opted out") as caught:
            simoe.push(tmp_path / name, "org/late")
        assert caught.value.hint
    assert not (tmp_path / "late").exists()
    assert "org/late" not in hub.repositories

    assert simoe.verify().problems == ()
    assert simoe.reproduce(tmp_path / "one").is_same
    simoe.compose(NAMES[2:], tmp_path / "again", Recipe(to="simoe"))
    assert files_of(tmp_path / "again") == before


def test_base_model_that_was_opted_out_stops_all_of_them(simoe: Registry, hub: WritableHub, tmp_path: Path) -> None:
    simoe.compose(TWO, tmp_path / "two", Recipe(to="simoe"))
    simoe.opt_out("base", purge=True, receipt=tmp_path / "receipt.json")
    with pytest.raises(ConflictError, match="opted out"):
        simoe.reproduce(tmp_path / "two")
    with pytest.raises(ConflictError, match="opted out"):
        simoe.push(tmp_path / "two", "org/two")
    with pytest.raises(IncompatibleError, match="none is registered here"):
        simoe.plan(TWO, Recipe(to="simoe"))
    (composition,) = json.loads((tmp_path / "receipt.json").read_bytes())["compositions"]
    assert composition["recomposed"] is None
    assert not simoe.verify_receipt(tmp_path / "receipt.json").problems
    assert simoe.verify().problems == ()
