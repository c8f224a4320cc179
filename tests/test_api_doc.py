"""Proves: docs/api.md has an example of every public name and of every method of `Registry`, and all of them run.

They run on models smaller than those that the page makes.
"""

import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import registry
from registry import Registry
from tests.conftest import DEMO_SIZES
from tests.llama_cpp import stand_in
from tests.models import make_model
from tests.running import ROOT
from tests.writable_hub import WritableHub, writable_hub

PAGE = ROOT / "docs" / "api.md"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritableHub]:
    yield from writable_hub(monkeypatch, tmp_path / "huggingface")


def sections() -> dict[str, str]:
    """Return name in a heading → the code of its section."""
    code_of: dict[str, str] = {}
    for section in re.split(r"^(?=#+ )", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        heading, _, text = section.partition("\n")
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        for name in re.findall(r"`([\w.]+)`", heading if heading.startswith("#") else ""):
            assert name not in code_of, f"{name} has two sections"
            code_of[name] = code
    return code_of


METHODS = {name: method for name, method in inspect.getmembers(Registry, callable) if not name.startswith("_")}


def test_every_public_name_and_method_has_an_example_and_nothing_else() -> None:
    code = sections()
    used = {name: rf"\b{name}\b" for name in registry.__all__} | {f"Registry.{n}": rf"\.{n}\(" for n in METHODS}
    assert code.keys() == used.keys(), "docs/api.md has a section on each, with an example"
    for name, pattern in used.items():
        assert re.search(pattern, code[name]), f"the section on {name} does not use it"


def test_every_method_documents_its_arguments_and_result() -> None:
    usual = (inspect.getdoc(Registry) or "").partition("Arguments of methods")[2]
    for name, method in METHODS.items():
        text = inspect.getdoc(method) or ""
        signature = inspect.signature(method)
        elsewhere = re.search(r"[Aa]rguments as", text)
        for parameter in list(signature.parameters)[1:]:
            listed = rf"^ +(\w+, )*{parameter}(, \w+)*: "
            described = re.search(listed, f"{text}\n{usual}", re.MULTILINE) or f"`{parameter}`" in text
            assert described or elsewhere, f"Registry.{name} does not say what {parameter} is"
        if signature.return_annotation not in (None, "None"):
            assert re.search(r"\b[Rr]eturns?\b", text), f"Registry.{name} does not say what it returns"


@pytest.mark.check
def test_examples_run(hub: WritableHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("registry.demo.train.new_model", lambda: make_model("llama", 0, **DEMO_SIZES))
    stand_in(tmp_path / "llama.cpp", "llama-quantize")
    names: dict[str, object] = {}
    pieces = re.split(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert len(pieces) > 60
    with contextlib.redirect_stdout(io.StringIO()):
        for number in range(1, len(pieces), 2):
            line = sum(piece.count("\n") for piece in pieces[:number]) + number // 2 + 1
            exec(compile("\n" * line + pieces[number], str(PAGE), "exec"), names)
