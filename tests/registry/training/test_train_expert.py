"""Proves: what is frozen is the base model's to the byte; a training that goes on ends in the same bytes and curve.

And: a training says first how many weights get gradients, a low-rank change is added to the weights, the version stores
how it was trained, and wrong input is refused first.
"""

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor

from registry import ExpertTraining, PassSettings, Recipe, Registry, TestSettings, errors
from registry.calibration.corpus import Document
from registry.calibration.windows import encode
from registry.checkpoint import Checkpoint
from registry.checkpoint.adapter import WEIGHTS
from registry.checkpoint.adapter_config import CONFIG
from registry.checkpoint.model_files import EXPERT_TRAINING, ROUTER_FILE
from registry.checkpoint.trained_files import RouterRows, pack_rows, unpack_rows
from registry.checkpoint.version_files import base_of_adapter, training_record
from registry.member import load_member
from registry.progress import silent
from registry.runtime.loading import load_model, load_tokenizer
from registry.training import TrainedExpert
from registry.training.coordinated import CoordinatedMLP, begin_rows, bound_biases
from registry.training.loop import Losses, curve
from registry.training.training_windows import draw_conversations, draw_windows, make_windows
from tests.conftest import Zoo, files_of
from tests.models import logits, make_model, save_checkpoint, train_tokenizer
from tests.registry.checkpoint.test_adapter import quiet
from tests.remarks import Remarks

SETTINGS = ExpertTraining(tokens=6 * 2 * 32, batch_size=2, seq_len=32, lr=0.01, device="cpu", dtype="float32")
COUNTED = PassSettings(sites="counts")
IDS = torch.randint(1, 320, (2, 32), generator=torch.Generator().manual_seed(0))


def settings_with(**changes: Any) -> ExpertTraining:
    return ExpertTraining(**(vars(SETTINGS) | changes))


def train(registry: Registry, zoo: Zoo, out: Path | None = None, **changes: Any) -> TrainedExpert:
    settings = settings_with(**changes)
    return registry.train_expert("fresh", "base", [zoo.train["code"]], settings, out=out)


