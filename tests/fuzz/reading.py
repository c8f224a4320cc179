"""What is common to the kinds of input: how a changed file is put into a folder, and how commands and checks read it.

An input is written to a scratch folder, and what reads it is returned. That may succeed or raise a RegError; anything
else is a fault.
"""

from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

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


def cli(world: World, *words: object, home: Path | None = None) -> None:
    """Run a command, on the world's registry unless another is given; it must end well or tell an error.

    Raises:
        RegError: it told one.
        AssertionError: it showed anything else.
    """
    result = CliRunner().invoke(reg, ["--home", str(home or world.home), *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    shown = result.output
    if result.exit_code not in (0, 1, 2) or "Traceback" in shown or "bug in the program" in shown:
        raise AssertionError(f"exit code {result.exit_code}: {shown[-500:]}")
    if result.exit_code and not shown.strip():
        raise AssertionError(f"exit code {result.exit_code} without a word")
    if result.exit_code:
        raise RegError(shown)


def checked(world: World, draw: Draw, folder: Path, *words: object) -> Act:
    """Return what checks a checkpoint, and where it is refused tries to register it all the same."""
    by_hand, as_base = draw.random() < CLI_SHARE, draw.random() < 0.5 and not (folder / FILE_NAME).is_file()

    def act() -> None:
        if by_hand:
            cli(world, "check", folder, *words)
            return
        with Registry(world.home, create=False) as registry:
            base = words[1] if words else None
            try:
                registry.check(folder, base=None if base is None else str(base))
            except RegError:
                if as_base and base is None:
                    registry.add_base("fuzz", folder)
                else:
                    registry.add_expert("fuzz", folder, base=None if base is None else str(base))
                raise

    return act
