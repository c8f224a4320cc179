"""Proves: experts are suggested as by plain loops over counts, within bounds, and nobody's text is told."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from registry import PassSettings, Registry
from registry.errors import ConflictError, IncompatibleError, InvalidInputError, NotFoundError
from registry.maths.context.evidence import FLOOR, SMOOTHING
from registry.maths.context.text_costs import losses_with, text_costs
from tests.conftest import Zoo
from tests.models import sentences, write_jsonl


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "mixed.jsonl", sentences("code", 40, seed=9) + sentences("german", 20, seed=9))


def names(found: object) -> list[str]:
    return [one.name for one in found.experts]  # type: ignore[attr-defined]


def test_costs_are_those_of_plain_loops() -> None:
    draw = torch.Generator().manual_seed(0)
    counts = [torch.randint(0, 9, (size,), generator=draw) for size in (12, 12, 10)]
    ids = torch.randint(0, 12, (5, 7), generator=draw).int()
    keep = torch.rand((5, 7), generator=draw) < 0.8
    costs, lengths, own = text_costs(ids, keep, [counts[0], counts[1].to_sparse(), counts[2]])
    shares = [[each / sum(one.tolist()) for each in one.tolist()] + [0.0] * (12 - len(one)) for one in counts]
    floor = [SMOOTHING * sum(share[v] for share in shares) / 3 + FLOOR / 12 for v in range(12)]
    for e, share in enumerate(shares):
        for w in range(5):
            tokens = [int(v) for v, counted in zip(ids[w], keep[w], strict=True) if counted]
            assert lengths[w] == len(tokens)
            cost = -sum(math.log((share[v] + floor[v]) / (1 + SMOOTHING + FLOOR)) for v in tokens) / len(tokens)
            assert costs[w, e] == pytest.approx(cost)
        text = Counter(dict(enumerate(counts[e].tolist())))
        n = text.total()
        left = [c * math.log(((c - 1) / (n - 1) + floor[v]) / (1 + SMOOTHING + FLOOR)) for v, c in text.items() if c]
        assert own[e] == pytest.approx(-sum(left) / n)


@pytest.mark.parametrize("chosen", [[], [2], [0, 3]])
def test_losses_are_those_of_plain_loops(chosen: list[int]) -> None:
    draw = torch.Generator().manual_seed(1)
    costs, lengths = torch.rand((6, 4), generator=draw).double(), torch.tensor([3.0, 1, 4, 1, 5, 9]).double()
    found = losses_with(costs, lengths, chosen)
    for e in range(4):
        least = [min(float(costs[w, n]) for n in [*chosen, e]) * float(lengths[w]) for w in range(6)]
        assert found[e] == pytest.approx(sum(least) / float(lengths.sum()))
        assert found[e] <= losses_with(costs, lengths, [])[e]  # it never rises with another expert


@pytest.mark.parametrize("counts", [[], [torch.zeros(3).long()]])
def test_counts_of_nothing_are_refused(counts: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="needs counts"):
        text_costs(torch.zeros((1, 1)).int(), torch.ones((1, 1)).bool(), counts)


def test_experts_of_a_text_are_found_in_any_order_of_registration(
    filled: Registry, zoo: Zoo, mixed: Path, tmp_path: Path
) -> None:
    found = filled.suggest([mixed])
    assert names(found) == ["code", "german"]
    assert [one.share for one in found.experts] == pytest.approx([2 / 3, 1 / 3], abs=0.1)
    assert found.experts[0].loss > found.experts[1].loss
    assert not found.nobody
    assert found.left_out == ()
    with Registry(tmp_path / "other") as other:
        for name in reversed(zoo.experts):
            other.add_expert(name, zoo.experts[name], allow_unrelated=True)
        assert other.suggest([mixed]) == found


def test_bounds_are_kept(filled: Registry, mixed: Path) -> None:
    assert names(filled.suggest([mixed], budget=1)) == ["code"]
    assert names(filled.suggest([mixed], must=["law"])) == ["law", "code", "german"]
    assert names(filled.suggest([mixed], must=["law@1"], budget=2)) == ["law", "code"]
    assert "code" not in names(filled.suggest([mixed], without=["code"]))
    one, two = (filled.plan(experts).nbytes for experts in (["code"], ["code", "german"]))
    assert names(filled.suggest([mixed], max_bytes=two)) == ["code", "german"]
    assert names(filled.suggest([mixed], max_bytes=two - 1)) == ["code"]
    with pytest.raises(InvalidInputError, match=r"code@1 .*at least"):
        filled.suggest([mixed], max_bytes=one - 1)
    with pytest.raises(InvalidInputError, match=r"code@1, german@1 .*at least"):
        filled.suggest([mixed], max_bytes=one, must=["code", "german"])
    filled.opt_out("code")
    assert "code" not in names(filled.suggest([mixed]))
    with pytest.raises(ConflictError, match="opted out"):
        filled.suggest([mixed], must=["code"])


def test_contradictions_are_refused(filled: Registry, mixed: Path) -> None:
    for options, message in (
        ({"must": ["code"], "without": ["code"]}, "code is to be chosen and to be left out"),
        ({"must": ["code", "code@1"]}, "code is named more than once"),
        ({"must": ["code", "law"], "budget": 1}, "the budget is 1, it must be 2 or more"),
        ({"budget": 0}, "the budget is 0"),
        ({"without": ["biomed", "code", "german", "law", "math"]}, "there is no expert to choose from"),
        ({"must": ["base"]}, "base is a base model"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            filled.suggest([mixed], **options)
    with pytest.raises(NotFoundError, match="no expert 'nosuch'"):
        filled.suggest([mixed], without=["nosuch"])


def test_nobodys_text_is_told(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    numbers = write_jsonl(tmp_path / "numbers.jsonl", [f"{n * 7919} {n * 104729}" for n in range(300)])
    found = filled.suggest([numbers], budget=2)
    assert (found.nobody, found.known) == (True, 0.0)
    assert len(found.experts) >= 1
    for name, text in zoo.test.items():
        assert not filled.suggest([text]).nobody
        assert filled.suggest([text], without=[name]).nobody
    assert not found.others_know
    other = filled.suggest([zoo.test["law"]], budget=1, must=["math"])
    assert (other.nobody, other.others_know) == (True, True)
    half = tmp_path / "half.jsonl"
    half.write_text(numbers.read_text() + zoo.test["law"].read_text())
    assert 0.1 < filled.suggest([half]).known < 0.9


def test_experts_that_cannot_be_compared_are_left_out(
    registry: Registry, zoo: Zoo, mixed: Path, tmp_path: Path
) -> None:
    registry.add_expert("code", zoo.experts["code"])
    registry.add_expert("math", zoo.experts["math"])
    from tests.models import make_model, save_checkpoint, train_tokenizer

    other = save_checkpoint(make_model("llama", 300, hidden_size=64), tmp_path / "wide", train_tokenizer())
    settings = PassSettings(tokens=256, seq_len=32, batch_size=4)
    registry.add_expert("wide", other, data=[zoo.train["german"]], settings=settings, allow_unrelated=True)
    found = registry.suggest([mixed])
    assert "wide" not in names(found)
    assert len(found.left_out) == 1
    assert "wide@1 cannot stand in one composition" in found.left_out[0]
    assert names(registry.suggest([mixed], must=["wide"])) == ["wide"]
    with pytest.raises(IncompatibleError, match="cannot stand in one composition"):
        registry.suggest([mixed], must=["code", "wide"])
    assert json.loads(json.dumps(found.document()))["nobody"] is found.nobody
