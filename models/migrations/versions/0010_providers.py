"""Providers of chat completions and the models they serve.

Revision ID: 0010
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change: two new tables, which the release before does not know."""
    op.create_table(
        "providers",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("slug", sa.String(length=64), nullable=False),
        sa.Column("base_url", sa.String(length=2048), nullable=False),
        sa.Column("network", sa.String(length=32), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("sealed_credential", sa.LargeBinary(), nullable=True),
        sa.Column("credential_header", sa.String(length=64), nullable=True),
        sa.Column("output_limit_parameter", sa.String(length=32), nullable=False),
        sa.Column("reports_stream_usage", sa.Boolean(), nullable=False),
        sa.Column("answer_timeout_s", sa.Double(), nullable=False),
        sa.Column("idle_timeout_s", sa.Double(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_providers")),
        sa.UniqueConstraint("slug", name=op.f("uq_providers_slug")),
    )
    op.create_table(
        "model_aliases",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("provider_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("upstream_model", sa.String(length=256), nullable=False),
        sa.Column("supports_tools", sa.Boolean(), nullable=False),
        sa.Column("max_tools", sa.Integer(), nullable=True),
        sa.Column("max_output_tokens", sa.Integer(), nullable=True),
        sa.Column("input_price", sa.BigInteger(), nullable=True),
        sa.Column("cached_input_price", sa.BigInteger(), nullable=True),
        sa.Column("output_price", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["provider_id"],
            ["providers.id"],
            name=op.f("fk_model_aliases_provider_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_aliases")),
    )
    op.create_index(op.f("ix_model_aliases_provider_id"), "model_aliases", ["provider_id"])


def downgrade() -> None:
    """Take the change back; providers and their sealed credentials are lost."""
    op.drop_index(op.f("ix_model_aliases_provider_id"), "model_aliases")
    op.drop_table("model_aliases")
    op.drop_table("providers")
