"""The members of a composition: what must agree among them, and the one that leads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from registry.checkpoint.tokenizer import tokenizer_conflict
from registry.composition.recipe.recipe import CoefficientFit, Recipe, fitted_members
from registry.errors import IncompatibleError, InvalidInputError
from registry.member import POSITIONS, Member
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


def make_subset(members: Sequence[Member], base: Member | None, recipe: Recipe) -> Subset:
    """Check members against each other and against a recipe; `base` takes no part unless the recipe needs it.

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
    if recipe.fit is not None:
        _check_fit(ordered, base, recipe.fit)
    everyone = check_compatible((*ordered, *([base] if base and recipe.needs_base else [])))
    count = len(ordered)
    return Subset(everyone[:count], everyone[-1] if len(everyone) > count else None, leading(everyone))


def ordered_members(members: Sequence[Member], recipe: Recipe) -> tuple[Member, ...]:
    """Return members in name order, checked against a recipe, not yet against each other.

    (Errors as `make_subset`; UnsupportedFamilyError: the output needs to know the layers of a member's family.)
    """
    ordered = tuple(sorted(members, key=lambda member: member.name))
    names = [member.name for member in ordered]
    if not ordered:
        raise InvalidInputError("a composition needs at least one expert", "name some: --experts code,math")
    check_distinct(names)
    if problem := recipe.problem_of_members(names):
        raise problem.error()
    for member in () if recipe.output.takes_any_family else ordered:
        member.family.check_table()
    return ordered


def _check_fit(members: Sequence[Member], base: Member | None, fit: CoefficientFit) -> None:
    names = [(member.name, member.version.digest) for member in members]
    if base is None or fit.members != fitted_members(names, base.version.digest):
        raise InvalidInputError(
            "the coefficients were fitted for other members, or other versions of them or of the base model",
            f"fit them again: reg compose --experts {','.join(member.version.ref for member in members)} --to dense "
            "--trunk task-arithmetic --fit FILE --out DIR",
        )


def common_dtype(members: Sequence[Member]) -> str:
    """Return the dtype of the members' weights (errors as `one_dtype`)."""
    dtypes = {member.version.ref: str(member.content["dtype"]) for member in members}
    return one_dtype(dtypes, "the members' weights have")


def one_dtype(dtypes: Mapping[str, str], whose: str) -> str:
    """Return the dtype of all versions, each by reference (IncompatibleError: several; `whose` begins the message)."""
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{ref} {dtype}" for ref, dtype in dtypes.items())
        raise IncompatibleError(f"{whose} different dtypes ({listed})", "choose one: --dtype bfloat16")
    return next(iter(dtypes.values()))


def check_compatible(members: Sequence[Member]) -> tuple[Member, ...]:
    """Return members as they can stand in one composition: of different longest texts, all take the least.

    Families, architectures apart from the vocabulary's size and, where ropes do not depend on it, that of the longest
    text, and tokenizers on the tokens that both have must agree.

    (IncompatibleError: two do not; the message says who, and in what.)
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
    """Check that two members have one tokenizer, on the tokens that both have, and with `known` that both have one.

    `pair` begins the message: who cannot be what.

    (IncompatibleError: they differ; the message has the first token that does, and its numbers. Or one has none.)
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


def leading(members: Sequence[Member]) -> Member:
    """Return the first member, in the order given, that has the most tokens, by rows and then by its tokenizer."""
    return max(members, key=lambda member: (member.architecture.vocab_size, member.known_tokens))


def _tokenizer_conflict(first: Member, second: Member) -> str | None:
    if first.content["tokenizer"] == second.content["tokenizer"]:
        return None
    if not all("tokenizer.json" in member.names("file") for member in (first, second)):
        short = [str(member.content["tokenizer"])[:12] for member in (first, second)]
        return f"digest {short[0]} against {short[1]}, and not both have a tokenizer.json that could be compared"
    return tokenizer_conflict(first.file("tokenizer.json"), second.file("tokenizer.json"))
