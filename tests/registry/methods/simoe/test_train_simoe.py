"""Proves: training changes D, masks and router alone, by the objective; a training that goes on ends in the same bytes.

And masks are as sparse as asked for, the penalty lowers their overlap, experts are dense versions that share D, and
wrong input is refused before anything is written.
"""

import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from registry import ExpertTraining, Registry
from registry.checkpoint import Checkpoint
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.errors import CalibrationError, ConflictError, InvalidInputError, NotFoundError, RegError
from registry.hub.expert_files import write_expert
from registry.io.torch_blocks import to_tensor
from registry.maths.interpolation import overlap, sampled_gates, unpack_bits
from registry.member import Member, load_member
from registry.methods.simoe.model import Simoe
from registry.methods.simoe.text import SimoeWindows, read_simoe_windows
from registry.methods.simoe.train import trainer_of
from registry.methods.simoe.versions import DELTA, MASK, ROW, SIMOE_ARRAYS, SIMOE_FILE
from registry.progress import silent
from registry.runtime.loading import load_model, load_tokenizer
from tests.conftest import Zoo, files_of
from tests.models import make_model, save_checkpoint, write_jsonl
from tests.registry.methods.simoe.conftest import NAMES, SETTINGS, settings_with, text_of
from tests.remarks import Remarks


def member_of(registry: Registry, ref: str) -> Member:
    return load_member(registry._workspace, registry.resolve(ref))


def tensor_of(member: Member, role: Any, name: str) -> Tensor:
    link = member.link(role, name)
    return to_tensor(member.store.read(link.digest), link.dtype).clone()


def digests_of(registry: Registry) -> list[str]:
    return [version.digest for version in registry.versions() if version.name.startswith("mix")]


def training_of(registry: Registry) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(member_of(registry, "mix-1").file(EXPERT_TRAINING))
    return found


def begun(folder: Path, **changes: Any) -> Simoe:
    """Return a SIMoE of a base model with random D, in place of 0."""
    checkpoint = Checkpoint(folder)
    modules = [name.removesuffix(".weight") for name in checkpoint.family.layer_matrices(checkpoint.architecture)]
    simoe = Simoe(load_model(folder, "float32", "cpu"), modules, settings_with(**changes))
    draw = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for delta in simoe.deltas:
            delta.copy_(torch.randn(delta.shape, generator=draw) * 0.02)
        simoe.router.mul_(3)
    return simoe


def windows_of(zoo: Zoo, simoe: Simoe) -> SimoeWindows:
    return read_simoe_windows(text_of(zoo), Checkpoint(zoo.base), load_tokenizer(zoo.base), simoe.settings, silent)


def test_experts_are_the_base_model_with_the_rows_that_their_masks_open(simoe: Registry) -> None:
    base, experts = member_of(simoe, "base"), [member_of(simoe, name) for name in NAMES]
    layers = base.family.layer_matrices(base.architecture)
    outputs = [base.weight(name).shape[0] for name in layers]
    assert len(layers) == 7 * base.architecture.num_hidden_layers
    for number, expert in enumerate(experts, start=1):
        document = expert.content["simoe"]
        assert (document["number"], document["experts"], document["prompt_tokens"]) == (number, 3, 8)
        assert document["base"] == base.content["weights"]
        mask = unpack_bits(tensor_of(expert, "simoe", MASK), sum(outputs)).split(outputs)
        for layer, name in enumerate(layers):
            delta = tensor_of(expert, "simoe", f"{DELTA}{name}")
            weight, role = tensor_of(base, base.weight(name).role, name), expert.weight(name).role
            changed = tensor_of(expert, role, name)
            expected = torch.where(mask[layer][:, None].bool(), weight + delta, weight)
            assert torch.equal(changed, expected), name
        unchanged = {link.name: link.digest for link in base.arrays if link.role in ("trunk", "mlp")}
        for name in unchanged.keys() - set(layers):  # embeddings, norms and head
            assert expert.weight(name).digest == unchanged[name]
        assert tensor_of(expert, "simoe", ROW).shape == (base.architecture.hidden_size,)
        (counted,) = expert.version.statistics
        assert counted.site == "token_counts"
    deltas = [{link.name: link.digest for link in one.arrays if link.name.startswith(DELTA)} for one in experts]
    assert deltas[0] == deltas[1] == deltas[2]  # stored once
    assert simoe.verify().problems == ()


