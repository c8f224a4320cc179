"""Versions whose weights one training made together: those of a soup, and those of a SIMoE."""

from collections.abc import Callable, Iterable, Sequence

from store.catalog import VersionRecord

SHARED = {"soup": "soup", "simoe": "delta"}
"""Key of what versions store of such a training → its key of the digest of the shared weights, if not their own."""


def trained_together(
    versions: Sequence[VersionRecord], active: Callable[[], Iterable[VersionRecord]]
) -> tuple[str, ...]:
    """Return the other active versions of the soups and SIMoEs that some versions are part of.

    Args:
        versions: the versions.
        active: returns all active versions; not called where no version is part of one.
    """
    shared = {digest for version in versions if (digest := _shared_of(version)) is not None}
    if not shared:
        return ()
    own = {version.id for version in versions}
    return tuple(one.ref for one in active() if _shared_of(one) in shared and one.id not in own)


def _shared_of(version: VersionRecord) -> str | None:
    """Return the digest of the weights that a soup or a SIMoE shares.

    None of a version that is in neither, and of one that was purged.
    """
    for kind, shared in SHARED.items():
        if document := (version.content or {}).get(kind):
            return str(document.get(shared, version.digest))
    return None
