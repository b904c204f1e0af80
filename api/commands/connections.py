"""`sluicegate connections`: connections to MCP servers."""

import ipaddress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from api.commands.failures import CommandFailed, UsageFailed
from api.commands.option_groups import with_groups
from api.commands.output import print_facts, print_json, print_line, print_note, print_table, when
from api.commands.server import Admin
from api.configuration.loading import References
from api.configuration.problems import DocumentProblem
from governance.canonical import JSON
from governance.codes import IdempotencyClass

CONNECTIONS = "/api/v1/mcp/clients"

app = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A connection's name: lower-case letters, digits, _.")
]


class Network(StrEnum):
    """Where the server may be."""

    PUBLIC = "public"
    PRIVATE = "private"
    LOOPBACK = "loopback"


class SessionScope(StrEnum):
    """What shares one MCP session."""

    KEY = "key"
    BINDING = "binding"
    CONVERSATION = "conversation"


class Transport(StrEnum):
    """How requests travel."""

    STREAMABLE_HTTP = "streamable_http"
    HTTP_SSE = "http_sse"


class Elicitation(StrEnum):
    """What a tool is told that asks for a person's input."""

    NONE = "none"
    DECLINE = "decline"


class OnSessionLoss(StrEnum):
    """What follows when the server has forgotten a session."""

    RETRY_ONCE = "retry_once"
    REPORT = "report"


class EventStream(StrEnum):
    """When the standalone stream is opened."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be set of a connection; what is not given keeps its value or default."""

    network: Annotated[
        Network | None, typer.Option(help="Which addresses may be dialled (default public).")
    ] = None
    tools: Annotated[
        str | None,
        typer.Option(help="What may be executed: exact names by comma, `*` for all, '' for none (default)."),
    ] = None
    open_to_all: Annotated[
        bool | None,
        typer.Option("--open/--closed", help="Let keys use it whose own configuration leaves it out."),
    ] = None
    timeout: Annotated[float | None, typer.Option(help="Seconds that a tool may take.")] = None
    idempotency: Annotated[
        IdempotencyClass | None, typer.Option(help="What repeating its tools does (default unsafe).")
    ] = None
    session_scope: Annotated[SessionScope | None, typer.Option(help="What shares one MCP session.")] = None
    on_session_loss: Annotated[
        OnSessionLoss | None, typer.Option(help="What follows when the server forgot the session.")
    ] = None
    event_stream: Annotated[
        EventStream | None, typer.Option(help="When the standalone stream is opened.")
    ] = None
    protocol_version: Annotated[str | None, typer.Option(help="`auto`, or a version such as 2025-11-25.")] = (
        None
    )
    transport: Annotated[
        Transport | None, typer.Option(help="How requests travel; `http_sse` is that of 2024-11-05.")
    ] = None
    elicitation: Annotated[
        Elicitation | None, typer.Option(help="What a tool is told that asks for a person's input.")
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SOURCE",
            help="A header for every request, its value from env:VARIABLE or file:PATH; repeatable.",
        ),
    ] = None
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Send no header of ours any more.")] = False
    ca_bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM certificates; the server must be certified by one of them, not by the system's.",
        ),
    ] = None
    no_ca_bundle: Annotated[
        bool, typer.Option("--no-ca-bundle", help="Trust whom the system trusts again.")
    ] = False
    refusal_status: Annotated[
        list[int] | None, typer.Option(help="A status that proves that a call did not run; repeatable.")
    ] = None

    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Calls at once, of all workers together (default any number).")
    ] = None
    queue_timeout: Annotated[
        float | None, typer.Option(help="Seconds that a call waits for its turn (default 30).")
    ] = None

    def to_json(self) -> dict[str, Any]:
        """Return the given settings as the control plane takes them."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if given.pop("no_headers"):
            given["auth"] = {"kind": "none"}
        if path := given.pop("ca_bundle", None):
            given["ca_bundle"] = _read_bundle(path)
        if given.pop("no_ca_bundle"):
            given["ca_bundle"] = None
        if headers := given.pop("header", None):
            given["auth"] = {"kind": "shared", "headers": _read_headers(headers)}
        names = {
            "tools": "tools_to_execute",
            "open_to_all": "open_to_all_keys",
            "timeout": "tool_timeout_s",
            "queue_timeout": "queue_timeout_s",
            "refusal_status": "refusal_statuses",
        }
        if "tools" in given:
            given["tools"] = [tool for tool in given["tools"].split(",") if tool]
        if not given.get("refusal_status"):
            given.pop("refusal_status", None)
        return {names.get(name, name): value for name, value in given.items()}


@app.command()
@with_groups
def add(
    admin: Admin,
    settings: Settings,
    name: Name,
    address: Annotated[str, typer.Argument(metavar="URL", help="The MCP server's URL.")],
) -> None:
    """Add a connection and find out what its server offers; only what --tools names may be executed.

    Where the server cannot be used, the connection is kept and the status is 1.
    """
    body = {"name": name, "url": address, **settings.to_json()}
    with admin.server() as server:
        added = server.send("POST", CONNECTIONS, body=body).json()
    _show(admin, added)
    _check(added, "added")


@app.command("list")
@with_groups
def list_connections(admin: Admin) -> None:
    """List the connections."""
    with admin.server() as server:
        found = server.pages(CONNECTIONS)
    if admin.as_json:
        print_json(found)
        return
    print_table(
        ("name", "url", "enabled", "health", "tools", "may execute", "last contact"),
        [
            (
                one["name"],
                one["url"],
                one["enabled"],
                one["health"],
                one["tool_count"],
                one["tools_to_execute"] or "(none)",
                when(one["synced_at"]),
            )
            for one in found
        ],
        empty="There are no connections; `sluicegate connections add NAME URL` makes one.",
    )


@app.command()
@with_groups
def show(admin: Admin, name: Name) -> None:
    """Show a connection, its settings and what the last contact showed."""
    with admin.server() as server:
        _show(admin, server.get(path_of(name)))


@app.command("set")
@with_groups
def set_connection(
    admin: Admin,
    settings: Settings,
    name: Name,
    address: Annotated[str | None, typer.Option("--to-url", help="A new URL of the MCP server.")] = None,
) -> None:
    """Change a connection's settings; what is not given stays."""
    changes = settings.to_json() | ({} if address is None else {"url": address})
    if not changes:
        raise UsageFailed("nothing to change: give at least one setting, such as --tools")
    _edit(admin, name, changes)


