"""Proves: what is frozen is the base model's to the byte; a training that goes on ends in the same bytes and curve.

And: a low-rank change is added to the weights, the version stores how it was trained, and wrong input is refused first.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from registry import ExpertTraining, Recipe, Registry, TestSettings
from registry.calibration.rows import Document
from registry.calibration.windows import encode
from registry.checkpoint import Checkpoint
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.checkpoint.router_rows import ROUTER_FILE, RouterRows, pack_rows, unpack_rows
from registry.errors import (
    CalibrationError,
    CheckpointError,
    ConflictError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    OutputError,
    StorageError,
)
from registry.member import load_member
from registry.progress import Advance, silent
from registry.runtime.loading import load_model, load_tokenizer
from registry.training import TrainedExpert
from registry.training.expert.coordinated import CoordinatedMLP
from registry.training.weight_trainer import WeightTrainer
from tests.conftest import Zoo, files_of
from tests.models import logits, make_model, save_checkpoint, train_tokenizer

SETTINGS = ExpertTraining(tokens=6 * 2 * 32, batch_size=2, seq_len=32, lr=0.01, device="cpu", dtype="float32")
IDS = torch.randint(1, 320, (2, 32), generator=torch.Generator().manual_seed(0))


def settings_with(**changes: Any) -> ExpertTraining:
    return ExpertTraining(**(vars(SETTINGS) | changes))


def train(registry: Registry, zoo: Zoo, out: Path | None = None, **changes: Any) -> TrainedExpert:
    settings = settings_with(**changes)
    return registry.train_expert("fresh", "base", [zoo.train["code"]], settings, out=out)


@pytest.mark.check
@pytest.mark.trust(after=2)
@pytest.mark.parametrize("changes", [{}, {"mlp": "lora:2"}, {"trunk": "free"}, {"mlp": "lora:2", "trunk": "free"}])
def test_what_is_frozen_is_the_base_models_to_the_byte(
    filled: Registry, zoo: Zoo, tmp_path: Path, changes: dict[str, Any]
) -> None:
    done = train(filled, zoo, tmp_path / "out", **changes)
    assert done.registration is None
    base, mlp = Checkpoint(zoo.base), Checkpoint(zoo.base).mlp
    old, new = load_file(zoo.base / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert old.keys() == new.keys()
    for name, tensor in old.items():
        assert new[name].dtype == tensor.dtype
        is_trained = name in mlp or changes.get("trunk") == "free"
        assert torch.equal(tensor, new[name]) is not is_trained, name
    assert files_of(tmp_path / "out").keys() - files_of(zoo.base).keys() == {EXPERT_TRAINING}
    assert Checkpoint(tmp_path / "out").shapes == base.shapes
    if "mlp" in changes:  # the change of a matrix has the rank that was asked for
        name = next(name for name in mlp if name.endswith("down_proj.weight"))
        values = torch.linalg.svdvals(new[name].double() - old[name].double())
        assert float(values[2]) < 1e-5 * float(values[0])
    assert not torch.equal(logits(tmp_path / "out", IDS), logits(zoo.base, IDS))


@pytest.mark.check
def test_the_loss_falls_and_the_version_stores_how_it_was_trained(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    done = train(filled, zoo, tokens=40 * 4 * 32, batch_size=4)
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
    again = train(filled, zoo, tokens=40 * 4 * 32, batch_size=4)
    assert again.registration is not None
    assert (again.registration.added, again.registration.version) == (False, version)
    continued = filled.train_expert("further", "fresh", [zoo.train["law"]], SETTINGS)
    assert continued.document["training"]["base"] == member.content["weights"]


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("changes", [{}, {"mlp": "lora:2"}, {"accumulate": 2}])
@pytest.mark.parametrize("at", [1, 4, 6])
def test_an_interrupted_training_goes_on_to_the_same_curve_and_bytes(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, changes: dict[str, Any]
) -> None:
    if "accumulate" in changes:
        changes = changes | {"tokens": 2 * SETTINGS.tokens}
    whole = train(filled, zoo, tmp_path / "whole", **changes)
    assert len(whole.losses.steps) == 6
    monkeypatch.setattr("registry.training.weight_trainer.SAVE_SECONDS", 0.0)
    told: list[str] = []
    filled.progress = interrupting(at, told)
    with pytest.raises(KeyboardInterrupt):
        train(filled, zoo, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()
    assert len(list(filled.home.partial.iterdir())) == (at > 1)
    filled.progress = interrupting(None, told)
    assert train(filled, zoo, tmp_path / "out", **changes).losses == whole.losses
    assert any("goes on: " in line for line in told) == (at > 1)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert not list(filled.home.partial.iterdir())
    filled.progress = silent


def interrupting(at: int | None, told: list[str]) -> Callable[..., Any]:
    """Return a progress that interrupts when step `at` is done."""

    @contextmanager
    def progress(label: str, total: int, unit: str) -> Iterator[Advance]:
        told.append(label)
        steps = 0

        def advance(amount: int) -> None:
            nonlocal steps
            steps += amount
            if unit == "step" and amount and steps == at:
                raise KeyboardInterrupt

        yield advance

    return progress


@pytest.mark.check
def test_an_opt_out_of_the_base_deletes_the_state(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.training.weight_trainer.SAVE_SECONDS", 0.0)
    filled.progress = interrupting(3, [])
    with pytest.raises(KeyboardInterrupt):
        train(filled, zoo, tmp_path / "out")
    assert list(filled.home.partial.iterdir())
    filled.progress = silent
    filled.opt_out("base", purge=True)
    assert not list(filled.home.partial.iterdir())


@pytest.mark.check
def test_a_loss_that_is_not_finite_stops(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    before = files_of(filled.home.arrays)
    with pytest.raises(InvalidInputError, match=r"the loss in step [0-9]+ is (nan|inf)|the loss on held-out") as caught:
        train(filled, zoo, lr=1e30, warmup=0)
    assert "--lr" in str(caught.value.hint)
    assert files_of(filled.home.arrays) == before


def test_wrong_input_is_refused_before_anything_is_trained(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    code = [zoo.train["code"]]
    with pytest.raises(NotFoundError, match="nosuch"):
        filled.train_expert("fresh", "nosuch", code, SETTINGS)
    with pytest.raises(ConflictError, match="base"):
        filled.train_expert("base", "base", code, SETTINGS)
    with pytest.raises(InvalidInputError, match="nothing to train on"):
        filled.train_expert("fresh", "base", [], SETTINGS)
    with pytest.raises(InvalidInputError, match="UPPER"):
        filled.train_expert("UPPER", "base", code, SETTINGS)
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(CalibrationError, match="no text"):
        filled.train_expert("fresh", "base", [empty], SETTINGS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(OutputError, match="full"):
        train(filled, zoo, tmp_path / "full")
    wrong: list[dict[str, Any]] = [
        {"tokens": 0},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"weight_decay": -1.0},
        {"warmup": 7},
        {"trunk": "loose"},
        {"mlp": "lora:0"},
        {"mlp": "half"},
        {"dtype": "float16"},
        {"device": "cuda:1"},
    ]
    for changes in wrong:
        with pytest.raises(InvalidInputError, match=next(iter(changes))):
            settings_with(**changes)


def test_without_the_library_the_error_names_the_extra(
    filled: Registry, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StorageError, match="accelerate") as caught:
        train(filled, zoo)
    assert "expert-registry[train]" in str(caught.value.hint)


@pytest.mark.check
def test_a_long_curve_is_stored_as_means(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.training.weight_trainer.POINTS", 4)
    done = train(filled, zoo, tmp_path / "out")
    steps = done.losses.steps
    assert (done.document["every"], len(done.document["loss"])) == (2, 3)
    assert done.document["loss"][0] == (steps[0] + steps[1]) / 2


@pytest.mark.check
def test_coordinated_experts_compose_by_their_rows(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    settings = settings_with(tokens=20 * 4 * 32, batch_size=4, coordinate=True)
    for name in ("law", "math"):
        filled.train_expert(f"{name}-beside", "base", [zoo.train[name]], settings)
    members = [load_member(filled._workspace, filled.resolve(f"{name}-beside")) for name in ("law", "math")]
    base = load_member(filled._workspace, filled.resolve("base"))
    for member in members:
        assert member.router_rows is not None
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
    begun: list[list[Tensor]] = []

    def first(trainer: Any) -> None:
        begun.append([part.detach().clone() for part in trainer.parameters if part.ndim == 1])

    monkeypatch.setattr("registry.training.weight_trainer.WeightTrainer.__post_init__", counted(first))
    settings = settings_with(coordinate=True, tokens=2 * 64, seq_len=64)
    own, public = [tmp_path / "own.txt"], [tmp_path / "public.txt"]
    done = filled.train_expert("beside", "base", own, settings, public_data=public, out=tmp_path / "out")
    model, tokenizer = load_model(zoo.base, "float32", "cpu"), load_tokenizer(zoo.base)
    seen: dict[str, dict[int, Tensor]] = {name: {} for name in texts}
    for name, text in texts.items():
        for layer, block in enumerate(model.model.layers):
            block.mlp.register_forward_pre_hook(
                lambda _module, inputs, layer=layer, of=seen[name]: of.update({layer: inputs[0][0].double().mean(0)})
            )
        model(input_ids=torch.tensor([encode(Document(text), tokenizer)]))
        for block in model.model.layers:
            block.mlp._forward_pre_hooks.clear()
    for layer, row in enumerate(begun[0]):
        expected, other = (seen[name][layer] / seen[name][layer].norm() for name in texts)
        assert torch.allclose(row.double(), expected - other, atol=1e-6)
        assert row.any()
    without = filled.train_expert("beside", "base", own, settings, out=tmp_path / "without")
    assert not any(row.any() for row in begun[1])
    assert done.document["training"].keys() - without.document["training"].keys() == {"public"}
    again = filled.train_expert("beside", "base", own, settings, public_data=public, out=tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out") != files_of(tmp_path / "without")
    assert again.document == done.document
    with pytest.raises(InvalidInputError, match="without --coordinate"):
        filled.train_expert("beside", "base", own, SETTINGS, public_data=public)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(CalibrationError, match="no text"):
        filled.train_expert("beside", "base", own, settings, public_data=[tmp_path / "empty.txt"])


def counted(first: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the preparation of a trainer that calls `first` before it."""
    prepare = WeightTrainer.__post_init__

    def both(trainer: WeightTrainer) -> None:
        first(trainer)
        prepare(trainer)

    return both


