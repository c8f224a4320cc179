"""Verifying: every array re-hashed, every version's digest recomputed from what it says and what it is made of.

The log is followed from its beginning, and every row of the catalog is held against it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from registry.workspace import Workspace, content_digest
from store.catalog import Catalog, VersionRecord
from store.errors import DamagedError, NotFoundError


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


def verify(workspace: Workspace) -> Verification:
    """Read everything that is registered and compare it with its digests.

    Raises:
        ConflictError: the arrays belong to another catalog.
    """
    workspace.check_owner()
    catalog, store, progress = workspace.catalog, workspace.arrays, workspace.progress
    problems: list[str] = []
    if store.owner_file.exists() and store.owner() is None:
        problems.append(f"{store.owner_file} is not as it was written; the next registration writes it again")
    needed: dict[str, tuple[str, tuple[str, tuple[int, ...], int]]] = {}
    chain = catalog.chain()
    problems += catalog.discrepancies(log=chain.broken is None)
    versions = list(_versions(catalog, problems))
    for version in versions:
        try:
            links = catalog.arrays_of(version)
        except DamagedError as error:
            problems.append(f"{version.ref}: {error}")
            continue
        if version.content is None or content_digest(version.content, links) != version.digest:
            if workspace.is_purged(version):  # meanwhile, by another process
                continue
            problems.append(
                f"{version.ref}: what the catalog says of it does not have its digest {version.digest[:12]}"
            )
        for link in links:
            needed.setdefault(
                link.digest, (f"{version.ref}, {link.role} {link.name}", (link.dtype, link.shape, link.nbytes))
            )
    total = sum(kind[2] for _, kind in needed.values())
    with progress("verifying", total, "B") as advance:
        for digest, (where, kind) in needed.items():
            try:
                source = store.open(digest)
                for block in source.blocks():
                    advance(block.nbytes)
                if (source.dtype, source.shape, source.nbytes) != kind:
                    problems.append(f"{where}: the catalog describes its array otherwise than it is")
            except (DamagedError, NotFoundError) as error:
                if catalog.users_of(digest):  # none, where it was purged meanwhile
                    problems.append(f"{where}: {error}")
    unknown = set(store.digests()) - needed.keys()
    orphans = len(unknown - catalog.referenced()) if unknown else 0
    if chain.broken is not None:
        problems.append(f"the log: {chain.broken} does not follow from the one before: one was changed, or is missing")
    return Verification(len(versions), len(needed), total, tuple(problems), orphans, chain.events, chain.head)


def _versions(catalog: Catalog, problems: list[str]) -> Iterator[VersionRecord]:
    """Yield what is not purged, name by name, so that one that cannot be read hides no other."""
    for name in catalog.names():
        try:
            yield from catalog.versions(name, states=("active", "withdrawn"))
        except DamagedError as error:
            problems.append(str(error))
