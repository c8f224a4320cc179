"""Arrays of trained compositions: the tensors that a training changed."""

import sqlalchemy as sa
from alembic import op

revision = "8ea053439e10"
down_revision = "37ba63a23494"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from `down_revision` to `revision`."""
    op.create_table(
        "composition_arrays",
        sa.Column("composition_digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["composition_digest"],
            ["compositions.digest"],
            name=op.f("fk_composition_arrays_composition_digest"),
        ),
        sa.ForeignKeyConstraint(["digest"], ["arrays.digest"], name=op.f("fk_composition_arrays_digest")),
        sa.PrimaryKeyConstraint("composition_digest", "name", name=op.f("pk_composition_arrays")),
    )
    op.create_index(op.f("ix_composition_arrays_digest"), "composition_arrays", ["digest"])


def downgrade() -> None:
    """Undo `upgrade`."""
    op.drop_table("composition_arrays")
