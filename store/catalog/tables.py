"""The catalog's tables (SQLAlchemy 2 typed), which `migrations/` creates.

Only features of every SQL database are used: strings, integers and keys. Times are ISO 8601 strings in UTC, documents
are canonical JSON.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.sql.functions import FunctionElement

VERSION_TABLE = "reg_schema"
"""The table with Alembic's revision; a name of its own, so that no other program's table is mistaken for it."""

Digest = String(64)
Name = String(100)
Time = String(32)


class _Bytewise(FunctionElement[str]):
    inherit_cache = True
    type = String()


@compiles(_Bytewise)
def _as_it_is(element: _Bytewise, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(_Bytewise, "postgresql")
def _in_c(element: _Bytewise, compiler: Any, **options: Any) -> str:
    return f'{compiler.process(element.clauses, **options)} COLLATE "C"'


def bytewise(text: Any) -> ColumnElement[str]:
    """Return a text column by whose bytes rows are ordered and compared in every database, as SQLite does.

    A database's own order may ignore hyphens and capitals, and depends on the server.
    """
    return _Bytewise(text)


def lowered(text: Any) -> ColumnElement[str]:
    """Return a text column with its ASCII letters as small ones in every database, as SQLite does."""
    return func.lower(bytewise(text))


class Base(DeclarativeBase):
    """The base of all tables; it names every constraint, so that each database can alter them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Identity(Base):
    """The registry itself, one row: a random id, which its arrays carry too (`store.ownership`)."""

    __tablename__ = "registry"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)


class Expert(Base):
    """The name of an expert (kind `expert`) or of a base model (kind `base`)."""

    __tablename__ = "experts"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(Name, unique=True)
    kind: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[str] = mapped_column(Time)


class Version(Base):
    """One immutable registration of an expert. `state`: active, withdrawn or purged; a row is never deleted."""

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("expert_id", "number"),)
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    expert_id: Mapped[int] = mapped_column(ForeignKey("experts.id"))
    number: Mapped[int] = mapped_column(Integer)
    digest: Mapped[str] = mapped_column(Digest, index=True)
    content: Mapped[str | None] = mapped_column(Text)
    parameters: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[str] = mapped_column(Time)
    withdrawn_at: Mapped[str | None] = mapped_column(Time)
    purged_at: Mapped[str | None] = mapped_column(Time)

    expert: Mapped[Expert] = relationship(lazy="joined", innerjoin=True)
    tags: Mapped[list["Tag"]] = relationship(lazy="selectin", order_by=lambda: bytewise(Tag.key))
    aliases: Mapped[list["Alias"]] = relationship(lazy="selectin", order_by=lambda: bytewise(Alias.name))
    statistics: Mapped[list["Statistics"]] = relationship(lazy="selectin", order_by=lambda: bytewise(Statistics.site))


class Array(Base):
    """An array of the array store that is complete on disk."""

    __tablename__ = "arrays"
    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    dtype: Mapped[str] = mapped_column(String(16))
    shape: Mapped[str] = mapped_column(String(100))
    nbytes: Mapped[int] = mapped_column(BigInteger)


class VersionArray(Base):
    """A link from a version to an array: `role` says what the array is there."""

    __tablename__ = "version_arrays"
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    role: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("arrays.digest"), index=True)


class Statistics(Base):
    """The data of one site's statistics of a version: token count, and the calibration's digest and label."""

    __tablename__ = "statistics"
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    site: Mapped[str] = mapped_column(String(32), primary_key=True)
    tokens: Mapped[int] = mapped_column(BigInteger)
    saturated: Mapped[int] = mapped_column(BigInteger)
    calibration_digest: Mapped[str] = mapped_column(Digest)
    calibration_label: Mapped[str] = mapped_column(Text)


class Alias(Base):
    """A movable name for a version: `math@stable`."""

    __tablename__ = "aliases"
    expert_id: Mapped[int] = mapped_column(ForeignKey("experts.id"), primary_key=True)
    name: Mapped[str] = mapped_column(Name, primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), index=True)

    protection: Mapped["ProtectedAlias | None"] = relationship(lazy="joined", viewonly=True)


class ProtectedAlias(Base):
    """An alias that is moved or deleted on purpose alone; a table of its own, as logs have digests of older rows."""

    __tablename__ = "protected_aliases"
    __table_args__ = (
        ForeignKeyConstraint(["expert_id", "name"], ["aliases.expert_id", "aliases.name"], ondelete="CASCADE"),
    )
    expert_id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(Name, primary_key=True)


class Tag(Base):
    """A tag of a version: key and value."""

    __tablename__ = "tags"
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    key: Mapped[str] = mapped_column(Name, primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class Composition(Base):
    """A composition that was made; its document is the `composition.json` of the composed folder."""

    __tablename__ = "compositions"
    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(Time)


class CompositionMember(Base):
    """A version that a composition was made from; a base model is included if its weights were used."""

    __tablename__ = "composition_members"
    composition_digest: Mapped[str] = mapped_column(ForeignKey("compositions.digest"), primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True, index=True)


class CompositionArray(Base):
    """A tensor that the training of a composition changed, by its name in the composed folder."""

    __tablename__ = "composition_arrays"
    composition_digest: Mapped[str] = mapped_column(ForeignKey("compositions.digest"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("arrays.digest"), index=True)


class Evaluation(Base):
    """An evaluation of a composition. `asked` is the digest of data and settings; a repetition replaces the row."""

    __tablename__ = "evaluations"
    composition_digest: Mapped[str] = mapped_column(ForeignKey("compositions.digest"), primary_key=True)
    asked: Mapped[str] = mapped_column(Digest, primary_key=True)
    evaluated_at: Mapped[str] = mapped_column(Time)
    document: Mapped[str] = mapped_column(Text)


class Event(Base):
    """One line of the append-only log; `transactions.event_digest` computes its digest."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_subject", "subject"),)
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    at: Mapped[str] = mapped_column(Time)
    action: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(200))
    details: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(Digest)
