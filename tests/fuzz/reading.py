"""What is common to the kinds of input: how a changed file is put into a folder, and how commands and checks read it.

An input is written to a scratch folder, and what reads it is returned. That may succeed or raise a RegError; anything
else is a fault.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from cli.main import main as reg
from registry import Registry
from registry.errors import RegError
from registry.statistics.file import FILE_NAME
from tests.fuzz.fuzz_world import World
from tests.mutations import Draw

CLI_SHARE = 0.15
"""Of the inputs, how many go through the command line: its exit code is looked at, and that no traceback is shown."""

Act = Callable[[], object]


def put(path: Path, data: bytes) -> Path:
    """Write a file in place of the link that may be there."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def cli(home: Path, *words: object) -> None:
    """Run a command on a registry; it must end well or tell an error.

    Raises:
        RegError: it told one.
        AssertionError: it showed anything else.
    """
    result = CliRunner().invoke(reg, ["--home", str(home), *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    shown = result.output
    if result.exit_code not in (0, 1, 2) or "Traceback" in shown or "bug in the program" in shown:
        raise AssertionError(f"exit code {result.exit_code}: {shown[-500:]}")
    if result.exit_code and not shown.strip():
        raise AssertionError(f"exit code {result.exit_code} without a word")
    if result.exit_code:
        raise RegError(shown)


def opened(home: Path, call: Callable[[Registry], object]) -> Act:
    """Return what is done with an open registry."""

    def act() -> None:
        with Registry(home, create=False) as registry:
            call(registry)

    return act


def either(draw: Draw, home: Path, words: tuple[object, ...], call: Callable[[Registry], object]) -> Act:
    """Return a command on a registry, or more often the same in Python."""
    return (lambda: cli(home, *words)) if draw.random() < CLI_SHARE else opened(home, call)


def checked(world: World, draw: Draw, folder: Path, base: str | None = None) -> Act:
    """Return what checks a checkpoint, and where it is refused tries to register it all the same."""
    as_base = draw.random() < 0.5 and not (folder / FILE_NAME).is_file() and base is None

    def check(registry: Registry) -> None:
        try:
            registry.check(folder, base=base)
        except RegError:
            if as_base:
                registry.add_base("fuzz", folder)
            else:
                registry.add_expert("fuzz", folder, base=base)
            raise

    return either(draw, world.home, ("check", folder, *(["--base", base] if base else [])), check)


def check_finite(folder: Path) -> None:
    """Check that every weight that was written is a number."""
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            if not bool(torch.isfinite(tensor).all()):
                raise AssertionError(f"{name} has a value that is not finite")
