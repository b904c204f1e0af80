"""Which tests run for lack of or with a PostgreSQL server, and how many ran on each database."""

from collections import Counter

import pytest

from tests.support.database_kinds import POSTGRES, SQLITE, postgres_url


class DatabaseCounts:
    """Leaves PostgreSQL's tests out where no server is given; counts what ran; refuses skips where one is."""

    def __init__(self) -> None:
        self._ran: Counter[str] = Counter()
        self._skipped: list[str] = []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if postgres_url() is not None:
            return
        left_out = [item for item in items if item.get_closest_marker(POSTGRES)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker(POSTGRES)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.append(report.nodeid)
        if report.when == "call" and not report.skipped:
            kind = next((name for name in (SQLITE, POSTGRES) if name in report.keywords), "none")
            self._ran[kind] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if postgres_url() is not None and self._skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        sqlite, postgres, none = self._ran[SQLITE], self._ran[POSTGRES], self._ran["none"]
        terminalreporter.write_line(
            f"tests run per database: sqlite {sqlite}, postgresql {postgres}, no database {none}"
        )
        if postgres_url() is not None and self._skipped:
            terminalreporter.write_line(
                f"failed: a PostgreSQL server is there, so nothing may be skipped: {', '.join(self._skipped)}"
            )
