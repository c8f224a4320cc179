"""Proves: what was composed with a value that was removed is shown, evaluated, reported and opted out like others; only
making it again is refused, with a next command that works."""

import json
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.composition import read_recipe
from registry.composition.manifest import ComposedFolder, folder_document
from registry.composition.recipe.fields import removed as removed_fields
from registry.errors import InvalidInputError
from registry.io.model_folder import MARKER, json_file
from store.digest import json_digest
from tests.cli.conftest import Reg
from tests.conftest import Zoo

CHOSEN = [{"layer": layer, "lams": [0.1, 1.0], "errors": [0.2, 0.3], "best": 0.1} for layer in range(2)]
PASSES: dict[str, Any] = {"computed": {"batch_size": 16, "device": "cpu"}}


def composed_with(registry: Registry, folder: Path, changes: dict[str, Any], beside: dict[str, Any]) -> str:
    """Compose a folder, make it one of a recipe with these values, and record that; return its digest.

    Args:
        registry: has the members.
        folder: where.
        changes: values of the recipe.
        beside: what `composition.json` says beside the recipe, and the catalog does not.
    """
    registry.compose(["code", "math"], folder, Recipe(trunk="mean", router="ridge", lam=0.1))
    composed = ComposedFolder.read(folder)
    base = registry.resolve("base")
    document = {**composed.document, "base": {"name": base.name, "digest": base.digest}}
    document["recipe"] = composed.document["recipe"] | changes
    digest = json_digest(document)
    (folder / MARKER).write_bytes(json_file(folder_document(document | beside, digest, composed.files)))
    versions = [registry.resolve(name) for name in ("code", "math", "base")]
    registry.catalog.record_composition(digest, document, versions, str(folder))
    return digest


@pytest.mark.parametrize(
    ("changes", "beside"),
    [
        ({"lam": "auto"}, {"lam": CHOSEN}),
        ({"refine_mlp": True, **PASSES}, {}),
        ({"refine_trunk": True, **PASSES}, {}),
        ({"refine_trunk": True, "refine": 1, **PASSES}, {}),
        ({"token_weight": "advantage", **PASSES}, {}),
    ],
)
def test_earlier_compositions(
    reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path, changes: dict[str, Any], beside: dict[str, Any]
) -> None:
    made, again, receipt = tmp_path / "made", tmp_path / "again", tmp_path / "receipt.json"
    digest, (field, value) = composed_with(filled, made, changes, beside), next(iter(changes.items()))
    assert field in reg("show", digest).stdout
    assert reg.json("show", digest)["document"]["recipe"][field] == value
    assert digest[:12] in reg("compositions", "math").stdout
    told = f"it was composed with {field}: {str(value).lower()}, which was removed"
    command = "reg compose --experts code,math --trunk mean --router ridge --lam 0.1 --out DIR"
    for words in (
        ("reproduce", made),
        ("reproduce", made, "--out", again),
        ("compose", "--recipe", made / MARKER, "--out", again),
    ):
        refused = reg(*words, code=1).stderr
        assert refused == f"error: {told}\n  next: compose without it: {command}\n"
    assert not again.exists()
    assert reg.json(*command.split()[1:-2], "--plan")["recipe"]["lam"] == 0.1
    assert f"its routing is not predicted: {told}" in filled.report(made).notes
    assert "perplexity" in reg("evaluate", made, "--data", f"code={zoo.test['code']}").stdout
    reg("opt-out", "math", "--yes", "--receipt", receipt)
    assert [version.ref for version in filled.opted_out(made)] == ["math@1"]
    (affected,) = [one for one in json.loads(receipt.read_text())["compositions"] if one["digest"] == digest]
    assert (affected["recomposed"], affected["why"]) == (None, told)


@pytest.mark.parametrize("key", ["lam", "refine_mlp", "refine_trunk", "token_weight"])
def test_recipe_files_that_ask_for_nothing_removed_are_read(tmp_path: Path, key: str) -> None:
    file, (unasked, removed) = tmp_path / "recipe.yaml", removed_fields()[key]
    file.write_text(f"router: ridge\n{key}: {json.dumps(unasked)}\n")
    assert read_recipe(file).recipe == Recipe(router="ridge")
    file.write_text(f"router: ridge\n{key}: {json.dumps(removed)}\n")
    with pytest.raises(InvalidInputError, match=f"{file}:2: {key}: {str(removed).lower()} was removed") as caught:
        read_recipe(file)
    assert caught.value.hint == "compose without it: drop the line"
    file.write_text(f"{key}: other\n")
    with pytest.raises(InvalidInputError):
        read_recipe(file)
