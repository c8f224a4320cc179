"""Passes of a composition: statistics collected again from the members' kept calibration tokens.

Two parts of a recipe ask for passes:

- routers of base features, which need each member's statistics in the base model;
- refinement, which passes through the composed trunk itself: first with every token forced to its own expert (DUME
  eq. 7), then through the routed model that the pass before gave.

A pass is a function of the member, of the model that its tokens run through and of the settings. Its statistics are
kept in the cache under the digest of these.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from registry.checkpoint import Checkpoint
from registry.composition.passes import PassContext, pass_context, stored_folder
from registry.composition.plan import Plan, Source
from registry.composition.stored import stored_stream
from registry.destination.destination import OpenFolder
from registry.errors import IncompatibleError
from registry.families.sites import MLP_INPUT
from registry.io.model_folder import index_file, json_file, write_files
from registry.io.safetensors_file import Stream
from registry.io.shard_writer import Shard, write_shards
from registry.maths.threads import one_thread
from registry.member import Member
from registry.methods.moe.model_writer import host_config, rendering_threads, streams_of, trunk_digest
from registry.methods.moe.options import SOLVES_AGAIN
from registry.methods.moe.output import pass_document, retakes
from registry.methods.moe.plan import dense_plan
from registry.methods.moe.render import render
from registry.methods.moe.tensor_source import RecollectedSource, StoredSource, TensorSource
from registry.runtime.gates import gates
from registry.runtime.loading import load_model
from registry.statistics.cache import KeptTensors
from registry.statistics.file import Collected
from registry.statistics.forward_pass import take_statistics
from registry.statistics.settings import PassSettings
from registry.statistics.site_sums import HookPoint
from registry.workspace import Workspace
from store.digest import json_digest


@contextmanager
def opened(plan: Plan, workspace: Workspace) -> Iterator[Source]:
    """Open a plan after the passes that its recipe asks for (errors as `tensor_source_of`)."""
    with pass_context(workspace, plan.used) as context:
        streams = streams_of(tensor_source_of(plan, context))
        yield Source(streams, rendering_threads(plan), in_tasks=True)


def tensor_source_of(plan: Plan, context: PassContext) -> TensorSource:
    """Run the passes that a plan's recipe asks for, and return the source of its tensors.

    Raises:
        DamagedError: a stored array is damaged.
        CalibrationError: an activation is NaN or infinite.
        IncompatibleError: a member's tokens are beyond the base model's vocabulary.
        InvalidInputError: a linear system cannot be solved.
    """
    recipe = plan.recipe
    source: TensorSource = StoredSource(plan, KeptTensors(context.cache, partial(mkdtemp, dir=context.work)))
    if retakes(recipe):
        if recipe.refine == 0:
            statistics = [_of_features(plan, context, member) for member in plan.members]
        for passes in range(recipe.refine):
            before = RecollectedSource(source, statistics) if passes else source
            statistics = _of_composition(before, passes, context)
        source = RecollectedSource(source, statistics)
    return source


def _of_features(plan: Plan, context: PassContext, member: Member) -> Collected:
    """Return a member's statistics in the base model, whose features the router takes."""
    base = plan.base
    assert base is not None
    largest, rows = int(member.kept_tokens.ids.max()), base.architecture.vocab_size
    if largest >= rows:
        raise IncompatibleError(
            f"{member.version.ref} was calibrated on token {largest}, and {base.version.ref}, which this recipe "
            f"runs its text through, knows {rows}",
            f"choose a router of the experts' own features: --router {SOLVES_AGAIN}",
        )
    key, dtype = ["features", base.version.digest], str(base.content["dtype"])
    return _passed(plan, context, member, key, dtype, lambda: stored_folder(base, context))


def _of_composition(source: TensorSource, passes: int, context: PassContext) -> list[Collected]:
    """Return each member's statistics in the composed trunk with its own MLPs: every token is forced to its expert.

    After some passes they are those in the routed model that results from these.
    """
    plan = source.plan
    key = ["forced", trunk_digest(plan)]
    if passes:
        key = ["routed", replace(plan, recipe=plan.recipe.replace(refine=passes)).digest]
    with TemporaryDirectory(dir=context.work) as shared:
        trunk, routed = Path(shared) / "trunk.safetensors", Path(shared) / "routed"

        @contextmanager
        def routed_folder() -> Iterator[Path]:
            if not routed.exists():
                routed.mkdir()
                folder = OpenFolder(routed)
                with one_thread(), context.progress("composing", plan.nbytes, "B") as advance:
                    folder.write_weights(streams_of(source), advance, workers=rendering_threads(plan))
                folder.write_files(dict(plan.parts.host.files) | {"config.json": json_file(host_config(plan))})
            yield routed

        statistics = []
        for number, member in enumerate(plan.members):
            own = partial(forced_folder, source, number, trunk, context)
            folders = (routed_folder, own) if passes else (own, None)
            statistics.append(_passed(plan, context, member, key, plan.dtype, *folders))
        return statistics


Folder = Callable[[], Any]
"""Opens a context in which a model's folder exists."""


def _passed(
    plan: Plan,
    context: PassContext,
    member: Member,
    key: list[str],
    dtype: str,
    model_folder: Folder,
    checkpoint_folder: Folder | None = None,
) -> Collected:
    """Return the statistics of a member's tokens in a model, from the cache if it has them.

    `key` tells the model; `checkpoint_folder` opens a dense one of the same norms, if `model_folder` holds a mixture.
    """
    settings = PassSettings(dtype=dtype, sites="router", device=plan.recipe.device)
    # The third part is what the recipe's document has under `token_weight`.
    digest = json_digest([member.version.digest, *key, "none", pass_document(plan.recipe, settings)])
    if (cached := context.cache.get(digest)) is None:
        with model_folder() as folder, (checkpoint_folder or (lambda: nullcontext(folder)))() as dense:
            checkpoint = Checkpoint(dense, member.version.ref, remote_code=True)
            model, own = load_model(folder, dtype, settings.device), member.kept_tokens
            points = None
            if checkpoint_folder is not None:  # the inputs of a mixture's routers are the MLP inputs
                points = [HookPoint(MLP_INPUT, gate.layer, gate.module) for gate in gates(model)]
            collected = take_statistics(
                checkpoint, digest, model, own, settings, points=points, progress=context.progress
            )
        cached = context.cache.put(digest, collected)
    return cached


@contextmanager
def forced_folder(source: TensorSource, member: int, trunk: Path, context: PassContext) -> Iterator[Path]:
    """Yield a temporary dense folder of a member's MLPs and the composed trunk, written once to `trunk` and linked."""
    plan = dense_plan(source.plan)
    mlps = set(plan.members[member].names("mlp"))
    shared = [Stream(t.name, t.dtype, t.shape, partial(render, source, t)) for t in plan.tensors if t.name not in mlps]
    own = [
        stored_stream(t.name, t.dtype, t.shape, partial(source.mlp, member, t.name))
        for t in plan.tensors
        if t.name in mlps
    ]
    if not trunk.exists():
        _write(Shard(trunk, tuple(shared)))
    with TemporaryDirectory(dir=context.work) as above:
        folder = Path(above)
        names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
        shards = [Shard(folder / name, tuple(part)) for name, part in zip(names, (shared, own), strict=True)]
        os.link(trunk, shards[0].path)
        _write(shards[1])
        write_files(folder, index_file(shards) | {"config.json": json_file(host_config(plan))})
        yield folder


def _write(shard: Shard) -> None:
    write_shards([shard], lambda amount: None, flush=False)
