"""Members of different architectures: what must agree among them, and projectors and router from weights and tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.composition.compatibility import check_tokenizers, ordered_members
from registry.composition.recipe.recipe import Recipe
from registry.composition.stored import in_file, pass_over
from registry.errors import IncompatibleError
from registry.families.sites import TOKEN_COUNTS
from registry.io.process import return_freed_memory
from registry.maths.projection import ROWS, UNUSED, head_rank, sequence_router, table_map
from registry.maths.threads import Once
from registry.member import Member

SOFTCAP = "final_logit_softcapping"


@dataclass(frozen=True)
class Tables:
    """The embedding and the head of one member."""

    member: Member

    @property
    def width(self) -> int:
        """Its hidden size."""
        return self.member.architecture.hidden_size

    @property
    def embedding(self) -> str:
        """The name of its embedding."""
        return self.member.family.embedding

    @property
    def head(self) -> str:
        """The name of its head, which may be the embedding."""
        return self.member.family.own_head(self.member.architecture)

    @property
    def prefix(self) -> str:
        """The beginning of the names of the body's tensors."""
        return f"{self.embedding.split('.')[0]}."

    @cached_property
    def scale(self) -> float:
        """The number that its logits are multiplied by."""
        options = self.member.architecture.options
        return float(options.get("logit_scale") or 1.0) / float(options.get("logits_scaling") or 1.0)

    @property
    def contents(self) -> tuple[str, tuple[str, float]]:
        """The digest of its embedding, and that of its head with the scale of the logits."""
        return self.member.weight(self.embedding).digest, (self.member.weight(self.head).digest, self.scale)


def make_tables(members: Sequence[Member], recipe: Recipe) -> tuple[tuple[Tables, ...], Tables]:
    """Check members against each other and against a recipe; return their tables in name order, and the lead's.

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
        use = "the router of --to hetero is made from them"
        member.require_calibration(f"and {use}", use)
    return tuple(map(Tables, ordered)), Tables(lead)


def _check_pair(lead: Member, other: Member) -> None:
    pair = f"{lead.version.ref} and {other.version.ref} cannot share an embedding and a head"
    check_tokenizers(lead, other, pair, known=True)
    rows, known = lead.architecture.vocab_size, other.known_tokens
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


class HeteroFit:
    """The projectors between the lead's tables and each member, and the router; computed when asked for and not kept.

    The lead's tables wait in temporary files meanwhile; of the others one block of rows is read at a time.

    λ is of input projectors and router, which sees `routing_tokens` first tokens of a window; 0 for all.
    """

    def __init__(self, tables: Sequence[Tables], lead: Tables, lam: float, routing_tokens: int) -> None:
        self.tables, self.lead = tables, lead
        self._lam, self._tokens = lam, routing_tokens
        self.close()

    @property
    def projected(self) -> list[tuple[bool, bool]]:
        """Tell of each member whether it has a projector from the embedding, and one to the head."""
        embedding, head = self.lead.contents
        return [(mine != embedding, own != head) for mine, own in (tables.contents for tables in self.tables)]

    def close(self) -> None:
        """Delete the lead's tables, which are read again when needed."""
        lead = self.lead
        self._embedding = Once(lambda: _table(lead.member, lead.embedding))
        own_head = lead.head != lead.embedding
        self._head = Once(lambda: _table(lead.member, lead.head)) if own_head else self._embedding

    def check(self) -> None:
        """Check that projectors out of members can be computed (IncompatibleError: the lead's head lacks rank)."""
        projected = [tables for tables, (_, to_head) in zip(self.tables, self.projected, strict=True) if to_head]
        for count in dict.fromkeys(map(self._shared_rows, projected)):
            if (rank := head_rank(self._head()[:count])) < self.lead.width:
                raise self._low_rank(count, f"has rank {rank}")

    def input_projector(self, index: int) -> Float[Tensor, "D d"]:
        """Return P of a member as the weight of a linear map, float64 (IncompatibleError: its tokens leave it open)."""
        tables, shared = self.tables[index], self._embedding()
        blocks = _blocks(tables.member, tables.embedding, shared, token_counts(tables.member)[: len(shared)].double())
        try:
            return table_map(blocks, (self.lead.width, tables.width), self._lam).T.contiguous()
        except ValueError as error:
            raise IncompatibleError(
                f"{tables.member.version.ref}: its tokens do not determine the map from the embedding of "
                f"{self.lead.member.version.ref}: {error}",
                "give a ridge strength: --lam 0.01",
            ) from error
        finally:
            return_freed_memory()

    def output_projector(self, index: int) -> Float[Tensor, "d D"]:
        """Return R of a member as the weight of a linear map, float64 (IncompatibleError: a head lacks rank)."""
        tables, shared = self.tables[index], self._head()
        count = self._shared_rows(tables)
        counts = token_counts(tables.member)[:count].double()
        weights = counts + UNUSED * (float(counts.mean()) or 1.0)
        blocks = _blocks(tables.member, tables.head, shared, weights)
        try:
            return table_map(blocks, (self.lead.width, tables.width)) * (tables.scale / self.lead.scale)
        except ValueError as error:
            raise self._low_rank(count, f"is nearly of lower rank for the tokens of {tables.member.name}") from error
        finally:
            return_freed_memory()

    def router(self) -> Float[Tensor, "E d"]:
        """Return the weight of the router, float64 (IncompatibleError: the members' windows do not determine it)."""
        shared = self._embedding()
        try:
            means = (_means(tables.member, shared, self._tokens) for tables in self.tables)
            return sequence_router(means, self.lead.width, self._lam)
        except ValueError as error:
            raise IncompatibleError(
                f"the members' texts do not determine the router: {error}", "give a ridge strength: --lam 0.01"
            ) from error
        finally:
            return_freed_memory()

    def _shared_rows(self, tables: Tables) -> int:
        return min(one.member.architecture.vocab_size for one in (tables, self.lead))

    def _low_rank(self, count: int, problem: str) -> IncompatibleError:
        lead = self.lead
        others = [tables.member.name for tables in self.tables if tables.member.name != lead.member.name]
        return IncompatibleError(
            f"the head of {lead.member.version.ref}, {lead.head} of shape {count} x {lead.width}, {problem}: what "
            "others give cannot be projected in front of it",
            f"let another member lead: --lead {' or '.join(others[:3])}; or leave {lead.member.name} out",
        )


