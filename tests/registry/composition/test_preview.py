"""Proves: a preview is foretold from statistics alone, says who is drowned out, and refuses what it cannot foretell."""

import pytest

from registry import PassSettings, Recipe, Registry
from registry.errors import InvalidInputError
from registry.member import Member
from tests.conftest import Zoo
from tests.models import sentences, write_jsonl

RIDGE = Recipe(router="ridge")


def test_no_weight_is_read(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Member, name: str) -> None:
        raise AssertionError(name)

    monkeypatch.setattr(Member, "source", refuse)
    found = filled.preview(["math", "code", "german"], RIDGE)
    assert found.refs == ("code@1", "german@1", "math@1")
    assert found.layers == (0, 1)
    assert [sum(row) for matrix in found.confusion for row in matrix] == pytest.approx([1.0] * 6)
    assert [member.accuracy for member in found.members] == [found.mean_confusion[n][n] for n in range(3)]
    assert sum(member.part for member in found.members) == pytest.approx(1)
    assert sum(member.share for member in found.members) == pytest.approx(1)
    assert set(found.overlap) == {("code@1", "german@1"), ("code@1", "math@1"), ("german@1", "math@1")}
    document = found.document()
    assert document["accuracy"] == found.accuracy > 1 / 3
    assert [layer["layer"] for layer in document["layers"]] == [0, 1]


def test_order_and_trunk_do_not_matter(filled: Registry) -> None:
    found = filled.preview(["math", "code"], RIDGE)
    assert filled.preview(["code@1", "math@1"], RIDGE) == found
    assert filled.preview(["code", "math"], RIDGE.replace(trunk="mean", top_k=1)) == found
    assert filled.preview(["code", "math"], RIDGE.replace(normalize=True)) != found
    assert filled.preview(["math", "code"]) != found  # by counts


@pytest.mark.check
def test_who_is_drowned_is_told_and_balance_helps(registry: Registry, zoo: Zoo, tmp_path: object) -> None:
    for name, tokens in (("code", 4096), ("german", 32)):
        data = write_jsonl(zoo.base.parent / f"{name}.many.jsonl", sentences(name, 400, seed=5))
        settings = PassSettings(tokens=tokens, seq_len=32, batch_size=8)
        registry.add_expert(name, zoo.experts[name], data=[data], settings=settings)
    code, german = registry.preview(["code", "german"], RIDGE).members
    assert (code.drowned, code.tokens) == (None, 4096)
    assert german.part < 0.02
    assert german.accuracy < 0.5
    assert german.drowned is not None
    assert "--balance tokens" in german.drowned
    balanced = registry.preview(["code", "german"], RIDGE.replace(balance="tokens")).members[1]
    assert balanced.part == pytest.approx(0.5)
    assert balanced.accuracy > german.accuracy


def test_same_text_twice_is_told(registry: Registry, zoo: Zoo) -> None:
    registry.add_expert("code", zoo.experts["code"])
    settings = PassSettings(tokens=2048, seq_len=32, batch_size=8)
    data = write_jsonl(zoo.base.parent / "again.jsonl", sentences("code", 200, seed=6))
    registry.add_expert("coder", zoo.experts["code"], data=[data], settings=settings)
    found = registry.preview(["code", "coder"], RIDGE.replace(balance="tokens"))
    assert found.accuracy < 0.8
    assert len(found.overlap) == 1
    (member,) = registry.preview(["code"]).members
    assert (member.accuracy, member.share, member.part, member.drowned) == (1.0, 1.0, 1.0, None)


def test_what_is_not_foretold_is_said_or_refused(filled: Registry) -> None:
    assert 0.1 < filled.preview(["code", "german", "math"], Recipe(router="random")).accuracy < 0.6
    plain = filled.preview(["code", "math"], RIDGE)
    refined = filled.preview(["code", "math"], RIDGE.replace(refine=1))
    assert refined.confusion == plain.confusion
    assert (plain.notes, len(refined.notes)) == ((), 1)
    for recipe, message in ((Recipe(to="dense"), "--to dense"), (Recipe(router="domain-embedding"), "domain-embed")):
        with pytest.raises(InvalidInputError, match=message):
            filled.preview(["code", "math"], recipe)


def test_few_layers_are_looked_at_with_activations(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("registry.registration.expert_overlap.LAYERS", 1)
        found = filled.preview(["code", "math"], RIDGE)
    assert (found.layers, found.notes) == ((1,), ("1 of 2 layers were compared",))

    def fail(*_: object) -> None:
        raise ValueError("a Gram is that of no activations")

    monkeypatch.setattr("registry.methods.moe.preview.overlap", fail)
    with pytest.raises(InvalidInputError, match="cannot be compared at layer 0: a Gram is that of no"):
        filled.preview(["code", "math"], RIDGE)
