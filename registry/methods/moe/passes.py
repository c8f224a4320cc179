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

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.composition.method import COUNTS
from registry.composition.passes import PassContext, pass_context, stored_folder
from registry.composition.plan import Plan, Source
from registry.composition.recipe.recipe import Recipe
from registry.composition.stored import copied, span
from registry.destination.destination import OpenFolder
from registry.errors import DamagedError, IncompatibleError
from registry.families.sites import MLP_INPUT
from registry.hosts import RowSelection
from registry.io.model_folder import INDEX, json_file, write_files
from registry.io.safetensors_file import Span, Stream
from registry.io.shard_writer import Shard, write_shards
from registry.member import Member
from registry.methods.moe.context.member_evidence import choices_of, evidence_of
from registry.methods.moe.model_writer import host_config, rendering_threads, streams_of, write_model
from registry.methods.moe.plan import dense_plan
from registry.methods.moe.provenance import trunk_digest
from registry.methods.moe.recipe import pass_document, retakes
from registry.methods.moe.refinement import SOLVES_AGAIN
from registry.methods.moe.refit import KnownChoice, refit
from registry.methods.moe.render import render
from registry.methods.moe.tensor_source import RecollectedSource, StoredSource, TensorSource
from registry.progress import remark
from registry.runtime.gates import gates
from registry.runtime.loading import load_model
from registry.statistics.cache import Cached, KeptTensors
from registry.statistics.forward_pass import ModelRun, take_statistics
from registry.statistics.settings import PassSettings
from registry.statistics.site_sums import HookPoint
from registry.workspace import Workspace
from store.digest import json_digest


@contextmanager
def opened(plan: Plan, workspace: Workspace) -> Iterator[Source]:
    """Open a plan after the passes that its recipe asks for (errors as `tensor_source_of`)."""
    if workspace.cluster is not None and plan.recipe.refine_mlp:
        remark(workspace.progress, "layers that are refitted one after another are composed by this process alone")
    with pass_context(workspace, plan.used) as context:
        streams = streams_of(tensor_source_of(plan, context))
        yield Source(streams, rendering_threads(plan), in_tasks=not plan.recipe.refine_mlp)


def tensor_source_of(plan: Plan, context: PassContext) -> TensorSource:
    """Run the passes that a plan's recipe asks for, and return the source of its tensors.

    Args:
        plan: the composition.
        context: the folder and the cache for passes.

    Raises:
        DamagedError: a stored array is damaged.
        CalibrationError: an activation is NaN or infinite.
        IncompatibleError: a member's tokens are beyond the base model's vocabulary.
        InvalidInputError: a linear system cannot be solved.
    """
    recipe = plan.recipe
    source: TensorSource = StoredSource(plan, KeptTensors(context.cache, partial(mkdtemp, dir=context.work)))
    if recipe.refine_mlp:
        source = _refitted(source, context)
    if retakes(recipe):
        if recipe.refine == 0:
            statistics = [_of_features(plan, context, member) for member in plan.members]
        else:
            statistics = _forced(source, context)
            for passes in range(1, recipe.refine):
                statistics = _routed(RecollectedSource(source, statistics), passes, context)
        source = RecollectedSource(source, statistics)
    return source


def _refitted(source: TensorSource, context: PassContext) -> TensorSource:
    """Refit a source to the members' tokens; refitted tensors stay in the working folder."""
    work = Path(mkdtemp(dir=context.work))
    # Any member's dense model will do: only the composed trunk of it is used.
    with forced_folder(source, 0, work / "trunk.safetensors", context) as folder:
        return refit(source, Checkpoint(folder, remote_code=True), work, context.progress, _known_choice(source.plan))


def _known_choice(plan: Plan) -> KnownChoice | None:
    """Return the experts that context routing gives to the members' kept tokens; None for other routers."""
    if plan.recipe.router_method is None or plan.recipe.router_method.statistics != COUNTS:
        return None
    evidence = evidence_of(plan)
    return KnownChoice([choices_of(plan, calibration_of(member), evidence) for member in plan.members])


def calibration_of(member: Member) -> Calibration:
    """Return a member's kept calibration tokens; the plan has checked that they exist.

    Raises:
        DamagedError: the tokens are missing.
    """
    calibration = member.calibration
    if calibration is None:
        raise DamagedError(f"{member.version.ref} has lost its calibration tokens", "reg verify")
    return calibration


def _check_known(calibration: Calibration, member: Member, through: Member) -> None:
    """Check that a model's vocabulary has all calibration tokens of a member.

    Raises:
        IncompatibleError: a token is beyond the vocabulary.
    """
    largest, rows = int(calibration.ids.max()), through.architecture.vocab_size
    if largest >= rows:
        raise IncompatibleError(
            f"{member.version.ref} was calibrated on token {largest}, and {through.version.ref}, which this recipe "
            f"runs its text through, knows {rows}",
            f"choose a router of the experts' own features: --router {SOLVES_AGAIN}",
        )


def settings_of(recipe: Recipe, dtype: str) -> PassSettings:
    """Return the settings of passes, as a recipe's document records them."""
    return PassSettings(dtype=dtype, sites="router", device=recipe.device)


