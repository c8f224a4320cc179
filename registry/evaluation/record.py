"""Record of an evaluation's figures with the composition that was evaluated."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from registry.composition.integrity import ComposedFolder
from registry.errors import RegError, StorageError
from registry.evaluation.benchmark import Benchmark
from registry.evaluation.results import Row
from registry.progress import remark
from store.catalog import Catalog
from store.digest import json_digest


def recorder(catalog: Catalog) -> Callable[[str, Path, Benchmark, Row, Row | None], None]:
    """Return a function that records the rows of a folder if it is an unchanged composition of `catalog`."""

    def record(name: str, folder: Path, benchmark: Benchmark, row: Row, oracle: Row | None) -> None:
        try:
            composed = ComposedFolder.read(folder)
        except RegError:  # not a composition
            return
        if not catalog.has_composition(composed.digest):
            return
        if problem := next(composed.problems(benchmark.progress), None):
            remark(benchmark.progress, f"the figures of {name} are not stored: {problem}")
            return
        inputs = {
            "data": {domain: windows.digest for domain, windows in benchmark.windows.items()},
            "settings": asdict(benchmark.settings),
        }
        try:
            catalog.record_evaluation(composed.digest, json_digest(inputs), _document(benchmark, row, oracle))
        except StorageError as error:
            remark(benchmark.progress, f"the figures of {name} are not stored: {error.message}")

    return record


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
