"""Proves: members of several architectures that cannot share their tables are refused before anything is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Registry
from registry.composition import Recipe
from registry.errors import IncompatibleError, InvalidInputError, RegError
from tests.conftest import Zoo
from tests.models import make_model, train_tokenizer
from tests.registry.composition.composed import add_model, json_of
from tests.registry.methods.hetero.hetero_world import NAMES, SETTINGS, WIDE

Add = Callable[..., Path]
OWN: dict[str, Any] = {"settings": SETTINGS, "keep_calibration": True, "allow_unrelated": True}


@pytest.fixture
def add(several: Registry, tmp_path: Path) -> Add:
    """Register a wide model under the name `wide`."""

    def added(changes: dict[str, Any], tokenizer: Any = None, edit: Any = None, **options: Any) -> Path:
        model = make_model("qwen3", 501, **(WIDE | changes))
        if edit is not None:
            edit(model)
        return add_model(several, tmp_path / "wide", model, tokenizer, **OWN | options)

    return added


def test_recipe_that_does_not_fit_is_refused(several: Registry) -> None:
    refusals: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
        ({"top_k": 5}, NAMES, "top-k is 5, it must be from 1 to 4"),
        ({"lead": "german"}, NAMES, "the lead 'german' is not a member"),
        ({"routing_tokens": 1}, NAMES, "routing-tokens is 1, it must be 2 or more"),
        ({"weights": {"law": 2.0}}, NAMES, "weights has no part in output 'hetero'"),
        ({}, ("math",), "math is the only member"),
    ]
    for recipe, names, message in refusals:
        with pytest.raises(InvalidInputError, match=message) as caught:
            several.plan(names, Recipe(to="hetero", **recipe))
        assert "prompt-perplexity" not in caught.value.message
        assert caught.value.hint


def refused(registry: Registry, *names: str, out: Path, **recipe: Any) -> RegError:
    with pytest.raises(IncompatibleError) as caught:
        registry.compose(names, out, Recipe(to="hetero", **recipe))
    assert not out.exists()
    assert not registry.compositions()[1:]  # the one that the home has
    assert caught.value.hint
    return caught.value


def test_other_tokenizers_are_refused_by_their_first_token(several: Registry, add: Add, tmp_path: Path) -> None:
    other = train_tokenizer(seed=1)
    add({}, other)
    first, second = ({number: word for word, number in t.get_vocab().items()} for t in (train_tokenizer(), other))
    number = next(number for number in range(len(first)) if first[number] != second[number])
    error = refused(several, "code", "wide", out=tmp_path / "out")
    assert f"token {number} is {second[number]!r} against {first[number]!r}" in error.message
    assert "wide@1 and code@1 cannot share an embedding and a head" in error.message


def test_a_head_of_lower_rank_cannot_be_shared(several: Registry, add: Add, tmp_path: Path) -> None:
    def edit(model: Any) -> None:
        with torch.no_grad():
            model.lm_head.weight[:, 5] = 2 * model.lm_head.weight[:, 3]

    add({"tie_word_embeddings": False}, edit=edit)
    error = refused(several, "code", "wide", out=tmp_path / "out")
    assert "the head of wide@1, lm_head.weight of shape 320 x 48, has rank 47" in error.message
    assert error.hint == "let another member lead: --lead code; or leave wide out"
    several.compose(["code", "wide"], tmp_path / "out", Recipe(to="hetero", lead="code"))


def test_a_cap_behind_the_head_must_be_the_same(several: Registry, tmp_path: Path) -> None:
    add_model(several, tmp_path / "capped", make_model("gemma2", 601, head_dim=8), **OWN)
    error = refused(several, "capped", "math", out=tmp_path / "out")
    assert "final_logit_softcapping is None against 30.0" in error.message


def test_kept_tokens_are_needed(several: Registry, add: Add, zoo: Zoo, tmp_path: Path) -> None:
    add({}, keep_calibration=False)
    error = refused(several, "code", "wide", out=tmp_path / "out")
    assert error.message == "wide@1 kept no calibration tokens, and the router of --to hetero is made from them"
    assert "reg add-expert wide CKPT --data FILE --keep-calibration" in str(error.hint)
    several.add_base("base", zoo.base)
    error = refused(several, "base", "math", out=tmp_path / "out")
    assert "base@1 is a base model, which has no calibration tokens" in error.message


@pytest.mark.check
def test_a_narrow_table_may_lack_padding_but_no_token(several: Registry, add: Add, tmp_path: Path) -> None:
    add({"vocab_size": 352})
    plan = several.compose(["code", "wide"], tmp_path / "padded", Recipe(to="hetero"))
    assert plan.lead.name == "wide"
    several.compose(["code", "wide"], tmp_path / "narrow", Recipe(to="hetero", lead="code"))
    assert json_of(tmp_path / "narrow", "config.json")["vocab_size"] == 320
    tokenizer = train_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(16)])
    add_model(several, tmp_path / "more", make_model("llama", 701, vocab_size=352), tokenizer, **OWN)
    with pytest.raises(IncompatibleError, match="the tokenizer of more@1 has 336 tokens, and the embedding") as caught:
        several.compose(["more", "math"], tmp_path / "out", Recipe(to="hetero"))
    assert caught.value.hint == "let more lead: --lead more; or leave one of them out"
    several.compose(["more", "math"], tmp_path / "out", Recipe(to="hetero", lead="more"))
