"""Tables of keys, connections, tools, rounds and the ledger.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the change."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("request_filter", sa.String(length=32), nullable=False),
        sa.Column("has_tool_config", sa.Boolean(), nullable=False),
        sa.Column("may_explain", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("name", name=op.f("uq_api_keys_name")),
    )
    op.create_table(
        "audit_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=True),
        sa.Column("round_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("invocation_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("tool_name", sa.String(length=512), nullable=True),
        sa.Column("code", sa.String(length=64), nullable=True),
        sa.Column("arguments_digest", sa.String(length=64), nullable=True),
        sa.Column(
            "data",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_events")),
    )
    with op.batch_alter_table("audit_events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_events_at"), ["at"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_events_round_id"), ["round_id"], unique=False)

    op.create_table(
        "connections",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("url", sa.String(length=2048), nullable=False),
        sa.Column("network", sa.String(length=32), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column(
            "tools_to_execute",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=True,
        ),
        sa.Column("open_to_all_keys", sa.Boolean(), nullable=False),
        sa.Column("session_scope", sa.String(length=32), nullable=False),
        sa.Column("on_session_loss", sa.String(length=32), nullable=False),
        sa.Column("event_stream", sa.String(length=32), nullable=False),
        sa.Column("protocol_version", sa.String(length=32), nullable=False),
        sa.Column("tool_timeout_s", sa.Double(), nullable=False),
        sa.Column("idempotency", sa.String(length=32), nullable=False),
        sa.Column(
            "refusal_statuses",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("health", sa.String(length=32), nullable=False),
        sa.Column(
            "last_failure",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=True,
        ),
        sa.Column("synced_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "dropped_tools",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_connections")),
        sa.UniqueConstraint("name", name=op.f("uq_connections_name")),
    )
    op.create_table(
        "frozen_sets",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("members", sa.LargeBinary(), nullable=False),
        sa.Column("tool_count", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_frozen_sets")),
    )
    op.create_table(
        "payloads",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_payloads")),
    )
    op.create_table(
        "policy_overlays",
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "match",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column(
            "execution_policy",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_policy_overlays")),
    )
    op.create_table(
        "tool_definitions",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("scope", sa.String(length=64), nullable=False),
        sa.Column("tool_name", sa.String(length=64), nullable=False),
        sa.Column("tool_kind", sa.String(length=64), nullable=False),
        sa.Column("governance_mode", sa.String(length=32), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tool_definitions")),
        sa.UniqueConstraint("scope", "tool_name", name=op.f("uq_tool_definitions_scope_tool_name")),
    )
    op.create_table(
        "tool_snapshots",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_tool_snapshots")),
    )
    op.create_table(
        "implementation_sources",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("source_kind", sa.String(length=32), nullable=False),
        sa.Column("source_ref", sa.String(length=255), nullable=False),
        sa.Column("connection_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["connection_id"],
            ["connections.id"],
            name=op.f("fk_implementation_sources_connection_id"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_implementation_sources")),
        sa.UniqueConstraint(
            "source_kind", "source_ref", name=op.f("uq_implementation_sources_source_kind_source_ref")
        ),
    )
    with op.batch_alter_table("implementation_sources", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_implementation_sources_connection_id"), ["connection_id"], unique=False
        )

    op.create_table(
        "key_secrets",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("key_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("hint", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_key_secrets_key_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_key_secrets")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_key_secrets_secret_hash")),
    )
    with op.batch_alter_table("key_secrets", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_key_secrets_key_id"), ["key_id"], unique=False)

    op.create_table(
        "key_tool_grants",
        sa.Column("key_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("connection_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column(
            "tools_to_execute",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["connection_id"],
            ["connections.id"],
            name=op.f("fk_key_tool_grants_connection_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["key_id"], ["api_keys.id"], name=op.f("fk_key_tool_grants_key_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key_id", "connection_id", name=op.f("pk_key_tool_grants")),
    )
    with op.batch_alter_table("key_tool_grants", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_key_tool_grants_connection_id"), ["connection_id"], unique=False)

    op.create_table(
        "mcp_sessions",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("connection_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("scope", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("connection_version", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column(
            "negotiated",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=True,
        ),
        sa.Column(
            "last_event",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=True,
        ),
        sa.Column("row_version", sa.Integer(), nullable=False),
        sa.Column("lease_token", sa.String(length=36), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["connection_id"],
            ["connections.id"],
            name=op.f("fk_mcp_sessions_connection_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mcp_sessions")),
        sa.UniqueConstraint("connection_id", "scope", name=op.f("uq_mcp_sessions_connection_id_scope")),
    )
    op.create_table(
        "rounds",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("workflow_id", sa.String(length=255), nullable=False),
        sa.Column("key_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("round_key", sa.String(length=255), nullable=False),
        sa.Column("body_digest", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("state_reason", sa.String(length=255), nullable=True),
        sa.Column(
            "request_filter",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("frozen_set_digest", sa.String(length=64), nullable=True),
        sa.Column("has_unknown", sa.Boolean(), nullable=False),
        sa.Column("call_count", sa.Integer(), nullable=False),
        sa.Column("event_count", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["frozen_set_digest"], ["frozen_sets.digest"], name=op.f("fk_rounds_frozen_set_digest")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rounds")),
        sa.UniqueConstraint("key_id", "round_key", name=op.f("uq_rounds_key_id_round_key")),
        sa.UniqueConstraint("workflow_id", name=op.f("uq_rounds_workflow_id")),
    )
    with op.batch_alter_table("rounds", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rounds_created_at"), ["created_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_rounds_key_id"), ["key_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_rounds_state"), ["state"], unique=False)

    op.create_table(
        "round_events",
        sa.Column("round_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column(
            "data",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name=op.f("fk_round_events_round_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("round_id", "number", name=op.f("pk_round_events")),
    )
    op.create_table(
        "tool_implementations",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("tool_definition_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("implementation_source_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("implementation_ref", sa.String(length=512), nullable=False),
        sa.Column("upstream_name", sa.String(length=512), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column(
            "declared",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=False,
        ),
        sa.Column("snapshot_digest", sa.String(length=64), nullable=False),
        sa.Column("retired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["implementation_source_id"],
            ["implementation_sources.id"],
            name=op.f("fk_tool_implementations_implementation_source_id"),
        ),
        sa.ForeignKeyConstraint(
            ["snapshot_digest"],
            ["tool_snapshots.digest"],
            name=op.f("fk_tool_implementations_snapshot_digest"),
        ),
        sa.ForeignKeyConstraint(
            ["tool_definition_id"],
            ["tool_definitions.id"],
            name=op.f("fk_tool_implementations_tool_definition_id"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tool_implementations")),
        sa.UniqueConstraint(
            "tool_definition_id",
            "implementation_ref",
            name=op.f("uq_tool_implementations_tool_definition_id_implementation_ref"),
        ),
    )
    with op.batch_alter_table("tool_implementations", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_tool_implementations_implementation_source_id"),
            ["implementation_source_id"],
            unique=False,
        )
        batch_op.create_index(
            "uq_tool_implementations_default",
            ["tool_definition_id"],
            unique=True,
            sqlite_where=sa.text("is_default"),
            postgresql_where=sa.text("is_default"),
        )

    op.create_table(
        "tool_bindings",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("round_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("tool_name", sa.String(length=64), nullable=False),
        sa.Column("tool_definition_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("tool_implementation_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("snapshot_digest", sa.String(length=64), nullable=False),
        sa.Column("governance_mode", sa.String(length=32), nullable=False),
        sa.Column("binding_reason", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name=op.f("fk_tool_bindings_round_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["snapshot_digest"], ["tool_snapshots.digest"], name=op.f("fk_tool_bindings_snapshot_digest")
        ),
        sa.ForeignKeyConstraint(
            ["tool_definition_id"], ["tool_definitions.id"], name=op.f("fk_tool_bindings_tool_definition_id")
        ),
        sa.ForeignKeyConstraint(
            ["tool_implementation_id"],
            ["tool_implementations.id"],
            name=op.f("fk_tool_bindings_tool_implementation_id"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tool_bindings")),
        sa.UniqueConstraint(
            "id",
            "tool_definition_id",
            "tool_implementation_id",
            name=op.f("uq_tool_bindings_id_tool_definition_id_tool_implementation_id"),
        ),
        sa.UniqueConstraint("round_id", "tool_name", name=op.f("uq_tool_bindings_round_id_tool_name")),
    )
    with op.batch_alter_table("tool_bindings", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_tool_bindings_tool_definition_id"), ["tool_definition_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_tool_bindings_tool_implementation_id"), ["tool_implementation_id"], unique=False
        )

    op.create_table(
        "tool_invocations",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("tool_binding_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("tool_definition_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("tool_implementation_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("round_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("attempt_no", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=128), nullable=True),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("request_digest", sa.String(length=64), nullable=False),
        sa.Column("response_digest", sa.String(length=64), nullable=True),
        sa.Column("is_error", sa.Boolean(), nullable=False),
        sa.Column(
            "error",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=True,
        ),
        sa.Column("lease_token", sa.String(length=36), nullable=True),
        sa.Column(
            "resolution",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=True,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(status = 'running') = (finished_at IS NULL)",
            name=op.f("ck_tool_invocations_finished_when_terminal"),
        ),
        sa.ForeignKeyConstraint(
            ["request_digest"], ["payloads.digest"], name=op.f("fk_tool_invocations_request_digest")
        ),
        sa.ForeignKeyConstraint(
            ["response_digest"], ["payloads.digest"], name=op.f("fk_tool_invocations_response_digest")
        ),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name=op.f("fk_tool_invocations_round_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["tool_binding_id", "tool_definition_id", "tool_implementation_id"],
            ["tool_bindings.id", "tool_bindings.tool_definition_id", "tool_bindings.tool_implementation_id"],
            name="fk_tool_invocations_binding",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tool_invocations")),
        sa.UniqueConstraint(
            "tool_binding_id", "attempt_no", name=op.f("uq_tool_invocations_tool_binding_id_attempt_no")
        ),
    )
    with op.batch_alter_table("tool_invocations", schema=None) as batch_op:
        batch_op.create_index(
            "idx_tool_invocations_binding_idempotency",
            ["tool_binding_id", "idempotency_key"],
            unique=True,
            sqlite_where=sa.text("idempotency_key IS NOT NULL"),
            postgresql_where=sa.text("idempotency_key IS NOT NULL"),
        )
        batch_op.create_index(batch_op.f("ix_tool_invocations_round_id"), ["round_id"], unique=False)

    op.create_table(
        "round_calls",
        sa.Column("round_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("call_id", sa.String(length=512), nullable=False),
        sa.Column("tool_name", sa.String(length=512), nullable=False),
        sa.Column("arguments_digest", sa.String(length=64), nullable=True),
        sa.Column("binding_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("sent_arguments_digest", sa.String(length=64), nullable=True),
        sa.Column("stage", sa.Integer(), nullable=True),
        sa.Column("invocation_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column(
            "refusal",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=True,
        ),
        sa.ForeignKeyConstraint(
            ["arguments_digest"], ["payloads.digest"], name=op.f("fk_round_calls_arguments_digest")
        ),
        sa.ForeignKeyConstraint(["binding_id"], ["tool_bindings.id"], name=op.f("fk_round_calls_binding_id")),
        sa.ForeignKeyConstraint(
            ["invocation_id"], ["tool_invocations.id"], name=op.f("fk_round_calls_invocation_id")
        ),
        sa.ForeignKeyConstraint(
            ["round_id"], ["rounds.id"], name=op.f("fk_round_calls_round_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["sent_arguments_digest"], ["payloads.digest"], name=op.f("fk_round_calls_sent_arguments_digest")
        ),
        sa.PrimaryKeyConstraint("round_id", "position", name=op.f("pk_round_calls")),
    )
    op.create_table(
        "tool_sends",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("invocation_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=255), nullable=False),
        sa.Column("lease_token", sa.String(length=36), nullable=False),
        sa.Column("session_digest", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column(
            "cursor",
            sa.JSON().with_variant(postgresql.JSONB(astext_type=sa.Text()), "postgresql"),
            nullable=True,
        ),
        sa.ForeignKeyConstraint(
            ["invocation_id"],
            ["tool_invocations.id"],
            name=op.f("fk_tool_sends_invocation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tool_sends")),
        sa.UniqueConstraint("invocation_id", "number", name=op.f("uq_tool_sends_invocation_id_number")),
    )


def downgrade() -> None:
    """Take the change back."""
    op.drop_table("tool_sends")
    op.drop_table("round_calls")
    with op.batch_alter_table("tool_invocations", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tool_invocations_round_id"))
        batch_op.drop_index(
            "idx_tool_invocations_binding_idempotency",
            sqlite_where=sa.text("idempotency_key IS NOT NULL"),
            postgresql_where=sa.text("idempotency_key IS NOT NULL"),
        )

    op.drop_table("tool_invocations")
    with op.batch_alter_table("tool_bindings", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tool_bindings_tool_implementation_id"))
        batch_op.drop_index(batch_op.f("ix_tool_bindings_tool_definition_id"))

    op.drop_table("tool_bindings")
    with op.batch_alter_table("tool_implementations", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_tool_implementations_default",
            sqlite_where=sa.text("is_default"),
            postgresql_where=sa.text("is_default"),
        )
        batch_op.drop_index(batch_op.f("ix_tool_implementations_implementation_source_id"))

    op.drop_table("tool_implementations")
    op.drop_table("round_events")
    with op.batch_alter_table("rounds", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_rounds_state"))
        batch_op.drop_index(batch_op.f("ix_rounds_key_id"))
        batch_op.drop_index(batch_op.f("ix_rounds_created_at"))

    op.drop_table("rounds")
    op.drop_table("mcp_sessions")
    with op.batch_alter_table("key_tool_grants", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_key_tool_grants_connection_id"))

    op.drop_table("key_tool_grants")
    with op.batch_alter_table("key_secrets", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_key_secrets_key_id"))

    op.drop_table("key_secrets")
    with op.batch_alter_table("implementation_sources", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_implementation_sources_connection_id"))

    op.drop_table("implementation_sources")
    op.drop_table("tool_snapshots")
    op.drop_table("tool_definitions")
    op.drop_table("policy_overlays")
    op.drop_table("payloads")
    op.drop_table("frozen_sets")
    op.drop_table("connections")
    with op.batch_alter_table("audit_events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_audit_events_round_id"))
        batch_op.drop_index(batch_op.f("ix_audit_events_at"))

    op.drop_table("audit_events")
    op.drop_table("api_keys")
