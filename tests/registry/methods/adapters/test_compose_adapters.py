"""Proves: a folder of adapters is its base model with one for each token, as PEFT has it, whatever else is there.

Where all tokens go to one expert the logits are PEFT's to the bit: both add s B (A x) to the same product. Otherwise a
product of fewer rows may be summed in another order, which is what the tolerance is for.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from registry import MixtureTraining, PassSettings, Recipe, Registry
from registry.composition.route import pick, route
from registry.errors import CheckpointError, ConflictError, IncompatibleError, InvalidInputError
from registry.evaluation import TestSettings as ScoreSettings
from registry.io.model_folder import MARKER
from registry.maths.context.evidence import ALIKE
from registry.maths.context.prefix import context_scores, prefix_means
from registry.methods.adapters import modeling_adapters
from registry.runtime.gates import force_expert, record_routing
from registry.runtime.loading import has_our_code, load_model
from tests.conftest import Zoo, copy_home, files_of
from tests.models import make_model, save_checkpoint
from tests.registry.checkpoint.test_adapter import LINEAR, quiet, train

CLOSE: dict[str, Any] = {"atol": 2e-4, "rtol": 1e-4}
COUNTS = PassSettings(tokens=512, seq_len=32, batch_size=1, sites="counts")
NAMES = ["code", "law", "math"]
IDS = torch.randint(0, 300, (2, 40), generator=torch.Generator().manual_seed(1))
OPTIONS: dict[str, dict[str, Any]] = {  # of several ranks and kinds, one without MLPs
    "code": {"target_modules": LINEAR},
    "law": {"target_modules": LINEAR, "use_dora": True, "r": 2},
    "math": {"target_modules": ["q_proj", "v_proj"], "r": 3, "use_rslora": True, "lora_alpha": 5},
}
TO = Recipe(to="adapters")


@pytest.fixture(scope="module")
def adapters(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: train(zoo.base, root / name, **options) for name, options in OPTIONS.items()}


@pytest.fixture(scope="module")
def _home(zoo: Zoo, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("registry") / "home"
    with Registry(home) as registry:
        registry.add_base("base", zoo.base, license="mit")
        for name, folder in adapters.items():
            registry.add_expert(name, folder, base="base", data=[zoo.train[name]], settings=COUNTS)
        registry.compose(NAMES, home.parent / "all", TO)
    return home


@pytest.fixture
def registry(_home: Path, tmp_path: Path) -> Iterator[Registry]:
    with Registry(copy_home(_home, tmp_path / "home")) as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(_home: Path) -> Path:
    return _home.parent / "all"


@pytest.fixture
def alone(folder: Path) -> Any:
    """A model of which each token has one expert."""
    model = loaded(folder)
    model.adapter_gate.top_k = 1
    return model


@pytest.fixture(params=[1, 3], ids=["top 1", "top 3"])
def model(alone: Any, request: pytest.FixtureRequest) -> Any:
    """A model of which each token has one expert, or several."""
    alone.adapter_gate.top_k = request.param
    return alone


def loaded(folder: Path) -> Any:
    """Return a model as transformers alone loads it, with its own products."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True).eval()


def logits(model: Any, ids: Tensor = IDS, **options: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=ids, use_cache=False, **options).logits
    return found


def peft_logits(base: Path, adapter: Path, ids: Tensor = IDS) -> Tensor:
    with quiet():
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        return logits(PeftModel.from_pretrained(plain, adapter).eval(), ids)


def chosen_of(model: Any, ids: Tensor = IDS) -> Tensor:
    with record_routing(model) as (routing,):
        logits(model, ids)
    return routing.chosen[0][:, 0].view(ids.shape)


def test_folder_loads_with_plain_transformers(folder: Path, registry: Registry) -> None:
    plan = registry.plan(NAMES[::-1], TO)  # in any order
    assert plan.digest == json.loads((folder / MARKER).read_bytes())["digest"]
    model = loaded(folder)
    weights = [*model.parameters(), model.evidence, model.thresholds, model.pair_evidence]
    assert sum(part.numel() for part in weights) == plan.parameters
    assert model.config.members == NAMES
    assert has_our_code(folder)
    card = (folder / "README.md").read_text()
    assert "2106.09685" in card
    assert "unchanged" in card


