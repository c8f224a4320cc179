"""A registered version and its arrays, and the record of its training.

`reg train-expert` writes `expert_training.json`, but any imported checkpoint can hold one: it is untrusted. So is a
composed folder, whose record has the same form.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from registry.checkpoint.adapter import HEADER, WEIGHTS, Adapter, Merged
from registry.checkpoint.adapter_config import CONFIG
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.errors import CheckpointError, DamagedError, RegError
from registry.families import family_of
from registry.hosts.architecture import Architecture
from registry.io.safetensors_file import parse_head
from registry.io.untrusted import COUNT, OBJECT, Kind, check_format, json_object, list_of, some_fields
from registry.progress import remark
from registry.workspace import Workspace, open_array
from store.arrays import CARRIERS, ArraySource, ArrayStore, Block, little_endian
from store.catalog import ArrayLink, VersionRecord
from store.catalog.records import Role
from store.digest import json_digest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_LOSSES = 10_000  # numbers of a loss curve; `reg train-expert` writes at most 2,000
LARGEST_LOSS = 1e6  # in nats per token; that of a uniform guess is the logarithm of the vocabulary's size
_LOSS = Kind(
    f"a number with a decimal point, from 0 to {LARGEST_LOSS:,.0f}",
    lambda value: isinstance(value, float) and 0 <= value <= LARGEST_LOSS,
)
_SIZES = ("batch_size", "accumulate", "seq_len")
_HINT = (
    "register the expert again without the file: reg export NAME --out DIR, delete it there, reg add-expert NAME DIR"
)


ADAPTER, BASE = "adapter", "base"
"""Roles of an adapter's own arrays, and of the arrays of its base model that it changes."""


