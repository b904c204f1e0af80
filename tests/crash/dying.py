"""The test's own hook: a database whose transactions are the points at which a process dies.

The file that CRASH_ARM names holds {"point", "pid"}; the process that comes to the point first takes the file
away and kills `pid`, or itself where that is 0. Production code knows nothing of it.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models.database import Database, WriteSession
from settings import Settings

Work = Callable[..., Any]


def _none() -> Mapping[Work, str]:
    return {}


@dataclass(frozen=True)
class Points:
    """Names of points, by the transaction that they belong to."""

    before: Mapping[Work, str] = field(default_factory=_none)
    """Before it begins."""
    during: Mapping[Work, str] = field(default_factory=_none)
    """Between its work and its commit."""
    after: Mapping[Work, str] = field(default_factory=_none)
    """After its commit."""


def arm(path: Path, point: str, pid: int = 0) -> None:
    """Have the process `pid`, or whoever comes to the point, die there; a whole file or none."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps({"point": point, "pid": pid}))
    draft.replace(path)


class MortalDatabase(Database):
    """A database that ends a process at the armed point."""

    def __init__(self, settings: Settings, points: Points) -> None:
        super().__init__(settings.resolved_database_url(), busy_timeout_ms=10_000)
        self.points = points
        self.armed = Path(os.environ["CRASH_ARM"])

    async def read(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        self.die_at(self.points.before.get(work))
        return await super().read(work, *args, **kwargs)

    async def write(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        self.die_at(self.points.before.get(work))
        result = await super().write(self.mortal(work), *args, **kwargs)
        self.die_at(self.points.after.get(work))
        return result

    def mortal(self, work: Any) -> Any:
        def transaction(session: WriteSession, *args: Any, **kwargs: Any) -> Any:
            self.prepare(session, work, args)
            result = work(session, *args, **kwargs)
            self.die_at(self.points.during.get(work))
            return result

        return transaction

    def prepare(self, session: WriteSession, work: Any, arguments: tuple[Any, ...]) -> None:
        """Do something in the transaction before its work; nothing here."""

    def die_at(self, point: str | None) -> None:
        if point is None:
            return
        try:
            armed = json.loads(self.armed.read_text())
            if armed["point"] != point:
                return
            self.armed.unlink()
        except FileNotFoundError:
            # Nothing is armed, or another process came first.
            return
        os.kill(armed["pid"] or os.getpid(), signal.SIGKILL)