@app.command()
@with_groups
def disable(admin: Admin, name: Name) -> None:
    """Hide a connection's tools and refuse their calls until it is enabled again."""
    _edit(admin, name, {"enabled": False})


@app.command()
@with_groups
def enable(admin: Admin, name: Name) -> None:
    """Offer a connection's tools again."""
    _edit(admin, name, {"enabled": True})


@app.command()
@with_groups
def refresh(admin: Admin, name: Name) -> None:
    """Contact the server again and take over the tools that it has now; where that fails, the status is 1."""
    with admin.server() as server:
        found = server.send("POST", path_of(name, "refresh")).json()
    _show(admin, found)
    _check(found, "kept")


@app.command()
@with_groups
def remove(admin: Admin, name: Name) -> None:
    """Remove a connection with its tools and the grants on it; its rounds and audit rows stay."""
    with admin.server() as server:
        answer = server.send("DELETE", path_of(name))
    print_note(f"Connection {name} is removed.")
    if admin.as_json and answer.content:
        print_json(answer.json())


@app.command()
@with_groups
def tools(admin: Admin, name: Name) -> None:
    """List a connection's tools as rounds would take them now."""
    with admin.server() as server:
        found = server.get(path_of(name, "tools"))
    if admin.as_json:
        print_json(found)
        return
    print_table(
        ("tool", "upstream name", "may execute", "parallel", "timeout", "repeats"),
        [
            (
                tool["name"],
                tool["upstream_name"],
                tool["on_connection_list"],
                tool["parallel_safe"],
                f"{tool['timeout_s']:g} s",
                tool["idempotency"],
            )
            for tool in found["tools"]
        ],
        empty="The server offers no usable tools.",
    )
    _note_dropped(found["dropped_tools"])


