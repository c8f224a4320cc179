"""Writing a SIMoE to a folder."""

from collections.abc import Callable

from registry.composition.manifest import folder_document
from registry.composition.write import content_digests
from registry.destination.destination import Destination
from registry.home import Home
from registry.io.model_folder import MARKER, json_file
from registry.methods.simoe.plan import SimoePlan
from registry.progress import Progress


def write_simoe(
    plan: SimoePlan, out: Destination, *, replace: bool, record: Callable[[], None], progress: Progress, home: Home
) -> None:
    """Write a SIMoE to `out`, which appears whole or not at all.

    Args:
        plan: what to write.
        out: the place; absent, empty, or with `replace` an earlier composition.
        replace: see `out`.
        record: called when everything is written, just before the composition appears; raising, it prevents that.
        progress: gets the bytes written.
        home: the registry's, for scratch files.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a member's array is not what was stored.
    """
    with out.opened(home, replace=replace, nbytes=plan.nbytes, holds=content_digests(plan)) as output:
        with progress("composing", plan.nbytes, "B") as advance:
            digests = output.write_weights(plan.streams, advance)
        digests |= output.write_files(plan.files)
        document = folder_document(plan.document, plan.digest, digests)
        output.write_files({MARKER: json_file(document)})
        record()
