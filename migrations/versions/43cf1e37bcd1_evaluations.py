"""What evaluations found of compositions."""

import sqlalchemy as sa
from alembic import op

revision = "43cf1e37bcd1"
down_revision = "130287142e77"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from `down_revision` to `revision`."""
    op.create_table(
        "evaluations",
        sa.Column("composition_digest", sa.String(length=64), nullable=False),
        sa.Column("asked", sa.String(length=64), nullable=False),
        sa.Column("evaluated_at", sa.String(length=32), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["composition_digest"],
            ["compositions.digest"],
            name=op.f("fk_evaluations_composition_digest"),
        ),
        sa.PrimaryKeyConstraint("composition_digest", "asked", name=op.f("pk_evaluations")),
    )


def downgrade() -> None:
    """Undo `upgrade`."""
    op.drop_table("evaluations")
