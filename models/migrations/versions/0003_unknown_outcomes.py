"""Resolutions of unknown outcomes, a budget of repeats for each round, cancels of single calls.

Revision ID: 0003
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0001"
branch_labels = None
depends_on = None

UNKNOWN = sa.text("outcome = 'unknown'")
RUNNING = sa.text("status = 'running'")


def upgrade() -> None:
    """Apply the change; new columns with a default, so that the release before goes on working."""
    op.add_column(
        "rounds", sa.Column("on_unknown", sa.String(length=32), nullable=False, server_default="fail")
    )
    op.add_column("rounds", sa.Column("repeat_count", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("round_calls", sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("tool_invocations", sa.Column("resolution_kind", sa.String(length=32), nullable=True))
    op.create_index(
        "ix_tool_invocations_unknown",
        "tool_invocations",
        ["id"],
        sqlite_where=UNKNOWN,
        postgresql_where=UNKNOWN,
    )
    op.create_index(
        "ix_tool_invocations_running",
        "tool_invocations",
        ["id"],
        sqlite_where=RUNNING,
        postgresql_where=RUNNING,
    )


def downgrade() -> None:
    """Take the change back; what operators said of unknown outcomes stays in `resolution`."""
    op.drop_index("ix_tool_invocations_running", "tool_invocations")
    op.drop_index("ix_tool_invocations_unknown", "tool_invocations")
    op.drop_column("tool_invocations", "resolution_kind")
    op.drop_column("round_calls", "cancel_requested_at")
    op.drop_column("rounds", "repeat_count")
    op.drop_column("rounds", "on_unknown")
