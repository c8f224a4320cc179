"""Proves: an ensemble that cannot be is refused before anything is written, and a failure leaves nothing."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Registry
from registry.composition.ensemble.plan import make_ensemble
from registry.composition.ensemble.recipe import EnsembleRecipe
from registry.composition.ensemble.write import write_ensemble
from registry.errors import IncompatibleError, InvalidInputError, RegError
from registry.output.folder_output import FolderOutput
from registry.progress import silent
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint


@pytest.mark.check(after=10)
@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"routing": "vote"}, "routing method 'vote' is not one of posterior, perplexity, prompt-perplexity, task"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"routing_tokens": 1}, "routing-tokens is 1, it must be 2 or more"),
        ({"routing": "prompt-perplexity", "routing_tokens": 1}, "routing-tokens is 1, it must be 2 or more"),
        ({"routing": "task-vector", "routing_tokens": 0}, "routing-tokens is 0, it must be 2 or more"),
        ({"routing_tokens": -1}, "routing-tokens is -1"),
        ({"mixing": "logit"}, "mixing 'logit' is not one of probabilities, logits; did you mean 'logits'"),
        ({"weights": {"law": 2.0}, "routing": "prompt-perplexity"}, "weights has no part in routing method 'prompt-"),
        ({"top_k": 4}, "top-k is 4, it must be from 1 to 3"),
        ({"weights": {"german": 2.0}}, "weight for german, which is not a member"),
        ({"weights": {"law": -1.0}}, "the weight of law is -1.0"),
        ({"weights": {"law": 2.0}, "routing": "perplexity"}, "weights has no part in routing method 'perplexity'"),
        ({"dtype": "int8"}, "dtype 'int8' is not one of"),
    ],
)
def test_recipe_that_does_not_fit_is_refused(filled: Registry, recipe: dict[str, Any], message: str) -> None:
    members = [filled.member(filled.resolve(name)) for name in ("code", "law", "math")]
    with pytest.raises(InvalidInputError, match=message):
        make_ensemble(members, None, EnsembleRecipe(**recipe))


@pytest.mark.check
def test_members_that_do_not_fit_are_refused(filled: Registry, zoo: Zoo, tokenizer: Any, tmp_path: Path) -> None:
    code = filled.member(filled.resolve("code"))
    with pytest.raises(InvalidInputError, match="at least one expert"):
        make_ensemble([], None, EnsembleRecipe())
    with pytest.raises(InvalidInputError, match="code is named more than once"):
        make_ensemble([code, code], None, EnsembleRecipe())
    with pytest.raises(InvalidInputError, match="needs the base model") as caught:
        make_ensemble([code], None, EnsembleRecipe(routing="task-vector"))
    assert caught.value.hint == "name it: --base NAME[@V]"
    save_checkpoint(make_model("llama", 107, vocab_size=352), tmp_path / "wide", tokenizer)
    filled.add_expert("wide", tmp_path / "wide", data=[zoo.train["code"]], allow_unrelated=True)
    with pytest.raises(IncompatibleError, match="vocab_size 352 against 320"):
        make_ensemble([code, filled.member(filled.resolve("wide"))], None, EnsembleRecipe())
    save_checkpoint(make_model("llama", 101), tmp_path / "half", tokenizer, dtype=torch.bfloat16)
    filled.add_expert("half", tmp_path / "half", data=[zoo.train["code"]])
    half = filled.member(filled.resolve("half"))
    with pytest.raises(IncompatibleError, match=r"different dtypes \(code@1 float32, half@1 bfloat16\)"):
        make_ensemble([half, code], None, EnsembleRecipe())
    assert make_ensemble([half, code], None, EnsembleRecipe(dtype="float16")).dtype == "float16"


def test_failure_leaves_nothing(filled: Registry, tmp_path: Path) -> None:
    def withdrawn() -> None:
        raise RegError("math@1 was opted out")

    ensemble = make_ensemble([filled.member(filled.resolve("math"))], None, EnsembleRecipe())
    with pytest.raises(RegError, match="opted out"):
        write_ensemble(
            ensemble,
            FolderOutput(tmp_path / "out"),
            replace=False,
            record=withdrawn,
            progress=silent,
            home=filled.home,
        )
    shutil.rmtree(tmp_path / "home")
    assert list(tmp_path.iterdir()) == []
