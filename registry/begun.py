"""What a reference that somebody has begun to type can become."""

from registry.database import revisions
from registry.registry import Registry
from registry.resolving import ALL_STATES
from store.catalog.records import Kind


def references(
    home: str | None, database: str | None, text: str, kind: Kind | None = None, *, everything: bool = False
) -> list[str]:
    """Return the names that begin as `text` does, or of `NAME@…` the versions and aliases; nothing is created.

    Args:
        home: as `Registry` takes it.
        database: as `Registry` takes it.
        text: what was typed.
        kind: only experts, or only base models.
        everything: those opted out too.

    Raises:
        RegError: there is no registry, or it cannot be read.
    """
    found, head = revisions(home, database)
    if found != head:
        return []
    states = ALL_STATES if everything else ("active",)
    name, at, _ = text.partition("@")
    with Registry(home, database=database, create=False) as registry:
        if not at:
            return [one for one in registry.catalog.names(kind=kind, states=states) if one.startswith(text)]
        own = registry.catalog.versions(name, kind=kind, states=states)
    selectors = [str(version.number) for version in own] + [alias for version in own for alias in version.aliases]
    return [f"{name}@{selector}" for selector in selectors if f"{name}@{selector}".startswith(text)]
