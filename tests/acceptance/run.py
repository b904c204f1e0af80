"""Run a command with a PostgreSQL server where one is installed, else without, saying so.

    python -m tests.acceptance.run COMMAND [ARGUMENT ...]

The acceptance tests then run on SQLite, and on PostgreSQL too where there is one.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.support.database_kinds import POSTGRES_URL_VARIABLE
from tests.support.postgres_server import PostgresUnavailable, find_binary, run, unprivileged_user


def run_where_possible(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command and return its exit status; a server that is there and fails is a failure."""
    if POSTGRES_URL_VARIABLE not in environ:
        try:
            find_binary("initdb")
            unprivileged_user()
        except PostgresUnavailable as missing:
            sys.stderr.write(f"On SQLite alone: {missing}\n")
        else:
            return run(command, environ)
    return subprocess.run(command, env=dict(environ), check=False).returncode


if __name__ == "__main__":
    sys.exit(run_where_possible(sys.argv[1:], os.environ))
