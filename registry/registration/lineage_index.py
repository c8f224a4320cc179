"""How a checkpoint is compared with what is registered: by summaries, and by arrays where that decides something."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from registry.meanwhile import is_purged
from registry.progress import Progress, silent
from registry.registration.lineage import (
    Relation,
    Weights,
    check_related,
    pack_weights,
    relations_of,
    unpack_weights,
    weights_of_version,
)
from registry.registration.summary_store import Summaries
from store.arrays import ArrayStore, Block
from store.catalog import Catalog, VersionRecord

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Relating:
    """What is registered, to be compared with.

    Attributes:
        catalog: which versions there are.
        store: their arrays.
        summaries: samples of these.
        progress: told of versions that cannot be compared.
    """

    catalog: Catalog
    store: ArrayStore
    summaries: Summaries
    progress: Progress = silent

    def relations(self, mine: Weights, versions: Sequence[VersionRecord]) -> tuple[Relation, ...]:
        """Return how far `mine` is from each version of its shape, the nearest first."""
        return self._relations(mine, versions, self.weights, self.progress)

    def check_related(
        self, label: str, mine: Weights, versions: Sequence[VersionRecord], relations: Sequence[Relation]
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

    def weights(self, version: VersionRecord) -> Weights:
        """Return a version's weights: what is kept to compare it by, else its arrays, of which it is kept then."""

        def sample(name: str, rows: "npt.NDArray[np.int64]") -> Block:  # for models of another vocabulary
            return self._stored(version).sample(name, rows)

        kept = self.summaries.get(version, "weights")
        if kept is not None and (found := unpack_weights(kept, sample)) is not None:
            return found
        found = self._stored(version)
        self.keep(version, found)
        return found

    def keep(self, version: VersionRecord, weights: Weights) -> None:
        """Keep what a version is compared by."""
        self.summaries.put(version, "weights", pack_weights(weights))

    def _stored(self, version: VersionRecord) -> Weights:
        return weights_of_version(self.catalog.arrays_of(version), self.store)

    def _relations(
        self,
        mine: Weights,
        versions: Sequence[VersionRecord],
        weights: Callable[[VersionRecord], Weights],
        progress: Progress,
    ) -> tuple[Relation, ...]:
        described = ((version, partial(weights, version)) for version in versions)
        return relations_of(mine, described, progress, partial(is_purged, self.catalog))
