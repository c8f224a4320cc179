"""Writing a composition's folder."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from registry.checkpoint import COPIED_FILES
from registry.composing.card import model_card
from registry.composing.folder import MARKER, Stream, fresh_folder, json_file, write_files, write_weights
from registry.composing.materials import Materials
from registry.composing.plan import Plan
from registry.composing.produce import produce
from registry.progress import Progress


def write_composition(plan: Plan, out: Path, *, replace: bool, record: Callable[[], None], progress: Progress) -> None:
    """Write the composition that `plan` describes to `out`, which appears whole or not at all.

    Args:
        plan: what to write.
        out: the folder; absent, empty, or with `replace` an earlier composition.
        replace: see `out`.
        record: called when everything is written, just before the folder appears; raising, it prevents that.
        progress: told of the bytes written.

    Raises:
        OutputError: `out` cannot be written to.
        StorageError: the disk is full or refuses.
        DamagedError: a member's array is not what was stored.
        InvalidInputError: a router's linear system cannot be solved.
    """
    materials = Materials(plan)
    with fresh_folder(out, replace=replace, nbytes=plan.nbytes) as folder:
        streams = [Stream(t.name, t.dtype, t.shape, partial(produce, materials, t)) for t in plan.tensors]
        with progress("composing", plan.nbytes, "B") as advance:
            digests = write_weights(folder, streams, advance)
        copied = {name: plan.lead.file(name) for name in plan.lead.names("file") if name in COPIED_FILES}
        made = {"config.json": json_file(host_config(plan)), "README.md": model_card(plan)}
        digests |= write_files(folder, copied | dict(plan.host.files) | made)
        write_files(folder, {MARKER: json_file(plan.document | {"digest": plan.digest, "files": digests})})
        record()


def host_config(plan: Plan) -> dict[str, Any]:
    """Return config.json: the host's own keys, the members' special tokens, the dtype in both spellings."""
    return {
        **plan.host.dense_config(json.loads(plan.lead.file("config.json"))),
        "architectures": [plan.host.class_name],
        "model_type": plan.host.model_type,
        "dtype": plan.dtype,
        "torch_dtype": plan.dtype,
        **plan.lead.content["special_tokens"],
        **plan.host.config(plan.translation.architecture, len(plan.members), plan.recipe.top_k),
    }
