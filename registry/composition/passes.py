"""Statistics taken anew for one composition, from the members' kept calibration tokens.

Three things ask for it: routers of base features, tokens weighted by what the expert gains on them, and refinement:
passes through the composed trunk itself, first with every token forced to its own expert (DUME eq. 7), then through the
routed model that the pass before gave. A pass is a function of the member, what it runs through and how it runs; it is
kept in the cache under the digest of these.
"""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.composition.dense import write_dense
from registry.composition.model_writer import host_config, write_model
from registry.composition.plan import Plan, dense_plan
from registry.composition.provenance import trunk_digest
from registry.composition.recipe import Recipe
from registry.composition.refit import refit
from registry.composition.render import copied, render, span
from registry.composition.tensor_source import TensorSource
from registry.errors import DamagedError, IncompatibleError
from registry.families.sites import MLP_INPUT
from registry.hosts import RowSelection
from registry.io.model_folder import json_file, write_files
from registry.io.safetensors_writer import Span, Stream
from registry.io.shard_writer import Shard, write_shards
from registry.io.work_dirs import temporary
from registry.maths.router import BASE, ROUTERS
from registry.maths.statistics import Statistics
from registry.maths.token_weights import advantage_weights
from registry.member import Member
from registry.progress import Progress
from registry.runtime.gates import gates
from registry.runtime.loading import load_model
from registry.statistics.cache import Cached, StatisticsCache
from registry.statistics.forward_pass import HookPoint, ModelRun, batch, take_statistics
from registry.statistics.settings import PassSettings
from registry.workspace import Workspace
from store.digest import json_digest
from store.lock import exclusive
from store.permissions import writing


@dataclass(frozen=True)
class PassContext:
    """The working folder and the cache of a composition's passes.

    Attributes:
        workspace: the registry.
        work: a folder for models that a pass needs, each deleted when it has run.
        cache: statistics of earlier passes.
    """

    workspace: Workspace
    work: Path
    cache: StatisticsCache

    @property
    def progress(self) -> Progress:
        """What passes report to."""
        return self.workspace.progress


@contextmanager
def pass_context(workspace: Workspace, members: Sequence[Member]) -> Iterator[PassContext]:
    """Open a working folder for passes, deleted when the context ends.

    It is in the registry's home, or in the system's folder for temporary files where the home cannot be written.

    Args:
        workspace: the registry.
        members: what passes run through. Once one was opted out, nothing is put into the cache.
    """
    home, versions = workspace.home, [member.version for member in members]

    @contextmanager
    def putting() -> Iterator[None]:
        with exclusive(home.cache_lock, "keeping statistics"):
            workspace.catalog.check_active(versions)
            yield

    with working_folder(home.work, [version.digest for version in versions]) as work:
        yield PassContext(workspace, work, StatisticsCache(home.cache, work, putting))


@contextmanager
def working_folder(above: Path, holds: Collection[str]) -> Iterator[Path]:
    """Give a folder that goes when the context ends: below `above`, or elsewhere where that cannot be written.

    Args:
        above: created if absent.
        holds: digests of the versions that it will hold something of.
    """
    with ExitStack() as stack:
        try:
            work = stack.enter_context(temporary(above, holds))
        except OSError:  # a home that cannot be written is read as any other
            work = Path(stack.enter_context(TemporaryDirectory()))
        stack.enter_context(writing(work))
        yield work


class RecollectedSource(TensorSource):
    """Materials whose router statistics were taken anew.

    Args:
        inner: what everything else is made from.
        statistics: one a member.
    """

    def __init__(self, inner: TensorSource, statistics: list[Cached]) -> None:
        super().__init__(inner.plan)
        self._inner, self._statistics = inner, statistics

    def combined(self, name: str) -> Iterator[Tensor]:
        """Yield the rows of one tensor that all members share."""
        return self._inner.combined(name)

    def mlp(self, member: int, name: str) -> Any:
        """Return one MLP tensor of a member."""
        return self._inner.mlp(member, name)

    def folds(self, member: int, layer: int) -> tuple[Statistics, ...]:
        """Return a member's statistics of one layer's MLP input, in parts."""
        return self._statistics[member].folds(MLP_INPUT, layer)

    def statistics(self, member: int, layer: int) -> Statistics:
        """Return a member's statistics of one layer's MLP input."""
        return self._statistics[member].statistics(MLP_INPUT, layer)


