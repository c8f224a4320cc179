"""The record of figures with the composition that was evaluated."""

from pathlib import Path
from typing import Any

from registry.composition.manifest import ComposedFolder
from registry.errors import ConflictError, RegError, StorageError
from registry.names.resolve import find_by_digest
from registry.progress import Progress, remark
from store.catalog import Catalog

_COMPARED = ("oracle", "plain_average", "single_models", "bases")
"""Parts of a document that an evaluation has on request."""


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
