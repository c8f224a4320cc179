"""Writing an ensemble to a folder."""

from collections.abc import Callable

from registry.composition.manifest import folder_document
from registry.composition.write import content_digests
from registry.destination.destination import Destination
from registry.home import Home
from registry.io.model_folder import MARKER, json_file
from registry.maths.threads import one_thread
from registry.methods.ensemble.plan import Ensemble
from registry.methods.moe.model_writer import rendering_threads
from registry.methods.moe.tensor_source import StoredSource, TensorSource
from registry.progress import Progress


def write_ensemble(
    ensemble: Ensemble,
    out: Destination,
    *,
    replace: bool,
    record: Callable[[], None],
    progress: Progress,
    home: Home,
    trunk: TensorSource | None = None,
) -> None:
    """Write an ensemble to `out`, which appears whole or not at all.

    Args:
        ensemble: what to write.
        out: the place; absent, empty, or with `replace` an earlier composition.
        replace: see `out`.
        record: called when everything is written, just before the composition appears; raising, it prevents that.
        progress: gets the bytes written.
        home: the registry's, for scratch files.
        trunk: the tensors of a shared trunk; by default from the members' arrays, and without a cache.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a member's array is not what was stored.
        InvalidInputError: a linear system of the trunk method cannot be solved.
    """
    if trunk is None and ensemble.trunk is not None:
        trunk = StoredSource(ensemble.trunk)
    workers = 1 if trunk is None else rendering_threads(trunk.plan)
    with out.opened(home, replace=replace, nbytes=ensemble.nbytes, holds=content_digests(ensemble)) as output:
        # Each tensor is computed on one thread, so that its bits do not depend on their number.
        with one_thread(), progress("composing", ensemble.nbytes, "B") as advance:
            digests = output.write_weights(ensemble.streams(trunk), advance, workers=workers)
        digests |= output.write_files(ensemble.files)
        document = folder_document(ensemble.document, ensemble.digest, digests)
        output.write_files({MARKER: json_file(document)})
        record()
