"""Proves: asking for help, a list or a version loads neither torch nor transformers nor zarr, and help no database."""

import subprocess
import sys
from pathlib import Path

import pytest

from registry import Registry

HEAVY = ("torch", "transformers", "zarr", "numpy", "safetensors", "huggingface_hub", "alembic")
DATABASE = ("sqlalchemy", "filelock", "asyncio", "registry.registry")
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


def loaded(home: Path, words: list[str], unwanted: tuple[str, ...]) -> list[str]:
    """Return the lines that a command prints in a process of its own, and one of what of `unwanted` it imported."""
    script = (
        "import sys\n"
        "from cli.main import main\n"
        f"try: main(['--home', {str(home)!r}, *{words!r}])\n"
        "except SystemExit: pass\n"
        f"print('loaded', [name for name in {unwanted!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()
