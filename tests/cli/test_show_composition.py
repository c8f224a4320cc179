"""Proves: reg show marks a composition's public expert, the biases of its experts, and versions opted out since."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from cli.main import main
from registry import ExpertTraining, Recipe, Registry, TrainSettings
from registry.checkpoint.router_rows import ROUTER_FILE
from tests.conftest import Zoo

TINY = ExpertTraining(
    tokens=6 * 2 * 32, batch_size=2, seq_len=32, device="cpu", dtype="float32", coordinate=True, lr=0.01
)
Show = Callable[..., dict[str, str]]


@pytest.fixture
def show(filled: Registry) -> Show:
    def lines(digest: str) -> dict[str, str]:
        """Return the rows that reg show prints: a digest, two spaces or more, and a value."""
        result = CliRunner().invoke(main, ["--home", str(filled.home.path), "show", digest])
        assert result.exit_code == 0, result.output
        rows = result.stdout.split("\n\n")[0].splitlines()
        start = rows[0].index(digest[:6])
        return {row[:start].strip(): row[start:] for row in rows}

    return lines


def made_from(registry: Registry, digest: str) -> list[dict[str, object]]:
    result = CliRunner().invoke(main, ["--home", str(registry.home.path), "show", digest, "--json"])
    found: list[dict[str, object]] = json.loads(result.stdout)["made_from"]
    return found


@pytest.mark.check
def test_public_expert_and_biases_are_marked(filled: Registry, zoo: Zoo, tmp_path: Path, show: Show) -> None:
    with_bias = ExpertTraining(**vars(TINY) | {"router_bias": True})
    filled.train_expert("trained", "base", [zoo.train["code"]], with_bias)
    filled.train_expert("plain", "base", [zoo.train["math"]], TINY)
    recipe = Recipe(router="anchored", trunk="base", bias={"plain": -0.25, "trained": -0.5})
    both = filled.compose(["base", "plain", "trained"], tmp_path / "both", recipe).digest
    rows = filled.member(filled.resolve("trained")).router_rows
    assert rows is not None
    assert rows.bias is not None
    biases = tuple(map(float, rows.bias))
    assert min(biases) < max(biases)
    shown = show(both)
    assert (shown["members"], shown["base"]) == ("base@1,plain@1,trained@1", "base@1")
    assert shown["public expert"] == "base@1"
    assert shown["bias of plain@1"] == "-0.25 as asked for"
    trained = f"{min(biases):.4g} to {max(biases):.4g} by layer, trained beside its rows"
    assert shown["bias of trained@1"] == f"-0.5 as asked for; {trained}"
    assert not {"bias", "bias of base@1", "opted out"} & shown.keys()
    active, untrained = {"state": "active", "opted_out_at": None}, {"bias_after_training": None}
    assert made_from(filled, both) == [
        {"ref": "base@1", **active, "public": True, "bias": None, "trained_bias": None, **untrained},
        {"ref": "plain@1", **active, "public": False, "bias": -0.25, "trained_bias": None, **untrained},
        {"ref": "trained@1", **active, "public": False, "bias": -0.5, "trained_bias": list(biases), **untrained},
    ]
    unbiased = filled.compose(["plain"], tmp_path / "plain", Recipe(router="anchored", trunk="base")).digest
    shown = show(unbiased)
    assert (shown["members"], shown["base"]) == ("plain@1", "base@1")
    assert not [key for key in shown if key.startswith(("bias", "public"))]
    assert [one["public"] for one in made_from(filled, unbiased)] == [False, False]


@pytest.mark.check
def test_versions_that_were_opted_out_since_are_marked(filled: Registry, zoo: Zoo, tmp_path: Path, show: Show) -> None:
    filled.train_expert("trained", "base", [zoo.train["code"]], ExpertTraining(**vars(TINY) | {"router_bias": True}))
    recipe = Recipe(router="anchored", trunk="base")
    digest = filled.compose(["base", "trained"], tmp_path / "moe", recipe).digest
    filled.opt_out("trained")
    withdrawn = filled.resolve("trained@1", states=("withdrawn",))
    shown = show(digest)
    assert shown["opted out"] == f"trained@1, withdrawn {withdrawn.withdrawn_at}"
    assert "trained beside its rows" in shown["bias of trained@1"]
    filled.opt_out("trained", purge=True)
    purged = filled.resolve("trained@1", states=("purged",))
    shown = show(digest)
    assert shown["opted out"] == f"trained@1, purged {purged.purged_at}"
    assert shown["members"] == "base@1,trained@1"
    assert not [key for key in shown if key.startswith("bias")]
    (found,) = [one for one in made_from(filled, digest) if one["ref"] == "trained@1"]
    assert (found["state"], found["opted_out_at"], found["trained_bias"]) == ("purged", purged.purged_at, None)


@pytest.mark.check
def test_a_member_registered_again_is_named_once(filled: Registry, zoo: Zoo, tmp_path: Path, show: Show) -> None:
    digest = filled.compose(["code", "math"], tmp_path / "old").digest
    filled.opt_out("math")
    filled.add_expert("math", zoo.experts["math"])
    assert filled.compose(["code", "math"], tmp_path / "new").digest == digest
    shown = show(digest)
    assert shown["members"] == "code@1,math@2"
    assert shown["earlier folders"] == "made from math@1, of the same content"
    listed = CliRunner().invoke(main, ["--home", str(filled.home.path), "compositions"]).stdout
    assert "code@1,math@2" in listed
    assert "math@1" not in listed
    purge = filled.opt_out("math@1", purge=True)  # finds the composition, with both folders
    assert [one.folders for one in purge.compositions] == [(str(tmp_path / "old"), str(tmp_path / "new"))]
    assert show(digest)["members"] == "code@1,math@2"


@pytest.mark.check
def test_rows_that_are_damaged_are_remarked_on(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.train_expert("trained", "base", [zoo.train["code"]], ExpertTraining(**vars(TINY) | {"router_bias": True}))
    digest = filled.compose(["base", "trained"], tmp_path / "moe", Recipe(router="anchored", trunk="base")).digest
    (link,) = [each for each in filled.arrays_of(filled.resolve("trained")) if each.name == ROUTER_FILE]
    filled.arrays.delete(link.digest)
    result = CliRunner().invoke(main, ["--home", str(filled.home.path), "show", digest])
    assert result.exit_code == 0, result.output
    assert "the trained bias of trained@1 is not shown: " in result.stderr
    assert "bias of trained@1 " not in result.stdout


@pytest.mark.check
def test_a_trained_composition_has_its_trained_biases_and_those_before(
    filled: Registry, zoo: Zoo, tmp_path: Path, show: Show
) -> None:
    home = ["--home", str(filled.home.path)]
    filled.train_expert("plain", "base", [zoo.train["math"]], TINY)
    filled.compose(
        ["base", "plain"], tmp_path / "moe", Recipe(router="anchored", trunk="base", bias={"plain": -0.25}, top_k=2)
    )
    words = ["train", str(tmp_path / "moe"), "--train", "mlps", "--data", str(zoo.train["code"]), "--tokens", "64"]
    more = ["--batch-size", "2", "--seq-len", "32", "--device", "cpu", "--out", str(tmp_path / "trained"), "--json"]
    trained = json.loads(CliRunner().invoke(main, [*home, *words, *more]).stdout)
    shown = show(trained["digest"])
    after = load_file(tmp_path / "trained" / "model.safetensors")
    biases = [after[f"model.layers.{layer}.mlp.gate.bias"].tolist() for layer in (0, 1)]
    by_expert = dict(zip(("base", "plain"), zip(*biases, strict=True), strict=True))
    span = {name: f"{min(found):.4g} to {max(found):.4g} by layer" for name, found in by_expert.items()}
    assert min(by_expert["plain"]) != -0.25
    assert shown["bias of plain@1"] == f"{span['plain']}, trained with the composition; before that -0.25 as asked for"
    assert shown["bias of base@1"] == f"{span['base']}, trained with the composition"
    assert shown["router"] == "anchored, before the training"
    found = {one["ref"]: one["bias_after_training"] for one in made_from(filled, trained["digest"])}
    assert found == {"base@1": list(by_expert["base"]), "plain@1": list(by_expert["plain"])}
    tuned = TrainSettings(steps=2, batch_size=2, seq_len=32, device="cpu")
    again = filled.train_router(tmp_path / "trained", tmp_path / "tuned", [str(zoo.train["code"])], tuned)
    assert show(again.digest)["bias of plain@1"] == shown["bias of plain@1"]
    assert filled.reproduce(tmp_path / "tuned").is_same
