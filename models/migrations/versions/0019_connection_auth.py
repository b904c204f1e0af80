"""Shared headers of connections, sealed.

Revision ID: 0019
Revises: 0016
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0016"
branch_labels = None
depends_on = None

SHOWN = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    """Apply the change: connections that are there send no credential, as before."""
    op.add_column("connections", sa.Column("auth", SHOWN, nullable=True))
    op.add_column("connections", sa.Column("sealed_auth", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    """Take the change back; the headers are lost."""
    op.drop_column("connections", "sealed_auth")
    op.drop_column("connections", "auth")
