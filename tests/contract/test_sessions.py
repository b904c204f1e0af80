"""A test session ends with the status that its tests earned, with and without worker processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests.support.database_counts import DatabaseCounts
from tests.support.session_end import SafeEnd

def pytest_configure(config):
    config.addinivalue_line("markers", "postgres: PostgreSQL")
    config.pluginmanager.register(SafeEnd(), "safe-end")
    config.pluginmanager.register(DatabaseCounts(), "database-counts")
"""
FAILS = "def test_it(): assert False"
SKIPS = "import pytest\ndef test_it(): pytest.skip('for no reason')"
NEEDS_POSTGRES = "import pytest\n@pytest.mark.postgres\ndef test_it(): pass"
# Runs while the interpreter is torn down, as Temporal's native threads do.
CRASHES_AT_EXIT = """
import os
class Crash:
    def __del__(self, abort=os.abort): abort()
crash = Crash()
def test_it(): pass
"""


def session(
    folder: Path, test: str, *options: str, postgres: bool = False
) -> "subprocess.CompletedProcess[str]":
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(test)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SLUICEGATE_"))
    }
    # The plugins that nothing here needs take most of the time.
    kept["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    given = {"SLUICEGATE_TEST_POSTGRES_URL": "postgresql://nowhere"} if postgres else {}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=report.xml", *options],
        cwd=folder,
        env=kept | given,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("test", "options", "status"),
    [
        pytest.param(FAILS, (), 1, id="fails"),
        pytest.param(FAILS, ("-p", "xdist.plugin", "-n", "1"), 1, id="fails-in-a-worker"),
        pytest.param(CRASHES_AT_EXIT, (), 0, id="crashes-at-exit"),
    ],
)
def test_the_status_is_that_of_the_tests(
    tmp_path: Path, test: str, options: tuple[str, ...], status: int
) -> None:
    ended = session(tmp_path, test, *options)
    assert (ended.returncode, ended.stderr) == (status, "")
    assert 'tests="1"' in (tmp_path / "report.xml").read_text()


def test_a_session_without_tests_fails(tmp_path: Path) -> None:
    assert session(tmp_path, "").returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_skip_fails_the_session_where_a_postgresql_server_is_there(tmp_path: Path) -> None:
    assert session(tmp_path, SKIPS).returncode == 0
    refused = session(tmp_path, SKIPS, postgres=True)
    assert refused.returncode == 1
    assert "nothing may be skipped: test_it.py::test_it" in refused.stdout


def test_postgresql_tests_are_left_out_without_a_server_and_counted_with_one(tmp_path: Path) -> None:
    assert session(tmp_path, NEEDS_POSTGRES).returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "postgresql 1" in session(tmp_path, NEEDS_POSTGRES, postgres=True).stdout
