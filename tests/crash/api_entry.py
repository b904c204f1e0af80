"""An API at whose named points something dies: python -m tests.crash.api_entry.

It is `sluicegate serve` on a database of `tests.crash.dying`.
"""

import os

from api.commands.process_edge import run_process
from api.commands.serve import ServeOptions, run_serve
from api.rounds import _find_or_insert, _read_answer
from settings import Settings
from tests.crash.dying import MortalDatabase, Points

POINTS = Points(after={_find_or_insert: "api_after_store"}, before={_read_answer: "api_before_answer"})
"""After the row was stored and before the start; after the start and before the answer."""


def open_database(settings: Settings) -> MortalDatabase:
    return MortalDatabase(settings, POINTS)


if __name__ == "__main__":
    options = ServeOptions(port=int(os.environ["SLUICEGATE_PORT"]), drain=1.0)
    run_process(run_serve(options, open_database), "warning")
