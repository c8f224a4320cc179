"""Compositions from references and a recipe: planned, written and recorded.

On a cluster each file of weights is written by a task, into the folder that is being built. A task plans the
composition again from the registry, checks that the plan has the same digest, and writes one file under a name of its
own, which it then renames: a task that runs twice leaves the same bytes. Every tensor is computed on one thread, as in
one process.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.composition.card import CARD, card_page
from registry.composition.found import OUTPUTS
from registry.composition.low_rank import write_truncated
from registry.composition.manifest import folder_document
from registry.composition.plan import Plan, output_of
from registry.composition.preview import Preview
from registry.composition.recipe.fields import of_copies, problem_of_copies
from registry.composition.recipe.recipe import Recipe
from registry.composition.stored import write_adapter, write_dense
from registry.composition.taken_files import taken_files
from registry.destination.address import destination_of
from registry.destination.destination import Destination as Destination
from registry.distributed import Cluster, Step, Task
from registry.distributed.step import node_kind
from registry.errors import ClusterError, DamagedError, InvalidInputError
from registry.home import Home
from registry.io.model_folder import MARKER, json_file
from registry.io.shard_writer import Shard, write_shards
from registry.maths.threads import one_thread
from registry.member import Member as Member
from registry.member import copies_of
from registry.member import load_member as load_member
from registry.member import load_members as load_members
from registry.names.reference import NAME_LIMIT, require_list
from registry.names.resolve import base_model
from registry.progress import Advance, Progress, remark, silent
from registry.workspace import PathLike, Workspace
from store.catalog import VersionRecord
from store.lock import exclusive


def plan_composition(
    workspace: Workspace,
    experts: Sequence[str],
    recipe: Recipe | None = None,
    *,
    base: str | None = None,
    from_base: int | None = None,
) -> Plan:
    """Plan a composition without reading a weight (arguments and errors as `Registry.plan`)."""
    if from_base is not None:
        return _plan_copies(workspace, experts, recipe, base, from_base)
    recipe = recipe or Recipe()
    output = output_of(recipe)
    if base is not None and not recipe.needs_base:
        raise InvalidInputError(
            f"{output.label(recipe)} takes no base model, and base {base!r} was given",
            "drop --base, or use that model's trunk: --trunk base",
        )
    members = [load_member(workspace, workspace.resolve(ref)) for ref in require_list(experts, "experts")]
    base_member = None
    if output.takes_base(members, recipe):
        found = output.base_of(workspace, members, base)
        base_member = load_member(workspace, base_model(workspace.catalog, found))
    with workspace.reading(*(member.version for member in (*members, *([base_member] if base_member else [])))):
        return output.plan(members, base_member, recipe)


def _plan_copies(
    workspace: Workspace, experts: Sequence[str], recipe: Recipe | None, base: str | None, count: int
) -> Plan:
    """Plan a mixture of copies of a base model's MLPs (sparse upcycling, Komatsuzaki et al. 2023)."""
    recipe = recipe or Recipe(**of_copies())
    if require_list(experts, "experts"):
        raise InvalidInputError(
            "the experts are copies of the base model, and others were named",
            "name no experts, or leave out --from-base",
        )
    if problem := problem_of_copies(count, recipe.fields):
        raise problem.error()
    member = load_member(workspace, base_model(workspace.catalog, base))
    copies = copies_of(member, count)
    if len(copies[-1].name) > NAME_LIMIT:
        raise InvalidInputError(
            f"copies of {member.name[:20]}… would have names of more than {NAME_LIMIT} characters",
            "register the base model under a shorter name: reg add-base NAME CKPT",
        )
    with workspace.reading(member.version):
        return output_of(recipe).plan(copies, member, recipe)


