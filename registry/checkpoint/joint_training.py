"""Trainings of several experts together, as their versions keep them: files, arrays and a part of the content.

Each method that has such a training implements `JointTraining`; `built_in.py` has the table.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from registry.built_in import JOINT_TRAININGS, instances
from store.arrays import ArraySource

Document = Mapping[str, Any]  # what a version's content holds of the training that it was part of


class JointTraining(ABC):
    """A training of several experts together.

    Methods get the H of a checkpoint as `hidden_size`, and its name in messages as `label`.

    Attributes:
        key: key of its document in a version's content, and the role of its arrays; `reg train-KEY` trains them.
        lacks_statistics: what to do where statistics are asked for that its experts cannot have; empty if they can.
    """

    key: ClassVar[str]
    called: ClassVar[str]  # the whole, with its article
    document: ClassVar[str]  # name of the file that says what a version is in it
    files: ClassVar[tuple[str, ...]] = ()  # names of its other small files
    arrays: ClassVar[str] = ""  # name of the safetensors file with its arrays; empty where it has none
    array_words: ClassVar[str] = ""  # what these arrays are
    lacks_statistics: ClassVar[str] = ""

    @abstractmethod
    def read(self, files: Mapping[str, bytes], hidden_size: int, label: str) -> Document | None:
        """Return the document in untrusted files, all checked, or None (CheckpointError: a file is of another form)."""

    def open_arrays(
        self, folder: Path, matrices: Mapping[str, tuple[int, ...]], hidden_size: int, label: str
    ) -> Mapping[str, ArraySource]:
        """Return the arrays, by name, of a checkpoint that has the document; they are read later.

        `matrices` has names and shapes of the weights of all linear layers of attention and MLPs (CheckpointError: the
        file is missing or of another form).
        """
        return {}

    def check_arrays(self, document: Document, digests: Mapping[str, str], label: str) -> None:
        """Raise CheckpointError unless the digests of a checkpoint's arrays are those that its document names."""
        return

    @abstractmethod
    def shared_digest(self, document: Document, digest: str) -> str:
        """Return what all versions of one training have in common; `digest` is that of the version."""

    @abstractmethod
    def sentence(self, document: Document) -> str:
        """Return what a version is in it."""


def joint_trainings() -> tuple[JointTraining, ...]:
    """Return every kind of such a training."""
    return instances(JOINT_TRAININGS)


def parts_in(content: Mapping[str, Any] | None) -> Iterator[tuple[JointTraining, Document]]:
    """Yield the training that a version was part of, and its document there; nothing of one that was purged."""
    held = content or {}
    yield from ((training, held[training.key]) for training in joint_trainings() if training.key in held)
