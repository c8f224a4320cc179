"""Protected aliases: those that are moved or deleted on purpose alone."""

import sqlalchemy as sa
from alembic import op

revision = "c4d1f0a97b35"
down_revision = "8ea053439e10"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from `down_revision` to `revision`."""
    op.create_table(
        "protected_aliases",
        sa.Column("expert_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.ForeignKeyConstraint(
            ["expert_id", "name"],
            ["aliases.expert_id", "aliases.name"],
            name=op.f("fk_protected_aliases_expert_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("expert_id", "name", name=op.f("pk_protected_aliases")),
    )


def downgrade() -> None:
    """Undo `upgrade`."""
    op.drop_table("protected_aliases")
