"""A composition's files of weights, each written by a task of a cluster into the folder that is being built.

A task plans the composition again from the registry, checks that the plan has the same digest, and writes one file
under a name of its own, which it then renames: a task that runs twice leaves the same bytes. Every tensor is computed
on one thread, as in one process.
"""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.composition.plan import Plan, Source
from registry.composition.recipe.recipe import Recipe
from registry.distributed import Step, Task
from registry.distributed.step import node_kind
from registry.errors import ClusterError, DamagedError
from registry.home import Home
from registry.io.shard_writer import Shard, write_shards
from registry.maths.threads import one_thread
from registry.member import copies_of, load_member
from registry.progress import Advance, Progress, remark, silent
from registry.workspace import Workspace

_FRESH = ".task-"
"""Beginning of the names of files that tasks are writing."""


@dataclass(frozen=True)
class PlanReference:
    """A plan by what it is made from, for other processes.

    Attributes:
        home: the registry's folder, which all nodes see, its catalog and arrays.
        members: references to the members, with their numbers.
        base: a reference to the base model, if it takes part.
        copies: the number of copies of the base model that are the members; None for members of their own.
        recipe: the recipe.
        digest: of the plan.
    """

    home: Home
    members: tuple[str, ...]
    base: str | None
    copies: int | None
    recipe: Recipe
    digest: str

    @classmethod
    def of(cls, workspace: Workspace, plan: Plan) -> "PlanReference":
        """Return the reference of a plan."""
        copies = plan.document.get("from_base")
        members = () if copies else tuple(member.version.ref for member in plan.members)
        base = None if plan.base is None else plan.base.version.ref
        return cls(workspace.home, members, base, copies, plan.recipe, plan.digest)

    def plan(self, workspace: Workspace) -> Plan:
        """Plan the composition again.

        Raises:
            ClusterError: this node reads another registry, or another program made the plan.
        """
        base = None if self.base is None else load_member(workspace, workspace.resolve(self.base))
        members = [load_member(workspace, workspace.resolve(ref)) for ref in self.members]
        if self.copies:
            assert base is not None
            members = copies_of(base, self.copies)
        plan = self.recipe.output.plan(members, base, self.recipe)
        if plan.digest != self.digest:
            raise ClusterError(
                f"a node plans another composition, {plan.digest[:12]} in place of {self.digest[:12]}",
                "install the same version of this program on all nodes",
            )
        return plan


@dataclass(frozen=True)
class ShardTasks:
    """Writes files of weights by tasks of a cluster; `write_weights` takes one in place of `write_shards`.

    Attributes:
        workspace: the registry, with its cluster.
        plan: the composition.
    """

    workspace: Workspace
    plan: Plan

    @property
    def at_once(self) -> int:
        """Files that the nodes write at the same time."""
        return 1 if self.workspace.cluster is None else self.workspace.cluster.slots

    @classmethod
    def of(cls, workspace: Workspace, plan: Plan) -> "ShardTasks | None":
        """Return the writer of a plan; None without a cluster."""
        return None if workspace.cluster is None else cls(workspace, plan)

    def __call__(self, shards: Sequence[Shard], advance: Advance) -> list[str]:
        """Write files, and return the tree digest of each.

        Raises:
            ClusterError: a node is of another kind than this one, or tasks lost their processes too often.
            RegError: any error of `write_shards`.
        """
        cluster = self.workspace.cluster
        assert cluster is not None
        if not shards:
            return []
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

        step = Step("composing", "B", write_in_task, PlanReference.of(self.workspace, self.plan), tasks, folder)
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


def write_in_task(reference: PlanReference, path: Path, names: Sequence[str], *, progress: Progress) -> str:
    """Write one file of weights in a task, and return its tree digest.

    Args:
        reference: the plan.
        path: the file.
        names: its tensors, in the order of their computation.
        progress: receives the bytes written.
    """
    with _opened(reference) as source:
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


@contextmanager
def _opened(reference: PlanReference) -> Iterator[Source]:
    """Open the registry of a plan, and yield the source of its tensors; passes are in the cache already."""
    workspace: Any = Workspace.at(reference.home, silent, create=False)
    try:
        plan = reference.plan(workspace)
        with plan.output.opened(plan, workspace) as source:
            yield source
    finally:
        workspace.close()
