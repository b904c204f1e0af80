"""The chain over the audit trail, and triggers that make the trail append-only.

Revision ID: 0015
Revises: 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0018"
branch_labels = None
depends_on = None

GENESIS = "0" * 64

PRUNED_EVENT = (
    "EXISTS (SELECT 1 FROM audit_links, audit_head"
    " WHERE audit_links.event_id = OLD.id AND audit_links.number <= audit_head.pruned_length)"
)
PRUNED_LINK = "EXISTS (SELECT 1 FROM audit_head WHERE OLD.number <= audit_head.pruned_length)"
SHRUNK_HEAD = "NEW.length < OLD.length OR NEW.pruned_length < OLD.pruned_length OR NEW.pruned_length > NEW.length"

REFUSALS = (
    ("audit_events", "UPDATE", "TRUE"),
    ("audit_events", "DELETE", f"NOT {PRUNED_EVENT}"),
    ("audit_links", "UPDATE", "TRUE"),
    ("audit_links", "DELETE", f"NOT {PRUNED_LINK}"),
    ("audit_head", "UPDATE", SHRUNK_HEAD),
    ("audit_head", "DELETE", "TRUE"),
)
"""Table, statement, and the condition on a row under which the statement is refused."""

TABLES = ("audit_events", "audit_links", "audit_head")


def upgrade() -> None:
    """Apply the change: two new tables; events that are there already are chained by the next sealer."""
    op.create_table(
        "audit_links",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_audit_links")),
        sa.UniqueConstraint("event_id", name=op.f("uq_audit_links_event_id")),
    )
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("low_event_id", sa.BigInteger(), nullable=False),
        sa.Column("pruned_length", sa.BigInteger(), nullable=False),
        sa.Column("pruned_hash", sa.String(length=64), nullable=False),
        sa.Column("pruned_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_audit_head_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    first = {"id": 1, "length": 0, "hash": GENESIS, "low_event_id": 0, "pruned_length": 0, "pruned_hash": GENESIS}
    op.bulk_insert(head, [first])
    if op.get_bind().dialect.name == "postgresql":
        _refuse_on_postgresql()
    else:
        _refuse_on_sqlite()


def downgrade() -> None:
    """Take the change back; events stay, and what sealed them is gone."""
    if op.get_bind().dialect.name == "postgresql":
        for table, statement, _ in REFUSALS:
            op.execute(f"DROP TRIGGER {table}_refuse_{statement.lower()} ON {table}")
        for table in TABLES:
            op.execute(f"DROP TRIGGER {table}_refuse_truncate ON {table}")
        op.execute("DROP FUNCTION audit_append_only()")
    else:
        for table, statement, _ in REFUSALS:
            op.execute(f"DROP TRIGGER {table}_refuse_{statement.lower()}")
    op.drop_table("audit_head")
    op.drop_table("audit_links")


def _refuse_on_sqlite() -> None:
    for table, statement, condition in REFUSALS:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_{statement.lower()} BEFORE {statement} ON {table}"
            f" WHEN {condition} BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END"
        )


def _refuse_on_postgresql() -> None:
    # A condition with a query cannot stand in WHEN there, so each function asks it itself.
    op.execute(
        "CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$"
        " DECLARE refused boolean := TRUE;"
        " BEGIN"
        " IF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'audit_events' THEN"
        f"   refused := NOT {PRUNED_EVENT};"
        " ELSIF TG_OP = 'DELETE' AND TG_TABLE_NAME = 'audit_links' THEN"
        f"   refused := NOT {PRUNED_LINK};"
        " ELSIF TG_OP = 'UPDATE' AND TG_TABLE_NAME = 'audit_head' THEN"
        f"   refused := {SHRUNK_HEAD};"
        " END IF;"
        " IF refused THEN RAISE EXCEPTION 'the audit trail is append-only'; END IF;"
        " IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;"
        " RETURN NEW;"
        " END $$"
    )
    for table, statement, _ in REFUSALS:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_{statement.lower()} BEFORE {statement} ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION audit_append_only()"
        )
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_truncate BEFORE TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()"
        )
