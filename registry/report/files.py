"""The subject of a report and its file, checked without torch."""

import os
from pathlib import Path

from registry.errors import StorageError
from registry.io.disk import atomic_file
from registry.io.model_folder import check_file, require_composed
from registry.names.resolve import composition_of
from registry.workspace import PathLike
from store.catalog import Catalog


def check_source(catalog: Catalog, composition: PathLike) -> None:
    """Check that `composition` is a composed folder, or begins a digest (CheckpointError; NotFoundError: of none)."""
    if Path(composition).is_dir() or composition_of(catalog, os.fspath(composition)) is None:
        require_composed(Path(composition))


def write_page(out: Path, text: str, *, replace: bool) -> None:
    """Write a page (errors as `check_file`; StorageError: it cannot be written)."""
    check_file(out, replace=replace)
    try:
        with atomic_file(out, f".{out.name}.{os.getpid()}.partial", durable=False) as fresh:
            fresh.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{out} cannot be written: {error.strerror or error}", "choose another --out") from error
