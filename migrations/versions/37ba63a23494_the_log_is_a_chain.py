"""Every event carries a digest over itself and the one before, so that no line of the log can change unseen."""

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "37ba63a23494"
down_revision = "43cf1e37bcd1"
branch_labels = None
depends_on = None

_REGISTRY = sa.table("registry", sa.column("id", sa.String))
_EVENTS = sa.table(
    "events",
    sa.column("id", sa.Integer),
    sa.column("at", sa.String),
    sa.column("action", sa.String),
    sa.column("subject", sa.String),
    sa.column("details", sa.Text),
    sa.column("digest", sa.String),
)


def upgrade() -> None:
    """Bring the schema from `down_revision` to `revision`."""
    op.add_column("events", sa.Column("digest", sa.String(length=64), nullable=True))
    connection = op.get_bind()
    last = connection.execute(sa.select(_REGISTRY.c.id)).scalar_one()
    for row in connection.execute(sa.select(_EVENTS).order_by(_EVENTS.c.id)).all():
        line = [last, row.at, row.action, row.subject, json.loads(row.details)]
        text = json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        last = hashlib.sha256(text.encode("ascii")).hexdigest()
        connection.execute(sa.update(_EVENTS).where(_EVENTS.c.id == row.id).values(digest=last))
    with op.batch_alter_table("events") as table:
        table.alter_column("digest", existing_type=sa.String(length=64), nullable=False)


def downgrade() -> None:
    """Undo `upgrade`."""
    with op.batch_alter_table("events") as table:
        table.drop_column("digest")
