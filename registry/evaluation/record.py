"""Keeping what an evaluation found with the composition it is of."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from registry.errors import CheckpointError, StorageError
from registry.evaluation.benchmark import Benchmark
from registry.evaluation.results import Row
from registry.io.files import read_json
from registry.io.model_folder import MARKER
from registry.progress import remark
from store.catalog import Catalog
from store.digest import json_digest


def recorder(catalog: Catalog) -> Callable[[str, Path, Benchmark, Row, Row | None], None]:
    """Return what stores rows in `catalog`, of folders that are compositions it knows."""

    def keep(name: str, folder: Path, yardstick: Benchmark, row: Row, oracle: Row | None) -> None:
        digest = _digest(folder)
        if digest is None or not catalog.has_composition(digest):
            return
        if changed := _changed(folder):
            remark(
                yardstick.progress, f"the figures of {name} are not stored: {changed} is not as {MARKER} describes it"
            )
            return
        asked = {
            "data": {domain: windows.digest for domain, windows in yardstick.windows.items()},
            "settings": asdict(yardstick.settings),
        }
        try:
            catalog.record_evaluation(digest, json_digest(asked), _document(yardstick, row, oracle))
        except StorageError as error:
            remark(yardstick.progress, f"the figures of {name} are not stored: {error.message}")

    return keep


def _document(yardstick: Benchmark, row: Row, oracle: Row | None) -> dict[str, Any]:
    return {
        "data": {
            domain: {"digest": windows.digest, "label": windows.label, "tokens": yardstick.tokens[domain]}
            for domain, windows in yardstick.windows.items()
        },
        "experts": {domain: member.version.digest for domain, member in yardstick.experts.items()},
        "settings": asdict(yardstick.settings),
        "figures": row.document(),
        "oracle": None if oracle is None else oracle.document(),
    }


def _digest(folder: Path) -> str | None:
    """Return which composition a folder says it is, where the rest of its document agrees with that."""
    try:
        document = read_json(folder / MARKER)
        stated = {key: value for key, value in document.items() if key not in ("digest", "files", "lam")}
        return str(document["digest"]) if json_digest(stated) == document["digest"] else None
    except (CheckpointError, OSError, ValueError, KeyError, RecursionError):
        return None


def _changed(folder: Path) -> str | None:
    """Return the name of a file that is not the one that was composed, or None where all are."""
    files = read_json(folder / MARKER).get("files")
    if not isinstance(files, dict):
        return MARKER
    present = {path.name for path in folder.iterdir() if path.is_file()} - {MARKER}
    for name in sorted(present.symmetric_difference(files)):
        return name
    for name, digest in files.items():  # each a regular file of the folder, by now
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                return str(name)
    return None
