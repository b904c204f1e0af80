"""Limits of concurrent calls of connections, and the queues for their slots.

Revision ID: 0013
Revises: 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

ID = sa.Uuid(as_uuid=False)
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Apply the change; columns that are added have a default, so the release before goes on beside it."""
    op.add_column("connections", sa.Column("max_concurrency", sa.Integer(), nullable=True))
    op.add_column(
        "connections", sa.Column("queue_timeout_s", sa.Double(), nullable=False, server_default=sa.text("30"))
    )
    op.create_table(
        "connection_slots",
        sa.Column("call_key", sa.String(128), nullable=False),
        sa.Column("connection_id", ID, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("workflow_id", sa.String(255), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("lease_token", sa.String(36), nullable=False),
        sa.Column("looks", sa.Integer(), nullable=False),
        sa.Column("queued_at", TIME, nullable=False),
        sa.Column("granted_at", TIME, nullable=True),
        sa.Column("expires_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["connection_id"],
            ["connections.id"],
            name=op.f("fk_connection_slots_connection_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("call_key", name=op.f("pk_connection_slots")),
    )
    op.create_index(
        op.f("ix_connection_slots_connection_id_number"), "connection_slots", ["connection_id", "number"]
    )


def downgrade() -> None:
    """Take the change back; calls that wait go on without a queue."""
    op.drop_table("connection_slots")
    op.drop_column("connections", "queue_timeout_s")
    op.drop_column("connections", "max_concurrency")
