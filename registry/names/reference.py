"""References such as `math`, `math@2` and `math@stable`, and the rules for names, aliases and licenses."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from registry.errors import InvalidInputError

NAME_LIMIT = 100
_T = TypeVar("_T")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


def check_name(name: str, noun: str = "name") -> str:
    """Return `name` if it is a name (InvalidInputError, which calls it a `noun`, if not)."""
    if len(name) <= NAME_LIMIT and _NAME.fullmatch(name):
        return name
    raise InvalidInputError(
        f"{noun} {name[:NAME_LIMIT]!r} is not of the form [a-z0-9][a-z0-9._-]* with at most {NAME_LIMIT} characters",
        "use lower-case letters, digits, '.', '_' and '-', beginning with a letter or digit",
    )


def copy_name(name: str, number: int, count: int) -> str:
    """Return the name of copy `number` of `count`, from 1, so that names sort by number: `base-01` to `base-12`."""
    return f"{name}-{number:0{len(str(count))}d}"


def check_distinct(names: Sequence[str]) -> None:
    """Raise InvalidInputError if a name is among the members of a composition twice."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInputError(
            f"{', '.join(twice)} is named more than once: a composition holds one version of an expert",
            "name each once",
        )


def check_alias(alias: str) -> str:
    """Return `alias` if it is a name and not a number, which would name a version."""
    if check_name(alias, "alias").isdigit():
        raise InvalidInputError(f"alias {alias!r} is a number, which names a version", "choose an alias with a letter")
    return alias


def check_license(license_id: str) -> str:
    """Return `license_id` if it has the form of the Hub's and SPDX identifiers: `apache-2.0`, `CC-BY-4.0`."""
    if len(license_id) <= NAME_LIMIT and _LICENSE.fullmatch(license_id):
        return license_id
    raise InvalidInputError(
        f"license {license_id[:NAME_LIMIT]!r} is not an identifier",
        "write it as the Hub does: apache-2.0, mit, cc-by-4.0, other",
    )


def require_list(values: Sequence[_T] | os.PathLike[str], noun: str) -> Sequence[_T]:
    """Return `values` if they are a list (InvalidInputError: one text or path, whose characters would be items)."""
    if isinstance(values, str | bytes | os.PathLike):
        raise InvalidInputError(
            f"{noun} must be a list, got the one {type(values).__name__} {str(values)!r}",
            f"put it into a list: [{str(values)!r}]",
        )
    return values


@dataclass(frozen=True)
class Reference:
    """A name, with a version number or an alias or neither (the newest active version)."""

    name: str
    number: int | None = None
    alias: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Read `NAME`, `NAME@NUMBER` or `NAME@ALIAS` (InvalidInputError: the text has another form)."""
        name, at, selector = text.partition("@")
        check_name(name)
        if not at:
            return cls(name)
        if selector.isascii() and selector.isdigit() and len(selector) < 10:
            return cls(name, number=int(selector))
        return cls(name, alias=check_alias(selector))

    def __str__(self) -> str:
        selector = self.alias if self.number is None else self.number
        return self.name if selector is None else f"{self.name}@{selector}"
