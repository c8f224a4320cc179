"""The members of a composition: what must agree among them, and the one that leads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from registry.checkpoint.tokenizer import tokenizer_conflict
from registry.composition.recipe import Recipe
from registry.composition.recipe.any_recipe import AnyRecipe
from registry.composition.recipe.coefficient_fit import CoefficientFit, fitted_members
from registry.composition.recipe.recipe_fields import FROM_COUNTS, FROM_OWN_PASSES, FROM_ROWS
from registry.errors import IncompatibleError, InvalidInputError
from registry.families.sites import MLP_INPUT, SITES, TOKEN_COUNTS
from registry.io.display import few
from registry.maths.router import COUNTS, OWN, ROUTERS
from registry.maths.trunk import TRUNKS
from registry.member import AS_EXPERT, POSITIONS, Member
from registry.names.reference import check_distinct

VOCABULARY = ("vocab_size",)
"""What members may differ in: some have rows for tokens that others lack."""


@dataclass(frozen=True)
class Subset:
    """The members of a composition, checked.

    Attributes:
        members: in name order, which is the order of the experts.
        base: the base model, where it takes part.
        lead: the member whose tokenizer and settings the folder takes over: the first with the largest vocabulary.
    """

    members: tuple[Member, ...]
    base: Member | None
    lead: Member

    @property
    def everyone(self) -> tuple[Member, ...]:
        """The members, and last the base model where it takes part."""
        return (*self.members, *([self.base] if self.base else []))


def make_subset(members: Sequence[Member], base: Member | None, recipe: AnyRecipe) -> Subset:
    """Check members against each other and against a recipe.

    Args:
        members: active versions of different experts, in any order.
        base: the base model, where the recipe needs one; it takes no part otherwise.
        recipe: how they are combined.

    Raises:
        InvalidInputError: no member, a name twice, a recipe that does not fit them, or no base model where one is
            needed.
        IncompatibleError: members differ in what must agree; the message names them and the difference.
    """
    ordered = ordered_members(members, recipe)
    if recipe.needs_base and base is None:
        raise InvalidInputError(
            "this recipe needs the base model that the members were fine-tuned from", "name it: --base NAME[@V]"
        )
    if isinstance(recipe, Recipe) and recipe.fit is not None:
        _check_fit(ordered, base, recipe.fit)
    everyone = check_compatible((*ordered, *([base] if base and recipe.needs_base else [])))
    ordered, base = everyone[: len(ordered)], everyone[-1] if base and recipe.needs_base else base
    if base is not None and _takes_task_vectors(recipe):
        _check_soups(ordered, base)
    if isinstance(recipe, Recipe) and recipe.to == "moe" and recipe.router in FROM_ROWS:
        check_anchors(ordered, base)
        _check_bias(ordered, recipe)
    return Subset(ordered, base if recipe.needs_base else None, leading(everyone))


def ordered_members(members: Sequence[Member], recipe: AnyRecipe) -> tuple[Member, ...]:
    """Return members in name order, checked against a recipe and not yet against each other.

    Raises:
        InvalidInputError: no member, a name twice, or a recipe that does not fit them.
    """
    ordered = tuple(sorted(members, key=lambda member: member.name))
    names = [member.name for member in ordered]
    if not ordered:
        raise InvalidInputError("a composition needs at least one expert", "name some: --experts code,math")
    check_distinct(names)
    recipe.check_members(names)
    return ordered


def _check_fit(members: Sequence[Member], base: Member | None, fit: CoefficientFit) -> None:
    """Check that coefficients were fitted for these members and this base model.

    Raises:
        InvalidInputError: they were fitted for others.
    """
    names = [(member.name, member.version.digest) for member in members]
    if base is None or fit.members != fitted_members(names, base.version.digest):
        raise InvalidInputError(
            "the coefficients were fitted for other members, or other versions of them or of the base model",
            f"fit them again: reg compose --experts {','.join(member.version.ref for member in members)} --to dense "
            "--trunk task-arithmetic --fit FILE --out DIR",
        )


def _takes_task_vectors(recipe: AnyRecipe) -> bool:
    """Tell whether the differences of members and base model take part, in the trunk or in the routing."""
    trunk = getattr(recipe, "trunk", None)
    return getattr(recipe, "has_base", False) or (
        trunk is not None and TRUNKS[trunk].needs_base and TRUNKS[trunk].needs_members
    )


def _check_soups(members: Sequence[Member], base: Member) -> None:
    """Check that task vectors against the shared weights of a soup are those of its own experts.

    Experts of two soups go together against the base model that both were trained from.

    Raises:
        IncompatibleError: a member is an expert of another soup.
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


