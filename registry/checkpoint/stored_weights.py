"""Weights of a registered version, as the base model that an adapter is merged into."""

from dataclasses import dataclass
from functools import cached_property

from registry.workspace import Workspace, open_array
from store.arrays import ArraySource
from store.catalog import ArrayLink, VersionRecord


@dataclass(frozen=True)
class StoredWeights:
    """The weights and files of a registered version, read from its arrays."""

    workspace: Workspace
    version: VersionRecord

    @property
    def registered_as(self) -> tuple[str, ...]:
        """The version's digest."""
        return (self.version.digest,)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return {name: link.shape for name, link in self._links("trunk", "mlp").items()}

    def source(self, name: str) -> ArraySource:
        """Return one tensor as blocks, checked while it is read."""
        return open_array(self.workspace.arrays, self.version, self._links("trunk", "mlp")[name])

    def files(self) -> dict[str, bytes]:
        """Return config.json, the tokenizer's files and generation_config.json, by name."""
        links, arrays = self._links("file"), self.workspace.arrays
        opened = {name: open_array(arrays, self.version, link) for name, link in links.items()}
        return {name: arrays.read(links[name].digest).tobytes() for name in opened}

    def _links(self, *roles: str) -> dict[str, ArrayLink]:
        return {link.name: link for link in self._arrays if link.role in roles}

    @cached_property
    def _arrays(self) -> tuple[ArrayLink, ...]:
        with self.workspace.reading(self.version):
            return self.workspace.verified_arrays(self.version)
