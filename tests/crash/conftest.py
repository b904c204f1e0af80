"""One cluster for each kind of database, shared by all kills; and the table of kills at the end."""

from collections.abc import AsyncIterator

import pytest

from tests.crash.cluster import Cluster, running_cluster
from tests.crash.tally import Tally

TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLY] = Tally()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[TALLY].lines():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> Tally:
    return request.config.stash[TALLY]


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
async def cluster(
    anyio_backend: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """A cluster on each kind of database in turn; pytest groups the tests by it."""
    del anyio_backend
    folder = tmp_path_factory.mktemp(request.param)
    async with running_cluster(folder, workers=2, with_postgres=request.param == "postgres") as running:
        yield running