@pytest.mark.check
@pytest.mark.trust(after=2)
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"coordinate": True}, "the MLPs of base@1 and router rows"),
        ({}, "the MLPs of base@1"),
        ({"trunk": "free"}, "all weights of base@1"),
        ({"coordinate": True, "router_bias": True}, "the MLPs of base@1 and router rows"),
    ],
)
def test_what_is_frozen_is_the_base_models_to_the_byte(
    filled: Registry, zoo: Zoo, tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    filled.progress = heard = Remarks()
    done = train(filled, zoo, tmp_path / "out", **changes)
    assert done.registration is None
    base, mlp = Checkpoint(zoo.base), Checkpoint(zoo.base).mlp
    told = f"training {what}: {count_of(zoo.base, **changes):,} weights, 6 steps, 384 tokens, on cpu"
    assert told in heard.labels
    old, new = load_file(zoo.base / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert new[name].dtype == tensor.dtype
        is_trained = name in mlp or changes.get("trunk") == "free"
        assert torch.equal(tensor, new[name]) is not is_trained, name
    own = {EXPERT_TRAINING, ROUTER_FILE} if "coordinate" in changes else {EXPERT_TRAINING}
    assert files_of(tmp_path / "out").keys() - files_of(zoo.base).keys() == own
    assert Checkpoint(tmp_path / "out").shapes == base.shapes
    assert not torch.equal(logits(tmp_path / "out", IDS), logits(zoo.base, IDS))


def count_of(folder: Path, **changes: Any) -> int:
    """Return the number of weights that a training changes."""
    checkpoint, settings = Checkpoint(folder), settings_with(**changes)
    trained = [*checkpoint.mlp, *(checkpoint.trunk if settings.trunk == "free" else ())]
    count = sum(math.prod(checkpoint.shapes[name]) for name in trained)
    if settings.coordinate:
        sizes = checkpoint.architecture
        count += sizes.num_hidden_layers * (sizes.hidden_size + int(settings.router_bias))
    return count


@pytest.mark.check
@pytest.mark.parametrize("family", ["llama", "phi3", "mixtral", "gemma3_text"])
def test_an_adapter_trains_beside_its_base_model(zoo: Zoo, tmp_path: Path, family: str) -> None:
    """PEFT loads it and has the loss that is told; the version is an adapter, the same as of the folder."""
    changes = {"num_local_experts": 2} if family == "mixtral" else {}
    base = save_checkpoint(make_model(family, 1, **changes), tmp_path / "base", train_tokenizer())
    settings, data = settings_with(lora=2, tokens=20 * 4 * 32, batch_size=4), [zoo.train["code"]]
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", base, remote_code=family == "gemma3_text")
        registry.progress = heard = Remarks()
        done = registry.train_expert("fresh", "base", data, settings, out=tmp_path / "out")
        of_folder = registry.train_expert("fresh", base, data, settings, out=tmp_path / "of-folder")
        assert done.losses.after < done.losses.before == of_folder.losses.before
        own = files_of(tmp_path / "out")
        assert own.keys() == {CONFIG, WEIGHTS, EXPERT_TRAINING}
        count = sum(part.numel() for part in load_file(tmp_path / "out" / WEIGHTS).values())
        assert f"training an adapter of rank 2 of base@1: {count:,} weights, 20 steps" in heard.text
        assert json.loads(own[CONFIG])["base_model_name_or_path"] == "base@1"
        plain = load_model(base, "float32", "cpu")
        windows = make_windows([draw_windows(data, train_tokenizer(), 320, settings)], 32, settings.seed)
        assert windows.loss(plain, 4) == pytest.approx(done.losses.before, rel=1e-6)
        with quiet():
            trained = PeftModel.from_pretrained(plain, tmp_path / "out").eval()
        assert windows.loss(trained, 4) == pytest.approx(done.losses.after, rel=1e-6)
        registered = registry.train_expert("fresh", "base", data, settings).registration
        assert registered is not None
        registry.export("fresh", tmp_path / "again", as_lora=True)
        written = files_of(tmp_path / "again")
        assert written == {name: own[name] for name in written}
        added = registry.add_expert("added", tmp_path / "out", base="base", data=data, settings=COUNTED)
        for version in (registered.version, added.version):
            assert base_of_adapter(version) == (registry.resolve("base").content or {})["weights"]
            assert training_record(registry._workspace, version) is not None
        if family == "mixtral":
            for of, wanted in (("base", SETTINGS), (base, settings)):
                with pytest.raises(errors.InvalidInputError, match="not in the table of families"):
                    registry.train_expert("other", of, data, wanted)
            turned = save_checkpoint(make_model("gpt2", 1), tmp_path / "gpt2", train_tokenizer())  # has Conv1D alone
            with pytest.raises(errors.CheckpointError, match="no layer of a 'gpt2' model is linear"):
                registry.train_expert("other", turned, data, settings, out=tmp_path / "other")


CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"


@pytest.mark.check
def test_of_conversations_answers_alone_are_learned(tmp_path: Path) -> None:
    """What is learned is every answer with the token that ends it, and nothing else; a long one is cut."""
    tokenizer = train_tokenizer()
    tokenizer.add_tokens(["<user>", "<assistant>", "<end>"], special_tokens=True)
    tokenizer.chat_template = CHAT
    base = save_checkpoint(make_model("llama", 1, vocab_size=323), tmp_path / "base", tokenizer)
    talk = [("user", "x"), ("assistant", "return"), ("user", "y"), ("assistant", "the court"), ("user", "z")]
    one = [{"role": role, "content": content} for role, content in talk]
    long = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "the court " * 30}]
    rows = [{"messages": one}] * 11 + [{"messages": long}]
    file = tmp_path / "chat.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = settings_with(lora=2)
    with Registry(tmp_path / "home") as registry:
        registry.progress = heard = Remarks()
        done = registry.train_expert("fresh", base, [file], settings, out=tmp_path / "out")
        with file.open("a") as opened:
            opened.write(json.dumps({"text": "and some text"}) + "\n")
        with pytest.raises(errors.CalibrationError, match="some are text"):
            registry.train_expert("fresh", base, [file], settings, out=tmp_path / "other")
    file.write_text(json.dumps({"messages": one[:1]}))
    with pytest.raises(errors.CalibrationError, match="no message of the role assistant"):
        draw_conversations([file], tokenizer, 323, settings, silent)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer.chat_template = "{{ 'x' if messages[0].content == 'x' else 'y' }}" + CHAT
    unknown = Remarks()
    found = draw_conversations([file], tokenizer, 323, settings, unknown)
    assert "all tokens are learned" in unknown.text
    assert found is not None
    assert found.written is not None
    assert int(found.written.sum()) == found.tokens
    tokenizer.chat_template = CHAT
    found = draw_conversations([file], tokenizer, 323, settings, silent)
    assert found is not None
    assert found.written is not None
    texts = [tokenizer.decode(ids[kept]) for ids, kept in zip(found.ids, found.written, strict=True)]
    assert texts[:11] == ["return<end>the court<end>"] * 11
    assert "user" not in texts[11]
    assert int(found.lengths[11]) == 32
    count, total = int(found.written.sum()), int(found.lengths.sum())
    assert (
        f"of 12 conversations {count:,} of {total:,} tokens are answers, which alone are learned; 1 of 32" in heard.text
    )
    windows = make_windows([found], 32, settings.seed, written=found.written)
    (number,) = windows.held_out.tolist()
    ids, keep = found.ids[number, : found.lengths[number]].long(), found.written[number, : found.lengths[number]]
    scores = load_model(base, "float32", "cpu")(input_ids=ids[None]).logits[0, :-1].detach().log_softmax(dim=-1)
    own = scores.gather(1, ids[1:, None])[:, 0][keep[1:]]
    assert done.losses.before == pytest.approx(-own.mean().item(), rel=1e-5)
    assert done.tokens == len(own)


