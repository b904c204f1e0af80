"""End a test process without the interpreter's own clean-up.

Temporal's native threads may still want the interpreter while it is being torn down, after any worker has
run in the process; about one run in ten then ends by SIGABRT or SIGSEGV, after all tests have passed.
"""

import atexit
import logging
import os
import sys

import pytest


class SafeEnd:
    """Ends the process with the session's own exit status once everything else has been done.

    Handlers registered with `atexit` run last in, first out: what was registered while tests ran has then
    run, and pytest has written its reports and returned.
    """

    def __init__(self) -> None:
        self._session: pytest.Session | None = None
        atexit.register(self._end)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def _end(self) -> None:
        if self._session is None:
            return
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(self._session.exitstatus))