def compose(
    workspace: Workspace,
    experts: Sequence[str],
    out: PathLike | Destination,
    recipe: Recipe | None = None,
    *,
    base: str | None = None,
    from_base: int | None = None,
    force: bool = False,
) -> Plan:
    """Write a composition to `out` and record it (arguments and errors as `Registry.compose`)."""
    workspace.check_owner()
    destination = out if isinstance(out, Destination) else destination_of(out)
    if destination is not out:  # else it was checked
        destination.check(replace=force)
    plan = plan_composition(workspace, experts, recipe, base=base, from_base=from_base)

    def record() -> None:
        workspace.catalog.record_composition(plan.digest, plan.document, plan.versions, destination.address)

    address = destination.address
    with (
        exclusive(workspace.home.output_lock(address), f"composing into {address}"),
        workspace.catalog.output_lock(address),
    ):
        write(workspace, plan, destination, replace=force, record=record)
    workspace.tell("compose", plan.digest)
    return plan


def write_plan(
    workspace: Workspace,
    plan: Plan,
    place: PathLike | Destination,
    *,
    replace: bool = False,
    record: Callable[[], None] | None = None,
) -> None:
    """Write a planned composition (arguments as `Registry.write`)."""
    destination = place if isinstance(place, Destination) else destination_of(place)
    destination.check(replace=replace)
    write(workspace, plan, destination, replace=replace, record=record)


def write(
    workspace: Workspace,
    plan: Plan,
    out: Destination,
    *,
    replace: bool = False,
    record: Callable[[], None] | None = None,
) -> None:
    """Write the composition that `plan` describes to a checked destination, where it appears whole or not at all.

    `record` is called when everything is written, before the destination appears; if it fails, nothing appears. It is
    None for a temporary folder, whose shards are not remembered for reuse.
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
        writer = ShardTasks(workspace, workspace.cluster, plan) if source.in_tasks and workspace.cluster else None
        # Each tensor is computed on one thread, so that its bits do not depend on their number.
        with one_thread(), workspace.progress("composing", plan.nbytes, "B") as advance:
            digests = folder.write_weights(source.streams, advance, workers=source.threads, writer=writer)
        digests |= folder.write_files(_files(plan))
        folder.write_files({MARKER: json_file(folder_document(plan.document, plan.digest, digests))})
        if record is not None:
            record()


def _files(plan: Plan) -> dict[str, bytes]:
    output = plan.output
    made = {"config.json": json_file(output.config(plan)), CARD: card_page(plan, output.card(plan))}
    return taken_files(output.file_members(plan), plan.lead) | dict(output.code(plan)) | made


def preview_composition(
    workspace: Workspace, experts: Sequence[str], recipe: Recipe | None = None, *, base: str | None = None
) -> Preview:
    """Predict a composition's routing from statistics (arguments as `Registry.preview`)."""
    plan = plan_composition(workspace, experts, recipe, base=base)
    if not plan.output.is_previewed:
        raise InvalidInputError(
            f"--to {plan.output.name} has no router that can be predicted from the experts' statistics",
            f"preview --to {OUTPUTS.default.name}, or compose it and run: reg evaluate DIR --data code=FILE",
        )
    with workspace.reading(*plan.versions):
        return plan.output.preview(plan, workspace.progress)


def export(
    workspace: Workspace,
    ref: str,
    out: PathLike,
    *,
    as_lora: bool = False,
    rank: int | None = None,
    base: str | None = None,
) -> VersionRecord:
    """Write a version as the folder that it was registered from (arguments and errors as `Registry.export`)."""
    if not as_lora and (rank is not None or base is not None):
        raise InvalidInputError("a rank and a base model are of adapters alone", "add --as lora, or leave them out")
    if rank is not None and rank < 1:
        raise InvalidInputError(f"the rank is {rank}, it must be 1 or more", "such as 16")
    version = workspace.resolve(ref)
    if as_lora and version.kind == "base" and base is None:
        raise InvalidInputError(
            f"{version.ref} is a base model, which is no change of another",
            "export an expert; or name the model that it was made from: --base NAME[@V]",
        )
    with workspace.reading(version):
        member = load_member(workspace, version)
        if member.is_adapter and (rank or base):
            raise InvalidInputError(
                f"{version.ref} is an adapter, which is written as it came, of the rank that it has",
                f"give no rank and no base model: reg export {version.ref} --as lora --out DIR",
            )
        if not as_lora:
            write_dense([member], Path(out), workspace.progress)
        elif member.is_adapter:
            write_adapter(member, Path(out), workspace.progress)
        else:
            of = load_member(workspace, base_model(workspace.catalog, base))
            with workspace.reading(of.version), one_thread():
                write_truncated(member, of, Path(out), rank, workspace.progress)
    return version