def common_dtype(members: Sequence[Member]) -> str:
    """Return the dtype of the members' weights.

    Raises:
        IncompatibleError: members have different ones.
    """
    dtypes = {member.version.ref: str(member.content["dtype"]) for member in members}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{ref} {dtype}" for ref, dtype in dtypes.items())
        raise IncompatibleError(
            f"the members' weights have different dtypes ({listed})", "choose one: --dtype bfloat16"
        )
    return next(iter(dtypes.values()))


def check_compatible(members: Sequence[Member]) -> tuple[Member, ...]:
    """Return members as they can stand in one composition: of different longest texts, all take the least.

    Families, architectures apart from the vocabulary's size and, where ropes do not depend on it, that of the longest
    text, and tokenizers on the tokens that both have must agree.

    Raises:
        IncompatibleError: two do not; the message says who, and in what.
    """
    lead = leading(members)
    for other in members:
        pair = f"{lead.version.ref} and {other.version.ref} cannot stand in one composition"
        if lead.family is not other.family:
            raise IncompatibleError(
                f"{pair}: family {lead.family.model_type} against {other.family.model_type}",
                "compose experts of one family, or whole members of several: --to ensemble or --to hetero",
            )
        apart_from = (*VOCABULARY, *((POSITIONS,) if _has_any_length(lead) else ()))
        if differences := lead.architecture.differences(other.architecture, apart_from=apart_from):
            raise IncompatibleError(
                f"{pair}: {'; '.join(differences)}",
                "compose experts of one base model, or whole members of several: --to ensemble or --to hetero",
            )
        check_tokenizers(lead, other, pair)
    longest = {member.architecture.max_position_embeddings for member in members}
    return tuple(members) if len(longest) == 1 else tuple(replace(m, longest=min(longest)) for m in members)


def _has_any_length(member: Member) -> bool:
    """Tell whether a member's rope is the same function of positions whatever the longest text is."""
    parameters = member.architecture.rope_parameters
    ropes = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    return all(rope.get("rope_type", "default") in ("default", "linear", "llama3") for rope in ropes)


def length_notes(members: Sequence[Member]) -> tuple[str, ...]:
    """Return a remark if members were made for texts of different lengths."""
    own = {member.name: int(member.content["architecture"][POSITIONS]) for member in members}
    if len({*own.values()}) == 1:
        return ()
    least = min(own, key=own.__getitem__)
    return (f"it takes texts of {own[least]:,} tokens, as {least} does; others take up to {max(own.values()):,}",)


def differ_in_shape(members: Sequence[Member]) -> bool:
    """Tell whether members are of several families or architectures, apart from the vocabulary's size."""
    return any(
        other.family is not members[0].family
        or members[0].architecture.differences(other.architecture, apart_from=VOCABULARY)
        for other in members[1:]
    )


def check_tokenizers(first: Member, second: Member, pair: str, *, known: bool = False) -> None:
    """Check that two members have one tokenizer, on the tokens that both have.

    Args:
        first: a member.
        second: another.
        pair: the beginning of the message: who cannot be what.
        known: both must have a tokenizer. Members of one base model may do without.

    Raises:
        IncompatibleError: they differ; the message has the first token that does, and its numbers. Or one has none.
    """
    if known and (bare := next((one for one in (first, second) if one.content["tokenizer"] is None), None)):
        raise IncompatibleError(
            f"{pair}: {bare.version.ref} has no tokenizer, so nobody knows whether their tokens are the same",
            f"put the tokenizer's files into its checkpoint, and register it again: reg add-expert {bare.name} CKPT",
        )
    if conflict := _tokenizer_conflict(first, second):
        raise IncompatibleError(
            f"{pair}: their tokenizers differ: {conflict}",
            f"register {second.name} again with the numbers of the other: reg add-expert {second.name} CKPT "
            f"--tokenizer-of {first.version.ref}; or leave one of them out",
        )


