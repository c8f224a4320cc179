"""Record of an evaluation's figures with the composition that was evaluated."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from registry.composition.integrity import ComposedFolder
from registry.errors import ConflictError, RegError, StorageError
from registry.evaluation.benchmark import Benchmark
from registry.evaluation.results import Row
from registry.names.resolve import find_by_digest
from registry.progress import Progress, remark
from store.catalog import Catalog
from store.digest import json_digest


def recorder(catalog: Catalog) -> Callable[[str, Path, Benchmark, Row, Row | None], None]:
    """Return a function that records the rows of a folder if it is an unchanged composition of `catalog`."""

    def record(name: str, folder: Path, benchmark: Benchmark, row: Row, oracle: Row | None) -> None:
        inputs = {
            "data": {domain: windows.digest for domain, windows in benchmark.windows.items()},
            "settings": asdict(benchmark.settings),
        }
        document = _document(benchmark, row, oracle)
        store_figures(catalog, folder, json_digest(inputs), document, benchmark.progress, name=name)

    return record


def store_figures(
    catalog: Catalog,
    folder: Path,
    asked: str,
    document: dict[str, Any],
    progress: Progress,
    *,
    name: str | None = None,
) -> None:
    """Store figures with the composition of a folder, if it was made here and is unchanged.

    Args:
        catalog: the catalog.
        folder: a model folder; nothing is stored for one that is not a composition of `catalog`.
        asked: the digest of data and settings; earlier figures with the same digest are replaced.
        document: data, settings and figures.
        progress: receives a remark if a composition's figures are not stored.
        name: its name in the remark; None for that of the folder.
    """
    try:
        composed = ComposedFolder.read(folder)
    except RegError:  # not a composition
        return
    if not catalog.has_composition(composed.digest):
        return
    problem = next(composed.problems(progress), None)
    if problem is None:
        try:
            for member in composed.manifest.members:  # an opt-out has deleted the figures of what it was made from
                find_by_digest(catalog, member.name, member.digest, "it")
            catalog.record_evaluation(composed.digest, asked, document)
        except (ConflictError, StorageError) as error:
            problem = error.message
    if problem is not None:
        remark(progress, f"the figures of {name or folder.name} are not stored: {problem}")


def _document(benchmark: Benchmark, row: Row, oracle: Row | None) -> dict[str, Any]:
    return {
        "data": {
            domain: {"digest": windows.digest, "label": windows.label, "tokens": benchmark.tokens[domain]}
            for domain, windows in benchmark.windows.items()
        },
        "experts": {domain: member.version.digest for domain, member in benchmark.experts.items()},
        "settings": asdict(benchmark.settings),
        "figures": row.document(),
        "oracle": None if oracle is None else oracle.document(),
    }
