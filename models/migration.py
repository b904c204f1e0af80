"""Bring a database to the schema of this release, or say what it lacks."""

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from models.database import Database
from models.tables import METADATA

ADVISORY_LOCK = 7_311_640_221
"""The PostgreSQL lock under which one process migrates; any number that nothing else uses."""

LOCK_TIMEOUT_MS = 10_000
"""A migration gives up when a table stays locked: waiting longer would stop every other query behind it."""


def migrate(database: Database, revision: str = "head") -> str:
    """Upgrade the database to a revision and return the one it is at; safe when several processes try."""
    with database.engine.connect() as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK})
        command.upgrade(_config(connection), revision)
        return MigrationContext.configure(connection).get_current_revision() or "base"


def downgrade(database: Database, revision: str) -> None:
    """Take the database back to a revision, such as `base` or `-1`."""
    with database.engine.connect() as connection, connection.begin():
        command.downgrade(_config(connection), revision)


def is_current(database: Database) -> bool:
    """Tell whether the database is at this release's revision."""
    with database.engine.connect() as connection:
        current = MigrationContext.configure(connection).get_current_revision()
    return current == ScriptDirectory.from_config(_config(None)).get_current_head()


def drift(database: Database) -> list[object]:
    """Return the differences between the migrated schema and the tables in code; [] for none."""
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, METADATA))


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config
