"""Errors for references that match nothing: what was probably meant, and the next command."""

import re
import shlex
from pathlib import Path

from registry.errors import InvalidInputError, NotFoundError
from registry.names.suggest import suggest
from store.catalog import Catalog, CompositionRecord
from store.catalog.records import Kind

_SHORT = re.compile(r"(?=.*[0-9])[0-9a-f]{3,5}")
"""What looks like the beginning of a digest that is too short: with a digit, unlike `face`."""
_DIGITS = 12
"""Digits of a composition's digest in a message."""


def unknown_name(catalog: Catalog, name: str, kind: Kind | None) -> NotFoundError:
    """Return the error for a name under which nothing was ever registered.

    Args:
        catalog: the catalog.
        name: the name.
        kind: the kind that was asked for, if only one will do.
    """
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


def unreadable_reference(catalog: Catalog, text: str, kind: Kind | None, error: InvalidInputError) -> InvalidInputError:
    """Return the error for a text that cannot be a reference, such as a path.

    Args:
        catalog: the catalog.
        text: the text.
        kind: the kind that was asked for, if only one will do.
        error: what is wrong with it as a reference.
    """
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
