"""Plans of compositions from references and a recipe, and the folders and figures made from them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import overload

from registry.composition.any_plan import AnyPlan
from registry.composition.compatibility import differ_in_shape
from registry.composition.dense import write_dense
from registry.composition.plan import Plan, make_plan
from registry.composition.recipe import Recipe
from registry.composition.recipe.any_recipe import AnyRecipe
from registry.composition.recipe.recipe_fields import OF_COPIES
from registry.composition.recipe.recipe_rules import problem_of_copies
from registry.composition.write import write_composition
from registry.destination.address import destination_of
from registry.destination.destination import Destination
from registry.errors import InvalidInputError
from registry.member import Member as Member
from registry.member import copies_of
from registry.member import load_member as load_member
from registry.member import load_members as load_members
from registry.methods.dense.domain_weights import shares_of_documents
from registry.methods.ensemble.plan import Ensemble, make_ensemble
from registry.methods.ensemble.recipe import EnsembleRecipe
from registry.methods.ensemble.several_families import make_families
from registry.methods.ensemble.write import write_ensemble
from registry.methods.hetero.plan import Hetero, make_hetero
from registry.methods.hetero.recipe import HeteroRecipe
from registry.methods.moe.passes import pass_context, tensor_source_of
from registry.methods.moe.preview import Preview, preview_plan
from registry.methods.simoe.plan import SimoePlan, base_of, make_simoe
from registry.methods.simoe.recipe import SimoeRecipe
from registry.methods.simoe.write import write_simoe
from registry.names.reference import NAME_LIMIT, require_list
from registry.names.resolve import base_model
from registry.workspace import PathLike, Workspace
from store.catalog import VersionRecord
from store.lock import exclusive


@overload
def plan_composition(
    workspace: Workspace,
    experts: Sequence[str],
    recipe: Recipe | None = None,
    *,
    base: str | None = None,
    from_base: int | None = None,
) -> Plan: ...


@overload
def plan_composition(
    workspace: Workspace,
    experts: Sequence[str],
    recipe: EnsembleRecipe,
    *,
    base: str | None = None,
    from_base: int | None = None,
) -> Ensemble: ...


@overload
def plan_composition(
    workspace: Workspace,
    experts: Sequence[str],
    recipe: AnyRecipe | None,
    *,
    base: str | None = None,
    from_base: int | None = None,
) -> AnyPlan: ...


def plan_composition(
    workspace: Workspace,
    experts: Sequence[str],
    recipe: AnyRecipe | None = None,
    *,
    base: str | None = None,
    from_base: int | None = None,
) -> AnyPlan:
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
    if isinstance(recipe, EnsembleRecipe) and not isinstance(recipe, HeteroRecipe) and differ_in_shape(members):
        with workspace.reading(*(member.version for member in members)):
            return make_families(members, recipe)
    base_member = None
    if isinstance(recipe, SimoeRecipe) and base is None:
        base_member = load_member(workspace, base_of(workspace, members))
    elif recipe.needs_base:
        base_member = load_member(workspace, base_model(workspace.catalog, base))
    with workspace.reading(*(member.version for member in (*members, *([base_member] if base_member else [])))):
        if isinstance(recipe, HeteroRecipe):
            return make_hetero(members, recipe)
        if isinstance(recipe, EnsembleRecipe):
            return make_ensemble(members, base_member, recipe)
        if isinstance(recipe, SimoeRecipe):
            return make_simoe(members, base_member, recipe)
        return make_plan(members, base_member, recipe)


def _plan_copies(
    workspace: Workspace,
    experts: Sequence[str],
    recipe: AnyRecipe | None,
    base: str | None,
    count: int,
) -> Plan:
    """Plan a mixture of copies of a base model's MLPs (sparse upcycling, Komatsuzaki et al. 2023).

    Raises:
        InvalidInputError: experts are named too, or the recipe or the number is not one of copies.
    """
    recipe = recipe or Recipe(**OF_COPIES)
    if require_list(experts, "experts"):
        raise InvalidInputError(
            "the experts are copies of the base model, and others were named",
            "name no experts, or leave out --from-base",
        )
    if problem := problem_of_copies(count, vars(recipe) | {"to": recipe.to}):
        raise problem.error()
    assert isinstance(recipe, Recipe)
    member = load_member(workspace, base_model(workspace.catalog, base))
    copies = copies_of(member, count)
    if len(copies[-1].name) > NAME_LIMIT:
        raise InvalidInputError(
            f"copies of {member.name[:20]}… would have names of more than {NAME_LIMIT} characters",
            "register the base model under a shorter name: reg add-base NAME CKPT",
        )
    with workspace.reading(member.version):
        return make_plan(copies, member, recipe)


def compose(
    workspace: Workspace,
    experts: Sequence[str],
    out: PathLike,
    recipe: AnyRecipe | None = None,
    *,
    base: str | None = None,
    from_base: int | None = None,
    force: bool = False,
) -> AnyPlan:
    """Write a composition to `out` and record it (arguments and errors as `Registry.compose`)."""
    workspace.check_owner()
    destination = destination_of(out)
    destination.check(replace=force)
    plan = plan_composition(workspace, experts, recipe, base=base, from_base=from_base)

    def record() -> None:
        workspace.catalog.record_composition(plan.digest, plan.document, used_versions(plan), destination.address)

    place = destination.address
    with exclusive(workspace.home.output_lock(place), f"composing into {place}"), workspace.catalog.output_lock(place):
        write_plan(workspace, plan, destination, replace=force, record=record)
    return plan


def write_plan(
    workspace: Workspace,
    plan: AnyPlan,
    place: PathLike | Destination,
    *,
    replace: bool = False,
    record: Callable[[], None] | None = None,
) -> None:
    """Write a planned composition (arguments as `Registry.write`)."""
    destination = place if isinstance(place, Destination) else destination_of(place)
    with workspace.reading(*used_versions(plan)), ExitStack() as stack:
        if isinstance(plan, Hetero):
            stack.callback(plan.fit.close)
            plan.fit.check()
        if isinstance(plan, Ensemble):
            _write_ensemble(workspace, plan, destination, replace=replace, record=record or _nothing)
            return
        if isinstance(plan, SimoePlan):
            write_simoe(
                plan,
                destination,
                replace=replace,
                record=record or _nothing,
                progress=workspace.progress,
                home=workspace.home,
            )
            return
        with pass_context(workspace, used_members(plan)) as context:
            write_composition(plan, destination, replace=replace, record=record, context=context)


def _write_ensemble(
    workspace: Workspace, ensemble: Ensemble, destination: Destination, *, replace: bool, record: Callable[[], None]
) -> None:
    """Write an ensemble, with what its shared trunk is made from in the cache."""
    with ExitStack() as stack:
        trunk = None
        if ensemble.trunk is not None:
            context = stack.enter_context(pass_context(workspace, used_members(ensemble)))
            trunk = tensor_source_of(ensemble.trunk, context)
        write_ensemble(
            ensemble,
            destination,
            replace=replace,
            record=record,
            progress=workspace.progress,
            home=workspace.home,
            trunk=trunk,
        )


def document_shares(
    workspace: Workspace,
    experts: Sequence[str],
    files: Sequence[PathLike],
    *,
    base: str | None = None,
    device: str | None = None,
) -> dict[str, float]:
    """Return expert → share of the documents in `files` that are nearest to it (arguments as `Registry.likeness`)."""
    plan = plan_composition(workspace, experts, Recipe(trunk="base", to="dense"), base=base)
    assert plan.base is not None
    paths = [Path(file) for file in require_list(files, "files")]
    with workspace.reading(*used_versions(plan)), pass_context(workspace, used_members(plan)) as context:
        return shares_of_documents(plan.members, plan.base, paths, context, device)


def preview_composition(
    workspace: Workspace, experts: Sequence[str], recipe: Recipe | None = None, *, base: str | None = None
) -> Preview:
    """Predict a composition's routing from statistics (arguments as `Registry.preview`)."""
    plan = plan_composition(workspace, experts, recipe or Recipe(), base=base)
    with workspace.reading(*used_versions(plan)):
        return preview_plan(plan, workspace.progress)


def export(workspace: Workspace, ref: str, out: PathLike) -> VersionRecord:
    """Write a version as the dense folder that it was registered from (arguments and errors as `Registry.export`)."""
    version = workspace.resolve(ref)
    with workspace.reading(version):
        write_dense([load_member(workspace, version)], Path(out), workspace.progress)
    return version


def used_versions(plan: AnyPlan) -> list[VersionRecord]:
    """Return the versions that a plan reads: the members, and the base model if it takes part."""
    return [member.version for member in used_members(plan)]


def used_members(plan: AnyPlan) -> list[Member]:
    """Return the members of a plan, one of several copies, and the base model if it takes part and is no member."""
    used: dict[int, Member] = {}
    for member in (*plan.members, *([plan.base] if plan.base else [])):
        used.setdefault(member.version.id, member)
    return list(used.values())


def _nothing() -> None:
    """Record nothing."""