def token_counts(member: Member) -> Int64[Tensor, "V"]:
    """Return how often a member's calibration used each token: as stored, else counted from the kept tokens."""
    if member.has_statistics(TOKEN_COUNTS):
        return member.token_counts
    return member.kept_tokens.counts(member.architecture.vocab_size)


def _means(member: Member, embedding: Float[Tensor, "V w"], tokens: int) -> Iterator[Tensor]:
    """Yield the mean embedding of the first tokens of each kept window, float64, block by block."""
    calibration = member.kept_tokens
    width = min(tokens, calibration.ids.shape[1]) if tokens else calibration.ids.shape[1]
    at_once = max(1, ROWS // width)
    lengths = calibration.lengths.clamp(max=width).long()
    for start in range(0, len(lengths), at_once):
        own = lengths[start : start + at_once]
        ids = calibration.ids[start : start + at_once, :width].long()
        # Text that an expert wrote may hold numbers of rows that pad its table, which are no tokens.
        keep = (torch.arange(width)[None, :] < own[:, None]) & (ids < len(embedding))
        rows = embedding[ids.masked_fill(~keep, 0)].double().masked_fill(~keep[:, :, None], 0.0)
        yield rows.sum(dim=1) / keep.sum(dim=1, keepdim=True).clamp(min=1)


def _pieces(member: Member, name: str) -> Iterator[Float[Tensor, "r w"]]:
    """Yield rows of a table; all of it is read, which checks its digest."""
    for block in pass_over(member, name)():
        yield from block.split(ROWS)


def _blocks(
    member: Member, name: str, shared: Float[Tensor, "V d"], weights: Float[Tensor, "n"]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield rows of the lead's table and of a member's, with their weights, float64; those of weight 0 are left out."""
    start = 0
    for own in _pieces(member, name):
        here = weights[start : start + len(own)]
        used = here.nonzero()[:, 0]
        if len(used):
            yield shared[used + start].double(), own[used].double(), here[used]
        start += len(own)


def _table(member: Member, name: str) -> Float[Tensor, "V w"]:
    return in_file(rows.float() for rows in _pieces(member, name))