@pytest.mark.check
def test_the_loss_falls_and_the_version_stores_how_it_was_trained(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    done = train(filled, zoo, tokens=20 * 4 * 32, batch_size=4)
    assert done.losses.after < done.losses.before
    assert sum(done.losses.steps[-10:]) < sum(done.losses.steps[:10])
    assert done.registration is not None
    version = done.registration.version
    assert version.ref == "fresh@1"
    member, base = (load_member(filled._workspace, filled.resolve(name)) for name in ("fresh", "base"))
    assert {link.digest for link in member.arrays if link.role == "trunk"} == {
        link.digest for link in base.arrays if link.role == "trunk"
    }
    document = json.loads(member.file(EXPERT_TRAINING))
    assert document == done.document
    assert document["loss"] == list(done.losses.steps)
    assert document["training"]["base"] == base.content["weights"]
    filled.export("fresh", tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / EXPERT_TRAINING).read_bytes()) == document
    filled.compose(["fresh", "code"], tmp_path / "moe")
    assert EXPERT_TRAINING not in files_of(tmp_path / "moe")
    again = train(filled, zoo, tokens=20 * 4 * 32, batch_size=4)
    assert again.registration is not None
    assert (again.registration.added, again.registration.version) == (False, version)
    continued = filled.train_expert("further", "fresh", [zoo.train["law"]], SETTINGS, out=tmp_path / "further")
    assert continued.document["training"]["base"] == member.content["weights"]


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("at", "changes"),
    [(4, {"lora": 2}), (1, {}), (6, {"accumulate": 2}), (3, {"coordinate": True, "dtype": "bfloat16"})],
    ids=str,
)
def test_an_interrupted_training_goes_on_to_the_same_curve_and_bytes(
    filled: Registry, zoo: Zoo, tmp_path: Path, at: int, changes: dict[str, Any]
) -> None:
    """The state is the same in every training of weights; one of a base model that is opted out is deleted."""
    changes = changes | {"tokens": changes.get("accumulate", 1) * SETTINGS.tokens}
    whole = train(filled, zoo, tmp_path / "whole", **changes)
    assert len(whole.losses.steps) == 6
    filled.progress = Remarks(until=at)
    with pytest.raises(KeyboardInterrupt):
        train(filled, zoo, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()
    filled.progress = heard = Remarks()
    assert train(filled, zoo, tmp_path / "out", **changes).losses == whole.losses
    assert f"goes on: {at} of 6 steps were done before" in heard.text
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert not list(filled.home.partial.iterdir())
    filled.progress = Remarks(until=3)
    with pytest.raises(KeyboardInterrupt):
        train(filled, zoo, tmp_path / "late", **changes)
    assert list(filled.home.partial.iterdir())
    filled.progress = silent
    filled.opt_out("base", purge=True)
    assert not list(filled.home.partial.iterdir())


def test_wrong_input_is_refused_before_anything_is_trained(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, empty, absent = zoo.train["code"], tmp_path / "empty.txt", tmp_path / "absent.jsonl"
    empty.write_text("")
    cases: list[tuple[str, str, list[Path], type[errors.RegError], str]] = [
        ("fresh", "nosuch", [code], errors.NotFoundError, "nosuch"),
        ("fresh", "nosuch", [absent], errors.CalibrationError, "absent.jsonl is not a file"),  # before the base model
        ("base", "base", [code], errors.ConflictError, "base"),
        ("fresh", "base", [], errors.InvalidInputError, "nothing to train on"),
        ("UPPER", "base", [code], errors.InvalidInputError, "UPPER"),
        ("fresh", "base", [empty], errors.CalibrationError, "no text"),
    ]
    for name, base, files, kind, message in cases:
        with pytest.raises(kind, match=message):
            filled.train_expert(name, base, files, SETTINGS)
    beside = settings_with(coordinate=True)
    wrong: list[tuple[str, Path, ExpertTraining, type[errors.RegError], str]] = [
        ("nosuch", absent, beside, errors.CalibrationError, "absent.jsonl is not a file"),
        ("base", empty, beside, errors.CalibrationError, "no text"),
        ("base", code, SETTINGS, errors.InvalidInputError, "without --coordinate"),
    ]
    for base, public, settings, kind, message in wrong:
        with pytest.raises(kind, match=message):
            filled.train_expert("fresh", base, [code], settings, public_data=[public])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(errors.OutputError, match="full"):
        train(filled, zoo, tmp_path / "full")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.StorageError, match="accelerate") as caught:
        train(filled, zoo)
    assert "expert-registry[train]" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens"),
        ({"lr": 0.0}, "lr"),
        ({"lr": float("nan")}, "lr"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"warmup": 7}, "warmup"),
        ({"trunk": "loose"}, "trunk"),
        ({"lora": 0}, "lora"),
        ({"lora": 2, "trunk": "free"}, "--trunk free has no meaning"),
        ({"lora": 2, "coordinate": True}, "--coordinate has no meaning"),
        ({"dtype": "float16"}, "dtype"),
        ({"device": "cuda:1"}, "device"),
        ({"coordinate": True, "trunk": "free"}, "coordinate share a frozen trunk"),
        ({"router_bias": True}, "without --coordinate"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidInputError, match=message):
        settings_with(**changes)


