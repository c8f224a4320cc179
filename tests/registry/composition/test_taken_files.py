"""Proves: a folder stops where any member's text ends, and what it does not take over of its members is said.

Chat templates are one member's, settings of generation all members' as far as they agree.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from registry import Recipe, Registry
from registry.composition.taken_files import GENERATION
from registry.errors import DamagedError
from registry.runtime.loading import quiet_transformers
from tests.conftest import SETTINGS, Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.maintenance.test_repair import damage

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
WORSE = "a chat in another form than an expert was trained on may be answered worse"
RECIPES = (Recipe(), Recipe(to="ensemble"))


def register(registry: Registry, zoo: Zoo, tmp_path: Path, **given: Mapping[str, str | None]) -> None:
    """Register experts of the zoo with files of their own: name → file → text, or None for no such file."""
    for name, files in given.items():
        folder = shutil.copytree(zoo.experts[name], tmp_path / f"of-{name}")
        for file, text in files.items():
            (folder / file).unlink(missing_ok=True)
            if text is not None:
                (folder / file).write_text(text)
        registry.add_expert(name, folder)


@pytest.mark.check(after=1)
@pytest.mark.parametrize("recipe", RECIPES)
def test_another_template_is_remarked_on(registry: Registry, zoo: Zoo, tmp_path: Path, recipe: Recipe) -> None:
    """One in the tokenizer's settings is one as well; a member without one is rendered as its leader is."""
    config = json.loads((zoo.experts["biomed"] / "tokenizer_config.json").read_text()) | {"chat_template": CHAT}
    own, other = {"chat_template.jinja": CHAT + "\n"}, {"chat_template.jinja": CHAT + "!"}
    same = {"tokenizer_config.json": json.dumps(config)}
    register(registry, zoo, tmp_path, biomed=same, code=own, german={}, law=other, math=other)
    for names, note in (
        (["code", "law", "math"], f"it renders chats by the template of code; law, math have others: {WORSE}"),
        (["german", "math"], f"it has no chat template; math has one: {WORSE}"),
        (["law", "math"], None),
        (["biomed", "code"], None),
        (["code", "german"], None),
    ):
        notes = [one for one in registry.plan(names, recipe).notes if WORSE in one]
        assert notes == ([] if note is None else [note]), names


# -- settings of generation ------------------------------------------------------------------------------------------


def with_settings(registry: Registry, zoo: Zoo, tmp_path: Path, **given: dict[str, Any] | None) -> None:
    """Register experts with these settings of generation; None for no file."""
    files = {name: None if settings is None else json.dumps(settings) for name, settings in given.items()}
    register(registry, zoo, tmp_path, **{name: {GENERATION: text} for name, text in files.items()})


OUTPUTS: dict[str, Any] = {
    "moe": Recipe(router="ridge"),
    "dense": Recipe(to="dense", trunk="mean"),
    "ensemble": Recipe(to="ensemble"),
}
SAMPLED = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}


@pytest.mark.parametrize("output", OUTPUTS)
def test_whatever_ends_a_text_of_a_member_ends_one_of_the_folder(
    registry: Registry, zoo: Zoo, tmp_path: Path, output: str
) -> None:
    """Also a member without a file, whose config.json says it; transformers stops there, and saves the model again."""
    with_settings(registry, zoo, tmp_path, code={"eos_token_id": 5} | SAMPLED, law={"eos_token_id": [7, 5]} | SAMPLED)
    with_settings(registry, zoo, tmp_path, math=None)
    plan = registry.compose(["code", "law", "math"], tmp_path / "out", OUTPUTS[output])
    assert json.loads((tmp_path / "out" / GENERATION).read_text()) == {"eos_token_id": [5, 7, 0]} | SAMPLED
    assert not [note for note in plan.notes if "generation" in note]
    if output != "ensemble":
        with quiet_transformers():
            model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
            model.save_pretrained(tmp_path / "again")
        assert model.generation_config.eos_token_id == [5, 7, 0]


def test_equal_files_are_copied_as_they_are(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    own = {"eos_token_id": 0, "transformers_version": "5.0.0"}
    with_settings(registry, zoo, tmp_path, code=own, law=own)
    plan = registry.compose(["code", "law"], tmp_path / "out")
    assert (tmp_path / "out" / GENERATION).read_bytes() == (tmp_path / "of-code" / GENERATION).read_bytes()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == 0
    assert not [note for note in plan.notes if "generation" in note]


def test_damaged_settings_are_told_and_not_left_out(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    with_settings(registry, zoo, tmp_path, code={"eos_token_id": 0}, law={"eos_token_id": 5})
    damage(registry, "law", GENERATION, "changed")
    with pytest.raises(DamagedError):
        registry.compose(["code", "law"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


LEFT_OUT: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "sampling of one": (
        SAMPLED | {"eos_token_id": 0},
        {"eos_token_id": 0},
        {"eos_token_id": 0},
        "are left out: code do_sample true, temperature 0.6, top_p 0.9, law none, so generation is greedy",
    ),
    "other temperatures": (
        SAMPLED,
        SAMPLED | {"temperature": 0.7},
        {},
        "temperature 0.6, top_p 0.9, law do_sample true",
    ),
    "another field": ({"max_length": 20}, {"max_length": 30}, {}, "code max_length 20, law max_length 30"),
    "idle sampling": (
        {"do_sample": False, "temperature": 0.6, "top_k": 50},
        {"do_sample": False, "temperature": 0.6, "top_k": 50},
        {"do_sample": False, "top_k": 50},
        "settings that do nothing without do_sample are left out: temperature 0.6",
    ),
    "idle beams": (
        {"length_penalty": 2.0},
        {"length_penalty": 2.0},
        {},
        "do nothing without num_beams are left out: len",
    ),
    "who wrote it": ({"transformers_version": "4.57"}, {"transformers_version": "5.24"}, {}, ""),
    "the lead's": ({"pad_token_id": 3}, {"pad_token_id": 4}, {"pad_token_id": 3}, ""),
}


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_members_do_not_agree_on_is_left_out_and_said(
    registry: Registry, zoo: Zoo, tmp_path: Path, case: str
) -> None:
    code, law, expected, note = LEFT_OUT[case]
    with_settings(registry, zoo, tmp_path, code=code, law=law)
    plan = registry.compose(["law", "code"], tmp_path / "out", Recipe(router="ridge"))
    assert json.loads((tmp_path / "out" / GENERATION).read_text()) == expected
    notes = [one for one in plan.notes if "left out" in one]
    assert len(notes) == bool(note)
    assert note in "\n".join(notes)
    with quiet_transformers():
        AutoModelForCausalLM.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "again")


def test_config_names_every_end_where_no_file_of_generation_does(
    registry: Registry, tmp_path: Path, tokenizer: Any
) -> None:
    for number, end in ((101, 5), (102, [5, 6])):
        folder = save_checkpoint(make_model("llama", number, eos_token_id=end), tmp_path / str(number), tokenizer)
        (folder / GENERATION).unlink()
        registry.add_expert(f"e{number}", folder, settings=SETTINGS)
    registry.compose(["e101", "e102"], tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == [5, 6]
    assert not (tmp_path / "out" / GENERATION).exists()
