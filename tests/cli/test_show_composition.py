"""Proves: reg show marks a composition's public expert, the biases of its experts, and versions opted out since."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from registry import ExpertTraining, Recipe, Registry, TrainSettings
from registry.checkpoint.model_files import ROUTER_FILE
from registry.checkpoint.trained_files import pack_rows, unpack_rows
from tests.cli.conftest import TINY, Reg
from tests.conftest import Zoo

SETTINGS = ExpertTraining(
    tokens=6 * 2 * 32, batch_size=2, seq_len=32, device="cpu", dtype="float32", coordinate=True, lr=0.01
)


def show(reg: Reg, digest: str) -> dict[str, str]:
    """Return the rows that reg show prints: a digest, two spaces or more, and a value."""
    rows = reg("show", digest).stdout.split("\n\n")[0].splitlines()
    start = rows[0].index(digest[:6])
    return {row[:start].strip(): row[start:] for row in rows}


@pytest.mark.check
def test_public_expert_biases_and_versions_opted_out_since_are_marked(
    reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    beside, biases = tmp_path / "beside", [-0.75, -0.125]
    filled.train_expert("trained", "base", [zoo.train["code"]], replace(SETTINGS, router_bias=True), out=beside)
    rows = unpack_rows((beside / ROUTER_FILE).read_bytes(), (2, 32), "beside")
    (beside / ROUTER_FILE).write_bytes(pack_rows(replace(rows, bias=np.array(biases, dtype=np.float32))))  # were 0
    filled.add_expert("trained", beside, data=[zoo.train["code"]])
    filled.train_expert("plain", "base", [zoo.train["math"]], SETTINGS)
    recipe = Recipe(router="anchored", trunk="base", bias={"plain": -0.25, "trained": -0.5})
    both = filled.compose(["base", "plain", "trained"], tmp_path / "both", recipe).digest
    shown = show(reg, both)
    assert (shown["members"], shown["base"]) == ("base@1,plain@1,trained@1", "base@1")
    assert shown["public expert"] == "base@1"
    assert shown["bias of plain@1"] == "-0.25 as asked for"
    trained = "-0.75 to -0.125 by layer, trained beside its rows"
    assert shown["bias of trained@1"] == f"-0.5 as asked for; {trained}"
    assert not {"bias", "bias of base@1", "opted out"} & shown.keys()
    active, untrained = {"state": "active", "opted_out_at": None}, {"bias_after_training": None}
    assert reg.json("show", both)["made_from"] == [
        {"ref": "base@1", **active, "public": True, "bias": None, "trained_bias": None, **untrained},
        {"ref": "plain@1", **active, "public": False, "bias": -0.25, "trained_bias": None, **untrained},
        {"ref": "trained@1", **active, "public": False, "bias": -0.5, "trained_bias": biases, **untrained},
    ]
    unbiased = filled.compose(["plain"], tmp_path / "plain", Recipe(router="anchored", trunk="base")).digest
    shown = show(reg, unbiased)
    assert (shown["members"], shown["base"]) == ("plain@1", "base@1")
    assert not [key for key in shown if key.startswith(("bias", "public"))]
    assert [one["public"] for one in reg.json("show", unbiased)["made_from"]] == [False, False]

    filled.opt_out("trained")
    withdrawn = filled.resolve("trained@1", states=("withdrawn",))
    shown = show(reg, both)
    assert shown["opted out"] == f"trained@1, withdrawn {withdrawn.withdrawn_at}"
    assert "trained beside its rows" in shown["bias of trained@1"]

    (link,) = [each for each in filled.arrays_of(withdrawn) if each.name == ROUTER_FILE]
    filled.arrays.delete(link.digest)  # a damage
    assert "the trained bias of trained@1 is not shown: " in reg("show", both).stderr
    assert show(reg, both)["bias of trained@1"] == "-0.5 as asked for"

    filled.opt_out("trained", purge=True)
    purged = filled.resolve("trained@1", states=("purged",))
    shown = show(reg, both)
    assert shown["opted out"] == f"trained@1, purged {purged.purged_at}"
    assert shown["members"] == "base@1,plain@1,trained@1"
    assert "trained beside its rows" not in "".join(shown.values())
    (found,) = [one for one in reg.json("show", both)["made_from"] if one["ref"] == "trained@1"]
    assert (found["state"], found["opted_out_at"], found["trained_bias"]) == ("purged", purged.purged_at, None)


@pytest.mark.check
def test_a_member_registered_again_is_named_once(reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    digest = filled.compose(["code", "math"], tmp_path / "old").digest
    filled.opt_out("math")
    filled.add_expert("math", zoo.experts["math"])
    assert filled.compose(["code", "math"], tmp_path / "new").digest == digest
    shown = show(reg, digest)
    assert shown["members"] == "code@1,math@2"
    assert shown["earlier folders"] == "made from math@1, of the same content"
    listed = reg("compositions").stdout
    assert "code@1,math@2" in listed
    assert "math@1" not in listed
    purge = filled.opt_out("math@1", purge=True)  # finds the composition, with both folders
    assert [one.folders for one in purge.compositions] == [(str(tmp_path / "old"), str(tmp_path / "new"))]
    assert show(reg, digest)["members"] == "code@1,math@2"


@pytest.mark.check
def test_a_trained_composition_has_its_trained_biases_and_those_before(
    reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    filled.train_expert("plain", "base", [zoo.train["math"]], SETTINGS)
    recipe = Recipe(router="anchored", trunk="base", bias={"plain": -0.25}, top_k=2)
    filled.compose(["base", "plain"], tmp_path / "moe", recipe)
    words = ("train", tmp_path / "moe", "--train", "mlps", "--data", zoo.train["code"], "--tokens", 64, *TINY)
    trained = reg.json(*words, "--out", tmp_path / "trained")["digest"]
    shown = show(reg, trained)
    after = load_file(tmp_path / "trained" / "model.safetensors")
    biases = [after[f"model.layers.{layer}.mlp.gate.bias"].tolist() for layer in (0, 1)]
    by_expert = dict(zip(("base", "plain"), zip(*biases, strict=True), strict=True))
    span = {name: f"{min(found):.4g} to {max(found):.4g} by layer" for name, found in by_expert.items()}
    assert min(by_expert["plain"]) != -0.25
    assert shown["bias of plain@1"] == f"{span['plain']}, trained with the composition; before that -0.25 as asked for"
    assert shown["bias of base@1"] == f"{span['base']}, trained with the composition"
    assert shown["router"] == "anchored, before the training"
    found = {one["ref"]: one["bias_after_training"] for one in reg.json("show", trained)["made_from"]}
    assert found == {"base@1": list(by_expert["base"]), "plain@1": list(by_expert["plain"])}
    tuned = TrainSettings(steps=2, batch_size=2, seq_len=32, device="cpu")
    again = filled.train_router(tmp_path / "trained", tmp_path / "tuned", [str(zoo.train["code"])], tuned)
    assert show(reg, again.digest)["bias of plain@1"] == shown["bias of plain@1"]
    assert filled.reproduce(tmp_path / "tuned").is_same
