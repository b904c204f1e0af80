"""Sessions to end at their servers after their connection was deleted or dials otherwise.

Revision ID: 0027
Revises: 0026
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change; the release before writes no rows and reads none."""
    op.create_table(
        "mcp_farewells",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("connection_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("connection_version", sa.Integer(), nullable=False),
        sa.Column("scope", sa.String(length=128), nullable=False),
        sa.Column("url", sa.String(length=2048), nullable=False),
        sa.Column("session_url", sa.String(length=2048), nullable=False),
        sa.Column("network", sa.String(length=32), nullable=False),
        sa.Column("protocol_version", sa.String(length=32), nullable=False),
        sa.Column("transport", sa.String(length=32), nullable=False),
        sa.Column("sealed_auth", sa.LargeBinary(), nullable=True),
        sa.Column("sealed_session", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_farewells")),
    )
    op.create_index(op.f("ix_mcp_farewells_created_at"), "mcp_farewells", ["created_at"])


def downgrade() -> None:
    """Take the change back; sessions not yet ended are left to their servers' own limits."""
    op.drop_index(op.f("ix_mcp_farewells_created_at"), table_name="mcp_farewells")
    op.drop_table("mcp_farewells")
