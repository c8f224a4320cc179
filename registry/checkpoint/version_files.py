"""Files of a registered version: its weights, as the base model of an adapter, and the record of its training.

`reg train-expert` writes `expert_training.json`, but any imported checkpoint can hold one: it is untrusted. So is a
composed folder, whose record has the same form.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.errors import CheckpointError, RegError
from registry.io.untrusted import COUNT, OBJECT, Kind, check_format, json_object, list_of, some_fields
from registry.progress import remark
from registry.workspace import Workspace, open_array
from store.arrays import ArraySource
from store.catalog import ArrayLink, VersionRecord

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
        return self._opened(self._links("trunk", "mlp")[name])

    def files(self) -> dict[str, bytes]:
        """Return its small files, by name."""
        return {name: self.file(name) for name in self._links("file")}

    def file(self, name: str) -> bytes:
        """Return one of its small files."""
        link = self._links("file")[name]
        self._opened(link)  # checks that it is there, of this dtype and shape
        return self.workspace.arrays.read(link.digest).tobytes()

    def _opened(self, link: ArrayLink) -> ArraySource:
        return open_array(self.workspace.arrays, link, f"{self.version.ref}: its {link.role} array")

    def _links(self, *roles: str) -> dict[str, ArrayLink]:
        return {link.name: link for link in self._arrays if link.role in roles}

    @cached_property
    def _arrays(self) -> tuple[ArrayLink, ...]:
        with self.workspace.reading(self.version):
            return self.workspace.verified_arrays(self.version)


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


def training_record(workspace: Workspace, version: VersionRecord) -> TrainingRecord | None:
    """Return how a version was trained, or None if it does not say so (CheckpointError: its file is of another form).

    (ConflictError: it was purged meanwhile; DamagedError: the file or the version's rows were changed.)
    """
    with workspace.reading(version):
        links = workspace.catalog.arrays_of(version)
        if not any((link.role, link.name) == ("file", EXPERT_TRAINING) for link in links):
            return None
        data = StoredWeights(workspace, version).file(EXPERT_TRAINING)
        return parse_training(data, f"{version.ref}/{EXPERT_TRAINING}")


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