def test_a_long_curve_is_stored_as_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.training.loop.POINTS", 4)
    stored = curve(Losses((6.0, 5.0, 4.0, 3.0, 2.5), before=7.0, after=2.0))
    assert stored == {"held_out": {"before": 7.0, "after": 2.0}, "every": 2, "loss": [5.5, 3.5, 2.5]}


@pytest.mark.check
def test_coordinated_experts_compose_by_their_rows(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    settings = settings_with(tokens=20 * 4 * 32, batch_size=4, coordinate=True)
    for name in ("law", "math"):
        filled.train_expert(f"{name}-beside", "base", [zoo.train[name]], settings)
    members = [load_member(filled._workspace, filled.resolve(f"{name}-beside")) for name in ("law", "math")]
    base = load_member(filled._workspace, filled.resolve("base"))
    for member in members:
        assert member.router_rows is not None
        assert member.router_rows.bias is None
        assert member.router_rows.anchor == base.content["weights"]
        assert member.router_rows.rows.any()
        assert {link.digest for link in member.arrays if link.role == "trunk"} == {
            link.digest for link in base.arrays if link.role == "trunk"
        }
    recipe = Recipe(router="anchored", trunk="base", top_k=2)
    assert recipe.temperature == 1.0
    experts = ["math-beside", "base", "law-beside"]
    filled.compose(experts, tmp_path / "moe", recipe)
    gates = {name: part for name, part in load_file(tmp_path / "moe" / "model.safetensors").items() if "gate.w" in name}
    for layer, (_, gate) in enumerate(sorted(gates.items())):
        rows = [torch.zeros(gate.shape[1]), *(member.router_row(layer) for member in members)]  # in name order
        assert torch.equal(gate, torch.stack(rows).to(gate.dtype))
    filled.compose(list(reversed(experts)), tmp_path / "again", recipe)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "moe")
    assert filled.reproduce(tmp_path / "moe").is_same
    filled.compose(["math-beside", "base"], tmp_path / "pair", recipe)
    data = {"math": [zoo.train["math"]]}  # the pair computes what the training of one beside the other did
    before, after = filled.evaluate([zoo.base, tmp_path / "pair"], data, TestSettings(windows=8, seq_len=32))[:2]
    assert after.perplexity["math"] < before.perplexity["math"]
    filled.opt_out("law-beside", purge=True)
    filled.compose(["math-beside", "base"], tmp_path / "after", recipe)
    assert files_of(tmp_path / "after") == files_of(tmp_path / "pair")