def test_base_model_is_frozen(zoo: Zoo) -> None:
    simoe = begun(zoo.base)
    windows = windows_of(zoo, simoe)
    before = {name: part.clone() for name, part in simoe.model.state_dict().items()}
    moved = [part.detach().clone() for part in simoe.trained]
    trainer = trainer_of(simoe, windows, bfloat16=False)
    trainer.train(None, silent)
    after = simoe.model.state_dict()
    assert all(torch.equal(after[name], part) for name, part in before.items())
    assert not any(torch.equal(new, old) for new, old in zip(simoe.trained, moved, strict=True))


def test_a_pass_is_that_of_the_dense_model_of_each_window(zoo: Zoo) -> None:
    simoe, ids = begun(zoo.base, experts=3), torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(0))
    dense, embedding = load_model(zoo.base, "float32", "cpu"), simoe.model.get_input_embeddings().weight
    names = Checkpoint(zoo.base).family.layer_matrices(Checkpoint(zoo.base).architecture)
    original = {name: dense.get_parameter(name).detach().clone() for name in names}
    for training in (True, False):
        simoe.train(training)
        torch.manual_seed(7)
        found = simoe(ids).logits
        torch.manual_seed(7)
        masks = sampled_gates(simoe.log_alpha, torch.rand(simoe.log_alpha.shape)) if training else simoe.final()[0]
        for b in range(len(ids)):
            prompt = torch.stack([embedding[token] for token in ids[b, :8]]).sum(dim=0) / 8
            scores = [math.exp((simoe.router[m] @ prompt).item()) for m in range(3)]
            with torch.no_grad():
                start = 0
                for name, delta in zip(names, simoe.deltas, strict=True):
                    weight = original[name].clone()
                    for m in range(3):  # θ_pre + Σ_m α_m (z_m ∘ δ)
                        z = masks[m, start : start + len(delta)].float()
                        weight += scores[m] / sum(scores) * torch.diag(z) @ delta
                    dense.get_parameter(name).copy_(weight)
                    start += len(delta)
                expected = dense(input_ids=ids[b : b + 1]).logits[0]
            # float32 sums in another order, through all layers
            torch.testing.assert_close(found[b], expected, atol=2e-4, rtol=1e-4)


def test_router_sees_the_prompt_and_the_loss_what_follows(zoo: Zoo) -> None:
    simoe = begun(zoo.base)
    simoe.eval()
    ids = torch.randint(0, 300, (1, 20), generator=torch.Generator().manual_seed(0))
    simoe(ids)
    gates = [part.clone() for part in simoe._gates]
    others = ids.clone()
    others[:, 8:] = 3
    simoe(others)
    assert all(torch.equal(new, old) for new, old in zip(simoe._gates, gates, strict=True))
    windows = windows_of(zoo, simoe)
    _, keep = windows.take(windows.training[:2])
    assert not bool(keep[:, :8].any())
    assert bool(keep[:, 8:].any())
    trainer = trainer_of(simoe, windows, bfloat16=False)
    ids, total, count = windows.all.ids.long(), 0.0, 0
    with torch.no_grad():
        for number in windows.held_out.tolist():
            logits = simoe.eval()(ids[number][None]).logits[0]
            for t in range(8, int(windows.all.lengths[number])):  # predicted from the tokens before
                total += float(F.cross_entropy(logits[t - 1][None], ids[number, t][None]))
                count += 1
    assert trainer.loss() == pytest.approx(total / count, rel=1e-5)
    assert windows.predicted == count


