"""Reads the `mcpServers` files that MCP clients share, and says what becomes of each server. Pure: no I/O."""

import hashlib
import ipaddress
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from api.configuration.problems import DocumentProblem
from governance.canonical import JSON, is_array, is_object
from governance.connection_auth import AuthKind, headers_problem
from governance.names import check_connection_name
from models.connection import Network, Transport

HTTP_TYPES: Final = frozenset({"http", "streamable-http", "streamable_http", "streamableHttp"})
SSE_TYPE: Final = "sse"

_ILLEGIBLE: Final = re.compile(r"[^a-z0-9]+")
_VARIABLE: Final = re.compile(r"\$\{[^}]*\}")


@dataclass(frozen=True)
class HTTPEntry:
    """A server that can be connected to; `notes` say what of its entry is not taken over."""

    listed_name: str
    name: str
    url: str
    network: Network
    transport: Transport
    headers: Mapping[str, str] = field(repr=False)
    notes: tuple[str, ...]

    @property
    def body(self) -> dict[str, JSON]:
        """What the control plane takes to make the connection; nothing may be executed yet."""
        body: dict[str, JSON] = {
            "name": self.name,
            "url": self.url,
            "network": self.network.value,
            "transport": self.transport.value,
        }
        if self.headers:
            body["auth"] = {"kind": AuthKind.SHARED.value, "headers": dict(self.headers)}
        return body


@dataclass(frozen=True)
class StdioEntry:
    """A server that is a program: it needs a bridge that serves it over HTTP."""

    listed_name: str
    name: str
    command: tuple[str, ...]
    variables: tuple[str, ...]

    def bridge(self, port: int) -> tuple[str, str]:
        """Return the command of a bridge on loopback, and the one that connects it.

        The values of the program's variables stay where they are; only their names are shown.
        """
        start = shlex.join(["mcp-proxy", "--host", "127.0.0.1", "--port", str(port), "--", *self.command])
        url = f"http://127.0.0.1:{port}/mcp"
        return start, f"sluicegate connections add {self.name} {url} --network loopback"


@dataclass(frozen=True)
class UnusableEntry:
    """An entry that is neither."""

    listed_name: str
    reason: str


Entry = HTTPEntry | StdioEntry | UnusableEntry


def read_servers(value: JSON) -> tuple[Entry, ...]:
    """Return the servers of a file, in its order; `mcpServers` and `servers` are both in use.

    Raises:
        DocumentProblem: the file has no such list.
    """
    listed: JSON = None
    if is_object(value):
        listed = value.get("mcpServers", value.get("servers"))
    if not is_object(listed):
        raise DocumentProblem('the file has no object "mcpServers"')
    names = connection_names(list(listed))
    return tuple(_entry(name, names[name], entry) for name, entry in listed.items())


def connection_names(listed: Sequence[str]) -> dict[str, str]:
    """Return a connection name for each name of a file: legible, allowed, distinct, whatever the order."""
    plain = {name: _plain(name) for name in listed}
    taken = list(plain.values())
    return {
        name: made
        if taken.count(made) == 1
        else f"{made[:23]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        for name, made in plain.items()
    }


def _plain(name: str) -> str:
    made = _ILLEGIBLE.sub("_", name.lower()).strip("_")[:32].strip("_")
    if check_connection_name(made) is None:
        return made
    return f"mcp_{made}"[:32].strip("_")


def _entry(listed_name: str, name: str, entry: JSON) -> Entry:
    if not is_object(entry):
        return UnusableEntry(listed_name, "the entry is not an object")
    kind, url = entry.get("type", entry.get("transport")), entry.get("url", entry.get("serverUrl"))
    if isinstance(url, str):
        return _http(listed_name, name, url, kind, entry)
    command, arguments = entry.get("command"), entry.get("args", [])
    if isinstance(command, str) and is_array(arguments):
        variables = entry.get("env")
        return StdioEntry(
            listed_name,
            name,
            (command, *(str(argument) for argument in arguments)),
            tuple(variables) if is_object(variables) else (),
        )
    return UnusableEntry(listed_name, "the entry has neither a url nor a command")


def _http(listed_name: str, name: str, url: str, kind: JSON, entry: Mapping[str, JSON]) -> Entry:
    if _VARIABLE.search(url):
        return UnusableEntry(listed_name, "its url holds a variable that only its own client can fill in")
    network = network_of(url)
    if network is None:
        return UnusableEntry(listed_name, "its url is not one of http or https")
    if kind is not None and kind not in HTTP_TYPES and kind != SSE_TYPE:
        return UnusableEntry(listed_name, f"its transport {str(kind)[:40]!r} is unknown")
    headers, notes = _headers(name, entry.get("headers"))
    if entry.get("disabled") is True:
        notes.append("it is disabled in the file; the connection is made enabled and grants nothing")
    transport = Transport.HTTP_SSE if kind == SSE_TYPE else Transport.STREAMABLE_HTTP
    return HTTPEntry(listed_name, name, url, network, transport, headers, tuple(notes))


def _headers(name: str, listed: JSON) -> tuple[dict[str, str], list[str]]:
    """Return the headers that can be taken over, all or none, and what is to be said of them."""
    if not is_object(listed) or not listed:
        return {}, []
    given = {header: value for header, value in listed.items() if isinstance(value, str)}
    shown = ", ".join(sorted(listed))
    if len(given) == len(listed) and not any(_VARIABLE.search(value) for value in given.values()):
        problem = headers_problem(given)
        if problem is None:
            return given, [f"its headers ({shown}) are sent with each request, and stored sealed"]
        return {}, [f"its headers ({shown}) are not imported: {problem}"]
    hint = f"sluicegate connections set {name} --header NAME=env:VARIABLE"
    return {}, [f"its headers ({shown}) hold variables of its own client and are not imported: {hint}"]


def network_of(url: str) -> Network | None:
    """Return where a URL leads as far as its host alone tells; None for what is no URL of a server.

    A name is taken for public: if it leads elsewhere, dialling it is refused until an operator says so.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    if host == "localhost" or host.endswith(".localhost"):
        return Network.LOOPBACK
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return Network.PUBLIC
    if address.is_loopback:
        return Network.LOOPBACK
    return Network.PRIVATE if address.is_private else Network.PUBLIC
