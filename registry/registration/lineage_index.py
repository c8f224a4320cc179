"""How a checkpoint is compared with what is registered: by summaries, and by arrays where that decides something."""

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
    """What is registered, to be compared with.

    Attributes:
        workspace: the registry; its progress is told of versions that cannot be compared.
    """

    workspace: Workspace

    def relations(self, mine: WeightSamples, versions: Sequence[VersionRecord]) -> tuple[Relation, ...]:
        """Return how far `mine` is from each version of its shape, the nearest first."""
        return self._relations(mine, versions, self.weights, self.workspace.progress)

    def check_related(
        self, label: str, mine: WeightSamples, versions: Sequence[VersionRecord], relations: Sequence[Relation]
    ) -> None:
        """Check that a checkpoint is related to something, where there is anything to compare it with.

        Arrays decide: those of the nearest relative, and where it is none, those of all.

        Args:
            label: what messages call the checkpoint.
            mine: its weights.
            versions: all there are.
            relations: what `relations` said of them.

        Raises:
            IncompatibleError: it is unrelated to every version of its shape.
        """
        named = {version.ref: version for version in versions}
        for told in relations:
            if told.verdict == "unrelated":
                break
            found = self._relations(mine, [named[told.ref]], self._stored, silent)
            if found and found[0].verdict != "unrelated":
                return
        check_related(label, self._relations(mine, versions, self._stored, silent))

    def weights(self, version: VersionRecord) -> WeightSamples:
        """Return a version's weights: what is kept to compare it by, else its arrays, of which it is kept then."""

        def sample(name: str, rows: "npt.NDArray[np.int64]") -> Block:  # for models of another vocabulary
            return self._stored(version).sample(name, rows)

        kept = summary_store(self.workspace).get(version, "weights")
        if kept is not None and (found := unpack_weights(kept, sample)) is not None:
            return found
        found = self._stored(version)
        self.keep(version, found)
        return found

    def keep(self, version: VersionRecord, weights: WeightSamples) -> None:
        """Keep what a version is compared by."""
        summary_store(self.workspace).put(version, "weights", pack_weights(weights))

    def _stored(self, version: VersionRecord) -> WeightSamples:
        return weights_of_version(self.workspace.catalog.arrays_of(version), self.workspace.arrays)

    def _relations(
        self,
        mine: WeightSamples,
        versions: Sequence[VersionRecord],
        weights: Callable[[VersionRecord], WeightSamples],
        progress: Progress,
    ) -> tuple[Relation, ...]:
        described = ((version, partial(weights, version)) for version in versions)
        return relations_of(mine, described, progress, self.workspace.is_purged)


def relations_of_version(workspace: Workspace, ref: str) -> tuple[Relation, ...]:
    """Return the distance of a version to the others of its shape (arguments and errors as `Registry.relations`)."""
    version, index = workspace.resolve(ref), LineageIndex(workspace)
    with workspace.reading(version):
        workspace.verified_arrays(version)
        others = [other for other in workspace.versions() if other.id != version.id]
        return index.relations(index.weights(version), others)
