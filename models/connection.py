"""MCP connections: a registered server, how to reach it and what of it may be executed."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sqlalchemy import String, false, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from governance.canonical import JSON
from governance.codes import IdempotencyClass
from governance.decision import ConnectionRules
from models.base import Base, Configuration, EnumByValue, PublicId, new_id, table_of, utc_now
from models.database import WriteSession


class Network(StrEnum):
    """Which addresses a connection may be dialled at; link-local and metadata addresses never."""

    PUBLIC = "public"
    PRIVATE = "private"
    LOOPBACK = "loopback"


class SessionScope(StrEnum):
    """What shares one MCP session; sessions are never shared between keys."""

    KEY = "key"
    BINDING = "binding"
    CONVERSATION = "conversation"


class OnSessionLoss(StrEnum):
    """What follows when the server has forgotten the session."""

    RETRY_ONCE = "retry_once"
    REPORT = "report"


class EventStream(StrEnum):
    """When the standalone GET stream is opened."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Transport(StrEnum):
    """How requests reach the server."""

    STREAMABLE_HTTP = "streamable_http"
    HTTP_SSE = "http_sse"
    """The transport of 2024-11-05: no shared session, no resumption, a stream for every request."""


class Elicitation(StrEnum):
    """What a server is told that asks for a person's input during a call."""

    NONE = "none"
    """Not declared, and refused."""
    DECLINE = "decline"
    """Declared, and each request declined at once: the tool goes on as if the person had said no."""


