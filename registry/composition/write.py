"""Writer of a composition's folder."""

from collections.abc import Callable

from registry.composition.any_plan import AnyPlan
from registry.composition.manifest import folder_document
from registry.composition.plan import Plan
from registry.composition.shard_tasks import ShardTasks
from registry.destination.destination import Destination
from registry.io.model_folder import MARKER, json_file
from registry.methods.moe.card import model_card
from registry.methods.moe.model_writer import streams_of, write_model
from registry.methods.moe.passes import PassContext, tensor_source_of


def write_composition(
    plan: Plan, out: Destination, *, replace: bool, record: Callable[[], None] | None, context: PassContext
) -> None:
    """Write the composition that `plan` describes to `out`, which appears whole or not at all.

    Args:
        plan: the composition.
        out: the place; absent, empty, or with `replace` an earlier composition.
        replace: allow `out` to be an earlier composition.
        record: called when everything is written, just before the composition appears; an exception prevents that.
            None for a temporary folder, whose shards are not remembered for reuse.
        context: the folder and the cache for the passes that the recipe asks for.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a stored array is damaged.
        InvalidInputError: a router's linear system cannot be solved.
    """
    out.check(replace=replace)
    source = tensor_source_of(plan, context)
    reusable = [] if record is None else streams_of(source)
    with out.opened(
        context.workspace.home, replace=replace, nbytes=plan.nbytes, holds=content_digests(plan), reusable=reusable
    ) as output:
        digests = write_model(source, output, context.progress, ShardTasks.of(context.workspace, plan))
        digests |= output.write_files({"README.md": model_card(plan)})
        document = folder_document(plan.document, plan.digest, digests)
        output.write_files({MARKER: json_file(document)})
        if record is not None:
            record()


def content_digests(plan: AnyPlan) -> set[str]:
    """Return the digests of the versions that a plan reads."""
    return {member.version.digest for member in (*plan.members, *([plan.base] if plan.base else []))}
