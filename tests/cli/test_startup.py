"""Proves: asking for help, a list or a version loads neither torch nor transformers nor zarr, and help no database.

Wrong names are reported before torch is loaded, and composing loads torch and nothing else that takes long.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from registry import Registry

HEAVY = ("torch", "transformers", "zarr", "numpy", "safetensors", "huggingface_hub", "alembic")
DATABASE = ("sqlalchemy", "filelock", "asyncio", "registry.registry")
NOT_FOR_COMPOSING = (
    "transformers",
    "tokenizers",
    "alembic",
    "sympy",
    "torch._dynamo",
    "torch.distributed.tensor",
    "httpx",
)
"""Libraries that take a tenth of a second or more each, or lead to one that does."""
COMMANDS = ("cli.commands.compose", "cli.recipe", "cli.options")


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["compose", "--help"],
        ["ui", "--help"],
        ["list"],
        ["list", "--limit", "2"],
        ["list", "--json"],
        ["log"],
        ["compositions"],
        ["show", "x"],
    ],
    ids=" ".join,
)
def test_light_commands_stay_light(tmp_path: Path, words: list[str]) -> None:
    Registry(tmp_path / "home").close()
    unwanted = HEAVY + (DATABASE if "--help" in words else ()) + (COMMANDS if words == ["--help"] else ())
    assert loaded(tmp_path / "home", words, unwanted)[-1] == "loaded []"


def test_a_version_is_shown_without_torch(filled: Registry) -> None:
    """Its distances to others are told from samples of weights, which numpy reads."""
    *shown, last = loaded(filled.home.path, ["show", "code"], ("torch", "transformers", "zarr", "huggingface_hub"))
    assert last == "loaded []"
    assert any(line.endswith("same base as base@1") for line in shown)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compose", "--experts", "nosuch", "--out", "x"], "no expert 'nosuch'"),
        (["compose", "--experts", "code,math", "--out", "/"], "/ exists and is not empty"),
        (["preview", "--experts", "code,nosuch"], "no expert 'nosuch'"),
        (["add-expert", "x", "nosuch"], "nosuch is not a folder"),
        (["add-expert", "X!", "nosuch"], "name 'X!' is not of the form"),
        (["evaluate", "nosuch", "--data", "code=nosuch.txt"], "nosuch is not a folder"),
        (["evaluate", "code", "--data", "code=nosuch.txt"], "reg export code@1"),
        (["reproduce", "nosuch"], "nosuch is not a folder"),
        (["train", "nosuch", "--train", "all", "--data", "nosuch.txt", "--out", "x"], "nosuch is not a folder"),
        (["train-router", "nosuch", "--data", "nosuch.txt", "--out", "x"], "nosuch is not a folder"),
        (["push", "nosuch", "org/name"], "nosuch is not a folder"),
        (["push-expert", "nosuch", "org/name"], "no expert 'nosuch'"),
        (["export", "nosuch", "--out", "x"], "no expert 'nosuch'"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_wrong_names_are_reported_without_torch(filled: Registry, words: list[str], message: str) -> None:
    *shown, last = loaded(filled.home.path, words, ("torch", "transformers", "zarr"))
    assert last == "loaded []"
    assert message in "\n".join(shown)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "moe", "--train", "all", "--data", "absent.txt", "--out", "new"), "absent.txt is not a file"),
        (("train", "moe", "--train", "all", "--data", "code", "--out", "taken"), "taken exists and is not empty"),
        (("train", "moe", "--train", "all", "--data", "code", "--out", "moe"), "contain one another"),
        (("train-router", "moe", "--data", "moe/composition.json", "--out", "new"), "has none of the endings"),
    ],
)
def test_paths_of_a_training_are_checked_without_torch(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "moe").mkdir()
    (tmp_path / "moe" / "composition.json").write_text('{"members": [{"name": "code", "digest": "0"}]}')
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    *shown, last = loaded(filled.home.path, list(words), ("torch", "transformers", "zarr"))
    assert last == "loaded []"
    assert message in "\n".join(shown)


def test_composing_loads_no_more_than_it_needs(filled: Registry, tmp_path: Path) -> None:
    words = ["compose", "--experts", "code,math", "--out", str(tmp_path / "moe")]
    *shown, last = loaded(filled.home.path, words, NOT_FOR_COMPOSING)
    assert (tmp_path / "moe" / "composition.json").is_file(), shown
    assert last == "loaded []"


def loaded(home: Path, words: list[str], unwanted: tuple[str, ...]) -> list[str]:
    """Return the lines that a command prints in a process of its own, and one of what of `unwanted` it imported."""
    script = (
        "import sys\n"
        "from cli.main import main\n"
        f"try: main(['--home', {str(home)!r}, *{words!r}])\n"
        "except SystemExit: pass\n"
        f"print('loaded', [name for name in {unwanted!r} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return result.stdout.splitlines()
