"""How long an operator lets a call of one tool take.

Revision ID: 0026
Revises: 0025
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change; the release before does not read the column and follows the connection."""
    op.add_column("tool_definitions", sa.Column("timeout_s", sa.Double(), nullable=True))


def downgrade() -> None:
    """Take the change back; tools follow their connections again once they are projected."""
    op.drop_column("tool_definitions", "timeout_s")
