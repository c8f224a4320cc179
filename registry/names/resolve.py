"""Resolution of references to versions and compositions."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from registry.errors import ConflictError, IncompatibleError, InvalidInputError, NotFoundError
from registry.names.reference import Reference, check_alias, check_name
from registry.names.suggest import suggest
from store.catalog import Catalog, CompositionRecord, VersionRecord
from store.catalog.records import KIND_WORDS, Kind, State, spoken

_DIGEST = re.compile(r"[0-9a-f]{6,64}")  # the beginning of a digest, long enough to differ from a word
_SHORT = re.compile(r"(?=.*[0-9])[0-9a-f]{3,5}")  # a beginning that is too short: with a digit, unlike `face`
_DIGITS = 12  # of a composition's digest in a message

ALL_STATES: tuple[State, ...] = ("active", "withdrawn", "purged")


def versions_of(catalog: Catalog, name: str, kind: Kind | None = None) -> list[VersionRecord]:
    """Return every version ever registered under `name`, by number (NotFoundError, in words for `kind`: none)."""
    if versions := catalog.versions(name):
        return versions
    raise _unknown_name(catalog, name, kind)


def resolve(
    catalog: Catalog, ref: str, *, kind: Kind | None = None, states: Sequence[State] = ("active",)
) -> VersionRecord:
    """Resolve `NAME` (its newest version in one of `states`), `NAME@NUMBER` or `NAME@ALIAS` to a version.

    NotFoundError: no version matches. ConflictError: its state is not among `states`. InvalidInputError: it is of
    another kind than `kind`, or `ref` is not a reference.
    """
    try:
        reference = Reference.parse(ref)
    except InvalidInputError as error:
        raise _unreadable(catalog, ref, kind, error) from error
    versions = versions_of(catalog, reference.name, kind)
    if kind is not None and versions[0].kind != kind:
        problem = f"{reference.name} is {KIND_WORDS[versions[0].kind]}, not {KIND_WORDS[kind]}"
        raise InvalidInputError(problem, f"reg list --kind {kind}")
    number = reference.number
    if reference.alias is not None and (number := catalog.alias_target(reference.name, reference.alias)) is None:
        raise NotFoundError(
            _no_alias(reference.name, reference.alias, versions),
            f"reg alias {reference.name}@{versions[-1].number} {reference.alias}",
        )
    if number is None:
        allowed = [version for version in versions if version.state in states]
        if not allowed:
            raise ConflictError(f"every version of {reference.name} was opted out", "reg list --all")
        return allowed[-1]
    match = next((version for version in versions if version.number == number), None)
    if match is None:
        numbers = ", ".join(str(version.number) for version in versions)
        raise NotFoundError(f"{reference.name} has no version {number}; it has {numbers}", f"reg show {reference.name}")
    if match.state not in states:
        raise ConflictError(f"{match.ref} was opted out at {spoken(str(match.withdrawn_at))}", "reg list --all")
    return match


def by_digest(catalog: Catalog, name: str, digest: str, holder: str, composition: str | None = None) -> VersionRecord:
    """Return the active version of `name` with a content digest, of any number.

    `holder` is the composition that it is a member of, for messages, and `composition` its digest, if that is known
    (NotFoundError: no version matches; ConflictError: the version was opted out).
    """
    version = find_by_digest(catalog, name, digest, holder, composition)
    if version is None:
        raise NotFoundError(
            f"{holder} was composed of {name} {digest[:12]}, which is not registered here",
            "use the registry that it was composed with: --home DIR",
        )
    return version


def find_by_digest(
    catalog: Catalog, name: str, digest: str, holder: str, composition: str | None = None
) -> VersionRecord | None:
    """Return the active version of `name` with a content digest; None if there was none (errors as `by_digest`)."""
    version = version_of_content(catalog, name, digest, composition)
    if version is not None and version.state != "active":
        raise ConflictError(
            f"{holder} holds {version.ref}, which was opted out at {spoken(str(version.withdrawn_at))}",
            f"compose the others without it, and delete {holder}",
        )
    return version


def version_of_content(
    catalog: Catalog, name: str, digest: str, composition: str | None = None
) -> VersionRecord | None:
    """Return the version that a name and a content digest stand for; None if it was never registered here.

    After an opt-out the same content may be registered again, under the next number. Then it is the newest active
    version; if all were opted out, the newest of those that the composition with the digest `composition` is made from.
    """
    versions = [version for version in catalog.versions(name) if version.digest == digest]
    active = [version for version in versions if version.state == "active"]
    if active or len(versions) < 2 or composition is None:
        return next(reversed(active or versions), None)
    made = [record for record in catalog.compositions(versions) if record.digest == composition]
    refs = {ref for record in made for ref in record.members}
    return ([version for version in versions if version.ref in refs] or versions)[-1]


def check_name_is_free(catalog: Catalog, name: str, kind: Kind) -> None:
    """Check that `name` can be registered as `kind` (InvalidInputError: no name; ConflictError: the other kind)."""
    versions = catalog.versions(check_name(name))
    if versions and versions[0].kind != kind:
        raise ConflictError(
            f"{name} is registered as {KIND_WORDS[versions[0].kind]}, not as {KIND_WORDS[kind]}", "choose another name"
        )


def versions_matching(catalog: Catalog, ref: str) -> list[VersionRecord]:
    """Return the versions that `ref` matches, in any state; a bare name matches all of its versions."""
    reference = Reference.parse(ref)
    if reference.number is None and reference.alias is None:
        return versions_of(catalog, reference.name)
    return [resolve(catalog, ref, states=ALL_STATES)]


def composition_of(catalog: Catalog, text: str) -> CompositionRecord | None:
    """Return the composition whose digest begins with `text`; None if `text` is a registered name, or not a digest.

    Raises NotFoundError if no composition has such a digest, and InvalidInputError if several have.
    """
    if not _DIGEST.fullmatch(text) or text in catalog.names():
        return None
    matches = [composition for composition in catalog.compositions() if composition.digest.startswith(text)]
    if not matches:
        raise NotFoundError(f"there is no composition and no expert {text!r}", "reg compositions")
    if len(matches) > 1:
        raise InvalidInputError(
            f"{len(matches)} compositions begin with {text}", f"give more digits, such as {matches[0].digest[:16]}"
        )
    return matches[0]


def logged_as(catalog: Catalog, text: str) -> str:
    """Return the log's subject for a name, a version, an alias, or a composition's digest (errors as `resolve`)."""
    if (composition := composition_of(catalog, text)) is not None:
        return composition.digest
    version = versions_matching(catalog, text)[0]
    return version.name if version.name == text else version.ref


def check_has_alias(catalog: Catalog, name: str, alias: str) -> None:
    """Raise NotFoundError, which lists the aliases that `name` has, if it lacks this one."""
    versions = versions_of(catalog, check_name(name))
    if catalog.alias_target(name, check_alias(alias)) is None:
        raise NotFoundError(_no_alias(name, alias, versions), "reg list --all, which shows the aliases there are")


def base_model(catalog: Catalog, ref: str | None) -> VersionRecord:
    """Return the base model `ref`, or the only one that is registered (IncompatibleError: none is, or several)."""
    if ref is not None:
        return resolve(catalog, ref, kind="base")
    names = sorted({version.name for version in catalog.versions(kind="base", states=["active"])})
    if len(names) != 1:
        problem = f"there are {len(names)}: {', '.join(names)}" if names else "none is registered"
        hint = f"name one: --base {names[0]}" if names else "reg add-base NAME CKPT"
        raise IncompatibleError(f"this recipe needs the base model, and {problem}", hint)
    return resolve(catalog, names[0])


def _no_alias(name: str, alias: str, versions: Sequence[VersionRecord]) -> str:
    aliases = sorted(alias for version in versions for alias in version.aliases)
    return f"{name} has no alias {alias!r}; it has {', '.join(aliases) or 'none'}{suggest(alias, aliases)}"


def _unknown_name(catalog: Catalog, name: str, kind: Kind | None) -> NotFoundError:
    """Return the error for a name under which nothing was ever registered, where a version of `kind` was asked for."""
    if kind == "base":
        names = {version.name for version in catalog.versions(kind=kind)}
        return NotFoundError(
            f"there is no base model {name!r}{suggest(name, names)}",
            f"register it: reg add-base {name} CKPT; those registered: reg list --kind base",
        )
    for composition in reversed(catalog.compositions()):
        digest = composition.digest[:_DIGITS]
        if base := _copied(composition, name):
            return NotFoundError(
                f"there is no expert {name!r}: it is a copy of the base model {base} in composition {digest}",
                f"reg show {base}; opting that out withdraws all of its copies",
            )
        if any(Path(folder).name == name for folder in composition.folders):
            return NotFoundError(
                f"there is no expert {name!r}: a folder of that name has composition {digest}",
                f"reg show {digest}; or reg compositions, which lists all",
            )
    if _SHORT.fullmatch(name):
        return NotFoundError(
            f"there is no expert {name!r}, and a digest is named by its first 6 digits or more",
            "give more digits: reg compositions shows them; those of experts: reg list",
        )
    known = catalog.names()
    if not known:
        return NotFoundError(
            f"there is no expert {name!r}: nothing is registered in this registry",
            "name another registry with --home or REG_HOME; reg config shows which one this is",
        )
    return NotFoundError(f"there is no expert {name!r}{suggest(name, known)}", "reg list")


def _unreadable(catalog: Catalog, text: str, kind: Kind | None, error: InvalidInputError) -> InvalidInputError:
    """Return the error for a text that cannot be a reference, such as a path; `error` says what is wrong with it."""
    if kind == "base":
        return InvalidInputError(
            f"base model {text!r} is not a registered name: {error.message}",
            f"register the checkpoint, then give its name: reg add-base NAME {shlex.quote(text)}",
        )
    path = str(Path(text).absolute())
    for composition in reversed(catalog.compositions()):
        if path in composition.folders:
            digest = composition.digest[:_DIGITS]
            return InvalidInputError(
                f"{text} is the folder of composition {digest}, not the name of a version",
                f"reg show {digest}; or reg compositions, which lists all",
            )
    return error


def _copied(composition: CompositionRecord, name: str) -> str | None:
    """Return the base model that a name is a copy of in a composition, or None."""
    document = composition.document
    if "from_base" not in document or name not in {member["name"] for member in document["members"]}:
        return None
    return str(document["base"]["name"])
