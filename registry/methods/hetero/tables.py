"""The members of one model that differ in architecture: what must agree among them, and what each needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from registry.composition.compatibility import check_tokenizers, ordered_members
from registry.composition.recipe.recipe import Recipe
from registry.errors import IncompatibleError
from registry.member import AS_EXPERT, Member

SOFTCAP = "final_logit_softcapping"


@dataclass(frozen=True)
class Tables:
    """The embedding and the head of one member.

    Attributes:
        member: the member.
    """

    member: Member

    @property
    def width(self) -> int:
        """Its hidden size."""
        return self.member.architecture.hidden_size

    @property
    def rows(self) -> int:
        """Its rows."""
        return self.member.architecture.vocab_size

    @property
    def embedding(self) -> str:
        """The name of its embedding."""
        return self.member.family.embedding

    @property
    def head(self) -> str:
        """The name of its head, which may be the embedding."""
        return self.embedding if self.member.architecture.tie_word_embeddings else self.member.family.head

    @property
    def prefix(self) -> str:
        """The beginning of the names of the body's tensors."""
        return f"{self.embedding.split('.')[0]}."

    @cached_property
    def scale(self) -> float:
        """The number that its logits are multiplied by."""
        options = self.member.architecture.options
        return float(options.get("logit_scale") or 1.0) / float(options.get("logits_scaling") or 1.0)

    def has_input_projector(self, lead: "Tables") -> bool:
        """Tell whether its embedding is another than the lead's."""
        return self.member.weight(self.embedding).digest != lead.member.weight(lead.embedding).digest

    def has_output_projector(self, lead: "Tables") -> bool:
        """Tell whether its head is another than the lead's, or its logits are multiplied by another number."""
        own, shared = self.member.weight(self.head), lead.member.weight(lead.head)
        return own.digest != shared.digest or self.scale != lead.scale


def make_tables(members: Sequence[Member], recipe: Recipe) -> tuple[tuple[Tables, ...], Tables]:
    """Check members against each other and against a recipe; return their tables in name order, and the lead's.

    Args:
        members: active versions of different experts, in any order.
        recipe: how they are combined.

    Raises:
        InvalidInputError: no member, a name twice, or a recipe that does not fit them.
        IncompatibleError: tokenizers differ, the lead lacks tokens, logits are capped differently, or a member kept no
            calibration tokens.
    """
    ordered = ordered_members(members, recipe)
    lead = next(
        (member for member in ordered if member.name == recipe.lead),
        max(ordered, key=lambda member: member.architecture.hidden_size),
    )
    for other in ordered:
        _check_pair(lead, other)
    for member in ordered:
        _check_tokens(member)
    return tuple(map(Tables, ordered)), Tables(lead)


def _check_pair(lead: Member, other: Member) -> None:
    pair = f"{lead.version.ref} and {other.version.ref} cannot share an embedding and a head"
    check_tokenizers(lead, other, pair, known=True)
    rows, known = lead.architecture.vocab_size, int(other.content["tokens"] or 0)
    if known > rows:
        raise IncompatibleError(
            f"{pair}: the tokenizer of {other.version.ref} has {known:,} tokens, and the embedding of "
            f"{lead.version.ref}, which all would share, has {rows:,} rows",
            f"let {other.name} lead: --lead {other.name}; or leave one of them out",
        )
    caps = [member.architecture.options.get(SOFTCAP) for member in (lead, other)]
    if caps[0] != caps[1]:
        raise IncompatibleError(
            f"{pair}: {SOFTCAP} is {caps[0]} against {caps[1]}, and no linear map in front of the shared head makes up "
            "for a cap behind it",
            "compose members whose logits are capped alike, or mix their predictions: --to ensemble",
        )


def _check_tokens(member: Member) -> None:
    """Check that a member kept calibration tokens, which say how often it uses each token, and what its texts are."""
    if "ids" in member.names("calibration"):
        return
    user = "the router of --to hetero is made from"
    if member.version.kind == "base":
        raise IncompatibleError(
            f"{member.version.ref} is a base model, which has no calibration tokens, and {user} them",
            f"{AS_EXPERT} --keep-calibration",
        )
    raise IncompatibleError(
        f"{member.version.ref} kept no calibration tokens, and {user} them",
        f"register it again with them: reg add-expert {member.name} CKPT --data FILE --keep-calibration; a checkpoint "
        "that carries neither text nor statistics writes its own, which is kept",
    )
