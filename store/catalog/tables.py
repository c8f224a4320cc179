"""The catalog's tables (SQLAlchemy 2 typed). `migrations/` creates them; nothing here does.

Only what every SQL database has is used: strings, integers and keys. Times are ISO 8601 strings in UTC, documents are
canonical JSON.
"""

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

VERSION_TABLE = "reg_schema"
"""Where Alembic keeps the schema's revision: a name of our own, so that no other program's table is mistaken for it."""

Digest = String(64)
Name = String(100)
Time = String(32)


class Base(DeclarativeBase):
    """Names every constraint, so that each database can alter them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Identity(Base):
    """The one row of the registry itself: a random id, which its arrays carry too (`store.ownership`)."""

    __tablename__ = "registry"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)


class Expert(Base):
    """A name: of an expert (kind `expert`) or of a base model (kind `base`)."""

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
    tags: Mapped[list["Tag"]] = relationship(lazy="selectin", order_by="Tag.key")
    aliases: Mapped[list["Alias"]] = relationship(lazy="selectin", order_by="Alias.name")
    statistics: Mapped[list["Statistics"]] = relationship(lazy="selectin", order_by="Statistics.site")


class Array(Base):
    """An array of the array store that is complete on disk."""

    __tablename__ = "arrays"
    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    dtype: Mapped[str] = mapped_column(String(16))
    shape: Mapped[str] = mapped_column(String(100))
    nbytes: Mapped[int] = mapped_column(BigInteger)


class VersionArray(Base):
    """What an array is to a version: `role` is trunk, mlp, statistics, calibration or file."""

    __tablename__ = "version_arrays"
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    role: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    digest: Mapped[str] = mapped_column(ForeignKey("arrays.digest"), index=True)


class Statistics(Base):
    """What one site's statistics of a version were taken on: token count, and the calibration's digest and label."""

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


class Tag(Base):
    """A key and value that a version was registered with."""

    __tablename__ = "tags"
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    key: Mapped[str] = mapped_column(Name, primary_key=True)
    value: Mapped[str] = mapped_column(Text)


class Composition(Base):
    """A composition that was made: its document is the one in the composed folder's `composition.json`."""

    __tablename__ = "compositions"
    digest: Mapped[str] = mapped_column(Digest, primary_key=True)
    document: Mapped[str] = mapped_column(Text)
    created_at: Mapped[str] = mapped_column(Time)


class CompositionMember(Base):
    """A version that a composition was made from, the base model included where its weights were used."""

    __tablename__ = "composition_members"
    composition_digest: Mapped[str] = mapped_column(ForeignKey("compositions.digest"), primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("versions.id"), primary_key=True, index=True)


class Evaluation(Base):
    """What was found of a composition. `asked` is the digest of data and settings: the same, asked again, replaces."""

    __tablename__ = "evaluations"
    composition_digest: Mapped[str] = mapped_column(ForeignKey("compositions.digest"), primary_key=True)
    asked: Mapped[str] = mapped_column(Digest, primary_key=True)
    evaluated_at: Mapped[str] = mapped_column(Time)
    document: Mapped[str] = mapped_column(Text)


class Event(Base):
    """One line of the log, which is only ever appended to. `digest`: see `transactions.event_digest`."""

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_subject", "subject"),)
    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    at: Mapped[str] = mapped_column(Time)
    action: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(200))
    details: Mapped[str] = mapped_column(Text)
    digest: Mapped[str] = mapped_column(Digest)
