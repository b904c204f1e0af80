"""Quotas of keys, prices of tools, and usage.

Revision ID: 0012
Revises: 0015
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0015"
branch_labels = None
depends_on = None

ID = sa.Uuid(as_uuid=False)
TIME = sa.DateTime(timezone=True)
CONFIGURATION = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
LIMITS = (
    "requests_per_minute",
    "requests_per_day",
    "tool_calls_per_minute",
    "tool_calls_per_day",
    "concurrent_calls",
    "budget_per_day",
    "budget_per_month",
)
COUNTERS = (
    "minute_requests",
    "minute_calls",
    "day_requests",
    "day_calls",
    "day_cost",
    "month_cost",
    "last_running",
)


def upgrade() -> None:
    """Apply the change; columns that are added have a default, so the release before goes on beside it."""
    op.add_column("api_keys", sa.Column("has_quota", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("connections", sa.Column("tool_prices", CONFIGURATION, nullable=True))
    op.add_column(
        "tool_invocations", sa.Column("price", sa.BigInteger(), nullable=False, server_default=sa.text("0"))
    )
    op.create_table(
        "key_quotas",
        sa.Column("key_id", ID, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=True) for name in LIMITS),
        sa.Column("minute", TIME, nullable=False),
        sa.Column("day", TIME, nullable=False),
        sa.Column("month", TIME, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTERS),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_key_quotas_key_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_key_quotas")),
    )
    op.create_table(
        "chat_leases",
        sa.Column("id", ID, nullable=False),
        sa.Column("key_id", ID, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chat_leases")),
    )
    op.create_index(op.f("ix_chat_leases_key_id"), "chat_leases", ["key_id"])
    _usage()


def _usage() -> None:
    op.create_table(
        "usage_records",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("at", TIME, nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("key_id", ID, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("tool", sa.String(512), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("round_id", ID, nullable=True),
        sa.Column("invocation_id", ID, nullable=True),
        sa.Column("request_id", sa.String(64), nullable=True),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("code", sa.String(64), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_records")),
        sa.UniqueConstraint("invocation_id", name=op.f("uq_usage_records_invocation_id")),
    )
    op.create_index(op.f("ix_usage_records_day"), "usage_records", ["day"])
    op.create_index(op.f("ix_usage_records_key_id_day"), "usage_records", ["key_id", "day"])
    op.create_index(op.f("ix_usage_records_round_id"), "usage_records", ["round_id"])


def downgrade() -> None:
    """Take the change back; limits, prices and usage are lost."""
    op.drop_table("usage_records")
    op.drop_table("chat_leases")
    op.drop_table("key_quotas")
    for table, column in (
        ("tool_invocations", "price"),
        ("connections", "tool_prices"),
        ("api_keys", "has_quota"),
    ):
        op.drop_column(table, column)
