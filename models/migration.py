"""Bring a database to the schema of this release, or say what it lacks."""

from collections.abc import Generator
from contextlib import contextmanager
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


SQLITE_WAIT_MS = 60_000
"""How long a process waits for another one's migration; it takes seconds on a slow machine."""


def migrate(database: Database, revision: str = "head") -> str:
    """Upgrade the database to a revision and return the one it is at; safe when several processes try."""
    with _migrating(database) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK})
        command.upgrade(_config(connection), revision)
        return MigrationContext.configure(connection).get_current_revision() or "base"


def downgrade(database: Database, revision: str) -> None:
    """Take the database back to a revision, such as `base` or `-1`."""
    with _migrating(database) as connection:
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


class BrokenReferencesError(Exception):
    """A migration left rows that point at nothing; it was taken back."""

    def __init__(self, tables: list[str]) -> None:
        """Name the tables."""
        super().__init__(f"The migration broke references of {', '.join(tables)}; nothing was changed.")


@contextmanager
def _migrating(database: Database) -> Generator[Connection]:
    """Begin the transaction of a migration.

    SQLite changes a table by copying it, and dropping the old one would delete what refers to it. So
    references are not enforced meanwhile, and all are checked before the commit.

    Source: SQLite, ALTER TABLE, section 7, making other kinds of table schema changes.
    """
    with database.engine.connect() as connection:
        if not database.is_sqlite:
            with connection.begin():
                yield connection
            return
        driver = connection.connection.cursor()
        # The setting is ignored inside a transaction, so it comes before BEGIN.
        driver.execute("PRAGMA foreign_keys=OFF")
        usual_wait_ms = driver.execute("PRAGMA busy_timeout").fetchone()[0]
        driver.execute(f"PRAGMA busy_timeout={SQLITE_WAIT_MS:d}")
        try:
            with connection.begin():
                yield connection
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                if broken:
                    raise BrokenReferencesError(sorted({str(row[0]) for row in broken}))
        finally:
            driver.execute(f"PRAGMA busy_timeout={usual_wait_ms:d}")
            driver.execute("PRAGMA foreign_keys=ON")
            driver.close()


def _config(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    return config