def tensor_source_of(plan: Plan, context: PassContext) -> TensorSource:
    """Return what `plan` is made from, having run the passes that its recipe asks for.

    Args:
        plan: what is composed.
        context: where passes run.

    Raises:
        DamagedError: an array is not what was stored.
        CalibrationError: an activation is NaN or infinite.
        IncompatibleError: the base model does not know a member's tokens.
        InvalidInputError: a linear system cannot be solved.
    """
    recipe = plan.recipe
    materials: TensorSource = TensorSource(plan)
    if recipe.to == "moe" and recipe.refine_mlp:
        materials = _refitted(materials, context)
    if recipe.to == "moe" and recipe.retakes:
        if recipe.refine == 0:
            statistics = [_of_features(plan, context, member) for member in plan.members]
        else:
            statistics = _forced(materials, context)
            for done in range(1, recipe.refine):
                statistics = _routed(RecollectedSource(materials, statistics), done, context)
        materials = RecollectedSource(materials, statistics)
    return materials


def _refitted(materials: TensorSource, context: PassContext) -> TensorSource:
    """Return the materials refitted to the members' tokens; what that writes stays in the workplace."""
    work = Path(mkdtemp(dir=context.work))
    with forced_folder(materials, 0, work / "trunk.safetensors", context) as folder:
        return refit(materials, Checkpoint(folder, remote_code=True), work, context.progress)


def calibration_of(member: Member) -> Calibration:
    """Return a member's kept calibration tokens; that there are some was checked with the plan."""
    calibration = member.calibration
    if calibration is None:
        raise DamagedError(f"{member.version.ref} has lost its calibration tokens", "run: reg verify")
    return calibration


def _check_known(calibration: Calibration, member: Member, through: Member) -> None:
    """Check that a model knows a member's calibration tokens.

    Raises:
        IncompatibleError: it does not.
    """
    largest, rows = int(calibration.ids.max()), through.architecture.vocab_size
    if largest >= rows:
        raise IncompatibleError(
            f"{member.version.ref} was calibrated on token {largest}, and {through.version.ref}, which this recipe "
            f"runs its text through, knows {rows}",
            "choose a router of the experts' own features: --router ridge, --token-weight none",
        )


def settings_of(recipe: Recipe, dtype: str) -> PassSettings:
    """Return how passes run: those that a recipe's document tells."""
    return PassSettings(dtype=dtype, sites="router", device=recipe.device)


def _of_features(plan: Plan, context: PassContext, member: Member) -> Cached:
    """Return a member's statistics in the base model's or its own pass, weighted where the recipe says so."""
    through = plan.base if ROUTERS[plan.recipe.router].features == BASE else member
    assert through is not None
    _check_known(calibration_of(member), member, through)
    key = ["features", through.version.digest]
    settings = settings_of(plan.recipe, str(through.content["dtype"]))
    return _passed(plan, context, member, key, settings, lambda: stored_folder(through, context))


def _forced(materials: TensorSource, context: PassContext) -> list[Cached]:
    """Return each member's statistics in the composed trunk with its own MLPs: every token forced to its expert."""
    plan = materials.plan
    key = ["forced", trunk_digest(plan)]
    settings = settings_of(plan.recipe, plan.dtype)
    with TemporaryDirectory(dir=context.work) as shared:
        trunk = Path(shared) / "trunk.safetensors"
        return [
            _passed(plan, context, member, key, settings, partial(forced_folder, materials, number, trunk, context))
            for number, member in enumerate(plan.members)
        ]


def _routed(materials: TensorSource, done: int, context: PassContext) -> list[Cached]:
    """Return each member's statistics in the routed model that `done` passes gave."""
    plan = materials.plan
    key = ["routed", replace(plan, recipe=replace(plan.recipe, refine=done)).digest]
    settings = settings_of(plan.recipe, plan.dtype)
    with TemporaryDirectory(dir=context.work) as shared:
        dense, routed = Path(shared) / "trunk.safetensors", Path(shared) / "routed"

        @contextmanager
        def folder() -> Iterator[Path]:
            if not routed.exists():
                routed.mkdir()
                write_model(materials, routed, context.progress)
            yield routed

        return [
            _passed(
                plan,
                context,
                member,
                key,
                settings,
                folder,
                partial(forced_folder, materials, number, dense, context),
            )
            for number, member in enumerate(plan.members)
        ]


Folder = Callable[[], Any]
"""Gives a context in which a model's folder stands."""