@pytest.mark.parametrize("name", NAMES)
def test_tokens_of_one_expert_have_the_logits_of_peft(
    name: str, model: Any, zoo: Zoo, adapters: dict[str, Path]
) -> None:
    expected = peft_logits(zoo.base, adapters[name])
    with force_expert(model, NAMES.index(name)):
        found = logits(model)
    if name == "law":  # PEFT computes the norm in each call, in the order of its own sums
        torch.testing.assert_close(found, expected, **CLOSE)
    else:
        assert torch.equal(found, expected)
    assert float((expected - logits(loaded(zoo.base))).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("qwen2", LINEAR),
        ("qwen3", LINEAR),
        ("gemma", LINEAR),
        ("gemma3_text", LINEAR),
        ("gpt_neox", ["query_key_value", "dense", "dense_h_to_4h"]),
        ("phi3", ["qkv_proj", "gate_up_proj", "o_proj"]),
        ("stablelm", LINEAR),
    ],
)
def test_families_have_the_logits_of_peft(
    family: str, targets: list[str], zoo: Zoo, tokenizer: Any, tmp_path: Path
) -> None:
    base = save_checkpoint(make_model(family, 100), tmp_path / "base", tokenizer)
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", base, remote_code=True)
        for name, rank in (("code", 4), ("law", 2)):
            train(base, tmp_path / name, target_modules=targets, r=rank)
            data = [zoo.train[name]]
            registry.add_expert(name, tmp_path / name, base="base", data=data, settings=COUNTS, remote_code=True)
        registry.compose(["code", "law"], tmp_path / "out", TO)
    model = loaded(tmp_path / "out")
    for number, name in enumerate(("code", "law")):
        with force_expert(model, number):
            assert torch.equal(logits(model), peft_logits(base, tmp_path / name))


@pytest.mark.parametrize("name", ["embed_tokens", "lm_head"])
def test_what_peft_saves_of_the_base_beside_a_change_is_none(name: str, zoo: Zoo, tmp_path: Path) -> None:
    """An embedding, or a head, that was trained at low rank is saved with the base's own weight."""
    adapter = train(zoo.base, tmp_path / "code", target_modules=["q_proj", name])
    saved = load_file(adapter / "adapter_model.safetensors")
    assert any(key.endswith(f"{name}.base_layer.weight") for key in saved)
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", zoo.base)
        registry.add_expert("code", adapter, base="base", data=[zoo.train["code"]], settings=COUNTS)
        registry.compose(["code"], tmp_path / "out", TO)
    expected = peft_logits(zoo.base, adapter)
    torch.testing.assert_close(logits(loaded(tmp_path / "out")), expected, **CLOSE)
    assert float((expected - logits(loaded(zoo.base))).abs().max()) > 1e-2


def test_tokens_are_routed_by_the_text_so_far(model: Any, registry: Registry, zoo: Zoo) -> None:
    evidence, limits = model.evidence.double(), model.thresholds.double()
    real, past = torch.ones_like(IDS, dtype=torch.bool), torch.arange(IDS.shape[1], dtype=torch.float64)
    slow, fast = (
        prefix_means(IDS, real, evidence, torch.exp(-past / window))
        for window in (model.config.context_window, model.config.context_fast)
    )
    expected = context_scores(slow, fast, limits, model.config.context_alarm).argmax(dim=-1)
    assert torch.equal(chosen_of(model), expected)
    assert len(expected.unique()) == 3


def assert_tokens_have_their_experts(model: Any, name: str) -> None:
    """Check what a layer gives of tokens of several experts: the mean of what it gives of each, by their shares."""
    with record_routing(model) as (routing,):
        logits(model)
    chosen, weights, seen = routing.chosen[0], routing.weights[0], dict[str, Tensor]()
    layer = model.get_submodule(name)
    hook = layer.register_forward_hook(lambda module, inputs, output: seen.update(x=inputs[0], y=output))
    assert logits(model).isfinite().all()
    hook.remove()
    expected = torch.zeros_like(seen["y"])
    for number in range(len(model.config.members)):
        share = (weights * (chosen == number)).sum(dim=-1).view(*IDS.shape, 1)
        model.tokens.groups = [(number, None, None)]
        with torch.no_grad():
            expected += share * layer(seen["x"])
    torch.testing.assert_close(seen["y"], expected, **CLOSE)
    assert chosen[:, 0].unique().numel() == len(model.config.members)