def check_anchors(members: Sequence[Member], base: Member | None) -> None:
    """Check that experts were trained beside one public expert, the base model, whose trunk they share to the byte.

    Raises:
        IncompatibleError: an expert has no router row, was trained beside another model, or has another trunk.
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
    """Check that a bias is an expert's, beside the public expert.

    Raises:
        InvalidInputError: it is the public expert's, or there is none.
    """
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
    """Check that the members have the statistics that a recipe needs.

    Raises:
        IncompatibleError: one has not; the message says who, and of which site.
    """
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
    if recipe.to == "moe" and (recipe.retakes or recipe.refine_mlp):
        for member in members:
            if not _kept_tokens(member) and member.version.kind == "base":
                raise IncompatibleError(
                    f"{member.version.ref} is a base model, which has no calibration tokens, and this recipe runs them "
                    "through models",
                    f"{AS_EXPERT} --keep-calibration; or choose --router random and no refinement",
                )
            if not _kept_tokens(member):
                raise IncompatibleError(
                    f"{member.version.ref} kept no calibration tokens, which this recipe runs through models",
                    f"register it again with them: reg add-expert {member.name} CKPT --data FILE --keep-calibration; "
                    "a checkpoint that carries neither text nor statistics writes its own, which is kept",
                )


@dataclass(frozen=True)
class _Need:
    """Statistics that a part of a recipe needs.

    Attributes:
        user: the part of the recipe, in words.
        sites: the sites, or `TOKEN_COUNTS`.
        alternative: options that do without; empty if there are none.
        of_base: options that need no statistics at all, for a base model among the members.
    """

    user: str
    sites: tuple[str, ...]
    alternative: str
    of_base: str


def _needs(recipe: Recipe, members: Sequence[Member]) -> list[_Need]:
    """Return what a recipe needs of each member's stored statistics.

    Routers that passes of kept tokens solve again need none: the passes collect them.
    """
    needs, router, of_base = list[_Need](), f"router method {recipe.router!r}", "--router random"
    if recipe.to == "moe":
        if ROUTERS[recipe.router].features == OWN and not (recipe.retakes or recipe.refine_mlp):
            refined = "--refine 1" if all(map(_kept_tokens, members)) else ""
            needs.append(_Need(router, (MLP_INPUT,), refined or f"--router {FROM_COUNTS[0]}", of_base))
        if ROUTERS[recipe.router].features == COUNTS and len(members) > 1:
            needs.append(_Need(router, (TOKEN_COUNTS,), f"--router {FROM_OWN_PASSES[0]}", of_base))
    if TRUNKS[recipe.trunk].needs_inputs and len(members) > 1:
        needs.append(_Need(f"trunk method {recipe.trunk!r}", (*SITES["all"], TOKEN_COUNTS), *["--trunk mean"] * 2))
    return needs


def leading(members: Sequence[Member]) -> Member:
    """Return the first member, in the order given, that has the most tokens, by rows and then by its tokenizer."""
    return max(members, key=lambda member: (member.architecture.vocab_size, _known_tokens(member)))


def _kept_tokens(member: Member) -> bool:
    return "ids" in member.names("calibration")


def _known_tokens(member: Member) -> int:
    return int(member.content["tokens"] or 0)


def _tokenizer_conflict(first: Member, second: Member) -> str | None:
    if first.content["tokenizer"] == second.content["tokenizer"]:
        return None
    if not all("tokenizer.json" in member.names("file") for member in (first, second)):
        short = [str(member.content["tokenizer"])[:12] for member in (first, second)]
        return f"digest {short[0]} against {short[1]}, and not both have a tokenizer.json that could be compared"
    return tokenizer_conflict(first.file("tokenizer.json"), second.file("tokenizer.json"))


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
