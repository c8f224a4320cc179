"""Comparison of checkpoints with the registered versions: by summaries, and by arrays for a decision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from registry.progress import Progress, silent
from registry.registration.lineage import (
    Relation,
    WeightSamples,
    check_related,
    pack_weights,
    relations_of,
    unpack_weights,
    weights_of_version,
)
from registry.registration.summary_store import summary_store
from registry.workspace import Workspace
from store.arrays import Block
from store.catalog import VersionRecord

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class LineageIndex:
    """The registered versions, to compare with.

    Attributes:
        workspace: the registry; its progress receives remarks on versions that cannot be compared.
    """

    workspace: Workspace

    def relations(self, samples: WeightSamples, versions: Sequence[VersionRecord]) -> tuple[Relation, ...]:
        """Return the distance of a checkpoint to each version of its shape, the nearest first."""
        return self._relations(samples, versions, self.weights, self.workspace.progress)

    def check_related(
        self, label: str, samples: WeightSamples, versions: Sequence[VersionRecord], relations: Sequence[Relation]
    ) -> None:
        """Check that a checkpoint is related to at least one version of its shape, if there are any.

        The arrays decide, not the summaries: first those of the nearest relatives, then those of all versions.

        Args:
            label: the checkpoint's name in messages.
            samples: samples of its weights.
            versions: all versions.
            relations: the result of `relations` for them.

        Raises:
            IncompatibleError: the checkpoint is unrelated to every version of its shape.
        """
        by_ref = {version.ref: version for version in versions}
        for estimate in relations:
            if estimate.verdict == "unrelated":
                break
            confirmed = self._relations(samples, [by_ref[estimate.ref]], self._stored, silent)
            if confirmed and confirmed[0].verdict != "unrelated":
                return
        check_related(label, self._relations(samples, versions, self._stored, silent))

    def weights(self, version: VersionRecord) -> WeightSamples:
        """Return samples of a version's weights: its summary, else read from its arrays, and stored."""

        def sample(name: str, rows: "npt.NDArray[np.int64]") -> Block:  # for models with another vocabulary
            return self._stored(version).sample(name, rows)

        summary = summary_store(self.workspace).get(version, "weights")
        if summary is not None and (samples := unpack_weights(summary, sample)) is not None:
            return samples
        samples = self._stored(version)
        self.keep(version, samples)
        return samples

    def keep(self, version: VersionRecord, weights: WeightSamples) -> None:
        """Store the samples that a version is compared by."""
        summary_store(self.workspace).put(version, "weights", pack_weights(weights))

    def _stored(self, version: VersionRecord) -> WeightSamples:
        return weights_of_version(self.workspace.catalog.arrays_of(version), self.workspace.arrays)

    def _relations(
        self,
        samples: WeightSamples,
        versions: Sequence[VersionRecord],
        weights: Callable[[VersionRecord], WeightSamples],
        progress: Progress,
    ) -> tuple[Relation, ...]:
        readers = ((version, partial(weights, version)) for version in versions)
        return relations_of(samples, readers, progress, self.workspace.is_purged)


def relations_of_version(workspace: Workspace, ref: str) -> tuple[Relation, ...]:
    """Return the distance of a version to the others of its shape (arguments and errors as `Registry.relations`)."""
    version, index = workspace.resolve(ref), LineageIndex(workspace)
    with workspace.reading(version):
        workspace.verified_arrays(version)
        others = [other for other in workspace.versions() if other.id != version.id]
        return index.relations(index.weights(version), others)
