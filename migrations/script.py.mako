"""${message}"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Bring the schema from `down_revision` to `revision`."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Undo `upgrade`."""
    ${downgrades if downgrades else "pass"}
