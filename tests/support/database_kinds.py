"""The kinds of database that tests run on, and where the PostgreSQL server for them is."""

import os

POSTGRES_URL_VARIABLE = "SLUICEGATE_TEST_POSTGRES_URL"
"""Set by `make test-postgres`: URL of an administrative database on a server that is there for tests only."""

SQLITE = "sqlite"
POSTGRES = "postgres"


def postgres_url() -> str | None:
    """Return the URL of the test server; None when there is none."""
    return os.environ.get(POSTGRES_URL_VARIABLE)
