"""Implementations that operators add to tools, and tools that need an approval.

Revision ID: 0022
Revises: 0021
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change: what is there was declared by its source and needs no approval."""
    op.add_column(
        "tool_definitions",
        sa.Column("requires_approval", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column(
        "tool_implementations",
        sa.Column("is_added", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    """Take the change back; what operators added is retired by its catalog's next projection."""
    op.drop_column("tool_implementations", "is_added")
    op.drop_column("tool_definitions", "requires_approval")