@pytest.mark.check
def test_rows_begin_as_differences_of_embeddings(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer tokens than a window of each text, so that the reference is one pass of the base model over all."""
    texts = {"own": "def f(x): return x + 1", "public": "the court held that the"}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    begun: list[Tensor] = []

    def beginning(model: Any, layers: Any, *others: Any) -> None:
        begin_rows(model, layers, *others)
        begun.extend(layer.row.detach().clone() for layer in layers)

    monkeypatch.setattr(import_module("registry.training.train_expert"), "begin_rows", beginning)
    settings = settings_with(coordinate=True, tokens=2 * 64, seq_len=64)
    own, public = [tmp_path / "own.txt"], [tmp_path / "public.txt"]
    done = filled.train_expert("beside", "base", own, settings, public_data=public, out=tmp_path / "out")
    model, tokenizer, means = load_model(zoo.base, "float32", "cpu"), load_tokenizer(zoo.base), list[Tensor]()
    for block in model.model.layers:
        block.mlp.register_forward_pre_hook(lambda _module, inputs: means.append(inputs[0][0].double().mean(0)))
    for text in texts.values():
        model(input_ids=torch.tensor([encode(Document(text), tokenizer)]))
    for row, mean, public_mean in zip(begun, means[:2], means[2:], strict=True):
        assert torch.allclose(row.double(), mean / mean.norm() - public_mean / public_mean.norm(), atol=1e-6)
        assert row.any()
    without = filled.train_expert("beside", "base", own, settings, out=tmp_path / "without")
    assert done.document["training"].keys() - without.document["training"].keys() == {"public"}
    again = filled.train_expert("beside", "base", own, settings, public_data=public, out=tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out") != files_of(tmp_path / "without")
    assert again.document == done.document


@pytest.mark.check
def test_what_was_not_trained_beside_the_same_expert_is_refused(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    recipe = Recipe(router="anchored", trunk="base")
    with pytest.raises(errors.IncompatibleError, match="law@1 has no router row") as caught:
        filled.plan(["law", "base"], recipe)
    assert "--coordinate" in str(caught.value.hint)
    filled.train_expert("beside", "base", [zoo.train["law"]], settings_with(coordinate=True))
    filled.add_base("other", save_checkpoint(make_model("llama", 700), tmp_path / "other", train_tokenizer()))
    with pytest.raises(errors.IncompatibleError, match="beside another public expert"):
        filled.plan(["beside"], recipe, base="other")
    with pytest.raises(errors.IncompatibleError, match="other@1 is not the base model"):
        filled.plan(["beside", "other"], recipe, base="base")
    with pytest.raises(errors.InvalidInputError, match="trunk"):
        Recipe(router="anchored")
    with pytest.raises(errors.InvalidInputError, match="a pass solves them again"):
        Recipe(router="anchored", trunk="base", refine=1)
    random = filled.plan(["beside", "base"], Recipe(router="random", trunk="base"), base="base")
    assert random.names == ["base", "beside"]  # of rows that are drawn nothing needs to fit


@pytest.mark.check
def test_a_bias_trains_beside_its_row_and_files_of_another_form_are_refused(
    filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    out, settings = tmp_path / "out", settings_with(coordinate=True, router_bias=True)
    done = filled.train_expert("beside", "base", [zoo.train["law"]], settings, out=out)
    assert done.losses.after < done.losses.before
    whole = (out / ROUTER_FILE).read_bytes()
    trained = unpack_rows(whole, (2, 32), "out")
    assert trained.bias is not None
    assert trained.bias.shape == (2,)
    assert trained.bias.max() <= 0
    again = unpack_rows(pack_rows(trained), (2, 32), "out")
    assert again.bias is not None
    assert (again.anchor, again.rows.tolist()) == (trained.anchor, trained.rows.tolist())
    assert again.bias.tolist() == trained.bias.tolist()
    short, infinite, wide = np.zeros(1, dtype=np.float32), np.full(2, np.inf, dtype=np.float32), np.zeros(2)
    cases: list[tuple[Any, Any]] = [(trained.rows[:1], None), (np.full_like(trained.rows, np.nan), None)]
    cases += [(trained.rows, bias) for bias in (short, infinite, wide)]
    wrong = [(pack_rows(RouterRows(trained.anchor, *case)), "expected finite float32") for case in cases]
    noise = [(data, ROUTER_FILE) for data in (whole[:-4], b"\xff" * 100, (2**60).to_bytes(8, "little"))]
    for data, message in wrong + noise:
        (out / ROUTER_FILE).write_bytes(data)
        with pytest.raises(errors.CheckpointError, match=message):
            filled.add_expert("beside", out, data=[zoo.train["law"]])


def test_a_coordinated_mlp_mixes_by_its_logit() -> None:
    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(4, 4, bias=False)
    layer = CoordinatedMLP(linear, 4, bias=True)
    assert not layer.row.any()
    x = torch.randn(2, 3, 4, generator=generator)
    assert torch.equal(layer(x), linear(x))
    assert layer.bias is not None
    with torch.no_grad():
        layer.row.copy_(torch.randn(4, generator=generator))
        layer.bias.fill_(-0.75)
        next(layer.expert.parameters()).mul_(2.0)
    share = torch.sigmoid(x @ layer.row - 0.75)[..., None]
    assert torch.allclose(layer(x), (1 - share) * linear(x) + share * 2 * linear(x), atol=1e-6)
    with torch.no_grad():
        layer.bias.fill_(-1e4)
    assert torch.equal(layer(x), linear(x))


def test_a_bias_is_at_most_0_after_each_step_and_learns_on_there() -> None:
    """Logits (0, r·x + min(b, 0)), FlexOlmo's b_i < 0 (§3.3.2); steps of plain descent b ← min(b − η ∂L/∂b, 0)."""
    generator, rate = torch.Generator().manual_seed(0), 2.0
    layer = CoordinatedMLP(torch.nn.Linear(4, 4, bias=False), 4, bias=True)
    x = torch.randn(1, 5, 4, generator=generator)
    with torch.no_grad():
        layer.row.copy_(torch.randn(4, generator=generator))
        next(layer.expert.parameters()).mul_(2.0)
    assert layer.bias is not None
    expected, seen = 0.0, []
    for sign in (-1, -1, 1, 1, -1):  # of the loss: b is pushed up, down and up again
        public, own = layer.public(x), layer.expert(x)
        loss = sign * (layer(x) - public).mul(own - public).sum()
        (gradient,) = torch.autograd.grad(loss, layer.bias)
        slope = 0.0
        for token, difference in zip(x[0], (own - public)[0].detach(), strict=True):
            p = 1 / (1 + math.exp(-(float(layer.row.detach() @ token) + min(expected, 0.0))))
            slope += sign * p * (1 - p) * float(difference @ difference)
        assert float(gradient) == pytest.approx(slope, rel=1e-4)
        with torch.no_grad():
            layer.bias.sub_(rate * gradient)
        bound_biases([layer])
        expected = min(expected - rate * slope, 0.0)
        assert layer.bias.item() == pytest.approx(expected, rel=1e-4)
        seen.append(expected)
    assert seen[1] == 0 > seen[2] > seen[3] < seen[4] <= 0


@pytest.mark.check
def test_trainings_of_one_process_do_not_touch_one_another(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    first = train(filled, zoo, tmp_path / "first")
    half = train(filled, zoo, tmp_path / "half", dtype="bfloat16")
    assert half.document["training"]["dtype"] == "bfloat16"
    assert half.losses.steps != first.losses.steps
    assert half.losses.after == pytest.approx(first.losses.after, rel=0.05)
    assert train(filled, zoo, tmp_path / "again").losses == first.losses
    assert files_of(tmp_path / "again") == files_of(tmp_path / "first")