def test_each_token_has_its_own_experts(model: Any) -> None:
    """In the first layer, whose inputs are the same: of a projection of one token at a time."""
    assert_tokens_have_their_experts(model, "model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize("several", [False, True], ids=["one expert a token", "two"])
def test_many_experts_at_once_are_each_alone(several: bool) -> None:
    """What a layer adds without a gradient, in grouped products, is what it adds with one, expert by expert."""
    draw, layer = torch.Generator().manual_seed(0), torch.nn.Linear(24, 10)
    tokens: Any = modeling_adapters.Tokens()  # type: ignore[no-untyped-call]
    kinds = [[4, 0.5, False], [0, 0.0, False], *([[4, 1.5, False]] * 6)]
    modeling_adapters.LowRank(layer, kinds, tokens)  # type: ignore[no-untyped-call]
    for name in ("lora_A", "lora_B"):
        torch.nn.init.normal_(layer.get_parameter(name), generator=draw)
    chosen, x = torch.randint(0, 7, (2, 60), generator=draw), torch.randn(2, 60, 24, generator=draw)  # not the last
    others = torch.nn.functional.one_hot((chosen + 1) % 7, 8) * torch.rand(2, 60, 1, generator=draw)
    shares = torch.nn.functional.one_hot(chosen, 8) * (1 - others.sum(dim=-1, keepdim=True)) + others
    tokens.choose(chosen, shares.double() if several else None)
    expected = layer(x)
    assert not tokens.orders
    with torch.no_grad():
        found = layer(x)
    assert tokens.orders
    torch.testing.assert_close(found, expected, **CLOSE)
    tokens.choose(chosen % 3)  # of few, one by one
    with torch.no_grad():
        assert torch.equal(layer(x), layer(x))
    assert [*tokens.orders.values()] == [None]


def test_shares_of_two_experts_are_sparsemax(registry: Registry, alone: Any, tmp_path: Path) -> None:
    """Of two it is (1 + z - z') / 2, from 0 to 1; whoever has a token alone has the logits as if nobody could share."""
    plan, one = registry.compose(NAMES, tmp_path / "two", TO), registry.plan(NAMES, TO.replace(top_k=1))
    assert plan.document["recipe"]["top_k"] == 2
    assert one.document["recipe"] == plan.document["recipe"] | {"top_k": 1}
    assert registry.plan(NAMES[:1], TO).document["recipe"] == one.document["recipe"]
    assert plan.active_parameters > one.active_parameters
    assert "up to 2 adapters" in (tmp_path / "two" / "README.md").read_text()
    model = loaded(tmp_path / "two")
    with record_routing(alone) as (routing,):
        logits(alone)
    scores = routing.logits[0].double().view(*IDS.shape, 3)
    counts = torch.exp(-torch.arange(40, dtype=torch.float64) / alone.config.context_window).cumsum(dim=0)
    nats = (scores * (counts / (1 - ALIKE + ALIKE * counts))[:, None]).topk(2, dim=-1).values
    first = ((1 + nats[..., 0] - nats[..., 1]) / 2).clamp(max=1).flatten()
    with record_routing(model) as (routing,):
        logits(model)
    torch.testing.assert_close(routing.weights[0].double(), torch.stack([first, 1 - first], dim=1), atol=1e-5, rtol=0)
    assert 0 < int((first < 1).sum()) < first.numel()
    ahead = model.evidence.topk(2, dim=-1).values
    clear = (ahead[:, 0] - ahead[:, 1] > 1).nonzero()[:, 0]
    law = clear[model.evidence[clear].argmax(dim=-1) == 1][None, :12]
    assert law.numel() > 4
    with record_routing(model) as (routing,):
        assert torch.equal(logits(model, law), logits(alone, law))
    assert bool((routing.weights[0][:, 0] == 1).all())


def test_other_members_change_no_logit_of_text_that_goes_to_one(
    registry: Registry, folder: Path, model: Any, tmp_path: Path
) -> None:
    registry.compose(["law", "math"], tmp_path / "two", TO)
    two = loaded(tmp_path / "two")
    for name in ("law", "math"):
        with force_expert(two, ["law", "math"].index(name)):
            fewer = logits(two)
        with force_expert(model, NAMES.index(name)):
            assert torch.equal(logits(model), fewer)


def test_the_decoder_alone_routes_too(model: Any) -> None:
    """Also after a call that failed, which leaves nothing behind."""
    expected = logits(model)
    with pytest.raises(ValueError, match="an attention mask of"):
        logits(model, IDS[:, :3], attention_mask=torch.ones(2, 1, 3, 3))
    with torch.no_grad():
        states = model.model(input_ids=IDS, use_cache=False).last_hidden_state
        assert torch.equal(model.lm_head(states), expected)


@pytest.mark.parametrize("parts", [[40], [12, 28], [39, 1], [1] * 40])
def test_cache_changes_nothing(model: Any, parts: list[int]) -> None:
    cache: Any = None
    found, start = [], 0
    with torch.no_grad():
        for size in parts:
            output = model(input_ids=IDS[:, start : start + size], cache=cache, use_cache=True)
            cache, start = output.cache, start + size
            found.append(output.logits)
    torch.testing.assert_close(torch.cat(found, dim=1), logits(model), **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_the_rest_of_the_batch_change_nothing(model: Any, side: str) -> None:
    short, ids, mask = 13, torch.zeros((2, 40), dtype=torch.int64), torch.zeros((2, 40), dtype=torch.int64)
    own = slice(40 - short, 40) if side == "left" else slice(0, short)
    ids[0], mask[0] = IDS[0], 1
    ids[1, own], mask[1, own] = IDS[1, :short], 1
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    found = logits(model, ids, attention_mask=mask, position_ids=positions)
    torch.testing.assert_close(found[1, own], logits(model, IDS[1:, :short])[0], **CLOSE)
    torch.testing.assert_close(found[0], logits(model, IDS[:1])[0], **CLOSE)


@pytest.mark.parametrize("beams", [1, 2])
def test_generation_with_a_cache_is_that_without(model: Any, beams: int) -> None:
    ids, mask = torch.zeros((2, 14), dtype=torch.int64), torch.ones((2, 14), dtype=torch.int64)
    ids[0], ids[1, 2:], mask[1, :2] = IDS[0, :14], IDS[1, :12], 0
    greedy: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    kinds = [
        model.generate(ids, attention_mask=mask, num_beams=beams, use_cache=use, **greedy) for use in (True, False)
    ]
    assert torch.equal(*kinds)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("expert", [None, 0, 1])
def test_training_changes_the_experts_of_the_text(model: Any, checkpointing: bool, expert: int | None) -> None:
    """Gradients are those of a run whose layers run once."""
    grads = []
    for again in (False, checkpointing):
        model.train()
        model.zero_grad()
        if again:
            model.activation_checkpointing_enable()
        with nullcontext() if expert is None else force_expert(model, expert):
            model(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
        grads.append({name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None})
    factors = [name for name in grads[0] if "lora_A" in name]
    assert factors
    assert any(bool(grads[0][name].abs().sum()) for name in factors)
    for name, grad in grads[0].items():
        torch.testing.assert_close(grads[1][name], grad, **CLOSE)


def test_calls_that_cannot_be_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="takes input_ids"):
        model(inputs_embeds=torch.zeros(1, 3, 32))
    with pytest.raises(ValueError, match="attention mask of"):
        model(input_ids=IDS, attention_mask=torch.ones(2, 1, 40, 40))


def test_it_is_routed_evaluated_and_reproduced(registry: Registry, folder: Path, zoo: Zoo, tmp_path: Path) -> None:
    commands = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("$ reg add-")]
    assert commands[0].startswith("$ reg add-base base CKPT ")
    assert [line.partition("    #")[0] for line in commands[1:]] == [
        f"$ reg add-expert {name} CKPT --base base --data FILE --sites counts" for name in NAMES
    ]
    found = route(folder, "def return self import class for in if else none true", "cpu")
    assert (found.experts, found.layers) == (tuple(NAMES), 1)
    registry.compose(NAMES, tmp_path / "out", TO)
    assert files_of(tmp_path / "out") == files_of(folder)
    assert registry.reproduce(tmp_path / "out").is_same
    settings = ScoreSettings(windows=2, seq_len=32, device="cpu")
    data = {name: [zoo.test[name]] for name in NAMES}
    rows = registry.evaluate([tmp_path / "out"], data, settings, oracle=True, baselines=True)
    names = [row.name for row in rows]
    assert any("oracle" in name for name in names), names
    assert registry.report(tmp_path / "out") is not None


def test_opted_out_member_is_refused_and_found_in_the_folder(registry: Registry, tmp_path: Path) -> None:
    registry.compose(NAMES, tmp_path / "all", TO)
    before = files_of(tmp_path / "all")
    registry.compose(["code", "math"], tmp_path / "two", TO)
    registry.opt_out("law", purge=True, receipt=tmp_path / "receipt.json")
    with pytest.raises(ConflictError, match="was opted out"):
        registry.compose(NAMES, tmp_path / "late", TO)
    assert registry.verify_receipt(tmp_path / "receipt.json", [tmp_path / "all"]).problems
    assert not registry.verify_receipt(tmp_path / "receipt.json", [tmp_path / "two"]).problems
    registry.compose(["code", "math"], tmp_path / "again", TO)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "two") != before


