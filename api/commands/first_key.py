"""The key that a new installation begins with, so that its first call needs no ceremony."""

from sqlalchemy import inspect

from api.changes import record_change
from models.base import new_id
from models.database import Database, WriteSession
from models.key import ApiKey, add_secret

FIRST_KEY_NAME = "first"
"""What the first key is called; it has no tool configuration, so it may use what connections offer."""


def is_new(database: Database) -> bool:
    """Tell whether a database was never migrated."""
    return not inspect(database.engine).has_table("alembic_version")


def make_first_key(session: WriteSession, prefix: str) -> str:
    """Make the first key and return its secret, which cannot be read again."""
    key = ApiKey(id=new_id(), name=FIRST_KEY_NAME)
    session.add(key)
    session.flush()
    secret = add_secret(session, key.id, prefix)
    record_change(session, "first start", "create_key", key=key.id, settings={"name": FIRST_KEY_NAME})
    return secret.text