@pytest.mark.check
def test_a_pair_is_the_model_that_was_trained(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """The composition of public expert and one other computes what its training did."""
    settings = settings_with(tokens=30 * 4 * 32, batch_size=4, coordinate=True)
    done = filled.train_expert("beside", "base", [zoo.train["law"]], settings)
    filled.compose(["beside", "base"], tmp_path / "moe", Recipe(router="anchored", trunk="base", dtype="float32"))
    data = {"law": [zoo.train["law"]]}
    before, after = filled.evaluate([zoo.base, tmp_path / "moe"], data, TestSettings(windows=8, seq_len=32))[:2]
    assert after.perplexity["law"] < before.perplexity["law"]
    assert done.losses.after < done.losses.before


@pytest.mark.check
def test_what_was_not_trained_beside_the_same_expert_is_refused(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    recipe = Recipe(router="anchored", trunk="base")
    with pytest.raises(IncompatibleError, match="law@1 has no router row") as caught:
        filled.plan(["law", "base"], recipe)
    assert "--coordinate" in str(caught.value.hint)
    filled.train_expert("beside", "base", [zoo.train["law"]], settings_with(coordinate=True))
    filled.add_base("other", save_checkpoint(make_model("llama", 700), tmp_path / "other", train_tokenizer()))
    with pytest.raises(IncompatibleError, match="beside another public expert"):
        filled.plan(["beside"], recipe, base="other")
    with pytest.raises(IncompatibleError, match="other@1 is not the base model"):
        filled.plan(["beside", "other"], recipe, base="base")
    with pytest.raises(InvalidInputError, match="trunk"):
        Recipe(router="anchored")
    with pytest.raises(InvalidInputError, match="refine"):
        Recipe(router="anchored", trunk="base", refine=1)
    with pytest.raises(InvalidInputError, match="coordinate share a frozen trunk"):
        settings_with(coordinate=True, trunk="free")
    random = filled.plan(["beside", "base"], Recipe(router="random", trunk="base"), base="base")
    assert random.names == ["base", "beside"]  # of rows that are drawn nothing needs to fit


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("damage", [b"", b"\xff" * 100, (2**60).to_bytes(8, "little")])
def test_rows_of_another_form_are_refused(filled: Registry, zoo: Zoo, tmp_path: Path, damage: bytes) -> None:
    filled.train_expert("beside", "base", [zoo.train["law"]], settings_with(coordinate=True), out=tmp_path / "out")
    whole = (tmp_path / "out" / ROUTER_FILE).read_bytes()
    (tmp_path / "out" / ROUTER_FILE).write_bytes(damage or whole[:-4])
    with pytest.raises(CheckpointError, match=ROUTER_FILE):
        filled.add_expert("beside", tmp_path / "out", data=[zoo.train["law"]])
    rows = unpack_rows(whole, (2, 32), "out")
    assert rows.bias is None
    short, infinite, wide = np.zeros(1, dtype=np.float32), np.full(2, np.inf, dtype=np.float32), np.zeros(2)
    cases: list[tuple[Any, Any]] = [(rows.rows[:1], None), (np.full_like(rows.rows, np.nan), None)]
    for wrong, bias in (*cases, *((rows.rows, bias) for bias in (short, infinite, wide))):
        (tmp_path / "out" / ROUTER_FILE).write_bytes(pack_rows(RouterRows(rows.anchor, wrong, bias)))
        with pytest.raises(CheckpointError, match="expected finite float32"):
            filled.add_expert("beside", tmp_path / "out", data=[zoo.train["law"]])
    bias = np.array([-1.5, 0.25], dtype=np.float32)
    again = unpack_rows(pack_rows(RouterRows(rows.anchor, rows.rows, bias)), (2, 32), "out")
    assert again.bias is not None
    assert (again.anchor, again.rows.tolist(), again.bias.tolist()) == (rows.anchor, rows.rows.tolist(), [-1.5, 0.25])


@pytest.mark.check
def test_a_bias_trains_beside_its_row(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    settings = settings_with(tokens=20 * 4 * 32, batch_size=4, coordinate=True, router_bias=True)
    for name in ("out", "again"):
        done = filled.train_expert("beside", "base", [zoo.train["law"]], settings, out=tmp_path / name)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out")
    assert done.losses.after < done.losses.before
    rows = unpack_rows((tmp_path / "out" / ROUTER_FILE).read_bytes(), (2, 32), "out")
    assert rows.bias is not None
    assert rows.bias.shape == (2,)
    assert rows.bias.all()
    with pytest.raises(InvalidInputError, match="without --coordinate"):
        settings_with(router_bias=True)


def test_a_coordinated_mlp_mixes_by_its_logit() -> None:
    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(4, 4, bias=False)
    layer = CoordinatedMLP(linear, 4, bias=True)
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


@pytest.mark.check
def test_trainings_of_one_process_do_not_touch_one_another(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    first = train(filled, zoo, tmp_path / "first")
    half = train(filled, zoo, tmp_path / "half", dtype="bfloat16")
    assert half.document["training"]["dtype"] == "bfloat16"
    assert half.losses.steps != first.losses.steps
    assert half.losses.after == pytest.approx(first.losses.after, rel=0.05)
    assert train(filled, zoo, tmp_path / "again").losses == first.losses
    assert files_of(tmp_path / "again") == files_of(tmp_path / "first")


@pytest.mark.parametrize("public", [False, True])
def test_files_are_looked_for_before_the_base_model(filled: Registry, zoo: Zoo, tmp_path: Path, public: bool) -> None:
    texts = [[tmp_path / "nothing.jsonl"], [zoo.train["code"]]]
    own, others = reversed(texts) if public else texts
    settings = settings_with(coordinate=True)
    with pytest.raises(CalibrationError, match=r"nothing\.jsonl is not a file"):
        filled.train_expert("fresh", "nosuchbase", own, settings, public_data=others)
