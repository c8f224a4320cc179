"""Writing a page: all of it or nothing, and over another file only when told so."""

import os
from pathlib import Path

from registry.errors import OutputError, StorageError
from registry.io.atomic import atomic_file


def check_page(out: Path, *, replace: bool) -> None:
    """Check that a page can be written at `out`.

    Raises:
        OutputError: there is something already that is not to be replaced, or no folder to write into.
    """
    if out.is_dir() or (not replace and (out.exists() or out.is_symlink())):
        raise OutputError(
            f"{out} exists", "choose another --out" + ("" if out.is_dir() else ", or replace it: --force")
        )
    if not out.absolute().parent.is_dir():
        raise OutputError(f"{out.absolute().parent} is no folder", "make it, or choose another --out")


def write_page(out: Path, text: str, *, replace: bool) -> None:
    """Write a page (errors as `check_page`).

    Raises:
        StorageError: the disk is full or refuses.
    """
    check_page(out, replace=replace)
    try:
        with atomic_file(out, f".{out.name}.{os.getpid()}.partial", durable=False) as fresh:
            fresh.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{out} cannot be written: {error.strerror or error}", "choose another --out") from error
