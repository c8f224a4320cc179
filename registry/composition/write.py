"""Writer of a composition's folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from registry.composition.cards.mixture import model_card
from registry.composition.manifest import folder_document
from registry.composition.model_writer import streams_of, write_model
from registry.composition.passes import PassContext, tensor_source_of
from registry.composition.plan import Plan
from registry.composition.recipe import AUTO
from registry.composition.shards.shard_tasks import ShardTasks
from registry.composition.tensor_source import TensorSource
from registry.io.model_folder import MARKER, check_output, fresh_folder, json_file, layout, write_files
from registry.io.shard_reuse import ShardReuse


def write_composition(
    plan: Plan, out: Path, *, replace: bool, record: Callable[[], None] | None, context: PassContext
) -> None:
    """Write the composition that `plan` describes to `out`, which appears whole or not at all.

    Args:
        plan: the composition.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        replace: allow `out` to be an earlier composition.
        record: called when everything is written, just before the folder appears; an exception prevents that. None for
            a temporary folder, whose shards are not remembered for reuse.
        context: the folder and the cache for the passes that the recipe asks for.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a stored array is damaged.
        InvalidInputError: a router's linear system cannot be solved.
    """
    check_output(out, replace=replace)
    source = tensor_source_of(plan, context)
    reuse = None if record is None else ShardReuse.of(context.workspace.home, out)
    reused = sum(shard.nbytes for shard in layout(out, streams_of(source)) if reuse and reuse.has(shard))
    with fresh_folder(out, replace=replace, nbytes=plan.nbytes - reused) as folder:
        digests = write_model(source, folder, context.progress, reuse, ShardTasks.of(context.workspace, plan))
        digests |= write_files(folder, {"README.md": model_card(plan)})
        strengths = {"lam": lam_document(source)} if plan.recipe.to == "moe" and plan.recipe.lam == AUTO else {}
        document = folder_document(plan.document | strengths, plan.digest, digests)
        write_files(folder, {MARKER: json_file(document)})
        if record is not None:
            record()
    if reuse is not None:
        reuse.remember()


def lam_document(source: TensorSource) -> list[dict[str, Any]]:
    """Return the ridge strength chosen for each layer, and its curve of held-out errors."""
    layers = range(source.plan.lead.architecture.num_hidden_layers)
    return [{"layer": layer, **source.routers.lam_curve(layer).document()} for layer in layers]
