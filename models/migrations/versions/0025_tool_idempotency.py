"""What an operator says of repeating the calls of one tool.

Revision ID: 0025
Revises: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change; the release before does not read the column and follows the connection."""
    op.add_column("tool_definitions", sa.Column("idempotency", sa.String(32), nullable=True))


def downgrade() -> None:
    """Take the change back; tools follow their connections again once they are projected."""
    op.drop_column("tool_definitions", "idempotency")
