"""Checks of the members of a mixture, a dense model or a shared trunk, beyond those of all compositions."""

from collections.abc import Sequence
from typing import NamedTuple

from registry.composition.compatibility import Subset
from registry.composition.found import ROUTERS
from registry.composition.method import COUNTS, OWN
from registry.composition.recipe.recipe import Recipe
from registry.errors import IncompatibleError, InvalidInputError
from registry.families.sites import MLP_INPUT, SITES, TOKEN_COUNTS
from registry.io.display import few
from registry.member import Member
from registry.methods.moe.output import retakes


def check_mixture(subset: Subset, recipe: Recipe) -> None:
    """Check what a trunk and a router ask of the members.

    Raises:
        IncompatibleError: members lack it; the message says who, and what.
        InvalidInputError: a bias is for a member that takes none.
    """
    if subset.base is not None and takes_task_vectors(recipe):
        check_soups(subset.members, subset.base)
    if recipe.router_method is not None and recipe.router_method.is_trained:
        check_anchors(subset.members, subset.base)
        _check_bias(subset.members, recipe)
    check_statistics(subset.members, recipe)


def takes_task_vectors(recipe: Recipe) -> bool:
    """Tell whether the differences of members and base model take part in the trunk."""
    trunk = recipe.trunk_method
    return trunk is not None and trunk.needs_base and trunk.needs_members


def check_soups(members: Sequence[Member], base: Member) -> None:
    """Check that task vectors against the shared weights of a soup are those of its own experts.

    Experts of two soups go together against the base model of both (IncompatibleError: another soup's expert).
    """
    if "domains" not in base.content.get("soup", {}):
        return
    for member in members:
        soup = member.content.get("soup", {}).get("soup", base.version.digest)
        if soup != base.version.digest:
            raise IncompatibleError(
                f"{member.version.ref} is an expert of the soup {soup[:12]}, and {base.version.ref} is the shared "
                f"weights of another, {base.version.digest[:12]}: their difference is no task vector",
                "name experts of one soup; or give --base the base model that both soups were trained from",
            )


def check_anchors(members: Sequence[Member], base: Member | None) -> None:
    """Check that experts were trained beside one public expert, the base model, whose trunk they share to the byte.

    (IncompatibleError: an expert has no router row, was trained beside another model, or has another trunk.)
    """
    assert base is not None, "routers of trained rows go with the trunk of the base model"
    trunk = {link.name: link.digest for link in base.arrays if link.role == "trunk"}
    for member in members:
        if member.version.kind == "base":
            if member.version.digest != base.version.digest:
                raise IncompatibleError(
                    f"{member.version.ref} is not the base model of this composition, {base.version.ref}",
                    f"name that one among the experts, or give --base {member.version.ref}",
                )
            continue
        member.router_row(0)
        anchor = member.router_rows.anchor if member.router_rows else ""
        if anchor != base.content["weights"]:
            raise IncompatibleError(
                f"{member.version.ref} was trained beside another public expert, {anchor[:12]}, than "
                f"{base.version.ref}, {str(base.content['weights'])[:12]}",
                "give the base model that it was trained from: --base NAME[@V]",
            )
        moved = next((name for name, digest in trunk.items() if member.weight(name).digest != digest), None)
        if moved is not None:
            raise IncompatibleError(
                f"{moved} of {member.version.ref} differs from that of {base.version.ref}, though its trunk was frozen",
                f"train it again: reg train-expert {member.name} --base {base.version.ref} --data FILE --coordinate",
            )


def _check_bias(members: Sequence[Member], recipe: Recipe) -> None:
    public = {member.name for member in members if member.version.kind == "base"}
    given = [name for name, bias in recipe.bias.items() if bias]
    if of_public := sorted(public.intersection(given)):
        raise InvalidInputError(
            f"there is a bias for {of_public[0]}, the public expert, whose logit is 0",
            "give the others one: --bias NAME=X",
        )
    if given and not public:
        raise InvalidInputError(
            f"there is a bias for {', '.join(sorted(given))}, and no public expert to stand back from",
            "name the base model among the experts: --public NAME",
        )


def check_statistics(members: Sequence[Member], recipe: Recipe) -> None:
    """Check that members have the statistics that a recipe needs (IncompatibleError: one has not, of some site)."""
    needs = _needs(recipe, members)
    for member in members:
        lacking = [need for need in needs if not all(map(member.has_statistics, need.sites))]
        if not lacking:
            continue
        is_base = member.version.kind == "base"
        options = (need.of_base if is_base else need.alternative for need in lacking)
        alternatives = [option for option in options if option]
        member.require_statistics(
            [site for need in lacking for site in need.sites],
            " and ".join(need.user for need in lacking),
            "needs" if len(lacking) == 1 else "need",
            f"; or choose {' '.join(alternatives)}" if len(alternatives) == len(lacking) else "",
        )
    if retakes(recipe):
        for member in members:
            member.require_calibration(
                "which this recipe runs through models",
                "this recipe runs them through models",
                "; or choose --router random and no refinement",
            )


class _Need(NamedTuple):
    """Statistics of some sites, or `TOKEN_COUNTS`, that a part of a recipe needs, and options that do without.

    `of_base` are those that need no statistics at all, for a base model among the members.
    """

    user: str
    sites: tuple[str, ...]
    alternative: str
    of_base: str


def _needs(recipe: Recipe, members: Sequence[Member]) -> list[_Need]:
    """Return what a recipe needs of each member's stored statistics.

    Routers that passes of kept tokens solve again need none: the passes collect them.
    """
    needs, called, of_base = list[_Need](), f"router method {recipe.router!r}", f"--router {_router(None)}"
    router, trunk = recipe.router_method, recipe.trunk_method
    if router is not None and router.statistics == OWN and not retakes(recipe):
        refined = "--refine 1" if all("ids" in member.names("calibration") for member in members) else ""
        needs.append(_Need(called, (MLP_INPUT,), refined or f"--router {_router(COUNTS)}", of_base))
    if router is not None and router.statistics == COUNTS and len(members) > 1:
        needs.append(_Need(called, (TOKEN_COUNTS,), f"--router {_router(OWN)}", of_base))
    if trunk is not None and trunk.needs_inputs and len(members) > 1:
        needs.append(_Need(f"trunk method {recipe.trunk!r}", (*SITES["all"], TOKEN_COUNTS), *["--trunk mean"] * 2))
    return needs


def _router(statistics: str | None) -> str:
    """Return the first router method that is made from some statistics and was not trained."""
    return next(name for name, one in ROUTERS.items() if one.statistics == statistics and not one.is_trained)


def equal_mlp_notes(members: Sequence[Member]) -> tuple[str, ...]:
    """Return a remark on each group of members of equal MLPs: routing between them changes nothing.

    Adapters of attention alone leave the MLPs of the base model as they are.
    """
    groups: dict[frozenset[tuple[str, str]], list[str]] = {}
    for member in members:
        mlps = frozenset((link.name, link.digest) for link in member.arrays if link.role == "mlp")
        groups.setdefault(mlps, []).append(member.name)
    return tuple(
        f"the MLPs of {few(names)} are equal, so routing between them changes nothing; they "
        "differ only in what is merged into the trunk. --to ensemble keeps them apart"
        for names in groups.values()
        if len(names) > 1
    )
