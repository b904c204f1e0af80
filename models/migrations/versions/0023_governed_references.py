"""A definition's version is its scope's, and a task's binding is used in rounds of the task.

Revision ID: 0023
Revises: 0022
"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

GATEWAY_OR_A_VERSION = "(scope = 'gateway') = (program_version_id IS NULL)"
VERSION_IN_ITS_SCOPE = (
    "(program_version_id IS NULL AND scope = 'gateway')"
    " OR (program_version_id IS NOT NULL AND replace(scope, '-', '')"
    " = 'program_version:' || replace(CAST(program_version_id AS VARCHAR(36)), '-', ''))"
)


def upgrade() -> None:
    """Apply the change; rows that the release before wrote keep both rules."""
    _check_scopes(VERSION_IN_ITS_SCOPE)
    op.create_index("uq_rounds_id_task_id", "rounds", ["id", "task_id"], unique=True)
    with op.batch_alter_table("tool_invocations") as batch:
        batch.create_foreign_key(
            "fk_tool_invocations_round_of_the_task",
            "rounds",
            ["round_id", "task_id"],
            ["id", "task_id"],
            ondelete="CASCADE",
        )


def downgrade() -> None:
    """Take the change back."""
    with op.batch_alter_table("tool_invocations") as batch:
        batch.drop_constraint("fk_tool_invocations_round_of_the_task", type_="foreignkey")
    op.drop_index("uq_rounds_id_task_id", table_name="rounds")
    _check_scopes(GATEWAY_OR_A_VERSION)


def _check_scopes(condition: str) -> None:
    with op.batch_alter_table("tool_definitions") as batch:
        batch.drop_constraint(batch.f("ck_tool_definitions_version_in_its_scope"), type_="check")
        batch.create_check_constraint(
            batch.f("ck_tool_definitions_version_in_its_scope"), sa.text(condition)
        )
