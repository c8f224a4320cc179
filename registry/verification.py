"""Verifying: every array re-hashed, every version's digest recomputed from what it says and what it is made of.

The log is followed from its beginning, too.
"""

from dataclasses import dataclass

from registry.meanwhile import is_purged
from registry.progress import Progress
from registry.registering import content_digest
from store.arrays import ArrayStore
from store.catalog import Catalog
from store.errors import DamagedError, NotFoundError
from store.ownership import check_owner


@dataclass(frozen=True)
class Verification:
    """What was checked and found.

    Attributes:
        versions: versions checked.
        arrays: arrays read and hashed.
        nbytes: their uncompressed size.
        problems: one line each; none means that every promise about stored content holds.
        orphans: arrays on disk that no version needs: left by a crash, harmless, removed by `reg gc`.
        events: lines of the log that follow from one another.
        head: the digest of the last of them; noted elsewhere, it tells whether lines are missing at the end.
    """

    versions: int
    arrays: int
    nbytes: int
    problems: tuple[str, ...]
    orphans: int
    events: int
    head: str


def verify(catalog: Catalog, store: ArrayStore, progress: Progress) -> Verification:
    """Read everything that is registered and compare it with its digests.

    Raises:
        ConflictError: the arrays belong to another catalog.
    """
    check_owner(catalog, store)
    problems: list[str] = []
    needed: dict[str, tuple[str, int]] = {}
    versions = catalog.versions(states=("active", "withdrawn"))
    for version in versions:
        links = catalog.arrays_of(version)
        if version.content is None or content_digest(version.content, links) != version.digest:
            if is_purged(catalog, version):  # meanwhile, by another process
                continue
            problems.append(
                f"{version.ref}: what the catalog says of it does not have its digest {version.digest[:12]}"
            )
        for link in links:
            needed.setdefault(link.digest, (f"{version.ref}, {link.role} {link.name}", link.nbytes))
    total = sum(nbytes for _, nbytes in needed.values())
    with progress("verifying", total, "B") as advance:
        for digest, (where, _) in needed.items():
            try:
                for block in store.open(digest).blocks():
                    advance(block.nbytes)
            except (DamagedError, NotFoundError) as error:
                if catalog.users_of(digest):  # none, where it was purged meanwhile
                    problems.append(f"{where}: {error}")
    unknown = set(store.digests()) - needed.keys()
    orphans = len(unknown - catalog.referenced()) if unknown else 0
    chain = catalog.chain()
    if chain.broken is not None:
        problems.append(f"the log: {chain.broken} does not follow from the one before: one was changed, or is missing")
    return Verification(len(versions), len(needed), total, tuple(problems), orphans, chain.events, chain.head)
