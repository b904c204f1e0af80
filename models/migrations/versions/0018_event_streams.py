"""Event streams of MCP sessions, stale catalogs, and how a connection is spoken to.

Revision ID: 0018
Revises: 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change: new columns with a default, which the release before does not know."""
    op.add_column("mcp_sessions", sa.Column("stream_token", sa.String(length=36), nullable=True))
    op.add_column("mcp_sessions", sa.Column("stream_expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "connections",
        sa.Column("transport", sa.String(length=32), server_default="streamable_http", nullable=False),
    )
    op.add_column(
        "connections", sa.Column("elicitation", sa.String(length=32), server_default="none", nullable=False)
    )
    op.add_column("connections", sa.Column("stale_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Take the change back; streams are opened anew by whoever needs them."""
    op.drop_column("connections", "stale_at")
    op.drop_column("connections", "elicitation")
    op.drop_column("connections", "transport")
    op.drop_column("mcp_sessions", "stream_expires_at")
    op.drop_column("mcp_sessions", "stream_token")
