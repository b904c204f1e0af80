"""Rules of arguments on keys, connections, tools and rounds, and arguments in the audit trail.

Revision ID: 0016
Revises: 0013
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0013"
branch_labels = None
depends_on = None

RULES = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
TABLES = ("api_keys", "connections", "tool_definitions", "rounds")


def upgrade() -> None:
    """Apply the change; the release before does not read the new columns, so it knows no rules."""
    for table in TABLES:
        op.add_column(table, sa.Column("argument_rules", RULES, nullable=True))
    op.add_column(
        "connections", sa.Column("audit_arguments", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    """Take the change back; the rules are lost, and what they refused is allowed again."""
    op.drop_column("connections", "audit_arguments")
    for table in TABLES:
        op.drop_column(table, "argument_rules")