def _passed(
    plan: Plan,
    context: PassContext,
    member: Member,
    key: list[str],
    settings: PassSettings,
    model_folder: Folder,
    checkpoint_folder: Folder | None = None,
) -> Cached:
    """Return the statistics of a member's tokens in the model of a folder, from the cache if they are there.

    Args:
        plan: what is composed.
        context: where passes run.
        member: whose tokens.
        key: what the tokens run through.
        settings: how the pass runs.
        model_folder: the model.
        checkpoint_folder: a dense model of the same norms, where `model_folder` holds a mixture.
    """
    settings = replace(settings, folds=int((member.content["computed"] or {}).get("folds", 1)))
    whole = [member.version.digest, *key, plan.recipe.token_weight, plan.recipe.pass_document(settings)]
    if plan.recipe.token_weight == "advantage":
        assert plan.base is not None
        whole.append(plan.base.version.digest)
    digest = json_digest(whole)
    if (found := context.cache.get(digest)) is None:
        calibration = calibration_of(member)
        weights = _advantage(plan, context, member, calibration, settings)
        with model_folder() as folder, (checkpoint_folder or (lambda: nullcontext(folder)))() as dense:
            checkpoint = Checkpoint(dense, member.version.ref, remote_code=True)
            run = ModelRun(
                load_model(folder, settings.dtype or plan.dtype, settings.device),
                None if checkpoint_folder is None else routed_hook_points,
                weights,
            )
            collected = take_statistics(checkpoint, digest, run, calibration, settings, progress=context.progress)
        found = context.cache.put(digest, collected)
    return found


def routed_hook_points(model: Any) -> list[HookPoint]:
    """Return where the MLP inputs are in a mixture: what its routers see."""
    return [HookPoint(MLP_INPUT, gate.layer, gate.module) for gate in gates(model)]


def _advantage(
    plan: Plan, context: PassContext, member: Member, calibration: Calibration, settings: PassSettings
) -> Tensor | None:
    """Return the weight of each calibration token, int64 of shape (N, S), or None where all count alike."""
    if plan.recipe.token_weight == "none":
        return None
    assert plan.base is not None
    _check_known(calibration, member, plan.base)
    losses = []
    for through in (plan.base, member):
        with stored_folder(through, context) as folder:
            model = load_model(folder, str(through.content["dtype"]), settings.device)
            losses.append(next_token_losses(model, calibration, settings.batch_size))
    weights = advantage_weights(losses[0].flatten(), losses[1].flatten())
    return weights.view(calibration.ids.shape)


@torch.no_grad()
def next_token_losses(model: Any, calibration: Calibration, batch_size: int) -> Tensor:
    """Return the loss in nats of what the model predicts at each token, float32 of shape (N, S); 0 at each end."""
    losses = torch.zeros(calibration.ids.shape)
    for first in range(0, len(calibration.ids), batch_size):
        ids, keep = batch(calibration, first, batch_size)
        tokens = ids.to(model.device)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(len(ids), -1)
        count = min(batch_size, len(calibration.ids) - first)
        losses[first : first + count, :-1] = (loss.cpu() * keep[:, 1:])[:count]
    return losses


@contextmanager
def stored_folder(member: Member, context: PassContext) -> Iterator[Path]:
    """Give a registered version as the dense folder that it came from."""
    with TemporaryDirectory(dir=context.work) as above:
        folder = Path(above) / "model"
        write_dense([member], folder, context.progress)
        yield folder


@contextmanager
def forced_folder(materials: TensorSource, member: int, trunk: Path, context: PassContext) -> Iterator[Path]:
    """Give a dense folder of the composed trunk and one member's MLPs.

    Args:
        materials: what is composed.
        member: its number.
        trunk: a file of the trunk, made the first time and shared after that.
        context: where the folder stands.
    """
    plan = dense_plan(materials.plan)
    streams = [Stream(t.name, t.dtype, t.shape, partial(render, materials, t)) for t in plan.tensors]
    mlps = set(plan.members[member].names("mlp"))
    if not trunk.exists():
        _write(trunk, [stream for stream in streams if stream.name not in mlps])
    own = [
        replace(
            stream,
            blocks=partial(_own_mlp, materials, member, stream),
            spans=partial(_own_spans, materials, member, stream),
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
        write_files(
            folder, {"model.safetensors.index.json": json_file(index), "config.json": json_file(host_config(plan))}
        )
        yield folder


def _write(path: Path, streams: list[Stream]) -> None:
    write_shards([Shard(path, tuple(streams))], lambda amount: None, flush=False)


def _own_spans(materials: TensorSource, member: int, stream: Stream) -> list[Span] | None:
    found = span(materials.mlp(member, stream.name), RowSelection(stream.name), stream.dtype)
    return None if found is None else [found]


def _own_mlp(materials: TensorSource, member: int, stream: Stream) -> Iterator[Any]:
    return copied(materials.mlp(member, stream.name), RowSelection(stream.name), stream.dtype)
