"""The folder of a demo, checked without torch."""

from pathlib import Path

from registry.errors import OutputError

MARKER = "demo.json"  # the file that marks a folder as one of the demo


def check_demo_folder(out: Path) -> None:
    """Check that a demo can be made in `out`.

    Raises:
        OutputError: `out` is a file, or holds something else.
    """
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} exists and is not a folder", "choose another --out")
    if out.exists() and any(out.iterdir()) and not (out / MARKER).is_file():
        raise OutputError(f"{out} is not empty and was not made by the demo", "choose another --out")
