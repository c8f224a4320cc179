"""Compositions from references and a recipe: planned, written and recorded."""

from collections.abc import Callable, Sequence
from pathlib import Path

from registry.composition.found import OUTPUTS
from registry.composition.manifest import folder_document
from registry.composition.plan import Plan
from registry.composition.preview import Preview
from registry.composition.recipe.fields import of_copies, problem_of_copies
from registry.composition.recipe.recipe import Recipe
from registry.composition.compose import ShardTasks
from registry.composition.stored import write_dense
from registry.destination.address import destination_of
from registry.destination.destination import Destination as Destination
from registry.errors import InvalidInputError
from registry.io.model_folder import MARKER, json_file
from registry.maths.threads import one_thread
from registry.member import Member as Member
from registry.member import copies_of
from registry.member import load_member as load_member
from registry.member import load_members as load_members
from registry.names.reference import NAME_LIMIT, require_list
from registry.names.resolve import base_model
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
    if base is not None and not recipe.needs_base:
        raise InvalidInputError(
            f"{recipe.label} takes no base model, and base {base!r} was given",
            "drop --base, or use that model's trunk: --trunk base",
        )
    members = [load_member(workspace, workspace.resolve(ref)) for ref in require_list(experts, "experts")]
    base_member = None
    if recipe.output.takes_base(members, recipe):
        found = recipe.output.base_of(workspace, members, base)
        base_member = load_member(workspace, base_model(workspace.catalog, found))
    with workspace.reading(*(member.version for member in (*members, *([base_member] if base_member else [])))):
        return recipe.output.plan(members, base_member, recipe)


def _plan_copies(
    workspace: Workspace, experts: Sequence[str], recipe: Recipe | None, base: str | None, count: int
) -> Plan:
    """Plan a mixture of copies of a base model's MLPs (sparse upcycling, Komatsuzaki et al. 2023).

    Raises:
        InvalidInputError: experts are named too, or the recipe or the number is not one of copies.
    """
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
        return recipe.output.plan(copies, member, recipe)


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


def export(workspace: Workspace, ref: str, out: PathLike) -> VersionRecord:
    """Write a version as the dense folder that it was registered from (arguments and errors as `Registry.export`)."""
    version = workspace.resolve(ref)
    with workspace.reading(version):
        write_dense([load_member(workspace, version)], Path(out), workspace.progress)
    return version
