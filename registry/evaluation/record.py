"""The rows of an evaluated folder, and the record of figures with the composition that was evaluated."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from registry.composition.manifest import ComposedFolder
from registry.errors import ConflictError, RegError, StorageError
from registry.evaluation.benchmark import Benchmark
from registry.evaluation.results import Row, stored_losses
from registry.names.resolve import find_by_digest
from registry.progress import Progress, remark
from store.catalog import Catalog
from store.digest import json_digest

_COMPARED = ("oracle", "plain_average", "single_models", "bases")
"""Parts of a document that an evaluation has on request."""


@dataclass(frozen=True)
class FolderRows:
    """The rows of one folder.

    Attributes:
        row: as it is.
        oracle: every token of a domain sent to the domain's expert; None if that was not asked for or cannot be.
        active_experts: with other numbers of experts per token, ascending.
        average: the members' averaged weights; None if it was not scored, or is that of other experts.
        single: the base models and experts that were scored.
    """

    row: Row
    oracle: Row | None
    active_experts: tuple[Row, ...]
    average: Row | None
    single: tuple[Row, ...]


def record_rows(catalog: Catalog, name: str, folder: Path, benchmark: Benchmark, rows: FolderRows) -> None:
    """Store the rows of a folder if it is an unchanged composition of `catalog`."""
    data = {domain: windows.digest for domain, windows in benchmark.windows.items()}
    settings, active = asdict(benchmark.settings), [row.document() for row in rows.active_experts]
    inputs: dict[str, Any] = {"data": data, "settings": settings}
    if active:  # a later evaluation without them leaves these where they are
        inputs["active_experts"] = [row.experts_per_token for row in rows.active_experts]
    scored = {row.name for row in rows.single}
    bases = [member.version for member in benchmark.bases if f"base {member.version.ref}" in scored]
    document = {
        "data": {
            domain: {"digest": windows.digest, "label": windows.label, "tokens": benchmark.tokens[domain]}
            for domain, windows in benchmark.windows.items()
        },
        "experts": {domain: member.version.digest for domain, member in benchmark.experts.items()},
        "settings": settings,
        "figures": rows.row.document(),
        "losses": stored_losses(rows.row.losses),
        "oracle": None if rows.oracle is None else rows.oracle.document(),
        **({"active_experts": active} if active else {}),
        **({"plain_average": rows.average.document()} if rows.average else {}),
        **({"single_models": [row.document() for row in rows.single]} if rows.single else {}),
        **({"bases": {version.ref: version.digest for version in bases}} if bases else {}),
    }
    store_figures(catalog, folder, json_digest(inputs), document, benchmark.progress, name=name)


def store_figures(
    catalog: Catalog,
    folder: Path,
    asked: str,
    document: dict[str, Any],
    progress: Progress,
    *,
    name: str | None = None,
) -> None:
    """Store figures with the composition of a folder, if it was made here and is unchanged; else a remark calls it
    `name`.

    `asked` is the digest of data and settings: earlier figures with the same one are replaced. Rows for comparison
    that only the earlier ones have stay, if the composition and its experts came out the same.
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
            for member in composed.manifest.versions:  # an opt-out has deleted the figures of what it was made from
                find_by_digest(catalog, member.name, member.digest, "it")
            earlier = next((one.document for one in catalog.evaluations(composed.digest) if one.asked == asked), {})
            catalog.record_evaluation(composed.digest, asked, _completed(document, earlier))
        except (ConflictError, StorageError) as error:
            problem = error.message
    if problem is not None:
        remark(progress, f"the figures of {name or folder.name} are not stored: {problem}")


def _completed(document: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return a document with the rows for comparison that it lacks, from an earlier one of the same figures."""
    if any(document.get(key) != earlier.get(key) for key in ("data", "experts")) or (
        document.get("figures", {}).get("perplexity") != earlier.get("figures", {}).get("perplexity")
    ):
        return document
    kept = {key: earlier[key] for key in _COMPARED if earlier.get(key) and not document.get(key)}
    if "plain_average" in kept:
        ahead = earlier["figures"].get("ahead_of_average")
        kept["figures"] = document["figures"] | {"ahead_of_average": ahead}
    return document | kept