@dataclass(frozen=True)
class VersionArrays:
    """A version and its arrays, which are in `store`; those that an adapter changes are merged where they are read."""

    version: VersionRecord
    arrays: tuple[ArrayLink, ...]
    store: ArrayStore

    @classmethod
    def load(cls, workspace: Workspace, version: VersionRecord) -> Self:
        """Return a version with its arrays (ConflictError: purged meanwhile; DamagedError: rows were changed)."""
        with workspace.reading(version):
            loaded = cls(version, workspace.verified_arrays(version), workspace.arrays)
            made = loaded._made_links()
            return replace(loaded, arrays=tuple(sorted((*loaded.arrays, *made), key=_place))) if made else loaded

    @property
    def is_adapter(self) -> bool:
        """Tell whether its weights are those of a base model and an adapter."""
        return (ADAPTER, CONFIG) in self._links

    @cached_property
    def merged(self) -> Merged:
        """The weights of an adapter and its base (DamagedError: its arrays are not those of an adapter)."""
        config = json_object(self._read(self.link(ADAPTER, CONFIG)).tobytes(), f"{self.version.ref}/{CONFIG}")
        tensors = {name: self._later(ADAPTER, name) for name in self.names(ADAPTER) if name not in (CONFIG, HEADER)}
        try:
            return Merged(Adapter(config, tensors, self.files, self.version.ref), _Base(self))
        except CheckpointError as error:
            raise DamagedError(error.message, "reg verify") from error

    def adapter_files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield the name of each of an adapter's own files, and its bytes, in parts, as they were registered."""
        yield CONFIG, iter([self._read(self.link(ADAPTER, CONFIG)).tobytes()])
        head = self._read(self.link(ADAPTER, HEADER)).tobytes()
        tensors = [name for name in self.names(ADAPTER) if name not in (CONFIG, HEADER)]
        order = parse_head(head, len(head) + sum(self.link(ADAPTER, name).nbytes for name in tensors)).tensors

        def parts() -> Iterator[bytes]:
            yield head
            for name in sorted(order, key=lambda name: order[name].begin):
                yield from (little_endian(block).tobytes() for block in self.open(ADAPTER, name).blocks())

        yield WEIGHTS, parts()

    @cached_property
    def _links(self) -> dict[tuple[str, str], ArrayLink]:
        return {(link.role, link.name): link for link in self.arrays}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight, by name."""
        return {link.name: link.shape for link in self.arrays if link.role in ("trunk", "mlp")}

    def names(self, role: Role) -> list[str]:
        """Return the names of the arrays that have a role."""
        return [link.name for link in self.arrays if link.role == role]

    def link(self, role: Role, name: str) -> ArrayLink:
        """Return the catalog's record of one array (DamagedError: the version has no such array)."""
        link = self._links.get((role, name))
        if link is None:
            raise DamagedError(f"{self.version.ref} has no {role} array {name}", "reg verify")
        return link

    def weight(self, name: str) -> ArrayLink:
        """Return the catalog's record of one tensor, of the trunk or of an MLP (errors as `link`)."""
        return self._links.get(("mlp", name)) or self.link("trunk", name)

    def source(self, name: str) -> ArraySource:
        """Return one weight as blocks, checked while it is read."""
        return self._opened(self.weight(name))

    def open(self, role: Role, name: str) -> ArraySource:
        """Return one array as blocks, checked while it is read."""
        return self._opened(self.link(role, name))

    def file(self, name: str) -> bytes:
        """Return the content of one of the version's files."""
        return self._read(self.link("file", name)).tobytes()

    def files(self) -> dict[str, bytes]:
        """Return its files, by name."""
        return {name: self.file(name) for name in self.names("file")}

    def sample(self, name: str, rows: "npt.NDArray[np.int64]") -> Block:
        """Return some rows of one weight, in its carrier dtype, unchecked (errors as `ArrayStore.sample`)."""
        return self.merged.sample(name, rows, self._sample) if self.is_adapter else self._sample(name, rows)

    def _sample(self, name: str, rows: "npt.NDArray[np.int64]") -> Block:
        link = self._links.get((BASE, name)) or self.weight(name)
        return self.store.sample(link.digest, rows)

    def _later(self, role: Role, name: str) -> ArraySource:
        link = self.link(role, name)
        return ArraySource(link.dtype, link.shape, lambda: self._opened(link).blocks())

    def _made_links(self) -> list[ArrayLink]:
        """Return the weights that an adapter changes, each by what it is made from."""
        if not self.is_adapter:
            return []
        content = self.version.content or {}
        mlp = family_of(content["family"]).mlp_shapes(Architecture(**content["architecture"]))
        links, config = [], self.link(ADAPTER, CONFIG).digest
        for name, parts in self.merged.changes.items():
            base, shape = self.link(BASE, name), self.merged.shapes[name]
            tensors = {part: self.link(ADAPTER, self.merged.adapter.names[own]).digest for part, own in parts.items()}
            digest = made_digest(name, base.digest, config, tensors)
            nbytes = math.prod(shape) * CARRIERS[base.dtype][1]
            links.append(ArrayLink("mlp" if name in mlp else "trunk", name, digest, base.dtype, shape, nbytes))
        return links

    def _read(self, link: ArrayLink) -> Block:
        self._opened(link)  # checks that it is there, of this dtype and shape
        return self.store.read(link.digest)

    def _opened(self, link: ArrayLink) -> ArraySource:
        if link.role in ("trunk", "mlp") and (BASE, link.name) in self._links:
            return self.merged.source(link.name)
        return open_array(self.store, link, f"{self.version.ref}: its {link.role} array")


@dataclass(frozen=True)
class _Base:
    """The base model of a version that is an adapter, as far as its arrays have it."""

    of: VersionArrays

    @cached_property
    def _own(self) -> dict[str, ArrayLink]:
        links = [link for link in self.of.arrays if link.role in ("trunk", "mlp", BASE)]
        changed = {link.name for link in links if link.role == BASE}
        return {link.name: link for link in links if link.role == BASE or link.name not in changed}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: link.shape for name, link in self._own.items()}

    def source(self, name: str) -> ArraySource:
        return open_array(self.of.store, self._own[name], f"{self.of.version.ref}: its base's array")

    def files(self) -> dict[str, bytes]:
        return self.of.files()


def base_of_adapter(version: VersionRecord) -> str | None:
    """Return the digest over the weights of the base model of a version that is an adapter; None of another."""
    return ((version.content or {}).get(ADAPTER) or {}).get("base")


def adapters_beside(version: VersionRecord, versions: Iterable[VersionRecord]) -> tuple[str, ...]:
    """Return the others of `versions` that are adapters of its base model, or of itself."""
    base = base_of_adapter(version) or (version.content or {}).get("weights")
    return tuple(one.ref for one in versions if base_of_adapter(one) == base and one.name != version.name)


