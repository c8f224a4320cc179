"""The registry's identity: a random id, which its arrays carry too."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "130287142e77"
down_revision = "52de1a479ec3"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema from `down_revision` to `revision`."""
    registry = op.create_table(
        "registry",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registry")),
    )
    op.bulk_insert(registry, [{"id": uuid.uuid4().hex}])


def downgrade() -> None:
    """Undo `upgrade`."""
    op.drop_table("registry")
