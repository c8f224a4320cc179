"""Filters of versions as SQL conditions."""

from collections.abc import Iterable, Mapping
from typing import TypedDict

from sqlalchemy import ColumnElement, false
from sqlalchemy.orm import InstrumentedAttribute

from store.catalog.records import Kind, State
from store.catalog.tables import Alias, Expert, Tag, Version, lowered

WORDS = 8  # maximum number of words in a search; further words are ignored
WORD_CHARACTERS = 100  # maximum length of a word; no name is longer


class Filters(TypedDict, total=False):
    """Filters of versions; one that is absent or None does not filter.

    `search` has words, whatever their case; each must be part of the name, an alias, a tag's key or value (or
    `key=value`), be the beginning of the digest, or be the version (`math@2`, `math@stable`).
    """

    kind: Kind | None
    states: Iterable[State] | None  # any of these
    tags: Mapping[str, str] | None  # all of these
    search: str | None


def conditions(filters: Filters) -> list[ColumnElement[bool]]:
    """Return SQL conditions on `Version` joined with `Expert`."""
    kind, states, tags, search = filters.get("kind"), filters.get("states"), filters.get("tags"), filters.get("search")
    if any("\x00" in text for text in (search or "", *(tags or {}), *(tags or {}).values())):
        return [false()]  # nothing has one, and PostgreSQL takes none
    clauses = [] if kind is None else [Expert.kind == kind]
    clauses += [] if states is None else [Version.state.in_(list(states))]
    clauses += [Version.tags.any((Tag.key == key) & (Tag.value == value)) for key, value in (tags or {}).items()]
    return clauses + [_matches(word[:WORD_CHARACTERS]) for word in (search or "").split()[:WORDS]]


def _matches(word: str) -> ColumnElement[bool]:
    in_tag = _contains(Tag.key, word) | _contains(Tag.value, word)
    key, equals, value = word.partition("=")
    if equals:
        in_tag |= (lowered(Tag.key) == _small(key)) & _contains(Tag.value, value)
    matches = (
        _contains(Expert.name, word)
        | Version.digest.startswith(word.lower(), autoescape=True)
        | Version.aliases.any(_contains(Alias.name, word))
        | Version.tags.any(in_tag)
    )
    name, at, version = word.partition("@")
    if at:
        same = Version.aliases.any(lowered(Alias.name) == _small(version))
        if version.isascii() and version.isdecimal() and len(version) < 10:
            same |= Version.number == int(version)
        matches |= (lowered(Expert.name) == _small(name)) & same
    return matches


def _contains(column: InstrumentedAttribute[str], word: str) -> ColumnElement[bool]:
    """Tell whether a column contains a word, whatever the case of ASCII letters: databases differ on others."""
    return lowered(column).contains(_small(word), autoescape=True)


def _small(word: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in word)