def made_digest(name: str, base: str, config: str, tensors: Mapping[str, str]) -> str:
    """Return what stands for the digest of a weight that an adapter changes, which is not computed.

    It is a function of the digests of all that the weight is made from: the base's array, adapter_config.json, and the
    adapter's `tensors` by their part in the change.
    """
    return json_digest(["merged", name, base, config, dict(tensors)])


def _place(link: ArrayLink) -> tuple[bytes, bytes]:
    return link.role.encode(), link.name.encode()


@dataclass(frozen=True)
class TrainingRecord:
    """The training of an expert or of a composition.

    Attributes:
        tokens: tokens of the windows of all steps, padding included; where the record does not say how large a step
            was, those that were asked for.
    """

    steps: int  # number of steps
    tokens: int
    before: float  # loss on held-out windows before the first step, in nats per token; as all losses
    after: float  # the same after the last step
    every: int  # number of steps that each number of `loss` is the mean of
    loss: tuple[float, ...]  # loss of the steps, before the change of each

    @property
    def at(self) -> tuple[float, ...]:
        """The middle of the steps of each number of `loss`, counted from 1."""
        ends = (min(self.steps, (number + 1) * self.every) for number in range(len(self.loss)))
        return tuple((number * self.every + 1 + end) / 2 for number, end in enumerate(ends))


def training_file(workspace: Workspace, version: VersionRecord) -> bytes | None:
    """Return a version's `expert_training.json`, untrusted, or None if it has none.

    (ConflictError: it was purged meanwhile; DamagedError: the file or the version's rows were changed.)
    """
    with workspace.reading(version):
        links = workspace.catalog.arrays_of(version)
        if not any((link.role, link.name) == ("file", EXPERT_TRAINING) for link in links):
            return None
        return VersionArrays.load(workspace, version).file(EXPERT_TRAINING)


def training_record(workspace: Workspace, version: VersionRecord) -> TrainingRecord | None:
    """Return how a version was trained, or None if it does not say so (CheckpointError: its file is of another form).

    (Other errors as `training_file`.)
    """
    data = training_file(workspace, version)
    return None if data is None else parse_training(data, f"{version.ref}/{EXPERT_TRAINING}")


def readable_training(workspace: Workspace, version: VersionRecord) -> TrainingRecord | None:
    """Return how a version was trained, or None; a record that cannot be read is remarked on."""
    try:
        return training_record(workspace, version)
    except RegError as error:
        remark(workspace.progress, f"the training of {version.ref} is not shown: {error.message}")
        return None


def parse_training(data: bytes, where: str) -> TrainingRecord:
    """Return the record in the content of `expert_training.json` (arguments and errors as `training_of`)."""
    return training_of(json_object(data, where), where, _HINT)


def training_of(document: Mapping[str, Any], where: str, hint: str) -> TrainingRecord:
    """Return the record in an untrusted document, `where` in messages (CheckpointError: of another form or format)."""
    kinds = {"format": COUNT, "training": OBJECT, "held_out": OBJECT, "every": COUNT, "loss": list_of(_LOSS)}
    found = some_fields(document, kinds, where, hint=hint)
    training, inside = found["training"], f"{where}: training"
    counts = some_fields(training, {"steps": COUNT, "tokens": COUNT}, inside, hint=hint)
    if training.keys() >= set(_SIZES):
        sizes = some_fields(training, dict.fromkeys(_SIZES, COUNT), inside, hint=hint)
        counts["tokens"] = counts["steps"] * math.prod(sizes.values())
    sides = some_fields(found["held_out"], {"before": _LOSS, "after": _LOSS}, f"{where}: held_out", hint=hint)
    loss, every, steps = tuple(found["loss"]), found["every"], counts["steps"]
    check_format(found, 1, where, hint)
    if not 1 <= len(loss) <= MOST_LOSSES:
        raise CheckpointError(f"{where} has {len(loss):,} losses, expected 1 to {MOST_LOSSES:,}", hint)
    if every < 1 or len(loss) != -(-steps // every):
        raise CheckpointError(
            f"{where} has {len(loss):,} losses, each of {every:,} steps, which are not the {steps:,} of the training",
            hint,
        )
    return TrainingRecord(steps, counts["tokens"], sides["before"], sides["after"], every, loss)
