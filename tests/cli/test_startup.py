"""Proves: asking for help, a list or a version loads neither torch nor transformers nor zarr."""

import subprocess
import sys
from pathlib import Path

import pytest

from registry import Registry

HEAVY = ("torch", "transformers", "zarr", "numpy", "safetensors", "huggingface_hub")


@pytest.mark.parametrize(
    "words",
    [["--help"], ["compose", "--help"], ["list"], ["list", "--json"], ["log"], ["compositions"], ["show", "x"]],
    ids=" ".join,
)
def test_light_commands_stay_light(tmp_path: Path, words: list[str]) -> None:
    Registry(tmp_path / "home").close()
    script = (
        "import sys\n"
        "from cli.main import main\n"
        f"try: main(['--home', {str(tmp_path / 'home')!r}, *{words!r}])\n"
        "except SystemExit: pass\n"
        f"print('loaded', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "loaded []", result.stdout