def test_what_it_does_not_carry_is_refused(registry: Registry, zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    larger = save_checkpoint(make_model("llama", 7, vocab_size=321), tmp_path / "larger", tokenizer)
    registry.add_expert("larger", larger, data=[zoo.train["law"]], settings=COUNTS, allow_unrelated=True)
    with pytest.raises(IncompatibleError, match=r"larger@1 changes lm_head.weight of shape \[320, 32\]"):
        registry.plan(["code", "larger"], TO)
    registry.opt_out("base")
    with pytest.raises((IncompatibleError, ConflictError)):
        registry.plan(["code", "law"], TO)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("members", [], "members is empty"),
        ("adapted_kinds", [[[4, 1.5, False]]], "must have one for each of 3 members"),
        ("adapted_kinds", [[[4, 1.5]] * 3], "adapted_kinds"),
        ("context_nobody", 3, "context_nobody is 3, and there are 3 members"),
        ("context_prefix", [-1], "context_prefix"),
        ("context_form", [5.0], "context_form has 1 numbers, and there are 3 members"),
        ("adapted_layers", {"model.layers.0.mlp.up_proj": 7}, "gives 'model.layers.0.mlp.up_proj' no number"),
        ("adapted_vectors", {"model.norm.weight": [3]}, "gives 'model.norm.weight' no numbers of the 3 members"),
        ("context_window", -1, "context_window"),
        ("routing_top_k", 4, "routing_top_k is 4, and there are 3 members"),
    ],
)
def test_config_from_elsewhere_is_checked(folder: Path, tmp_path: Path, key: str, value: Any, message: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_bytes())
    (copy / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(CheckpointError, match=message):
        load_model(copy, "float32", "cpu")


@pytest.mark.parametrize("text", ["def return self import class", "the court finds the contract void", "x"])
def test_expert_of_a_text_is_the_one_that_goes_on_with_it(folder: Path, text: str) -> None:
    assert pick(folder, text) == route(folder, text, "cpu").tokens[-1].overall


def test_picking_reads_no_weight_of_the_model(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    for name in [name for name in tensors if name.endswith("q_proj.weight")]:
        del tensors[name]
    save_file(tensors, copy / "model.safetensors")
    assert pick(copy, "the court finds") == pick(folder, "the court finds")
    del tensors["thresholds"]
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"has no thresholds of shape \[3, 3\]"):
        pick(copy, "the court finds")


def test_there_is_nothing_to_train_or_to_send_elsewhere(
    registry: Registry, folder: Path, zoo: Zoo, tmp_path: Path
) -> None:
    data = [str(zoo.train["code"])]
    for part in ("routers", "all"):
        with pytest.raises(InvalidInputError, match="is not a mixture of experts"):
            registry.train(folder, tmp_path / "out", data, MixtureTraining(part, tokens=64, batch_size=1, seq_len=32))
    settings = ScoreSettings(windows=1, seq_len=32, device="cpu")
    with pytest.raises(InvalidInputError, match="has no experts to choose from"):
        registry.evaluate([folder], {"code": [zoo.test["code"]]}, settings, active_experts=[2])
    with pytest.raises(InvalidInputError, match="top-k is 4, it must be from 1 to 3"):
        registry.plan(NAMES, Recipe(to="adapters", top_k=4))