def _of_features(plan: Plan, context: PassContext, member: Member) -> Cached:
    """Return a member's statistics in the base model, whose features the router takes."""
    base = plan.base
    assert base is not None
    _check_known(calibration_of(member), member, base)
    key = ["features", base.version.digest]
    settings = settings_of(plan.recipe, str(base.content["dtype"]))
    return _passed(plan, context, member, key, settings, lambda: stored_folder(base, context))


def _forced(source: TensorSource, context: PassContext) -> list[Cached]:
    """Return each member's statistics in the composed trunk with its own MLPs: every token is forced to its expert."""
    plan = source.plan
    key = ["forced", trunk_digest(plan)]
    settings = settings_of(plan.recipe, plan.dtype)
    with TemporaryDirectory(dir=context.work) as shared:
        trunk = Path(shared) / "trunk.safetensors"
        return [
            _passed(plan, context, member, key, settings, partial(forced_folder, source, number, trunk, context))
            for number, member in enumerate(plan.members)
        ]


def _routed(source: TensorSource, passes: int, context: PassContext) -> list[Cached]:
    """Return each member's statistics in the routed model that results from a number of passes."""
    plan = source.plan
    key = ["routed", replace(plan, recipe=plan.recipe.replace(refine=passes)).digest]
    settings = settings_of(plan.recipe, plan.dtype)
    with TemporaryDirectory(dir=context.work) as shared:
        dense, routed = Path(shared) / "trunk.safetensors", Path(shared) / "routed"

        @contextmanager
        def folder() -> Iterator[Path]:
            if not routed.exists():
                routed.mkdir()
                write_model(source, OpenFolder(routed), context.progress)
            yield routed

        return [
            _passed(
                plan,
                context,
                member,
                key,
                settings,
                folder,
                partial(forced_folder, source, number, dense, context),
            )
            for number, member in enumerate(plan.members)
        ]


Folder = Callable[[], Any]
"""Opens a context in which a model's folder exists."""


def _passed(
    plan: Plan,
    context: PassContext,
    member: Member,
    key: list[str],
    settings: PassSettings,
    model_folder: Folder,
    checkpoint_folder: Folder | None = None,
) -> Cached:
    """Return the statistics of a member's tokens in a model, from the cache if it has them.

    Args:
        plan: the composition.
        context: the folder and the cache for passes.
        member: the member whose tokens run.
        key: the model that they run through, as a part of the cache's key.
        settings: the settings of the pass.
        model_folder: opens the model.
        checkpoint_folder: opens a dense model of the same norms, if `model_folder` holds a mixture.
    """
    # The third part is what the recipe's document has under `token_weight`.
    digest = json_digest([member.version.digest, *key, "none", pass_document(plan.recipe, settings)])
    if (cached := context.cache.get(digest)) is None:
        calibration = calibration_of(member)
        with model_folder() as folder, (checkpoint_folder or (lambda: nullcontext(folder)))() as dense:
            checkpoint = Checkpoint(dense, member.version.ref, remote_code=True)
            run = ModelRun(
                load_model(folder, settings.dtype or plan.dtype, settings.device),
                None if checkpoint_folder is None else routed_hook_points,
            )
            collected = take_statistics(checkpoint, digest, run, calibration, settings, progress=context.progress)
        cached = context.cache.put(digest, collected)
    return cached


def routed_hook_points(model: Any) -> list[HookPoint]:
    """Return the inputs of a mixture's routers, which are the MLP inputs."""
    return [HookPoint(MLP_INPUT, gate.layer, gate.module) for gate in gates(model)]


@contextmanager
def forced_folder(source: TensorSource, member: int, trunk: Path, context: PassContext) -> Iterator[Path]:
    """Write a dense folder of the composed trunk and one member's MLPs, for as long as the context lasts.

    Args:
        source: the tensors of the composition.
        member: the member's number.
        trunk: the file of the trunk; written the first time, and linked into each folder.
        context: the folder and the cache for passes.
    """
    plan = dense_plan(source.plan)
    streams = [Stream(t.name, t.dtype, t.shape, partial(render, source, t)) for t in plan.tensors]
    mlps = set(plan.members[member].names("mlp"))
    if not trunk.exists():
        _write(trunk, [stream for stream in streams if stream.name not in mlps])
    own = [
        replace(
            stream,
            blocks=partial(_own_mlp, source, member, stream),
            spans=partial(_own_spans, source, member, stream),
        )
        for stream in streams
        if stream.name in mlps
    ]
    with TemporaryDirectory(dir=context.work) as above:
        folder = Path(above)
        files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
        os.link(trunk, folder / files[0])
        _write(folder / files[1], own)
        weight_map = {stream.name: files[stream.name in mlps] for stream in streams}
        index = {"metadata": {"total_size": plan.nbytes}, "weight_map": weight_map}
        write_files(folder, {INDEX: json_file(index), "config.json": json_file(host_config(plan))})
        yield folder


def _write(path: Path, streams: list[Stream]) -> None:
    write_shards([Shard(path, tuple(streams))], lambda amount: None, flush=False)


def _own_spans(source: TensorSource, member: int, stream: Stream) -> list[Span] | None:
    stored = span(source.mlp(member, stream.name), RowSelection(stream.name), stream.dtype)
    return None if stored is None else [stored]


def _own_mlp(source: TensorSource, member: int, stream: Stream) -> Iterator[Any]:
    return copied(source.mlp(member, stream.name), RowSelection(stream.name), stream.dtype)
