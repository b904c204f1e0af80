"""The declarative base: naming convention, column types and ids that every table shares."""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, cast

import uuid_utils
from sqlalchemy import JSON, DateTime, Dialect, LargeBinary, MetaData, String, Table, TypeDecorator, Uuid
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
"""Names that Alembic can find again on both databases."""

Configuration = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""A column type for configuration. Payloads are bytes instead: jsonb refuses NUL and rewrites numbers."""


class UTCDateTime(TypeDecorator[datetime]):
    """A point in time, always with the zone UTC; SQLite keeps no zone of its own."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without a zone and store UTC."""
        del dialect
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A time without a zone cannot be stored; use datetime.now(UTC).")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the stored time with the zone UTC."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class EnumByValue(TypeDecorator[StrEnum]):
    """A string enum stored by its value, as text, so that adding a member needs no migration."""

    impl = String(32)
    cache_ok = True

    def __init__(self, members: type[StrEnum]) -> None:
        """Store members of `members`."""
        super().__init__()
        self.members = members

    def process_bind_param(self, value: StrEnum | str | None, dialect: Dialect) -> str | None:
        """Store the member's value; refuse text that is no member."""
        del dialect
        return None if value is None else self.members(value).value

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        """Return the member."""
        del dialect
        return None if value is None else self.members(value)


class Base(DeclarativeBase):
    """Every table of Sluicegate."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map: Mapping[Any, Any] = {
        datetime: UTCDateTime(),
        bytes: LargeBinary(),
        str: String(),
    }


def table_of(entity: type[Base]) -> Table:
    """Return the table of an entity, for statements that need no objects.

    Statements of the hot path are module constants with named parameters: building one anew costs five times
    what running it does.
    """
    return cast("Table", entity.__table__)


PublicId = Uuid(as_uuid=False)
"""The type of an id that callers see: a UUIDv7 as text in Python, native where the database has it."""

Digest = String(64)
"""The type of a SHA-256 in hexadecimal."""


def new_id() -> str:
    """Make a UUIDv7 as text: unique, and later ids sort after earlier ones."""
    return str(uuid_utils.uuid7())


def utc_now() -> datetime:
    """Tell the time in UTC."""
    return datetime.now(UTC)
