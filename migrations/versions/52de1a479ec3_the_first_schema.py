"""The first schema: experts, versions, arrays, aliases, tags, statistics, compositions, events."""

import sqlalchemy as sa
from alembic import op

revision = "52de1a479ec3"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from `down_revision` to `revision`."""
    op.create_table(
        "arrays",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("dtype", sa.String(length=16), nullable=False),
        sa.Column("shape", sa.String(length=100), nullable=False),
        sa.Column("nbytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_arrays")),
    )
    op.create_table(
        "compositions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_compositions")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.String(length=32), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index(op.f("ix_events_subject"), "events", ["subject"])
    op.create_table(
        "experts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experts")),
        sa.UniqueConstraint("name", name=op.f("uq_experts_name")),
    )
    op.create_table(
        "versions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("expert_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("content", sa.Text(), nullable=True),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("withdrawn_at", sa.String(length=32), nullable=True),
        sa.Column("purged_at", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["expert_id"], ["experts.id"], name=op.f("fk_versions_expert_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_versions")),
        sa.UniqueConstraint("expert_id", "number", name=op.f("uq_versions_expert_id")),
    )
    op.create_index(op.f("ix_versions_digest"), "versions", ["digest"])
    op.create_table(
        "aliases",
        sa.Column("expert_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["expert_id"], ["experts.id"], name=op.f("fk_aliases_expert_id")),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_aliases_version_id")),
        sa.PrimaryKeyConstraint("expert_id", "name", name=op.f("pk_aliases")),
    )
    op.create_index(op.f("ix_aliases_version_id"), "aliases", ["version_id"])
    op.create_table(
        "composition_members",
        sa.Column("composition_digest", sa.String(length=64), nullable=False),
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["composition_digest"],
            ["compositions.digest"],
            name=op.f("fk_composition_members_composition_digest"),
        ),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_composition_members_version_id")),
        sa.PrimaryKeyConstraint("composition_digest", "version_id", name=op.f("pk_composition_members")),
    )
    op.create_index(op.f("ix_composition_members_version_id"), "composition_members", ["version_id"])
    op.create_table(
        "statistics",
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("site", sa.String(length=32), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("saturated", sa.BigInteger(), nullable=False),
        sa.Column("calibration_digest", sa.String(length=64), nullable=False),
        sa.Column("calibration_label", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_statistics_version_id")),
        sa.PrimaryKeyConstraint("version_id", "site", name=op.f("pk_statistics")),
    )
    op.create_table(
        "tags",
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=100), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_tags_version_id")),
        sa.PrimaryKeyConstraint("version_id", "key", name=op.f("pk_tags")),
    )
    op.create_table(
        "version_arrays",
        sa.Column("version_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["arrays.digest"], name=op.f("fk_version_arrays_digest")),
        sa.ForeignKeyConstraint(["version_id"], ["versions.id"], name=op.f("fk_version_arrays_version_id")),
        sa.PrimaryKeyConstraint("version_id", "role", "name", name=op.f("pk_version_arrays")),
    )
    op.create_index(op.f("ix_version_arrays_digest"), "version_arrays", ["digest"])


def downgrade() -> None:
    """Undo `upgrade`."""
    op.drop_table("version_arrays")
    op.drop_table("tags")
    op.drop_table("statistics")
    op.drop_table("composition_members")
    op.drop_table("aliases")
    op.drop_table("versions")
    op.drop_table("experts")
    op.drop_table("events")
    op.drop_table("compositions")
    op.drop_table("arrays")
