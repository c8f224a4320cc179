"""What another process does meanwhile: readers hold no lock, so a version may be opted out while it is read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from registry.errors import ConflictError, DamagedError, NotFoundError
from store.catalog import Catalog, VersionRecord


@contextmanager
def unless_purged(catalog: Catalog, versions: Sequence[VersionRecord]) -> Iterator[None]:
    """Read arrays of `versions`; where that fails because one was purged meanwhile, say so.

    Raises:
        ConflictError: one was purged, and an array was not there, or no longer whole.
    """
    try:
        yield
    except (DamagedError, NotFoundError) as error:
        for version in catalog.reread(versions):
            if version.state == "purged":  # which is written down before the first array is deleted
                raise opted_out_meanwhile(version) from error
        raise


def opted_out_meanwhile(version: VersionRecord) -> ConflictError:
    """Return the error that tells of a version that was active when it was asked for."""
    return ConflictError(f"{version.ref} was opted out meanwhile, at {version.withdrawn_at}", "run: reg list")


def is_purged(catalog: Catalog, version: VersionRecord) -> bool:
    """Tell whether a version's arrays are being deleted, or are."""
    return catalog.reread([version])[0].state == "purged"