class ConnectionHealth(StrEnum):
    """What the last contact showed."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    FAILING = "failing"


class Connection(Base):
    """A registered MCP server."""

    __tablename__ = "connections"

    id: Mapped[str] = mapped_column(PublicId, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(32), unique=True)
    url: Mapped[str] = mapped_column(String(2048))
    network: Mapped[Network] = mapped_column(EnumByValue(Network), default=Network.PUBLIC)
    enabled: Mapped[bool] = mapped_column(default=True)
    tools_to_execute: Mapped[list[str] | None] = mapped_column(Configuration)
    open_to_all_keys: Mapped[bool] = mapped_column(default=False)
    session_scope: Mapped[SessionScope] = mapped_column(EnumByValue(SessionScope), default=SessionScope.KEY)
    on_session_loss: Mapped[OnSessionLoss] = mapped_column(
        EnumByValue(OnSessionLoss), default=OnSessionLoss.RETRY_ONCE
    )
    event_stream: Mapped[EventStream] = mapped_column(EnumByValue(EventStream), default=EventStream.AUTO)
    protocol_version: Mapped[str] = mapped_column(String(32), default="auto")
    transport: Mapped[Transport] = mapped_column(
        EnumByValue(Transport), default=Transport.STREAMABLE_HTTP, server_default=Transport.STREAMABLE_HTTP
    )
    elicitation: Mapped[Elicitation] = mapped_column(
        EnumByValue(Elicitation), default=Elicitation.NONE, server_default=Elicitation.NONE
    )
    tool_timeout_s: Mapped[float] = mapped_column(default=60.0)
    idempotency: Mapped[IdempotencyClass] = mapped_column(
        EnumByValue(IdempotencyClass), default=IdempotencyClass.UNSAFE
    )
    refusal_statuses: Mapped[list[int]] = mapped_column(Configuration, default=list)
    max_concurrency: Mapped[int | None]
    """Calls that the server works on at once, of all workers together; None for as many as there are."""
    queue_timeout_s: Mapped[float] = mapped_column(default=30.0)
    """How long a call waits for its turn before it fails as `busy`."""
    tool_prices: Mapped[dict[str, str] | None] = mapped_column(Configuration)
    """What a call costs, as decimal text by upstream name; `*` is the price of all others."""
    argument_rules: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """See `models.argument_rule`."""
    auth: Mapped[dict[str, JSON] | None] = mapped_column(Configuration)
    """What is shown of the headers that each request carries, see `governance.connection_auth`."""
    sealed_auth: Mapped[bytes | None]
    """Those headers as JSON of {name: value}, sealed."""
    ca_bundle: Mapped[str | None]
    """PEM certificates of the only authorities that the server is trusted by; None for the system's."""
    audit_arguments: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether the arguments of calls, as they are sent, are written to the audit trail."""
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    health: Mapped[ConnectionHealth] = mapped_column(
        EnumByValue(ConnectionHealth), default=ConnectionHealth.UNKNOWN
    )
    last_failure: Mapped[dict[str, str] | None] = mapped_column(Configuration)
    """The last failed contact: {"stage": connect|initialize|tools/list|call, "code", "message", "at"}."""
    synced_at: Mapped[datetime | None]
    stale_at: Mapped[datetime | None]
    """Since when the server is known to list other tools than are stored; None while it is not."""
    dropped_tools: Mapped[list[dict[str, str]]] = mapped_column(Configuration, default=list)
    """Tools that the server listed and that cannot be used: [{"name", "reason"}]."""

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy reads it from the class.

    def rules(self) -> ConnectionRules:
        """Return what `decide` needs to know of the connection."""
        return ConnectionRules(
            name=self.name,
            enabled=self.enabled,
            tools_to_execute=None if self.tools_to_execute is None else tuple(self.tools_to_execute),
            open_to_all_keys=self.open_to_all_keys,
            revision=self.version or 0,
        )


@dataclass(frozen=True)
class ConnectionTarget:
    """What an activity needs to dial a connection."""

    id: str
    name: str
    url: str
    network: Network
    protocol_version: str
    event_stream: EventStream
    session_scope: SessionScope
    on_session_loss: OnSessionLoss
    refusal_statuses: tuple[int, ...]
    enabled: bool
    version: int
    transport: Transport = Transport.STREAMABLE_HTTP
    elicitation: Elicitation = Elicitation.NONE
    audit_arguments: bool = False
    sealed_auth: bytes | None = field(default=None, repr=False)
    ca_bundle: str | None = field(default=None, repr=False)


def target_of(connection: Connection) -> ConnectionTarget:
    """Return the dialling facts of a connection as a value that outlives the transaction."""
    return ConnectionTarget(
        id=connection.id,
        name=connection.name,
        url=connection.url,
        network=connection.network,
        protocol_version=connection.protocol_version,
        event_stream=connection.event_stream,
        session_scope=connection.session_scope,
        on_session_loss=connection.on_session_loss,
        refusal_statuses=tuple(connection.refusal_statuses),
        enabled=connection.enabled,
        version=connection.version,
        transport=connection.transport,
        elicitation=connection.elicitation,
        audit_arguments=bool(connection.audit_arguments),
        sealed_auth=connection.sealed_auth,
        ca_bundle=connection.ca_bundle,
    )


def find_connection(session: Session, name: str) -> Connection | None:
    """Return the connection of a name, or None."""
    return session.scalar(select(Connection).where(Connection.name == name))


@dataclass(frozen=True)
class StaleCatalog:
    """A connection whose catalog became stale, and when its tools were last listed."""

    connection_id: str
    synced_at: datetime | None


def mark_stale(session: WriteSession, connection_id: str) -> StaleCatalog | None:
    """Note that a connection's stored tools are out of date; None where that is known already.

    Of all workers that hear of one change, one gets the answer, and sees to the refresh.
    """
    row = session.execute(
        update(Connection)
        .where(Connection.id == connection_id, Connection.stale_at.is_(None))
        .values(stale_at=utc_now())
        .returning(Connection.id, Connection.synced_at)
    ).one_or_none()
    return None if row is None else StaleCatalog(*row)


def clear_stale(session: WriteSession, connection_id: str) -> None:
    """Forget that a connection's tools are out of date: they are about to be listed."""
    session.execute(
        update(Connection)
        .where(Connection.id == connection_id, Connection.stale_at.is_not(None))
        .values(stale_at=None)
    )


def load_stale(session: Session, before: datetime) -> tuple[StaleCatalog, ...]:
    """Return the connections whose tools are out of date since before `before`."""
    rows = session.execute(
        select(Connection.id, Connection.synced_at).where(
            Connection.stale_at < before, Connection.enabled.is_(True)
        )
    )
    return tuple(StaleCatalog(*row) for row in rows)


_ALL = select(Connection).order_by(Connection.name)


def load_connections(session: Session) -> tuple[Connection, ...]:
    """Return every connection by name."""
    return tuple(session.scalars(_ALL))


_CONNECTIONS = table_of(Connection)
_RULES = select(
    _CONNECTIONS.c.name,
    _CONNECTIONS.c.enabled,
    _CONNECTIONS.c.tools_to_execute,
    _CONNECTIONS.c.open_to_all_keys,
    _CONNECTIONS.c.version,
).order_by(_CONNECTIONS.c.name)


def load_connection_rules(session: Session) -> dict[str, ConnectionRules]:
    """Return what `decide` needs to know of every connection, by name: much less than the whole rows."""
    rows = session.connection().execute(_RULES)
    return {
        name: ConnectionRules(
            name, enabled, None if tools is None else tuple(tools), open_to_all, version or 0
        )
        for name, enabled, tools, open_to_all, version in rows
    }
