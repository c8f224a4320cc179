"""Record of an evaluation's figures with the composition that was evaluated."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from registry.composition.integrity import ComposedFolder
from registry.errors import RegError, StorageError
from registry.evaluation.benchmark import Benchmark
from registry.evaluation.table import FolderRows, Recorder
from registry.progress import remark
from store.catalog import Catalog
from store.digest import json_digest


def recorder(catalog: Catalog) -> Recorder:
    """Return a function that records the rows of a folder if it is an unchanged composition of `catalog`."""

    def record(name: str, folder: Path, benchmark: Benchmark, rows: FolderRows) -> None:
        try:
            composed = ComposedFolder.read(folder)
        except RegError:  # not a composition
            return
        if not catalog.has_composition(composed.digest):
            return
        if problem := next(composed.problems(benchmark.progress), None):
            remark(benchmark.progress, f"the figures of {name} are not stored: {problem}")
            return
        inputs: dict[str, Any] = {
            "data": {domain: windows.digest for domain, windows in benchmark.windows.items()},
            "settings": asdict(benchmark.settings),
        }
        if rows.active_experts:  # a later evaluation without them leaves these where they are
            inputs["active_experts"] = [row.experts_per_token for row in rows.active_experts]
        try:
            catalog.record_evaluation(composed.digest, json_digest(inputs), _document(benchmark, rows))
        except StorageError as error:
            remark(benchmark.progress, f"the figures of {name} are not stored: {error.message}")

    return record


def _document(benchmark: Benchmark, rows: FolderRows) -> dict[str, Any]:
    active = [row.document() for row in rows.active_experts]
    return {
        "data": {
            domain: {"digest": windows.digest, "label": windows.label, "tokens": benchmark.tokens[domain]}
            for domain, windows in benchmark.windows.items()
        },
        "experts": {domain: member.version.digest for domain, member in benchmark.experts.items()},
        "settings": asdict(benchmark.settings),
        "figures": rows.row.document(),
        "oracle": None if rows.oracle is None else rows.oracle.document(),
        **({"active_experts": active} if active else {}),
    }
