"""Writing a SIMoE to a folder."""

from collections.abc import Callable
from pathlib import Path

from registry.composition.interpolated.simoe_plan import SimoePlan
from registry.composition.manifest import folder_document
from registry.io.model_folder import MARKER, fresh_folder, json_file, write_files, write_weights
from registry.progress import Progress


def write_simoe(plan: SimoePlan, out: Path, *, replace: bool, record: Callable[[], None], progress: Progress) -> None:
    """Write a SIMoE to `out`, which appears whole or not at all.

    Args:
        plan: what to write.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        replace: see `out`.
        record: called when everything is written, just before the folder appears; raising, it prevents that.
        progress: gets the bytes written.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a member's array is not what was stored.
    """
    with fresh_folder(out, replace=replace, nbytes=plan.nbytes) as folder:
        with progress("composing", plan.nbytes, "B") as advance:
            digests = write_weights(folder, plan.streams, advance)
        digests |= write_files(folder, plan.files)
        document = folder_document(plan.document, plan.digest, digests)
        write_files(folder, {MARKER: json_file(document)})
        record()