def test_penalty_is_the_constraint_and_the_distance_from_orthogonal_gates(zoo: Zoo) -> None:
    simoe = begun(zoo.base, experts=3, sparsity=0.7, overlap=0.5)
    simoe.train()
    torch.manual_seed(3)
    simoe(torch.zeros((1, 12), dtype=torch.int64))
    with torch.no_grad():
        simoe.multiplier.fill_(2.5)
    torch.manual_seed(3)
    masks = sampled_gates(simoe.log_alpha, torch.rand(simoe.log_alpha.shape)).detach()
    sparsity = 1 - fmean((simoe.log_alpha - 2 / 3 * math.log(0.1 / 1.1)).sigmoid().flatten().tolist())  # eq. 12
    distances = []
    for layer in masks.split([len(delta) for delta in simoe.deltas], dim=1):
        rows, squares = layer.tolist(), 0.0
        for m in range(3):
            for k in range(3):
                squares += (math.fsum(x * y for x, y in zip(rows[m], rows[k], strict=True)) - (m == k)) ** 2
        distances.append(math.sqrt(squares))  # ‖Z Zᵀ - I‖ of a layer
    expected = 2.5 * (0.7 - sparsity) + 0.5 * fmean(distances)  # λ (τ - s) + β · the layers' mean
    assert simoe.penalty().item() == pytest.approx(expected, rel=1e-5)


def test_curves_are_of_dual_ascent_and_masks_as_sparse_as_asked_for(simoe: Registry) -> None:
    document = training_of(simoe)
    curves, masks, multiplier = document["curves"], document["masks"], 0.0
    assert [len(curves[name]) for name in ("sparsity", "overlap", "multiplier")] == [60] * 3
    for sparsity, found in zip(curves["sparsity"], curves["multiplier"], strict=True):
        short = SETTINGS.sparsity - sparsity
        multiplier = multiplier + SETTINGS.dual_lr * short if short > 0 else 0.0  # λ + η (τ - s), or again from 0
        assert found == pytest.approx(multiplier, abs=1e-4)
    assert curves["sparsity"][-1] > curves["sparsity"][0] + 0.2
    assert masks["sparsity"] >= SETTINGS.sparsity
    zeros, base = [], member_of(simoe, "base")
    layers, outputs = base.family.layer_matrices(base.architecture), _outputs(simoe)
    assert list(masks["of_layers"]) == list(layers)
    for m, name in enumerate(NAMES):
        bits = unpack_bits(tensor_of(member_of(simoe, name), "simoe", MASK), sum(outputs)).tolist()
        zeros.append(bits.count(False) / len(bits))
        for layer, size in zip(layers, outputs, strict=True):
            own, bits = bits[:size], bits[size:]
            assert masks["of_layers"][layer][m] == pytest.approx(own.count(False) / size)
    assert masks["of_experts"] == pytest.approx(zeros)
    assert document["held_out"]["after"] < document["held_out"]["before"]


def _outputs(registry: Registry) -> list[int]:
    base = member_of(registry, "base")
    return [base.weight(name).shape[0] for name in base.family.layer_matrices(base.architecture)]


@pytest.mark.check
def test_gates_are_closed_at_the_end_where_training_was_too_short(filled: Registry, zoo: Zoo) -> None:
    found = filled.train_simoe("short", "base", text_of(zoo), settings_with(sparsity=0.9))
    masks = found.document["masks"]
    assert masks["sparsity"] >= 0.9
    assert masks["closed"] > 0


@pytest.mark.check
def test_penalty_lowers_the_overlap_of_masks(zoo: Zoo) -> None:
    found = []
    for beta in (0.0, 0.05):
        simoe = begun(zoo.base, tokens=25 * 2 * 32, overlap=beta, sparsity=0.0, gate_lr=0.4)
        trainer = trainer_of(simoe, windows_of(zoo, simoe), bfloat16=False)
        trainer.train(None, silent)
        found.append(float(overlap(simoe.final()[0].float())))
    assert 0 < found[1] < found[0] - 0.1


