"""Proves: what was composed with a method that was removed since is shown and opted out as before; only composing it
again is refused, with the next command."""

from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.composition.integrity import ComposedFolder
from registry.composition.manifest import folder_document
from registry.composition.recipe import read_recipe
from registry.errors import InvalidInputError
from registry.io.model_folder import MARKER, json_file
from store.digest import json_digest
from tests.cli.conftest import Reg

AGAIN = "what was composed with it can be used, and not composed again"
COMPUTED = {"batch_size": 16, "device": "cpu"}


def composed_with(registry: Registry, folder: Path, **asked: Any) -> str:
    """Compose a folder, make it one of a recipe with these fields, and record that; return its digest."""
    registry.compose(["code", "math"], folder, Recipe(router="ridge"))
    composed = ComposedFolder.read(folder)
    base = registry.resolve("base")
    document = composed.document | {"base": {"name": base.name, "digest": base.digest}}
    document["recipe"] |= asked | {"computed": COMPUTED}
    digest = json_digest(document)
    (folder / MARKER).write_bytes(json_file(folder_document(document, digest, composed.files)))
    versions = [registry.resolve(name) for name in ("code", "math", "base")]
    registry.catalog.record_composition(digest, document, versions, str(folder))
    return digest


@pytest.mark.parametrize(("field", "value"), [("refine_trunk", True), ("token_weight", "advantage")])
def test_earlier_compositions(reg: Reg, filled: Registry, tmp_path: Path, field: str, value: Any) -> None:
    folder = tmp_path / "moe"
    digest = composed_with(filled, folder, **{field: value})
    assert field in reg("show", digest).stdout
    assert reg.json("show", digest)["document"]["recipe"][field] == value
    assert digest[:12] in reg("compositions", "math").stdout
    for words in (
        ("reproduce", folder),
        ("reproduce", folder, "--out", tmp_path / "again"),
        ("compose", "--recipe", folder / MARKER, "--out", tmp_path / "again"),
    ):
        told = reg(*words, code=1).stderr
        assert f"error: {field}: {str(value).lower()} was removed; {AGAIN}\n" in told, words
        assert "next: compose without it: reg compose --experts code" in told, words
    assert not (tmp_path / "again").exists()
    reg("opt-out", "math", "--yes", "--receipt", tmp_path / "receipt.json")
    assert [version.ref for version in filled.opted_out(folder)] == ["math@1"]
    assert AGAIN in (tmp_path / "receipt.json").read_text()


@pytest.mark.parametrize(
    ("nothing", "asked"),
    [("refine_trunk: false", "refine_trunk: true"), ("token_weight: none", "token_weight: advantage")],
)
def test_recipe_files_that_ask_for_nothing_removed_are_read(tmp_path: Path, nothing: str, asked: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(f"router: ridge\n{nothing}\n")
    assert read_recipe(file).recipe == Recipe(router="ridge")
    file.write_text(f"router: ridge\n{asked}\n")
    with pytest.raises(InvalidInputError, match=f"{file}:2: {asked} was removed") as caught:
        read_recipe(file)
    assert caught.value.hint == "drop the line: compose without it"
