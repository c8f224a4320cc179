"""Proves: members of several architectures that cannot share their tables are refused before anything is written."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Registry
from registry.composition import HeteroRecipe
from registry.errors import IncompatibleError, InvalidInputError, RegError
from tests.conftest import Shared, Zoo, copy_home
from tests.models import make_model, save_checkpoint, train_tokenizer
from tests.registry.composition.hetero.hetero_world import NAMES, SETTINGS, WIDE, World, make_world


@pytest.fixture(scope="module")
def world(shared: Shared, zoo: Zoo) -> World:
    return shared.get("hetero", lambda root: make_world(root, zoo, train_tokenizer()))


@pytest.fixture
def registry(world: World, tmp_path: Path) -> Iterator[Registry]:
    with Registry(copy_home(world.home, tmp_path / "home")) as opened:
        yield opened


@pytest.fixture
def add(registry: Registry, zoo: Zoo, tmp_path: Path, tokenizer: Any) -> Any:
    """Register a wide model under the name `wide`."""

    def added(changes: dict[str, Any], own: Any = tokenizer, edit: Any = None, **options: Any) -> str:
        model = make_model("qwen3", 501, **(WIDE | changes))
        if edit is not None:
            edit(model)
        folder = save_checkpoint(model, tmp_path / "wide", own)
        asked: dict[str, Any] = {"data": [zoo.train["code"]], "keep_calibration": True} | options
        registry.add_expert("wide", folder, settings=SETTINGS, allow_unrelated=True, remote_code=True, **asked)
        return "wide"

    return added


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"top_k": 5}, "top-k is 5, it must be from 1 to 4"),
        ({"lead": "german"}, "the lead 'german' is not a member"),
        ({"lead": ""}, "lead is ''"),
        ({"routing_tokens": 1}, "routing-tokens is 1, it must be 2 or more"),
        ({"routing_tokens": -1}, "routing-tokens is -1"),
        ({"lam": "auto"}, "output 'hetero' has no router in a layer"),
        ({"lam": -1.0}, "lam is -1.0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"weights": {"law": 2.0}}, "weights has no part in output 'hetero'"),
        ({"routing": "perplexity"}, "routing has no part in output 'hetero'"),
        ({"mixing": "logits"}, "mixing has no part in output 'hetero'"),
    ],
)
def test_recipe_that_does_not_fit_is_refused(registry: Registry, recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        registry.plan(NAMES, HeteroRecipe(**recipe))
    assert "prompt-perplexity" not in caught.value.message


def test_one_member_has_nothing_to_share(registry: Registry) -> None:
    with pytest.raises(InvalidInputError, match="math is the only member") as caught:
        registry.plan(["math"], HeteroRecipe())
    assert caught.value.hint == "name more --experts, or write it as it is: reg export math DIR"


def refused(registry: Registry, *names: str, out: Path, **recipe: Any) -> RegError:
    with pytest.raises(IncompatibleError) as caught:
        registry.compose(names, out, HeteroRecipe(**recipe))
    assert not out.exists()
    assert not registry.compositions()[1:]  # the one that the home has
    assert caught.value.hint
    return caught.value


def test_other_tokenizers_are_refused_by_their_first_token(registry: Registry, add: Any, tmp_path: Path) -> None:
    other = train_tokenizer(seed=1)
    add({}, other)
    first, second = ({number: word for word, number in t.get_vocab().items()} for t in (train_tokenizer(), other))
    number = next(number for number in range(len(first)) if first[number] != second[number])
    error = refused(registry, "code", "wide", out=tmp_path / "out")
    assert f"token {number} is {second[number]!r} against {first[number]!r}" in error.message
    assert "wide@1 and code@1 cannot share an embedding and a head" in error.message


def test_a_head_of_lower_rank_cannot_be_shared(registry: Registry, add: Any, tmp_path: Path) -> None:
    def edit(model: Any) -> None:
        with torch.no_grad():
            model.lm_head.weight[:, 5] = 2 * model.lm_head.weight[:, 3]

    add({"tie_word_embeddings": False}, edit=edit)
    error = refused(registry, "code", "wide", out=tmp_path / "out")
    assert "the head of wide@1, lm_head.weight of shape 320 x 48, has rank 47" in error.message
    assert error.hint == "let another member lead: --lead code; or leave wide out"
    registry.compose(["code", "wide"], tmp_path / "out", HeteroRecipe(lead="code"))


def test_a_cap_behind_the_head_must_be_the_same(registry: Registry, zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    folder = save_checkpoint(make_model("gemma2", 601, head_dim=8), tmp_path / "capped", tokenizer)
    own: dict[str, Any] = {"data": [zoo.train["law"]], "settings": SETTINGS, "keep_calibration": True}
    registry.add_expert("capped", folder, **own, remote_code=True)
    error = refused(registry, "capped", "math", out=tmp_path / "out")
    assert "final_logit_softcapping is None against 30.0" in error.message


def test_kept_tokens_are_needed(registry: Registry, add: Any, zoo: Zoo, tmp_path: Path) -> None:
    add({}, keep_calibration=False)
    error = refused(registry, "code", "wide", out=tmp_path / "out")
    assert error.message == "wide@1 kept no calibration tokens, and the router of --to hetero is made from them"
    assert "reg add-expert wide CKPT --data FILE --keep-calibration" in str(error.hint)
    registry.add_base("base", zoo.base)
    error = refused(registry, "base", "math", out=tmp_path / "out")
    assert "base@1 is a base model, which has no calibration tokens" in error.message


@pytest.mark.check
def test_a_narrow_table_may_lack_padding_but_no_token(
    registry: Registry, add: Any, tokenizer: Any, zoo: Zoo, tmp_path: Path
) -> None:
    add({"vocab_size": 352})
    plan = registry.compose(["code", "wide"], tmp_path / "padded", HeteroRecipe())
    assert plan.lead.name == "wide"
    registry.compose(["code", "wide"], tmp_path / "narrow", HeteroRecipe(lead="code"))
    assert json.loads((tmp_path / "narrow" / "config.json").read_text())["vocab_size"] == 320
    tokenizer = train_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(16)])
    folder = save_checkpoint(make_model("llama", 701, vocab_size=352), tmp_path / "more", tokenizer)
    own: dict[str, Any] = {"data": [zoo.train["law"]], "settings": SETTINGS, "keep_calibration": True}
    registry.add_expert("more", folder, **own, allow_unrelated=True)
    with pytest.raises(IncompatibleError, match="the tokenizer of more@1 has 336 tokens, and the embedding") as caught:
        registry.compose(["more", "math"], tmp_path / "out", HeteroRecipe())
    assert caught.value.hint == "let more lead: --lead more; or leave one of them out"
    registry.compose(["more", "math"], tmp_path / "out", HeteroRecipe(lead="more"))


def test_dtypes_must_agree_or_be_given(registry: Registry, zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    folder = save_checkpoint(make_model("qwen3", 402, **WIDE), tmp_path / "half", tokenizer, dtype=torch.bfloat16)
    own: dict[str, Any] = {"data": [zoo.train["law"]], "settings": SETTINGS, "keep_calibration": True}
    registry.add_expert("half", folder, **own)
    error = refused(registry, "half", "code", out=tmp_path / "out")
    assert "different dtypes (code@1 float32, half@1 bfloat16)" in error.message
    registry.compose(["half", "code"], tmp_path / "out", HeteroRecipe(dtype="bfloat16"))
