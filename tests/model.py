"""What a registry should hold, as plain Python: versions, aliases, tags, compositions and the log, command by command.

Every command gives the states that a registry may be found in when it was interrupted; the last is that of its end.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from registry import Registry
from tests.tiny import Member


@dataclass
class Version:
    """One registration."""

    name: str
    kind: str
    number: int
    content: str
    state: str = "active"
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def ref(self) -> str:
        """As a user names it."""
        return f"{self.name}@{self.number}"


@dataclass
class Model:
    """A registry.

    Attributes:
        versions: every one there ever was.
        aliases: (name, alias) → number.
        compositions: digest → references of what it was made from.
        events: action and subject of every line of the log.
    """

    versions: list[Version] = field(default_factory=list)
    aliases: dict[Member, int] = field(default_factory=dict)
    compositions: dict[str, frozenset[str]] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)

    # -- looking -----------------------------------------------------------------------------------------------------

    def active(self, kind: str = "expert") -> list[Version]:
        """Return the versions that can be composed."""
        return [version for version in self.versions if (version.kind, version.state) == (kind, "active")]

    def named(self, ref: str) -> Version:
        """Return the version that a reference names."""
        return next(version for version in self.versions if version.ref == ref)

    def contents(self) -> set[str]:
        """Return the checkpoints whose arrays must be there."""
        return {version.content for version in self.versions if version.state != "purged"}

    def state(self) -> dict[str, Any]:
        """Return all of it, as `observed` returns it of a registry."""
        versions = []
        for version in sorted(self.versions, key=lambda one: (one.name, one.number)):
            aliases = sorted(a for (name, a), number in self.aliases.items() if (name, number) == _key(version))
            versions.append((version.ref, version.kind, version.state, tuple(aliases), version.tags))
        return {"versions": versions, "compositions": self.compositions, "events": self.events}

    # -- commands ----------------------------------------------------------------------------------------------------

    def add(self, name: str, kind: str, content: str, alias: str | None, tags: dict[str, str]) -> "list[Model]":
        """Register a checkpoint: the same content of an active version is found again."""
        states = [self]
        model = deepcopy(self)
        mine = [version for version in model.versions if version.name == name]
        found = next((one for one in mine if one.state == "active" and one.content == content), None)
        if found is None:
            found = Version(name, kind, len(mine) + 1, content, tags=dict(tags))
            model.versions.append(found)
            model.events.append((f"add-{kind}", found.ref))
            states.append(model)
        elif not tags.items() <= found.tags.items():
            found.tags |= tags
            model.events.append(("tag", found.ref))
            states.append(model)
        if alias is not None and model.aliases.get((name, alias)) != found.number:
            states += model.alias(found.ref, alias)[1:]
        return states

    def alias(self, ref: str, alias: str) -> "list[Model]":
        """Point an alias at a version."""
        model, version = self._after("alias", ref), self.named(ref)
        model.aliases[version.name, alias] = version.number
        return [self, model]

    def remove_alias(self, name: str, alias: str) -> "list[Model]":
        """Forget an alias."""
        model = self._after("alias", name)
        del model.aliases[name, alias]
        return [self, model]

    def compose(self, digest: str, refs: frozenset[str]) -> "list[Model]":
        """Record a composition."""
        model = self._after("compose", digest)
        model.compositions[digest] = model.compositions.get(digest, frozenset()) | refs
        return [self, model]

    def train_soup(self, names: Iterable[str]) -> "list[Model]":
        """Register a soup: its shared weights first, then its experts, each as a checkpoint of its own name."""
        states = [self]
        for number, name in enumerate(names):
            states += states[-1].add(name, "expert" if number else "base", name, None, {})[1:]
        return states

    def opt_out(self, refs: list[str], *, purge: bool) -> "list[Model]":
        """Withdraw versions, and with `purge` forget all but what they were called; garbage is not told of."""
        withdrawn = deepcopy(self)
        for ref in refs:
            version = withdrawn.named(ref)
            if version.state == "active":
                version.state = "withdrawn"
                withdrawn.events.append(("opt-out", ref))
        if not purge:
            return [self, withdrawn]
        purged = deepcopy(withdrawn)
        for ref in refs:
            version = purged.named(ref)
            if version.state != "purged":
                version.state, version.tags = "purged", {}
                purged.aliases = {key: n for key, n in purged.aliases.items() if (key[0], n) != _key(version)}
                purged.events.append(("purge", ref))
        return [self, withdrawn, purged]

    def collect(self) -> "list[Model]":
        """Delete garbage, of which there is some."""
        return [self, self._after("gc", "arrays")]

    def _after(self, *event: str) -> "Model":
        return replace(deepcopy(self), events=[*self.events, (event[0], event[1])])


def observed(registry: Registry) -> dict[str, Any]:
    """Return what a registry holds, as `Model.state` returns it."""
    return {
        "versions": [(v.ref, v.kind, v.state, v.aliases, v.tags) for v in registry.versions(everything=True)],
        "compositions": {made.digest: frozenset(made.members) for made in registry.compositions()},
        "events": [(event.action, event.subject) for event in reversed(registry.log())],
    }


def _key(version: Version) -> tuple[str, int]:
    return version.name, version.number
