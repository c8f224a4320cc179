"""A registered version as a composition sees it: its architecture, its arrays, its statistics."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from registry.architecture import Architecture
from registry.errors import DamagedError, RegError
from registry.families import FAMILIES, Family, Translation
from registry.maths.statistics import Statistics
from registry.tensors import to_tensor
from store.arrays import ArraySource, ArrayStore
from store.catalog import ArrayLink, VersionRecord
from store.catalog.records import Role


@dataclass(frozen=True)
class Member:
    """One version and where its arrays are."""

    version: VersionRecord
    arrays: tuple[ArrayLink, ...]
    store: ArrayStore

    @cached_property
    def content(self) -> dict[str, Any]:
        """What the version says of itself."""
        if self.version.content is None:
            raise RegError(f"{self.version.ref} was purged", "run: reg list --all")
        return self.version.content

    @property
    def name(self) -> str:
        """The expert's name."""
        return self.version.name

    @cached_property
    def family(self) -> Family:
        """The dense family."""
        return FAMILIES[self.content["family"]]

    @cached_property
    def architecture(self) -> Architecture:
        """The sizes and switches."""
        return Architecture(**self.content["architecture"])

    @cached_property
    def hosts(self) -> dict[str, Translation]:
        """Every host that carries this version, by what a recipe calls it, the default one first."""
        return self.family.hosts(self.architecture)

    @cached_property
    def _links(self) -> dict[tuple[str, str], ArrayLink]:
        return {(link.role, link.name): link for link in self.arrays}

    def names(self, role: Role) -> list[str]:
        """Return the names of the arrays that have a role."""
        return [link.name for link in self.arrays if link.role == role]

    def link(self, role: Role, name: str) -> ArrayLink:
        """Return what the catalog says of one array.

        Raises:
            DamagedError: the version has no such array.
        """
        link = self._links.get((role, name))
        if link is None:
            raise DamagedError(f"{self.version.ref} has no {role} array {name}", "run: reg verify")
        return link

    def open(self, role: Role, name: str) -> ArraySource:
        """Return one array as blocks, checked while it is read."""
        return self.store.open(self.link(role, name).digest)

    def file(self, name: str) -> bytes:
        """Return the content of one of the version's files."""
        return self.store.read(self.link("file", name).digest).tobytes()

    def statistics(self, site: str, layer: int) -> Statistics:
        """Return the statistics of one site and layer.

        Raises:
            DamagedError: they do not go together.
        """
        exponents, saturated = self._scales(site)
        packed = self._tensor("statistics", f"{site}/gram/{layer}")
        try:
            return Statistics.unpack(packed, exponents[layer], int(saturated[layer]))
        except ValueError as error:
            raise DamagedError(f"{self.version.ref}, {site}, layer {layer}: {error}", "run: reg verify") from error

    def _scales(self, site: str) -> tuple[torch.Tensor, torch.Tensor]:
        if site not in self._read_scales:  # small, and asked for once a layer
            names = (f"{site}/exponents", f"{site}/saturated")
            self._read_scales[site] = tuple(self._tensor("statistics", name) for name in names)
        exponents, saturated = self._read_scales[site]
        return exponents, saturated

    @cached_property
    def _read_scales(self) -> dict[str, tuple[torch.Tensor, ...]]:
        return {}

    def _tensor(self, role: Role, name: str) -> torch.Tensor:
        link = self.link(role, name)
        return to_tensor(self.store.read(link.digest), link.dtype)


@dataclass(frozen=True)
class StoredWeights:
    """A registered version as the base model that an adapter is merged into."""

    member: Member

    @cached_property
    def _roles(self) -> dict[str, Role]:
        return {link.name: link.role for link in self.member.arrays if link.role in ("trunk", "mlp")}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return {name: self.member.link(role, name).shape for name, role in self._roles.items()}

    def source(self, name: str) -> ArraySource:
        """Return one tensor as blocks, checked while it is read."""
        return self.member.open(self._roles[name], name)

    def files(self) -> dict[str, bytes]:
        """Return config.json, the tokenizer's files and generation_config.json, by name."""
        return {name: self.member.file(name) for name in self.member.names("file")}
