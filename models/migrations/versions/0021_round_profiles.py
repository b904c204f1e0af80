"""The profile that a round asks for.

Revision ID: 0021
Revises: 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change: rounds that are there asked for no profile."""
    op.add_column("rounds", sa.Column("profile_key", sa.String(length=255), nullable=True))


def downgrade() -> None:
    """Take the change back; a round that waits to be frozen gets its program's configured profile."""
    op.drop_column("rounds", "profile_key")