def _read_headers(options: list[str]) -> dict[str, str]:
    """Read the values of headers from where the options say; a value never stands on a command line."""
    sources: dict[str, JSON] = {}
    for option in options:
        name, equals, source = option.partition("=")
        if not equals or not source.startswith(("env:", "file:")):
            raise UsageFailed(
                f"--header {name[:60]}: write {name[:60]}=env:VARIABLE or {name[:60]}=file:PATH"
            )
        sources[name] = source
    references = References(Path())
    try:
        return {name: str(references.walk(source, (name,))) for name, source in sources.items()}
    except DocumentProblem as problem:
        raise UsageFailed(f"--header {problem}") from problem


def _read_bundle(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageFailed(f"--ca-bundle: {str(path)!r} cannot be read: {reason}") from error


def path_of(name: str, *below: str) -> str:
    """Return the path of a connection, or of something below it."""
    return "/".join([CONNECTIONS, quote(name, safe=""), *below])


def _edit(admin: Admin, name: str, changes: dict[str, Any]) -> None:
    with admin.server() as server:
        _show(admin, server.send("PATCH", path_of(name), body=changes).json())


def _show(admin: Admin, connection: dict[str, Any]) -> None:
    if admin.as_json:
        print_json(connection)
        return
    failure = connection["last_failure"]
    print_facts(
        [
            ("Name", connection["name"]),
            ("URL", connection["url"]),
            ("Network", connection["network"]),
            ("Enabled", connection["enabled"]),
            ("Health", connection["health"]),
            ("Last failure", failure and f"{failure['stage']}: {failure['message']} [{failure['code']}]"),
            ("Tools", connection["tool_count"]),
            ("May execute", connection["tools_to_execute"] or "(none): give --tools"),
            ("Beside key configurations", connection["open_to_all_keys"]),
            ("Tool timeout", f"{connection['tool_timeout_s']:g} s"),
            ("Headers", ", ".join(connection["auth"].get("headers", ())) or "(none)"),
            ("Certified by", _authorities(connection["ca_bundle"])),
            ("Repeats", connection["idempotency"]),
            ("Session", f"{connection['session_scope']}, on loss {connection['on_session_loss']}"),
            ("Protocol", connection["protocol_version"]),
            ("Last contact", when(connection["synced_at"]) or None),
        ]
    )
    sync = connection.get("sync")
    if sync is not None and sync["state"] != "finished":
        print_line(f"The server is still being asked for its tools ({sync['state']}).")
    _note_dropped(connection["dropped_tools"])


def _authorities(bundle: str | None) -> str:
    if bundle is None:
        return "whom the system trusts"
    return f"one of {bundle.count('-----BEGIN ')} in its own bundle"


def _check(connection: dict[str, Any], done: str) -> None:
    """Say what to do about a server that could not be used.

    Raises:
        CommandFailed: the contact that the command made has failed.
    """
    sync = connection.get("sync")
    if sync is None or sync["state"] != "finished" or sync["ok"] is not False:
        return
    name, failure = connection["name"], connection["last_failure"] or sync["failure"]
    network = fitting_network(connection["url"])
    hints = [f"`sluicegate connections refresh {name}` tries again"]
    if failure["code"] in {"endpoint_refused", "address_refused"} and network not in {
        None,
        connection["network"],
    }:
        hints = [f"if it is meant to be there: `sluicegate connections set {name} --network {network}`"]
    elif failure["stage"] == "connect":
        hints.insert(0, f"is a server running at {connection['url']}?")
    problem = f"its server cannot be used: {failure['message']} [{failure['code']}]"
    raise CommandFailed("\n  ".join([f"connection {name} is {done}, but {problem}", *hints]))


def fitting_network(url: str) -> str | None:
    """Return the network whose addresses the host of a URL is among; None where only resolving tells."""
    host = httpx.URL(url).host
    if host == "localhost" or host.endswith(".localhost"):
        return Network.LOOPBACK.value
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if address.is_loopback:
        return Network.LOOPBACK.value
    if address.is_link_local or address.is_unspecified:
        return None
    return Network.PRIVATE.value if address.is_private else Network.PUBLIC.value


def _note_dropped(dropped: list[dict[str, str]]) -> None:
    for tool in dropped:
        print_note(f"note: tool {tool['name']!r} cannot be used: {tool['reason']}")
