"""Proves: members of several architectures train whole, their router by the formula, and the result is reproduced."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.loss.loss_utils import ForCausalLMLoss

from registry import MixtureTraining, Registry
from registry.errors import InvalidInputError
from registry.training import weight_trainer
from registry.training.mixture_weights import BalanceLoss, let_train
from tests.conftest import Zoo, files_of
from tests.registry.composition.composed import tensors_of
from tests.registry.hosts.test_hosts import load
from tests.registry.methods.hetero.hetero_world import FIRST, World, compose, forced
from tests.registry.methods.hetero.test_train_projectors import TINY, train
from tests.registry.training.test_processes import launch
from tests.remarks import Remarks

STEPS = 8


def softmax(scores: list[float]) -> list[float]:
    return torch.tensor(scores, dtype=torch.float64).softmax(dim=0).tolist()


def test_every_weight_trains_and_the_result_is_loaded_examined_and_reproduced(
    world: World, several: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    before, out = files_of(world.folder), tmp_path / "out"
    several.progress = heard = Remarks()
    done = train(several, world.folder, out, zoo, "all")
    assert files_of(world.folder) == before
    old, new = tensors_of(world.folder), tensors_of(out)
    assert {name for name in old if not torch.equal(old[name], new[name])} == old.keys() == new.keys()
    assert done.document["training"]["tensors"].keys() == old.keys()
    assert (done.document["training"]["train"], done.document["training"]["balance"]) == ("all", 0.01)
    assert done.after < done.before
    weights = sum(tensor.numel() for tensor in old.values())
    assert f"training all weights: {weights:,} weights, {STEPS} steps" in heard.text
    assert "All weights were then trained" in (out / "README.md").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in new.items())
    assert [row.name for row in several.evaluate([out], {"code": [zoo.train["code"]]})] == ["out"]
    assert {one.check for one in several.doctor(out).of("error")} <= {"perplexity"}  # of random members
    found = several.reproduce(out, tmp_path / "again")
    assert found.is_same
    assert files_of(tmp_path / "again") == files_of(out)


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_the_gradient_of_the_router_is_that_of_the_members_chosen(world: World, balance: float) -> None:
    """Each of two sequences has w, the softmax of its two largest scores s = W m / T, from token FIRST on.

    There ∂L/∂w_i = Σ_t (p_t − y_t)·z_it, with z_i what member i gives alone, and ∂w_i/∂s_j = w_i (δ_ij − w_j); before,
    the weights are equal, whatever W is. The balance is b E Σ_e f_e q_e, with f the mean of w and q that of the softmax
    of all scores, through which alone the gradient goes.
    """
    ids = torch.randint(5, 200, (2, 12), generator=torch.Generator().manual_seed(1))
    model = load(world.folder)
    model.config.routing_temperature = 0.5  # softer than that of the folder, so that every score counts
    alone = [forced(model, index)(ids).double() for index in range(4)]  # (B, S, V) each
    with torch.no_grad():
        mixed = model(input_ids=ids).logits.double()
    router, embedding = model.router.weight.detach().double(), model.embed_tokens.weight.detach().double()
    means = [embedding[row[:FIRST]].mean(dim=0) for row in ids]
    scores = [(2 * router @ mean).tolist() for mean in means]  # s, E numbers of each
    shares = [softmax(own) for own in scores]  # q of each sequence
    weights = []
    for own in scores:
        both = torch.tensor(own).topk(2).indices.tolist()
        weights.append(dict(zip(both, softmax([own[index] for index in both]), strict=True)))
    used = [sum(own.get(index, 0.0) for own in weights) / 2 for index in range(4)]  # f
    expected, penalty = torch.zeros_like(router), 0.0
    for row, (own, share) in enumerate(zip(weights, shares, strict=True)):
        by_weight = dict.fromkeys(own, 0.0)  # ∂L/∂w, L the mean over the 22 tokens that are predicted
        for t in range(FIRST - 1, 11):
            wrong = mixed[row, t].softmax(dim=0)
            wrong[ids[row, t + 1]] -= 1.0
            for i in own:
                by_weight[i] += float(wrong @ alone[i][row, t]) / 22
        for j in range(4):
            penalty += balance * 4 * used[j] * share[j] / 2
            slope = sum(balance * 4 * used[e] / 2 * share[e] * (float(e == j) - share[j]) for e in range(4))
            if j in own:
                slope += sum(by_weight[i] * own[i] * (float(i == j) - own[j]) for i in own)
            expected[j] += 2 * slope * means[row]

    let_train(model, "all")
    assert all(part.requires_grad for part in model.parameters())
    loss = BalanceLoss(model, balance)
    with loss.recorded():
        logits = model(input_ids=ids).logits
        told = loss.take()
        (ForCausalLMLoss(logits, ids, logits.shape[-1]) + told).backward()
    assert "_weigh" not in vars(model)
    assert float(told.detach()) == pytest.approx(penalty, rel=1e-5)
    found, scale = model.router.weight.grad.double(), float(expected.abs().max())
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * scale)
    assert all(part.grad is not None for part in model.parameters())


def test_sequences_that_end_before_the_router_chooses_have_no_balance_loss(world: World) -> None:
    model = load(world.folder)
    loss = BalanceLoss(model, 1.0)
    with loss.recorded():
        logits = model(input_ids=torch.full((2, FIRST - 1), 7)).logits
        told = loss.take()
    (logits.sum() + told).backward()
    assert float(told.detach()) == 0.0
    assert not model.router.weight.grad.any()


@pytest.mark.check
def test_an_interrupted_training_ends_in_the_same_bytes(
    world: World, several: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(several, world.folder, tmp_path / "whole", zoo, "all", dtype="bfloat16")
    monkeypatch.setattr("registry.training.loop.SAVE_SECONDS", 0.0)
    left = 3

    def stopping(*words: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return ForCausalLMLoss(*words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(weight_trainer, "ForCausalLMLoss", stopping)
        with pytest.raises(KeyboardInterrupt):
            train(several, world.folder, tmp_path / "out", zoo, "all", dtype="bfloat16")
    several.progress = heard = Remarks()
    assert train(several, world.folder, tmp_path / "out", zoo, "all", dtype="bfloat16") == whole
    assert f"goes on: 3 of {STEPS}" in heard.text
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


@pytest.mark.trust
@pytest.mark.parametrize("fsdp", [False, True])
def test_two_processes_train_what_one_does(
    world: World, several: Registry, zoo: Zoo, tmp_path: Path, fsdp: bool
) -> None:
    """The balance loss is that of each process's windows, so the same as of one process that accumulates them."""
    text, settings = str(zoo.train["code"]), TINY | {"tokens": 4 * 4 * 32, "lr": 1e-3}
    alone = MixtureTraining("all", **settings, accumulate=2)
    before = several.train(world.folder, tmp_path / "alone", [text], alone).document["training"]
    extra = settings | {"batch_size": 4} | ({"fsdp": True} if fsdp else {})
    words = ("train", world.folder, "--train", "all", "--data", text, "--out", tmp_path / "both")
    done = launch(several, *words, **extra)
    assert done.returncode == 0, done.stderr
    old, one, two = (tensors_of(folder) for folder in (world.folder, tmp_path / "alone", tmp_path / "both"))
    assert old.keys() == one.keys() == two.keys()
    for name, tensor in old.items():
        assert torch.allclose(one[name], two[name], atol=2e-4), name
        assert not torch.equal(tensor, two[name]), name
    (composition,) = [one for one in several.compositions() if str(tmp_path / "both") in one.folders]
    trained = composition.document["training"]
    assert trained["loss"] == pytest.approx(before["loss"], abs=3e-4)  # sums in another order
    assert (trained["processes"], trained["fsdp"]) == (2, fsdp)
    assert several.reproduce(tmp_path / "both").is_same


def test_what_leaves_the_router_without_a_gradient_is_refused(
    world: World, several: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    compose(several, tmp_path / "one", top_k=1)
    with pytest.raises(InvalidInputError, match="sends each text to 1 member with weight 1") as refused:
        train(several, tmp_path / "one", tmp_path / "out", zoo, "all")
    assert "--top-k 2" in str(refused.value.hint)
    for what in ("all", "projectors"):
        with pytest.raises(InvalidInputError, match=f"first {FIRST} tokens of a text, and windows have 5") as refused:
            train(several, world.folder, tmp_path / "out", zoo, what, seq_len=FIRST)
        assert f"--seq-len {FIRST + 1}" in str(refused.value.hint)
    train(several, tmp_path / "one", tmp_path / "out", zoo, seq_len=FIRST)  # of which projectors alone train
