"""From what a user names to the version it stands for."""

import re
from collections.abc import Sequence

from registry.errors import ConflictError, IncompatibleError, InvalidInputError, NotFoundError
from registry.names.reference import Reference, check_alias, check_name
from registry.names.suggest import suggest
from store.catalog import Catalog, CompositionRecord, VersionRecord
from store.catalog.records import KIND_WORDS, Kind, State

_DIGEST = re.compile(r"[0-9a-f]{6,64}")
"""How a digest begins, with digits enough to be told from a word."""

ALL_STATES: tuple[State, ...] = ("active", "withdrawn", "purged")


def versions_of(catalog: Catalog, name: str) -> list[VersionRecord]:
    """Return every version ever registered under `name`, by number.

    Raises:
        NotFoundError: there is none; the message has the nearest name there is.
    """
    if versions := catalog.versions(name):
        return versions
    raise NotFoundError(f"there is no expert {name!r}{suggest(name, catalog.names())}", "run: reg list")


def resolve(
    catalog: Catalog, ref: str, *, kind: Kind | None = None, states: Sequence[State] = ("active",)
) -> VersionRecord:
    """Return the version that `NAME` (its newest in one of `states`), `NAME@NUMBER` or `NAME@ALIAS` stands for.

    Raises:
        NotFoundError: no such name, version or alias.
        ConflictError: its state is none of `states`.
        InvalidInputError: it is of another kind than `kind`, or no reference at all.
    """
    reference = Reference.parse(ref)
    versions = versions_of(catalog, reference.name)
    if kind is not None and versions[0].kind != kind:
        raise InvalidInputError(
            f"{reference.name} is {KIND_WORDS[versions[0].kind]}, not {KIND_WORDS[kind]}",
            f"run: reg list --kind {kind}",
        )
    number = reference.number if reference.alias is None else _aliased(catalog, reference, versions)
    if number is None:
        allowed = [version for version in versions if version.state in states]
        if not allowed:
            raise ConflictError(f"every version of {reference.name} was opted out", "run: reg list --all")
        return allowed[-1]
    found = next((version for version in versions if version.number == number), None)
    if found is None:
        numbers = ", ".join(str(version.number) for version in versions)
        raise NotFoundError(
            f"{reference.name} has no version {number}; it has {numbers}", f"run: reg show {reference.name}"
        )
    if found.state not in states:
        raise ConflictError(f"{found.ref} was opted out at {found.withdrawn_at}", "run: reg list --all")
    return found


def by_digest(catalog: Catalog, name: str, digest: str, holder: str) -> VersionRecord:
    """Return the active version of `name` that has a content digest, whatever its number.

    Args:
        catalog: where it is registered.
        name: its name.
        digest: its content digest.
        holder: what was composed of it.

    Raises:
        NotFoundError: there never was one.
        ConflictError: it was opted out.
    """
    found = [version for version in catalog.versions(name) if version.digest == digest]
    if not found:
        raise NotFoundError(
            f"{holder} was composed of {name} {digest[:12]}, which is not registered here",
            "use the registry that it was composed with: --home DIR",
        )
    active = [version for version in found if version.state == "active"]
    if not active:
        raise ConflictError(
            f"{holder} holds {found[-1].ref}, which was opted out at {found[-1].withdrawn_at}",
            f"compose the others without it, and delete {holder}",
        )
    return active[-1]


def check_name_is_free(catalog: Catalog, name: str, kind: Kind) -> None:
    """Check that `name` can be registered as `kind`.

    Raises:
        InvalidInputError: it is no name.
        ConflictError: it is registered as the other kind.
    """
    found = catalog.versions(check_name(name))
    if found and found[0].kind != kind:
        raise ConflictError(
            f"{name} is registered as {KIND_WORDS[found[0].kind]}, not as {KIND_WORDS[kind]}", "choose another name"
        )


def versions_matching(catalog: Catalog, ref: str) -> list[VersionRecord]:
    """Return the versions that `ref` concerns: a bare name means all of its versions, in whatever state."""
    reference = Reference.parse(ref)
    if reference.number is None and reference.alias is None:
        return versions_of(catalog, reference.name)
    return [resolve(catalog, ref, states=ALL_STATES)]


def composition_of(catalog: Catalog, text: str) -> CompositionRecord | None:
    """Return the one composition whose digest begins with `text`; None where that is a registered name, or no digest.

    Raises:
        NotFoundError: it looks like a digest, and no composition has it.
        InvalidInputError: several compositions have it.
    """
    if not _DIGEST.fullmatch(text) or text in catalog.names():
        return None
    found = [made for made in catalog.compositions() if made.digest.startswith(text)]
    if not found:
        raise NotFoundError(f"there is no composition and no expert {text!r}", "run: reg compositions")
    if len(found) > 1:
        raise InvalidInputError(
            f"{len(found)} compositions begin with {text}", f"give more digits, such as {found[0].digest[:16]}"
        )
    return found[0]


def logged_as(catalog: Catalog, text: str) -> str:
    """Return what the log calls a name, a version, an alias's version, or a composition by how its digest begins.

    Raises:
        NotFoundError: there is none of these.
        InvalidInputError: it is no reference at all, or several compositions have it.
    """
    if (made := composition_of(catalog, text)) is not None:
        return made.digest
    reference = Reference.parse(text)
    if reference.number is None and reference.alias is None:
        return versions_of(catalog, reference.name)[0].name
    return resolve(catalog, text, states=ALL_STATES).ref


def check_has_alias(catalog: Catalog, name: str, alias: str) -> None:
    """Check that there is `name@alias`.

    Raises:
        NotFoundError: there is not; the message has the aliases there are.
    """
    versions = versions_of(catalog, check_name(name))
    if catalog.alias_target(name, check_alias(alias)) is None:
        raise NotFoundError(_no_alias(name, alias, versions), "run: reg list --all, which shows the aliases there are")


def base_model(catalog: Catalog, ref: str | None) -> VersionRecord:
    """Return the base model `ref`, or the only one that is registered.

    Raises:
        IncompatibleError: `ref` is None, and there is none or more than one.
    """
    if ref is not None:
        return resolve(catalog, ref, kind="base")
    names = sorted({version.name for version in catalog.versions(kind="base", states=["active"])})
    if len(names) != 1:
        found = f"there are {len(names)}: {', '.join(names)}" if names else "none is registered"
        hint = f"name one: --base {names[0]}" if names else "run: reg add-base NAME CKPT"
        raise IncompatibleError(f"this recipe needs the base model, and {found}", hint)
    return resolve(catalog, names[0])


def _aliased(catalog: Catalog, reference: Reference, versions: Sequence[VersionRecord]) -> int:
    number = catalog.alias_target(reference.name, str(reference.alias))
    if number is None:
        raise NotFoundError(
            _no_alias(reference.name, str(reference.alias), versions),
            f"run: reg alias {reference.name}@{versions[-1].number} {reference.alias}",
        )
    return number


def _no_alias(name: str, alias: str, versions: Sequence[VersionRecord]) -> str:
    aliases = sorted(alias for version in versions for alias in version.aliases)
    return f"{name} has no alias {alias!r}; it has {', '.join(aliases) or 'none'}{suggest(alias, aliases)}"
