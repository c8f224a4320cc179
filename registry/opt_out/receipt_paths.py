"""Paths of receipts, checked without torch."""

from pathlib import Path

from registry.errors import NotFoundError, OutputError


def check_receipt(path: Path) -> None:
    """Check that there is a file to read a receipt from.

    Raises:
        NotFoundError: there is none.
    """
    if not path.is_file():
        raise NotFoundError(f"{path} is not a file", "name the file that reg opt-out --receipt wrote")


def check_new_receipt(path: Path) -> None:
    """Check that a receipt can be written to a new file.

    Raises:
        OutputError: the file exists, or its folder does not.
    """
    path = path.absolute()
    if path.exists() or path.is_symlink():
        raise OutputError(f"{path} exists, and receipts are never overwritten", "choose another --receipt")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a folder", "create it, or choose another --receipt")
