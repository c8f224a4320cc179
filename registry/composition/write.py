"""Writer of any composition's folder."""

from collections.abc import Callable

from registry.composition.manifest import folder_document
from registry.composition.plan import Plan
from registry.composition.shard_tasks import ShardTasks
from registry.destination.destination import Destination
from registry.io.model_folder import MARKER, json_file
from registry.maths.threads import one_thread
from registry.workspace import Workspace


def write(
    workspace: Workspace,
    plan: Plan,
    out: Destination,
    *,
    replace: bool = False,
    record: Callable[[], None] | None = None,
) -> None:
    """Write the composition that `plan` describes to `out`, which appears whole or not at all.

    Args:
        workspace: the registry.
        plan: the composition.
        out: the destination; absent, empty, or with `replace` an earlier composition.
        replace: allow `out` to be an earlier composition.
        record: called when everything is written, just before the composition appears; an exception prevents that.
            None for a temporary folder, whose shards are not remembered for reuse.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a stored array is damaged.
        InvalidInputError: a linear system cannot be solved.
    """
    with (
        workspace.reading(*plan.versions),
        plan.output.opened(plan, workspace) as source,
        out.opened(
            workspace.home,
            replace=replace,
            nbytes=plan.nbytes,
            holds={version.digest for version in plan.versions},
            reusable=[] if record is None else source.streams,
        ) as folder,
    ):
        writer = ShardTasks.of(workspace, plan) if source.in_tasks else None
        # Each tensor is computed on one thread, so that its bits do not depend on their number.
        with one_thread(), workspace.progress("composing", plan.nbytes, "B") as advance:
            digests = folder.write_weights(source.streams, advance, workers=source.threads, writer=writer)
        digests |= folder.write_files(plan.files)
        folder.write_files({MARKER: json_file(folder_document(plan.document, plan.digest, digests))})
        if record is not None:
            record()
