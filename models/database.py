"""The database: engines, and transactions that run whole in a worker thread.

A transaction is a plain function that takes a session. `Database.read` and `Database.write` run it in
one thread from begin to commit, so the event loop waits once for a transaction and not once for each
statement, and a cancelled caller can never leave one half done.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Concatenate, NewType, ParamSpec, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

ReadSession = NewType("ReadSession", Session)
"""A session whose transaction may only read."""

WriteSession = NewType("WriteSession", Session)
"""A session whose transaction may write; on SQLite it holds the write lock from the start."""

P = ParamSpec("P")
T = TypeVar("T")

SQLITE_READERS = 4
"""Threads that read an SQLite file at once; one more writes."""

POSTGRES_STATEMENT_TIMEOUT_MS = 15_000
"""A statement that runs longer is ended: every query here is meant to take milliseconds."""


class DatabaseError(Exception):
    """The root of what this module raises."""


class DatabaseBusyError(DatabaseError):
    """Another process kept the database locked for longer than the busy timeout."""

    def __init__(self) -> None:
        """Say what to do."""
        super().__init__("The database is locked by another process; try again, or end that process.")


class DatabaseUnavailableError(DatabaseError):
    """The database cannot be reached or broke the connection."""

    def __init__(self) -> None:
        """Say what to do, without the address, which may hold a password."""
        super().__init__("The database cannot be reached; check that it runs and that its URL is right.")


@dataclass
class TransactionCounts:
    """How many transactions were begun since the start, for tests that hold a budget."""

    reads: int = 0
    writes: int = 0


class Database:
    """Runs transactions on one SQLite file or one PostgreSQL server; close it when done."""

    def __init__(
        self, url: str, *, pool_size: int = 10, busy_timeout_ms: int = 5_000, echo: bool = False
    ) -> None:
        """Open `url` lazily, such as `sqlite:///file.db` or `postgresql://user@host/name`."""
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.counts = TransactionCounts()
        if self.is_sqlite:
            self._write_engine = _sqlite_engine(self.url, busy_timeout_ms, writable=True, echo=echo)
            self._read_engine = _sqlite_engine(self.url, busy_timeout_ms, writable=False, echo=echo)
            # One writer: SQLite has one write lock, and a queue is fair where its busy loop is not.
            self._writers = ThreadPoolExecutor(1, "database-write")
            self._readers = ThreadPoolExecutor(SQLITE_READERS, "database-read")
        else:
            self._write_engine = _postgres_engine(self.url, pool_size, echo=echo)
            self._read_engine = self._write_engine.execution_options(postgresql_readonly=True)
            self._writers = ThreadPoolExecutor(pool_size, "database")
            self._readers = self._writers

    @property
    def engine(self) -> Engine:
        """The engine that migrations run on."""
        return self._write_engine

    async def read(
        self, work: Callable[Concatenate[ReadSession, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work(session, ...)` in one read transaction and return what it returns.

        Raises:
            DatabaseBusyError: the database stayed locked.
            DatabaseUnavailableError: the database is away.
        """
        self.counts.reads += 1

        def transaction() -> T:
            with Session(self._read_engine, expire_on_commit=False) as session, session.begin():
                return work(ReadSession(session), *args, **kwargs)

        return await self._run(self._readers, transaction)

    async def write(
        self, work: Callable[Concatenate[WriteSession, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run `work(session, ...)` in one write transaction and return what it returns.

        A caller that is cancelled while it waits does not undo the transaction, which commits or rolls
        back as a whole.

        Raises:
            DatabaseBusyError: the database stayed locked.
            DatabaseUnavailableError: the database is away.
        """
        self.counts.writes += 1

        def transaction() -> T:
            with Session(self._write_engine, expire_on_commit=False) as session, session.begin():
                return work(WriteSession(session), *args, **kwargs)

        return await self._run(self._writers, transaction)

    async def _run(self, threads: ThreadPoolExecutor, transaction: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, transaction)
        except OperationalError as error:
            raise _translated(error) from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise DatabaseUnavailableError from error
            raise

    def close(self) -> None:
        """End the threads and close every connection."""
        self._writers.shutdown()
        self._readers.shutdown()
        self._write_engine.dispose()
        self._read_engine.dispose()

    async def __aenter__(self) -> Self:
        """Return the database."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Close the database without holding up the event loop."""
        await asyncio.to_thread(self.close)


def _translated(error: OperationalError) -> DatabaseError:
    text = str(error.orig).lower()
    busy = "database is locked" in text or "database table is locked" in text or "lock timeout" in text
    return DatabaseBusyError() if busy else DatabaseUnavailableError()


def _sqlite_engine(url: Any, busy_timeout_ms: int, *, writable: bool, echo: bool) -> Engine:
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        # The driver's own transactions begin late and leave reads outside; we send BEGIN ourselves.
        connect_args={"isolation_level": None, "check_same_thread": False},
        pool_size=1 if writable else SQLITE_READERS,
        max_overflow=0 if writable else 1,
        # Parameters are arguments and results of tools: they stay out of messages and logs.
        hide_parameters=True,
        echo=echo,
    )
    begin = "BEGIN IMMEDIATE" if writable else "BEGIN"

    @event.listens_for(engine, "connect")
    def configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:  # pyright: ignore[reportUnusedFunction]
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={busy_timeout_ms:d}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        if not writable:
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.exec_driver_sql(begin)

    return engine


def _postgres_engine(url: Any, pool_size: int, *, echo: bool) -> Engine:
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=pool_size,
        max_overflow=0,
        # A restarted server leaves dead connections in the pool; the check costs one round trip.
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": 5,
            "options": f"-c statement_timeout={POSTGRES_STATEMENT_TIMEOUT_MS} -c timezone=UTC",
        },
        # Parameters are arguments and results of tools: they stay out of messages and logs.
        hide_parameters=True,
        echo=echo,
    )
