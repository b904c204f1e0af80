"""Certificates of the authorities that a connection's server is trusted by.

Revision ID: 0028
Revises: 0027
"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change: servers of connections that are there are trusted as before."""
    op.add_column("connections", sa.Column("ca_bundle", sa.String(), nullable=True))
    op.add_column("mcp_farewells", sa.Column("ca_bundle", sa.String(), nullable=True))


def downgrade() -> None:
    """Take the change back; servers with a certificate of their own authority are refused from here on."""
    op.drop_column("mcp_farewells", "ca_bundle")
    op.drop_column("connections", "ca_bundle")
