"""Writing an ensemble to a folder."""

from collections.abc import Callable
from pathlib import Path

from registry.composition.ensemble.plan import Ensemble
from registry.composition.manifest import folder_document
from registry.io.model_folder import MARKER, fresh_folder, json_file, write_files, write_weights
from registry.progress import Progress


def write_ensemble(
    ensemble: Ensemble, out: Path, *, replace: bool, record: Callable[[], None], progress: Progress
) -> None:
    """Write an ensemble to `out`, which appears whole or not at all.

    Args:
        ensemble: what to write.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        replace: see `out`.
        record: called when everything is written, just before the folder appears; raising, it prevents that.
        progress: gets the bytes written.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a member's array is not what was stored.
    """
    with fresh_folder(out, replace=replace, nbytes=ensemble.nbytes) as folder:
        with progress("composing", ensemble.nbytes, "B") as advance:
            digests = write_weights(folder, ensemble.streams, advance)
        digests |= write_files(folder, ensemble.files)
        document = folder_document(ensemble.document, ensemble.digest, digests)
        write_files(folder, {MARKER: json_file(document)})
        record()
