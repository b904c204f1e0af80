"""The folder that one `sluicegate up` keeps everything in, held by at most one process at a time."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

LOCK_NAME = "up.lock"
"""The file whose lock says that the folder is in use, and whose text says by which process."""


class DataDirInUse(Exception):
    """Another living process holds the data folder; `pid` is None when its number cannot be read."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path = path
        self.pid = pid
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"the data folder {str(path)!r} is in use by {holder}:"
            " stop it or choose another folder with --data-dir"
        )


class DataDirUnusable(Exception):
    """The data folder cannot be made or written."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        super().__init__(
            f"the data folder {str(path)!r} cannot be used: {reason}; choose another folder with --data-dir"
        )


class DataDir:
    """Holds a data folder from entering to leaving the context, making it readable to its owner alone.

    The operating system lets go of the lock when the process ends, however it ends, so there is nothing stale
    to clean up. Child processes do not keep it: the descriptor is closed when they start.

    Raises:
        DataDirInUse: another process holds it.
        DataDirUnusable: it cannot be made or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # "a+" neither empties the holder's text nor fails where there is no file yet.
            lock = (self.path / LOCK_NAME).open("a+")
        except OSError as exc:
            raise DataDirUnusable(self.path, exc.strerror or str(exc)) from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            with lock:
                raise DataDirInUse(self.path, _holder(lock)) from exc
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if self._lock is not None:
            # The file stays: removing it would let two processes hold locks on two files of that name.
            self._lock.close()


def _holder(lock: IO[str]) -> int | None:
    lock.seek(0)
    text = lock.read().strip()
    return int(text) if text.isdigit() else None
