"""What every test may ask for: one event loop, a real Temporal server, a database of its own."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from api.embedded import EmbeddedTemporal
from models.database import Database
from models.migration import migrate
from tests.support.database_counts import DatabaseCounts
from tests.support.database_kinds import POSTGRES, SQLITE, postgres_url
from tests.support.databases import postgres_database, postgres_template, sqlite_copy, sqlite_template
from tests.support.session_end import SafeEnd
from tests.support.temporal_server import connect, running_temporal

BOTH_DATABASES = (
    pytest.param(SQLITE, marks=pytest.mark.sqlite),
    pytest.param(POSTGRES, marks=pytest.mark.postgres),
)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SafeEnd(), "sluicegate-safe-end")
    config.pluginmanager.register(DatabaseCounts(), "sluicegate-database-counts")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio; session-wide, so that session fixtures and tests share one event loop."""
    return "asyncio"


@pytest.fixture(scope="session")
async def temporal_server(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[EmbeddedTemporal]:
    """A real tuned Temporal server in memory, one for each test process: it is up in 0.4 s."""
    async with running_temporal(tmp_path_factory.mktemp("temporal")) as server:
        yield server


@pytest.fixture(scope="session")
async def temporal_client(temporal_server: EmbeddedTemporal) -> Client:
    """A client of the shared server; give workflows ids and task queues of their own."""
    return await connect(temporal_server)


@pytest.fixture(scope="session")
async def time_skipper(temporal_client: Client) -> TimeSkipper:
    """Its `client` starts workflows whose timers pass at once while nothing runs."""
    return TimeSkipper(temporal_client)


@pytest.fixture
def task_queue() -> str:
    """A task queue that no other test uses."""
    return f"test-{uuid4().hex}"


@pytest.fixture(scope="session")
def mcp_url() -> Iterator[str]:
    """The address of a real MCP server process; `/counters` beside it tells what it received."""
    command = [sys.executable, "-m", "tests.support.mcp_servers.sdk_server", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/mcp"
        server.kill()


def prepare_database(url: str) -> None:
    """Bring an empty database to where every test starts."""
    with closing(Database(url)) as database:
        migrate(database)


@pytest.fixture(scope="session")
def sqlite_template_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sqlite_template(tmp_path_factory.mktemp("sqlite"), prepare_database)


@pytest.fixture(scope="session")
def postgres_template_name() -> Iterator[str]:
    with postgres_template(require_postgres_url(), prepare_database) as name:
        yield name


@pytest.fixture(params=BOTH_DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database that is this test's alone, on each kind of database in turn."""
    if request.param == SQLITE:
        yield sqlite_copy(request.getfixturevalue("sqlite_template_path"), tmp_path)
        return
    with postgres_database(require_postgres_url(), request.getfixturevalue("postgres_template_name")) as url:
        yield url


@pytest.fixture(params=BOTH_DATABASES)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables, for tests of the migrations."""
    if request.param == SQLITE:
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    with postgres_database(require_postgres_url(), "template0") as url:
        yield url


def require_postgres_url() -> str:
    url = postgres_url()
    assert url is not None, "tests marked postgres are left out where no server is given"
    return url


@pytest.fixture
async def sqlite_database(
    anyio_backend: str, sqlite_template_path: Path, tmp_path: Path
) -> AsyncIterator[Database]:
    """A migrated SQLite database, for tests whose subject does not depend on the kind of database."""
    del anyio_backend
    async with Database(sqlite_copy(sqlite_template_path, tmp_path)) as database:
        yield database
