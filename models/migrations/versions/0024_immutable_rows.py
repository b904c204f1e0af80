"""Triggers that keep bindings, snapshots, frozen sets and program versions as they were written.

Revision ID: 0024
Revises: 0023
"""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

OWNER_IS_THERE = (
    "EXISTS (SELECT 1 FROM rounds WHERE rounds.id = OLD.round_id)"
    " OR EXISTS (SELECT 1 FROM tasks WHERE tasks.id = OLD.task_id)"
)
"""A binding goes with its round or task, and never before."""

TABLES = ("tool_bindings", "tool_snapshots", "frozen_sets", "program_versions")

REFUSALS = (*((table, "UPDATE", "TRUE") for table in TABLES), ("tool_bindings", "DELETE", OWNER_IS_THERE))
"""Table, statement, and the condition on a row under which the statement is refused.

Snapshots, frozen sets and versions may be deleted once nothing refers to them, which the references hold.
"""


def upgrade() -> None:
    """Apply the change; whoever copies one of the tables in a later migration makes its triggers anew."""
    if op.get_bind().dialect.name == "postgresql":
        _refuse_on_postgresql()
    else:
        for table, statement, condition in REFUSALS:
            op.execute(
                f"CREATE TRIGGER {table}_refuse_{statement.lower()} BEFORE {statement} ON {table}"
                f" WHEN {condition} BEGIN SELECT RAISE(ABORT, 'rows of {table} are immutable'); END"
            )


def downgrade() -> None:
    """Take the change back."""
    if op.get_bind().dialect.name == "postgresql":
        for table, statement, _ in REFUSALS:
            op.execute(f"DROP TRIGGER {table}_refuse_{statement.lower()} ON {table}")
        for table in TABLES:
            op.execute(f"DROP TRIGGER {table}_refuse_truncate ON {table}")
        op.execute("DROP FUNCTION immutable_rows()")
    else:
        for table, statement, _ in REFUSALS:
            op.execute(f"DROP TRIGGER {table}_refuse_{statement.lower()}")


def _refuse_on_postgresql() -> None:
    # A condition with a query cannot stand in WHEN there, so the function asks it itself.
    op.execute(
        "CREATE FUNCTION immutable_rows() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN"
        f" IF TG_OP = 'DELETE' AND NOT ({OWNER_IS_THERE}) THEN RETURN OLD; END IF;"
        " RAISE EXCEPTION 'rows of % are immutable', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';"
        " END $$"
    )
    for table, statement, _ in REFUSALS:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_{statement.lower()} BEFORE {statement} ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION immutable_rows()"
        )
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_truncate BEFORE TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION immutable_rows()"
        )
