"""Programs, runtimes, conversations, tasks and subagents; owners of bindings; approved lists and pins.

Revision ID: 0004
Revises: 0003
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ID = sa.Uuid(as_uuid=False)
TIME = sa.DateTime(timezone=True)
CONFIGURATION = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Apply the change."""
    _programs()
    _conversations()
    op.add_column("api_keys", sa.Column("core_tools", sa.Boolean(), nullable=False, server_default=sa.false()))
    _definitions()
    _owners()
    _subagents()


def _programs() -> None:
    op.create_table(
        "execution_runtimes",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("fingerprint", sa.String(255), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("capability_payload", CONFIGURATION, nullable=False),
        sa.Column("tool_catalog", CONFIGURATION, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_execution_runtimes")),
        sa.UniqueConstraint("name", name=op.f("uq_execution_runtimes_name")),
    )
    op.create_table(
        "runtime_credentials",
        sa.Column("id", ID, nullable=False),
        sa.Column("execution_runtime_id", ID, nullable=False),
        *_secret("runtime_credentials"),
        sa.ForeignKeyConstraint(
            ["execution_runtime_id"],
            ["execution_runtimes.id"],
            name=op.f("fk_runtime_credentials_execution_runtime_id"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        op.f("ix_runtime_credentials_execution_runtime_id"), "runtime_credentials", ["execution_runtime_id"]
    )
    op.create_table(
        "agent_programs",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("key_id", ID, nullable=False),
        sa.Column("execution_runtime_id", ID, nullable=True),
        sa.Column("declares_runtime", sa.Boolean(), nullable=False),
        sa.Column("may_relax_policy", sa.Boolean(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["execution_runtime_id"],
            ["execution_runtimes.id"],
            name=op.f("fk_agent_programs_execution_runtime_id"),
        ),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name=op.f("fk_agent_programs_key_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agent_programs")),
        sa.UniqueConstraint("key_id", name=op.f("uq_agent_programs_key_id")),
        sa.UniqueConstraint("name", name=op.f("uq_agent_programs_name")),
    )
    op.create_index(op.f("ix_agent_programs_execution_runtime_id"), "agent_programs", ["execution_runtime_id"])
    op.create_table(
        "program_versions",
        sa.Column("id", ID, nullable=False),
        sa.Column("program_id", ID, nullable=False),
        sa.Column("fingerprint", sa.String(255), nullable=False),
        sa.Column("definition_digest", sa.String(64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["program_id"], ["agent_programs.id"], name=op.f("fk_program_versions_program_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_program_versions")),
        sa.UniqueConstraint(
            "program_id", "fingerprint", name=op.f("uq_program_versions_program_id_fingerprint")
        ),
    )
    op.create_table(
        "program_credentials",
        sa.Column("id", ID, nullable=False),
        sa.Column("program_version_id", ID, nullable=False),
        *_secret("program_credentials"),
        sa.ForeignKeyConstraint(
            ["program_version_id"],
            ["program_versions.id"],
            name=op.f("fk_program_credentials_program_version_id"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        op.f("ix_program_credentials_program_version_id"), "program_credentials", ["program_version_id"]
    )


def _secret(table: str) -> list[sa.Column[Any] | sa.Constraint]:
    return [
        sa.Column("secret_hash", sa.String(64), nullable=False),
        sa.Column("hint", sa.String(32), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        sa.UniqueConstraint("secret_hash", name=op.f(f"uq_{table}_secret_hash")),
    ]


def _conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", ID, nullable=False),
        sa.Column("key_id", ID, nullable=False),
        sa.Column("program_version_id", ID, nullable=True),
        sa.Column("parent_conversation_id", ID, nullable=True),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("addressability", sa.String(32), nullable=False),
        sa.Column("override_payload", CONFIGURATION, nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["parent_conversation_id"],
            ["conversations.id"],
            name=op.f("fk_conversations_parent_conversation_id"),
        ),
        sa.ForeignKeyConstraint(
            ["program_version_id"], ["program_versions.id"], name=op.f("fk_conversations_program_version_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_conversations")),
    )
    for column in ("key_id", "parent_conversation_id", "program_version_id"):
        op.create_index(op.f(f"ix_conversations_{column}"), "conversations", [column])
    references = {
        "conversation_id": "conversations.id",
        "execution_runtime_id": "execution_runtimes.id",
        "frozen_set_digest": "frozen_sets.digest",
        "input_digest": "payloads.digest",
        "program_version_id": "program_versions.id",
    }
    op.create_table(
        "tasks",
        sa.Column("id", ID, nullable=False),
        sa.Column("key_id", ID, nullable=False),
        sa.Column("program_version_id", ID, nullable=True),
        sa.Column("execution_runtime_id", ID, nullable=True),
        sa.Column("conversation_id", ID, nullable=False),
        sa.Column("turn_id", ID, nullable=False),
        sa.Column("logical_work_id", sa.String(255), nullable=False),
        sa.Column("attempt_no", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("profile_key", sa.String(255), nullable=False),
        sa.Column("implementations", CONFIGURATION, nullable=False),
        sa.Column("input_digest", sa.String(64), nullable=True),
        sa.Column("frozen_set_digest", sa.String(64), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.CheckConstraint("attempt_no >= 1", name=op.f("ck_tasks_attempts_count_from_one")),
        *(
            sa.ForeignKeyConstraint([column], [target], name=op.f(f"fk_tasks_{column}"))
            for column, target in references.items()
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint(
            "conversation_id",
            "logical_work_id",
            "attempt_no",
            name=op.f("uq_tasks_conversation_id_logical_work_id_attempt_no"),
        ),
    )
    for column in ("execution_runtime_id", "key_id", "program_version_id", "turn_id"):
        op.create_index(op.f(f"ix_tasks_{column}"), "tasks", [column])


def _definitions() -> None:
    with op.batch_alter_table("tool_definitions") as batch:
        batch.add_column(sa.Column("program_version_id", ID, nullable=True))
        batch.add_column(
            sa.Column("has_approved_list", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        batch.add_column(sa.Column("pinned_digest", sa.String(64), nullable=True))
        batch.create_index(batch.f("ix_tool_definitions_program_version_id"), ["program_version_id"])
        batch.create_foreign_key(
            batch.f("fk_tool_definitions_program_version_id"),
            "program_versions",
            ["program_version_id"],
            ["id"],
        )
        batch.create_check_constraint(
            batch.f("ck_tool_definitions_version_in_its_scope"),
            "(scope = 'gateway') = (program_version_id IS NULL)",
        )
    with op.batch_alter_table("tool_implementations") as batch:
        batch.add_column(sa.Column("content_digest", sa.String(64), nullable=True))
        batch.alter_column(
            "implementation_ref", existing_type=sa.String(512), type_=sa.String(640), existing_nullable=False
        )
        batch.create_unique_constraint(
            batch.f("uq_tool_implementations_tool_definition_id_id"), ["tool_definition_id", "id"]
        )
    # A stand-in, which the next projection of the tool's source replaces.
    op.execute("UPDATE tool_implementations SET content_digest = snapshot_digest")
    with op.batch_alter_table("tool_implementations") as batch:
        batch.alter_column("content_digest", existing_type=sa.String(64), nullable=False)
    op.create_table(
        "approved_implementations",
        sa.Column("tool_definition_id", ID, nullable=False),
        sa.Column("tool_implementation_id", ID, nullable=False),
        sa.Column("approved_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["tool_definition_id", "tool_implementation_id"],
            ["tool_implementations.tool_definition_id", "tool_implementations.id"],
            name="fk_approved_implementations_of_the_definition",
        ),
        sa.PrimaryKeyConstraint(
            "tool_definition_id", "tool_implementation_id", name=op.f("pk_approved_implementations")
        ),
    )


def _owners() -> None:
    with op.batch_alter_table("rounds") as batch:
        batch.add_column(sa.Column("task_id", ID, nullable=True))
        batch.add_column(sa.Column("conversation_id", ID, nullable=True))
        batch.add_column(sa.Column("implementations", CONFIGURATION, nullable=False, server_default="{}"))
        batch.create_index(batch.f("ix_rounds_conversation_id"), ["conversation_id"])
        batch.create_index(batch.f("ix_rounds_task_id"), ["task_id"])
        batch.create_foreign_key(batch.f("fk_rounds_task_id"), "tasks", ["task_id"], ["id"])
        batch.create_foreign_key(
            batch.f("fk_rounds_conversation_id"), "conversations", ["conversation_id"], ["id"]
        )
    with op.batch_alter_table("tool_invocations") as batch:
        batch.drop_constraint("fk_tool_invocations_binding", type_="foreignkey")
        batch.add_column(sa.Column("owner_id", ID, nullable=True))
        batch.add_column(sa.Column("task_id", ID, nullable=True))
    with op.batch_alter_table("tool_bindings") as batch:
        batch.add_column(sa.Column("task_id", ID, nullable=True))
        batch.add_column(sa.Column("owner_id", ID, nullable=True))
        batch.alter_column("round_id", existing_type=ID, nullable=True)
    op.execute("UPDATE tool_bindings SET owner_id = round_id")
    op.execute("UPDATE tool_invocations SET owner_id = round_id")
    with op.batch_alter_table("tool_bindings") as batch:
        batch.alter_column("owner_id", existing_type=ID, nullable=False)
        batch.drop_constraint(
            batch.f("uq_tool_bindings_id_tool_definition_id_tool_implementation_id"), type_="unique"
        )
        batch.create_unique_constraint(
            "uq_tool_bindings_whole_reference",
            ["id", "tool_definition_id", "tool_implementation_id", "owner_id"],
        )
        batch.create_unique_constraint(
            batch.f("uq_tool_bindings_task_id_tool_name"), ["task_id", "tool_name"]
        )
        batch.drop_constraint(batch.f("fk_tool_bindings_tool_implementation_id"), type_="foreignkey")
        batch.create_foreign_key(
            "fk_tool_bindings_implementation_of_the_definition",
            "tool_implementations",
            ["tool_definition_id", "tool_implementation_id"],
            ["tool_definition_id", "id"],
        )
        batch.create_foreign_key(
            batch.f("fk_tool_bindings_task_id"), "tasks", ["task_id"], ["id"], ondelete="CASCADE"
        )
        batch.create_check_constraint(
            batch.f("ck_tool_bindings_one_owner"), "(round_id IS NULL) <> (task_id IS NULL)"
        )
        batch.create_check_constraint(
            batch.f("ck_tool_bindings_owner_is_the_task_or_round"), "owner_id = coalesce(task_id, round_id)"
        )
    with op.batch_alter_table("tool_invocations") as batch:
        batch.alter_column("owner_id", existing_type=ID, nullable=False)
        batch.create_index(batch.f("ix_tool_invocations_task_id"), ["task_id"])
        batch.create_foreign_key(
            batch.f("fk_tool_invocations_task_id"), "tasks", ["task_id"], ["id"], ondelete="CASCADE"
        )
        batch.create_foreign_key(
            "fk_tool_invocations_binding",
            "tool_bindings",
            ["tool_binding_id", "tool_definition_id", "tool_implementation_id", "owner_id"],
            ["id", "tool_definition_id", "tool_implementation_id", "owner_id"],
        )
        batch.create_check_constraint(
            batch.f("ck_tool_invocations_owner_is_the_task_or_round"),
            "owner_id = coalesce(task_id, round_id)",
        )


def _subagents() -> None:
    op.create_table(
        "subagent_sessions",
        sa.Column("id", ID, nullable=False),
        sa.Column("owner_conversation_id", ID, nullable=False),
        sa.Column("conversation_id", ID, nullable=False),
        sa.Column("parent_session_id", ID, nullable=True),
        sa.Column("spawned_by_invocation_id", ID, nullable=True),
        sa.Column("scope", sa.String(32), nullable=False),
        sa.Column("origin_turn_id", ID, nullable=True),
        sa.Column("profile_key", sa.String(255), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.Column("close_state", sa.String(32), nullable=False),
        sa.Column("observed_status", sa.String(32), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("updated_at", TIME, nullable=False),
        sa.CheckConstraint(
            "(scope = 'turn') = (origin_turn_id IS NOT NULL)",
            name=op.f("ck_subagent_sessions_turn_scope_has_its_turn"),
        ),
        sa.CheckConstraint(
            "(depth = 0) = (parent_session_id IS NULL)",
            name=op.f("ck_subagent_sessions_nested_below_its_parent"),
        ),
        sa.CheckConstraint("depth >= 0", name=op.f("ck_subagent_sessions_depth_counts_from_zero")),
        sa.ForeignKeyConstraint(
            ["conversation_id"], ["conversations.id"], name=op.f("fk_subagent_sessions_conversation_id")
        ),
        sa.ForeignKeyConstraint(
            ["owner_conversation_id"],
            ["conversations.id"],
            name=op.f("fk_subagent_sessions_owner_conversation_id"),
        ),
        sa.ForeignKeyConstraint(
            ["parent_session_id"],
            ["subagent_sessions.id"],
            name=op.f("fk_subagent_sessions_parent_session_id"),
        ),
        sa.ForeignKeyConstraint(
            ["spawned_by_invocation_id"],
            ["tool_invocations.id"],
            name=op.f("fk_subagent_sessions_spawned_by_invocation_id"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_subagent_sessions")),
        sa.UniqueConstraint("conversation_id", name=op.f("uq_subagent_sessions_conversation_id")),
        sa.UniqueConstraint(
            "spawned_by_invocation_id", name=op.f("uq_subagent_sessions_spawned_by_invocation_id")
        ),
    )
    for column in ("origin_turn_id", "owner_conversation_id", "parent_session_id"):
        op.create_index(op.f(f"ix_subagent_sessions_{column}"), "subagent_sessions", [column])


def downgrade() -> None:
    """Take the change back; what only tasks and program versions own is deleted."""
    op.drop_table("subagent_sessions")
    op.execute(
        "UPDATE round_calls SET binding_id = NULL, invocation_id = NULL WHERE binding_id IN"
        " (SELECT id FROM tool_bindings WHERE task_id IS NOT NULL)"
    )
    op.execute(
        "DELETE FROM tool_sends WHERE invocation_id IN"
        " (SELECT id FROM tool_invocations WHERE task_id IS NOT NULL)"
    )
    op.execute("DELETE FROM tool_invocations WHERE task_id IS NOT NULL")
    op.execute("DELETE FROM tool_bindings WHERE task_id IS NOT NULL")
    with op.batch_alter_table("tool_invocations") as batch:
        batch.drop_constraint(batch.f("ck_tool_invocations_owner_is_the_task_or_round"), type_="check")
        batch.drop_constraint("fk_tool_invocations_binding", type_="foreignkey")
        batch.drop_constraint(batch.f("fk_tool_invocations_task_id"), type_="foreignkey")
        batch.drop_index(batch.f("ix_tool_invocations_task_id"))
        batch.drop_column("task_id")
        batch.drop_column("owner_id")
    with op.batch_alter_table("tool_bindings") as batch:
        batch.drop_constraint(batch.f("ck_tool_bindings_owner_is_the_task_or_round"), type_="check")
        batch.drop_constraint(batch.f("ck_tool_bindings_one_owner"), type_="check")
        batch.drop_constraint(batch.f("fk_tool_bindings_task_id"), type_="foreignkey")
        batch.drop_constraint("fk_tool_bindings_implementation_of_the_definition", type_="foreignkey")
        batch.create_foreign_key(
            batch.f("fk_tool_bindings_tool_implementation_id"),
            "tool_implementations",
            ["tool_implementation_id"],
            ["id"],
        )
        batch.drop_constraint(batch.f("uq_tool_bindings_task_id_tool_name"), type_="unique")
        batch.drop_constraint("uq_tool_bindings_whole_reference", type_="unique")
        batch.create_unique_constraint(
            batch.f("uq_tool_bindings_id_tool_definition_id_tool_implementation_id"),
            ["id", "tool_definition_id", "tool_implementation_id"],
        )
        batch.alter_column("round_id", existing_type=ID, nullable=False)
        batch.drop_column("owner_id")
        batch.drop_column("task_id")
    with op.batch_alter_table("tool_invocations") as batch:
        batch.create_foreign_key(
            "fk_tool_invocations_binding",
            "tool_bindings",
            ["tool_binding_id", "tool_definition_id", "tool_implementation_id"],
            ["id", "tool_definition_id", "tool_implementation_id"],
        )
    with op.batch_alter_table("rounds") as batch:
        batch.drop_constraint(batch.f("fk_rounds_conversation_id"), type_="foreignkey")
        batch.drop_constraint(batch.f("fk_rounds_task_id"), type_="foreignkey")
        batch.drop_index(batch.f("ix_rounds_task_id"))
        batch.drop_index(batch.f("ix_rounds_conversation_id"))
        batch.drop_column("implementations")
        batch.drop_column("conversation_id")
        batch.drop_column("task_id")
    op.drop_table("approved_implementations")
    op.execute(
        "DELETE FROM tool_implementations WHERE tool_definition_id IN"
        " (SELECT id FROM tool_definitions WHERE program_version_id IS NOT NULL)"
    )
    op.execute("DELETE FROM tool_definitions WHERE program_version_id IS NOT NULL")
    with op.batch_alter_table("tool_implementations") as batch:
        batch.drop_constraint(batch.f("uq_tool_implementations_tool_definition_id_id"), type_="unique")
        batch.alter_column(
            "implementation_ref", existing_type=sa.String(640), type_=sa.String(512), existing_nullable=False
        )
        batch.drop_column("content_digest")
    with op.batch_alter_table("tool_definitions") as batch:
        batch.drop_constraint(batch.f("ck_tool_definitions_version_in_its_scope"), type_="check")
        batch.drop_constraint(batch.f("fk_tool_definitions_program_version_id"), type_="foreignkey")
        batch.drop_index(batch.f("ix_tool_definitions_program_version_id"))
        batch.drop_column("pinned_digest")
        batch.drop_column("has_approved_list")
        batch.drop_column("program_version_id")
    with op.batch_alter_table("api_keys") as batch:
        batch.drop_column("core_tools")
    for table in (
        "tasks",
        "conversations",
        "program_credentials",
        "program_versions",
        "agent_programs",
        "runtime_credentials",
        "execution_runtimes",
    ):
        op.drop_table(table)
