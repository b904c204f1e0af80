"""Guardrails, and which of them calls are under.

Revision ID: 0017
Revises: 0019
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0019"
branch_labels = None
depends_on = None

LIST = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    """Apply the change; the release before does not look at guardrails, so configure them after it is gone."""
    op.create_table(
        "guardrail_sets",
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("guardrails", LIST, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("revision", name=op.f("pk_guardrail_sets")),
    )
    op.add_column("round_calls", sa.Column("guardrails_revision", sa.Integer(), nullable=True))
    op.add_column("round_calls", sa.Column("guard_state", sa.String(length=32), nullable=True))


def downgrade() -> None:
    """Take the change back; calls that guardrails have not judged may then be made."""
    op.drop_column("round_calls", "guard_state")
    op.drop_column("round_calls", "guardrails_revision")
    op.drop_table("guardrail_sets")
