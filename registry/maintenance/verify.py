"""Verification: every array is hashed again, and every version's digest is recomputed from its content and arrays.

The log is verified from its beginning, and every row of the catalog is compared with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from registry.workspace import Workspace, content_digest
from store.catalog import ArrayLink, Catalog, VersionRecord
from store.errors import DamagedError, NotFoundError

Needed = dict[str, tuple[str, tuple[str, tuple[int, ...], int]]]
"""Array → (what uses it, (dtype, shape, size)) in the catalog."""

BROKEN = "does not follow from the event before it: an event was changed or is missing"
"""The problem of an event that breaks the chain of the log."""


@dataclass(frozen=True)
class Verification:
    """The result of a verification."""

    versions: int  # number of versions checked
    arrays: int  # number of arrays hashed
    nbytes: int
    problems: tuple[str, ...]  # one line per problem; empty if all stored content is intact
    orphans: int  # number of arrays on disk that nothing uses: left by a crash, harmless, deleted by `reg gc`
    events: int  # number of intact events of the log
    head: str  # the digest of the last of the intact lines of the log; a copy kept elsewhere reveals missing lines


def verify(workspace: Workspace) -> Verification:
    """Read all registered content and compare it with its digests (ConflictError: the arrays are another catalog's)."""
    workspace.check_owner()
    catalog, store, progress = workspace.catalog, workspace.arrays, workspace.progress
    problems: list[str] = []
    if problem := store.owner_problem():
        problems.append(problem)
    needed: Needed = {}
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
            if workspace.is_purged(version):  # by another process in the meantime
                continue
            problems.append(
                f"{version.ref}: its content in the catalog does not match its digest {version.digest[:12]}"
            )
        for link in links:
            _need(needed, version.ref, link)
    _trained(catalog, needed, problems)
    total = sum(kind[2] for _, kind in needed.values())
    with progress("verifying", total, "B") as advance:
        for digest, (subject, kind) in needed.items():
            try:
                source = store.open(digest, cached=False)
                for block in source.blocks():
                    advance(block.nbytes)
                if (source.dtype, source.shape, source.nbytes) != kind:
                    problems.append(f"{subject}: dtype, shape or size of its array differ from the catalog")
            except (DamagedError, NotFoundError) as error:
                if catalog.users_of(digest):  # empty if it was purged in the meantime
                    problems.append(f"{subject}: {error}")
    unknown = set(store.digests()) - needed.keys()
    orphans = len(unknown - catalog.referenced()) if unknown else 0
    if chain.broken is not None:
        problems.append(f"the log: {chain.broken} {BROKEN}")
    return Verification(len(versions), len(needed), total, tuple(problems), orphans, chain.events, chain.head)


def _trained(catalog: Catalog, needed: Needed, problems: list[str]) -> None:
    """Add the arrays of trained compositions, and a problem for each that differs from its composition's document."""
    for digest in catalog.trained():
        subject = f"composition {digest[:12]}"
        try:
            links, document = catalog.trained_arrays(digest), catalog.composition_document(digest) or {}
        except DamagedError as error:
            problems.append(f"{subject}: {error}")
            continue
        tensors = document.get("training", {}).get("tensors")
        for link in links:
            _need(needed, subject, link)
            if tensors is not None and tensors.get(link.name) != link.digest:
                problems.append(f"{subject}: its trained tensor {link.name} does not match its document")


def _need(needed: Needed, subject: str, link: ArrayLink) -> None:
    needed.setdefault(link.digest, (f"{subject}, {link.role} {link.name}", (link.dtype, link.shape, link.nbytes)))


def _versions(catalog: Catalog, problems: list[str]) -> Iterator[VersionRecord]:
    """Yield the versions that are not purged, name by name, so that an unreadable one does not hide the others."""
    for name in catalog.names():
        try:
            yield from catalog.versions(name, states=("active", "withdrawn"))
        except DamagedError as error:
            problems.append(str(error))