@pytest.mark.check
def test_an_interrupted_training_goes_on_to_the_same_bytes(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what no other training has: the multiplier and the curves of sparsity and overlap."""
    settings = settings_with(accumulate=2, batch_size=1)

    def train(home: str, heard: Remarks) -> tuple[Any, Any, list[str]]:
        with Registry(tmp_path / home, progress=heard) as registry:
            if not registry.versions():
                registry.add_base("base", zoo.base)
            done = registry.train_simoe("mix", "base", text_of(zoo), settings)
            return done.losses, done.document, digests_of(registry)

    whole = train("whole", Remarks())
    assert len(whole[0].steps) == 6
    monkeypatch.setattr("registry.training.loop.SAVE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train("home", Remarks(until=4))
    heard = Remarks()
    assert train("home", heard) == whole
    assert "goes on: " in heard.text


def test_another_seed_begins_elsewhere(zoo: Zoo) -> None:
    one, other = begun(zoo.base), begun(zoo.base, seed=1)
    assert not torch.equal(one.log_alpha, other.log_alpha)
    assert not torch.equal(windows_of(zoo, one).training, windows_of(zoo, other).training)


@pytest.mark.check(after=1)
@pytest.mark.parametrize("family", ["gpt_neox", "phi3"])
def test_families_with_joined_projections_and_tied_weights_train(
    family: str, zoo: Zoo, tokenizer: Any, tmp_path: Path
) -> None:
    base = save_checkpoint(make_model(family, 500, tie_word_embeddings=family == "phi3"), tmp_path / "base", tokenizer)
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", base, remote_code=True)
        registry.train_simoe("mix", "base", text_of(zoo), settings_with(tokens=2 * 2 * 32))
        own, of_base = member_of(registry, "mix-1"), member_of(registry, "base")
        changed = {link.name for link in own.arrays if link.role in ("trunk", "mlp")}
        changed = {name for name in changed if own.weight(name).digest != of_base.weight(name).digest}
        assert changed <= set(own.family.layer_matrices(own.architecture))
        assert len(changed) > 2


def test_checkpoint_of_an_expert_comes_back_as_the_same_version(simoe: Registry, zoo: Zoo, tmp_path: Path) -> None:
    member = member_of(simoe, "mix-2")
    write_expert(member, tmp_path / "pushed", calibration=False, progress=silent)
    assert {SIMOE_FILE, SIMOE_ARRAYS, EXPERT_TRAINING} <= files_of(tmp_path / "pushed").keys()
    again = simoe.add_expert("copy", tmp_path / "pushed", license="mit", allow_unrelated=True).version
    assert again.digest == member.version.digest
    settings = ExpertTraining(tokens=64, batch_size=2, seq_len=32, device="cpu", dtype="float32")
    simoe.train_expert("further", "mix-2", [zoo.train["law"]], settings, out=tmp_path / "further")
    assert not {SIMOE_FILE, SIMOE_ARRAYS} & files_of(tmp_path / "further").keys()


def test_files_of_another_form_are_refused(simoe: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    simoe.export("mix-1", folder)
    document, good = json.loads((folder / SIMOE_FILE).read_bytes()), (folder / SIMOE_ARRAYS).read_bytes()
    for changed, message in (
        (document | {"format": 2}, "format 2"),
        (document | {"more": 1}, "a key 'more'"),
        (document | {"number": 4}, "number is 4 of 3 experts"),
        (document | {"delta": "0" * 64}, "names 000000000000"),
    ):
        (folder / SIMOE_FILE).write_text(json.dumps(changed))
        with pytest.raises(RegError, match=message):
            simoe.add_expert("changed", folder)
    (folder / SIMOE_FILE).write_text(json.dumps(document))
    for data, message in (
        (good[:50], "is not a safetensors file|"),
        (good.replace(b'"mask"', b'"musk"'), "array 'mask' is missing"),
        (good.replace(b'"dtype":"U8"', b'"dtype":"I8"'), "mask is I8"),
    ):
        (folder / SIMOE_ARRAYS).write_bytes(data)
        with pytest.raises(RegError, match=message):
            simoe.add_expert("changed", folder)
    (folder / SIMOE_ARRAYS).unlink()
    with pytest.raises(RegError, match=r"simoe.safetensors is missing"):
        simoe.add_expert("changed", folder)


SETTINGS_REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no expert": ({"experts": 0}, "experts is 0, the least is 1", "--experts 1"),
    "sparsity 1": ({"sparsity": 1.0}, "sparsity is 1.0, it must be from 0 to below 1", "--sparsity 0.75"),
    "sparsity NaN": ({"sparsity": math.nan}, "sparsity is nan", "--sparsity"),
    "overlap of one": ({"experts": 1, "overlap": 0.1}, "one mask has no other", "--experts 2"),
    "overlap below 0": ({"overlap": -1.0}, "overlap is -1.0", "--overlap"),
    "prompt of 0": ({"prompt_tokens": 0}, "prompt_tokens is 0", "--prompt-tokens 1"),
    "prompt as long": ({"prompt_tokens": 32}, "a window has 32 tokens: none is left to predict", "--seq-len"),
    "gate_lr 0": ({"gate_lr": 0.0}, "gate_lr is 0.0", "--gate-lr 0.1"),
    "dual_lr infinite": ({"dual_lr": math.inf}, "dual_lr is inf", "--dual-lr 0.01"),
    "device": ({"device": "tpu"}, "device 'tpu' is neither cpu nor cuda", "cuda"),
}


@pytest.mark.parametrize("case", SETTINGS_REFUSED)
def test_settings_that_cannot_be_are_refused(case: str) -> None:
    changes, message, hint = SETTINGS_REFUSED[case]
    with pytest.raises(InvalidInputError) as caught:
        settings_with(**changes)
    assert message in caught.value.message
    assert hint in str(caught.value.hint)
    assert (settings_with(experts=1).beta, settings_with(experts=2).beta) == (0.0, 5e-5)  # one has no overlap


@pytest.mark.check
def test_wrong_input_is_refused_before_anything_is_written(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    short = write_jsonl(tmp_path / "short.jsonl", ["one two"])
    cases: list[tuple[tuple[str, str, list[Path]], type[RegError], str]] = [
        (("mix", "absent", text_of(zoo)), NotFoundError, "absent"),
        (("mix", "code", text_of(zoo)), InvalidInputError, "code is an expert, not a base model"),
        (("mix", "base", []), InvalidInputError, "nothing to train on"),
        (("mix", "base", [tmp_path / "absent.jsonl"]), CalibrationError, "absent.jsonl is not a file"),
        (("mix", "base", [short]), CalibrationError, "no window has more than the 8 tokens of a prompt"),
        (("m!", "base", text_of(zoo)), InvalidInputError, "m!"),
    ]
    before = [version.digest for version in filled.versions()]
    for arguments, kind, message in cases:
        with pytest.raises(kind, match=message):
            filled.train_simoe(*arguments, settings_with())
    filled.add_base("other-2", zoo.base)
    with pytest.raises(ConflictError, match="other-2 is registered as a base model"):
        filled.train_simoe("other", "base", text_of(zoo), settings_with())
    filled.add_expert("mine-1", zoo.experts["law"], data=[zoo.train["law"]])
    with pytest.raises(ConflictError, match="mine-1@1 is registered, and it does not come from reg train-simoe"):
        filled.train_simoe("mine", "base", text_of(zoo), settings_with())
    filled.opt_out("mine-1")
    assert [version.digest for version in filled.versions() if version.name not in ("other-2", "mine-1")] == before
    with pytest.raises(InvalidInputError, match=r"the loss .* is (nan|inf)"):
        filled.train_simoe("mix", "base", text_of(zoo), settings_with(lr=1e30))
    assert [version.digest for version in filled.versions() if version.name not in ("other-2", "mine-1")] == before
