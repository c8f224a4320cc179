"""Proves: a list of experts is read strictly, and everything bad in it is refused before the first is registered."""

from pathlib import Path
from typing import Any

import pytest

from registry import Registry
from registry.errors import IncompatibleError, InvalidInputError, NotFoundError
from registry.registration import read_experts
from registry.statistics.settings import PassSettings
from tests.cli.conftest import Reg
from tests.conftest import SETTINGS, Zoo
from tests.models import make_model, save_checkpoint


def written(folder: Path, text: str) -> Path:
    path = folder / "experts.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: it must be a list of experts"),
        ("- x", ":1: an expert must be a mapping"),
        ("- {name: x}", ":1: an expert has no checkpoint"),
        ("- {name: X!, checkpoint: x}", ":1: name 'X!' is not of the form"),
        ("- {name: x, checkpoint: x, datas: [y]}", "there is no key 'datas'; did you mean 'data'?"),
        ("- {name: x, checkpoint: x, data: y}", "data must be a list of text"),
        ("- {name: x, checkpoint: x, keep_calibration: 1}", "keep_calibration must be true or false"),
        ("- {name: x, checkpoint: x, tags: [a]}", "tags must be a mapping of text to text"),
        ("- {name: x, checkpoint: x, license: a b}", "license 'a b' is not an identifier"),
        ("- {name: x, checkpoint: x}\n- {name: x, checkpoint: y}", ":2: x is listed twice, first in line 1"),
        ("- &a {name: x, checkpoint: x}", ":1: it has an anchor"),
    ],
)
def test_what_is_no_list_of_experts_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_experts(written(tmp_path, text), PassSettings())
    assert message in caught.value.message


def test_paths_start_from_the_folder_of_the_list(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not a file"):
        read_experts(tmp_path / "x.yaml", PassSettings())
    text = "- {name: a, checkpoint: b, data: [c.txt], base: d}\n- {name: e, checkpoint: hf://f/g}\n"
    one, other = read_experts(written(tmp_path, text), PassSettings())
    assert (one.checkpoint, one.data, one.base) == (str(tmp_path / "b"), (str(tmp_path / "c.txt"),), "d")
    assert other.checkpoint == "hf://f/g"


def test_a_bad_expert_is_refused_before_the_first_is_registered(
    registry: Registry, zoo: Zoo, tokenizer: Any, tmp_path: Path
) -> None:
    code = f"- {{name: code, checkpoint: {zoo.experts['code']}}}\n"
    for bad, message in (
        ("checkpoint: nosuch", "bad: .*nosuch is not a folder"),
        (f"checkpoint: {zoo.experts['code']}, data: [nosuch.txt]", "bad: .*nosuch.txt is not a file"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            registry.add_experts(written(tmp_path, f"{code}- {{name: bad, {bad}}}\n"), settings=SETTINGS)
    stranger = save_checkpoint(make_model("llama", 7, initializer_range=1.0), tmp_path / "stranger", tokenizer)
    with pytest.raises(IncompatibleError, match=r"stranger: .*unrelated to every model before it in the list"):
        registry.add_experts(written(tmp_path, f"{code}- {{name: stranger, checkpoint: {stranger}}}\n"))
    assert registry.versions() == []


def test_the_command_prints_what_was_registered_and_what_was_not(zoo: Zoo, bare: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    bad = f"- {{name: bad, checkpoint: {bare}, data: [empty.txt]}}\n"
    listed = written(tmp_path, f"- {{name: code, checkpoint: {zoo.experts['code']}}}\n{bad}")
    reg = Reg(tmp_path / "home")
    result = reg("add-experts", listed, code=1)
    assert "registered code@1" in result.stdout
    assert "1 expert of 2 could not be registered: bad; bad: " in result.stderr
    assert "code@1 is registered already" in reg("add-experts", listed, code=1).stdout
