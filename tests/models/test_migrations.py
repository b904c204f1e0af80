"""Migrations: up, down and up again, on both databases, and no difference to the tables in code."""

import threading
from contextlib import closing

from sqlalchemy import inspect

from models.database import Database
from models.migration import downgrade, drift, is_current, migrate


def tables_of(database: Database) -> set[str]:
    return set(inspect(database.engine).get_table_names()) - {"alembic_version"}


def test_a_migrated_database_has_exactly_the_tables_of_the_code(empty_database_url: str) -> None:
    with closing(Database(empty_database_url)) as database:
        assert not is_current(database)
        migrate(database)

        assert is_current(database)
        assert drift(database) == []


def test_every_migration_can_be_taken_back_and_applied_again(empty_database_url: str) -> None:
    with closing(Database(empty_database_url)) as database:
        migrate(database)
        complete = tables_of(database)
        downgrade(database, "base")
        assert tables_of(database) == set()

        migrate(database)

        assert tables_of(database) == complete
        assert drift(database) == []


def test_each_migration_alone_goes_back_one_step(empty_database_url: str) -> None:
    with closing(Database(empty_database_url)) as database:
        migrate(database)
        downgrade(database, "-1")

        assert not is_current(database)
        migrate(database)
        assert drift(database) == []


def test_processes_that_migrate_at_once_both_succeed(empty_database_url: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with closing(Database(empty_database_url)) as database:
                migrate(database)
        except BaseException as error:  # noqa: BLE001 - Reported by the test, from the thread.
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert failures == []
    with closing(Database(empty_database_url)) as database:
        assert is_current(database)
