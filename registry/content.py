"""What a version's digest is taken over, and whether the catalog still says that of it."""

from collections.abc import Sequence
from typing import Any

from store.catalog import ArrayLink, Catalog, VersionRecord
from store.digest import json_digest
from store.errors import DamagedError


def content_digest(content: dict[str, Any], arrays: Sequence[ArrayLink]) -> str:
    """Return the digest of a version: of what it says, and of the digest of every array by role and name."""
    return json_digest([content, sorted([link.role, link.name, link.digest] for link in arrays)])


def intact_arrays(catalog: Catalog, version: VersionRecord) -> tuple[ArrayLink, ...]:
    """Return the arrays of a version, of which every row in the catalog is what was written.

    Raises:
        DamagedError: one is not; or the version does not have its digest.
    """
    catalog.check_name(version.name)
    links = tuple(catalog.arrays_of(version))
    if version.content is not None and content_digest(version.content, links) != version.digest:
        raise DamagedError(
            f"{version.ref}: what the catalog says of it does not have its digest {version.digest[:12]}",
            "run: reg verify; then restore the catalog from a backup",
        )
    return links
