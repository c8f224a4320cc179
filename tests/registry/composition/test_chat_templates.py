"""Proves: a plan says when members render chats by other templates than the one that the folder takes over."""

import json
import shutil
from pathlib import Path

import pytest

from registry import EnsembleRecipe, Recipe, Registry
from registry.composition import AnyRecipe
from tests.conftest import Zoo

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
WORSE = "a chat in another form than an expert was trained on may be answered worse"
RECIPES = (Recipe(), EnsembleRecipe())


def register(registry: Registry, zoo: Zoo, tmp_path: Path, templates: dict[str, dict[str, str]]) -> None:
    """Register experts of the zoo with files added: name → file → text; a `.json` file's keys are added to its own."""
    for name, files in templates.items():
        folder = shutil.copytree(zoo.experts[name], tmp_path / f"with-template-{name}")
        for file, text in files.items():
            known = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
            (folder / file).write_text(json.dumps(known | json.loads(text)) if file.endswith(".json") else text)
        registry.add_expert(name, folder)


@pytest.mark.parametrize("recipe", RECIPES)
def test_another_template_is_remarked_on(registry: Registry, zoo: Zoo, tmp_path: Path, recipe: AnyRecipe) -> None:
    other = {"chat_template.jinja": CHAT + "!"}
    register(registry, zoo, tmp_path, {"code": {"chat_template.jinja": CHAT}, "law": other, "math": other})
    notes = registry.plan(["code", "law", "math"], recipe).notes
    assert f"it renders chats by the template of code; law, math have others: {WORSE}" in notes
    assert not [note for note in registry.plan(["law", "math"], recipe).notes if WORSE in note]


def test_a_leader_without_template_is_remarked_on(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    register(registry, zoo, tmp_path, {"code": {}, "math": {"chat_template.jinja": CHAT}})
    assert f"it has no chat template; math has one: {WORSE}" in registry.plan(["code", "math"], Recipe()).notes


def test_one_template_in_two_kinds_of_file_is_one(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    in_config = {"tokenizer_config.json": json.dumps({"chat_template": CHAT})}
    register(registry, zoo, tmp_path, {"code": {"chat_template.jinja": CHAT + "\n"}, "math": in_config})
    assert not [note for note in registry.plan(["code", "math"], Recipe()).notes if WORSE in note]


def test_a_member_without_template_is_rendered_as_its_leader(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    register(registry, zoo, tmp_path, {"code": {"chat_template.jinja": CHAT}, "math": {}})
    assert not [note for note in registry.plan(["code", "math"], Recipe()).notes if WORSE in note]
