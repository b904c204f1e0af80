"""A database of its own for each test, on SQLite and on PostgreSQL, copied from a template made once."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

Prepare = Callable[[str], None]
"""Brings the empty database at a URL to the state that every test starts from."""


def sqlite_template(folder: Path, prepare: Prepare) -> Path:
    """Make the SQLite file that tests get copies of."""
    path = folder / "template.db"
    prepare(f"sqlite:///{path}")
    return path


def sqlite_copy(template: Path, folder: Path) -> str:
    """Copy the template, with what its write-ahead log holds, and return the copy's URL."""
    for suffix in ("", "-wal"):
        part = template.with_name(template.name + suffix)
        if part.exists():
            shutil.copyfile(part, folder / f"sluicegate.db{suffix}")
    return f"sqlite:///{folder / 'sluicegate.db'}"


@contextmanager
def postgres_template(server_url: str, prepare: Prepare) -> Iterator[str]:
    """Make the PostgreSQL database that tests get copies of, and yield its name."""
    with postgres_database(server_url, "template0") as url:
        prepare(url)
        yield str(make_url(url).database)


@contextmanager
def postgres_database(server_url: str, template: str) -> Iterator[str]:
    """Make a database from a template, yield its URL and drop it with whatever still uses it."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with psycopg.connect(server_url, autocommit=True) as server:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
