"""Run migrations on the connection that the caller put into the configuration."""

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import TypeDecorator

from models.tables import METADATA


def render_item(kind: str, item: Any, autogen: AutogenContext) -> str | Literal[False]:
    """Write our own column types as what they are stored as, so that a migration never imports the models."""
    del autogen
    if kind == "type" and isinstance(item, TypeDecorator):
        return f"sa.{item.impl_instance!r}"
    return False


def run_migrations() -> None:
    """Run in one transaction, on SQLite by copying tables where ALTER cannot do it."""
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        render_as_batch=connection.dialect.name == "sqlite",
        render_item=render_item,
        compare_type=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


run_migrations()