_FRESH = ".task-"
"""Beginning of the names of files that tasks are writing."""


@dataclass(frozen=True)
class ShardTasks:
    """Writes files of weights by tasks of the registry's cluster; `write_weights` takes it for `write_shards`."""

    workspace: Workspace
    cluster: Cluster
    plan: Plan

    @property
    def at_once(self) -> int:
        """Files that the nodes write at the same time."""
        return self.cluster.slots

    def __call__(self, shards: Sequence[Shard], advance: Advance) -> list[str]:
        """Write files, and return the tree digest of each.

        Raises:
            ClusterError: a node is of another kind than this one, or tasks lost their processes too often.
            RegError: any error of `write_shards`.
        """
        cluster, plan = self.cluster, self.plan
        if not shards:
            return []
        experts = () if plan.from_base else tuple(member.version.ref for member in plan.members)
        base = None if plan.base is None else plan.base.version.ref
        arguments = {"experts": experts, "recipe": plan.recipe, "base": base, "from_base": plan.from_base}
        shared = self.workspace.home, plan.digest, arguments
        folder = shards[0].path.parent
        tasks = [
            Task(f"file {shard.path.name}", (shard.path, tuple(stream.name for stream in shard.given)), shard.nbytes)
            for shard in shards
        ]

        @contextmanager
        def progress(label: str, _total: int, unit: str) -> Iterator[Advance]:
            if unit:
                yield advance
            else:
                remark(self.workspace.progress, label)
                yield lambda amount: None

        step = Step("composing", "B", write_in_task, shared, tasks, folder)
        try:
            done = cluster.results(step, progress)
        finally:
            for path in folder.glob(f"{_FRESH}*"):
                path.unlink(missing_ok=True)
        own = node_kind("cpu", cluster.threads)
        for finished, shard in zip(done, shards, strict=True):
            if finished.kind != own:
                raise ClusterError(
                    f"{finished.node} is another kind of node than this one, on which a composition may have other "
                    f"bits: {finished.kind}, and here {own}",
                    "start the command on a node of the cluster, and use nodes of one kind",
                )
            with suppress(FileNotFoundError):
                if shard.path.stat().st_size == len(shard.head) + shard.nbytes:
                    continue
            raise DamagedError(f"{shard.path.name} is not as {finished.node} wrote it", "run it again")
        return [finished.result for finished in done]


def write_in_task(
    shared: tuple[Home, str, Mapping[str, Any]], path: Path, names: Sequence[str], *, progress: Progress
) -> str:
    """Write one file, of tensors in the order of `names`; return its tree digest (ClusterError: another plan).

    `shared` are the home, which all nodes see, the digest of the plan, and the arguments that it is made from.
    """
    home, digest_of_plan, arguments = shared
    workspace = Workspace.open(home, silent, create=False)
    try:
        plan = plan_composition(workspace, **arguments)
        if plan.digest != digest_of_plan:
            raise ClusterError(
                f"a node plans another composition, {plan.digest[:12]} in place of {digest_of_plan[:12]}",
                "install the same version of this program on all nodes",
            )
        with plan.output.opened(plan, workspace) as source:  # passes are in the cache already
            streams = {stream.name: stream for stream in source.streams}
            shard = Shard(path, tuple(streams[name] for name in names))
            fresh = Shard(path.with_name(f"{_FRESH}{uuid.uuid4().hex}"), shard.given)
            try:
                with one_thread(), progress("composing", shard.nbytes, "B") as advance:
                    (digest,) = write_shards([fresh], advance)
                fresh.path.replace(path)
            finally:
                fresh.path.unlink(missing_ok=True)
            return digest
    finally:
        workspace.close()
