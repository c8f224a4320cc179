"""Writing a composition's folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from registry.composition.cards.mixture import model_card
from registry.composition.model_writer import streams_of, write_model
from registry.composition.passes import PassContext, tensor_source_of
from registry.composition.plan import Plan
from registry.composition.recipe import AUTO
from registry.composition.tensor_source import TensorSource
from registry.io.model_folder import MARKER, check_output, fresh_folder, json_file, layout, write_files
from registry.io.shard_reuse import ShardReuse


def write_composition(
    plan: Plan, out: Path, *, replace: bool, record: Callable[[], None] | None, context: PassContext
) -> None:
    """Write the composition that `plan` describes to `out`, which appears whole or not at all.

    Args:
        plan: what to write.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        replace: see `out`.
        record: called when everything is written, just before the folder appears; raising, it prevents that. None for
            a folder that is soon deleted again, of which nothing is remembered either.
        context: where the passes run that the recipe asks for.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a member's array is not what was stored.
        InvalidInputError: a router's linear system cannot be solved.
    """
    check_output(out, replace=replace)
    source = tensor_source_of(plan, context)
    reuse = None if record is None else ShardReuse.of(context.workspace.home, out)
    kept = sum(shard.nbytes for shard in layout(out, streams_of(source)) if reuse and reuse.has(shard))
    with fresh_folder(out, replace=replace, nbytes=plan.nbytes - kept) as folder:
        digests = write_model(source, folder, context.progress, reuse)
        digests |= write_files(folder, {"README.md": model_card(plan)})
        chosen = {"lam": lam_document(source)} if plan.recipe.to == "moe" and plan.recipe.lam == AUTO else {}
        document = plan.document | chosen | {"digest": plan.digest, "files": digests}
        write_files(folder, {MARKER: json_file(document)})
        if record is not None:
            record()
    if reuse is not None:
        reuse.remember()


def lam_document(source: TensorSource) -> list[dict[str, Any]]:
    """Return the ridge strength that was chosen for each layer, and the curve that it was chosen by."""
    layers = range(source.plan.lead.architecture.num_hidden_layers)
    return [{"layer": layer, **source.routers.lam_curve(layer).document()} for layer in layers]
