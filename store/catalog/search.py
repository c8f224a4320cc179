"""Which versions are asked for, as conditions of SQL, and which tags there are to ask for."""

from collections.abc import Iterable, Mapping

from sqlalchemy import ColumnElement, func, select

from store.catalog.records import Kind, State, TagCount
from store.catalog.tables import Alias, Expert, Tag, Version
from store.catalog.transactions import Transactions

WORDS = 8
"""Words of a search that count; more are passed over."""

WORD_CHARACTERS = 100
"""Characters of a word that count: no name is longer."""


class Searching(Transactions):
    """The part of the catalog that tells what can be searched for."""

    def tag_counts(self, limit: int) -> list[TagCount]:
        """Return the tags of active versions, those that most of them have first, `limit` at most."""
        count = func.count().label("versions")
        query = select(Tag.key, Tag.value, count).join(Version, Version.id == Tag.version_id)
        query = query.where(Version.state == "active").group_by(Tag.key, Tag.value)
        with self._reading() as session:
            rows = session.execute(query.order_by(count.desc(), Tag.key, Tag.value).limit(limit))
            return [TagCount(key, value, versions) for key, value, versions in rows]


def wanted(
    name: str | None,
    kind: Kind | None,
    states: Iterable[State] | None,
    tags: Mapping[str, str] | None,
    search: str | None = None,
) -> list[ColumnElement[bool]]:
    """Return the conditions on `Version` joined with `Expert`; None narrows nothing.

    Args:
        name: of the expert.
        kind: expert or base.
        states: any of these.
        tags: all of these.
        search: words, each of which is found in the name, an alias, a tag's key or value (or `key=value`), begins the
            digest, or is the version (`math@2`, `math@stable`). Upper and lower case are one.
    """
    conditions = [] if name is None else [Expert.name == name]
    conditions += [] if kind is None else [Expert.kind == kind]
    conditions += [] if states is None else [Version.state.in_(list(states))]
    conditions += [Version.tags.any((Tag.key == key) & (Tag.value == value)) for key, value in (tags or {}).items()]
    return conditions + [_found(word[:WORD_CHARACTERS]) for word in (search or "").split()[:WORDS]]


def _found(word: str) -> ColumnElement[bool]:
    in_tag = Tag.key.icontains(word, autoescape=True) | Tag.value.icontains(word, autoescape=True)
    key, equals, value = word.partition("=")
    if equals:
        in_tag |= (func.lower(Tag.key) == key.lower()) & Tag.value.icontains(value, autoescape=True)
    found = (
        Expert.name.icontains(word, autoescape=True)
        | Version.digest.startswith(word.lower(), autoescape=True)
        | Version.aliases.any(Alias.name.icontains(word, autoescape=True))
        | Version.tags.any(in_tag)
    )
    name, at, version = word.partition("@")
    if at:
        same = Version.aliases.any(func.lower(Alias.name) == version.lower())
        if version.isascii() and version.isdecimal() and len(version) < 10:
            same |= Version.number == int(version)
        found |= (func.lower(Expert.name) == name.lower()) & same
    return found
