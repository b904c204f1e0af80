"""A running server as the commands use it: where it is, who asks, and what its refusals say."""

import ipaddress
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import httpx
import typer

from api.commands.data_files import DEFAULT_DATA_DIR, find_server, find_token
from api.commands.failures import REFUSED, CommandFailed, ServerNotReachable, UsageFailed
from governance.canonical import JSON, is_array, is_object

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 330.0
"""Longer than the server lets any request wait for its round."""

WHERE = "Which server"
"""The heading that these options have in the help."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A data folder, and how to show what is found."""

    data_dir: Annotated[
        Path,
        typer.Option(envvar="SLUICEGATE_DATA_DIR", help="The data folder of an `up`.", rich_help_panel=WHERE),
    ] = DEFAULT_DATA_DIR
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=WHERE)
    ] = False


@dataclass(frozen=True, kw_only=True)
class Where(Place):
    """Which server to ask, and how to show what it says."""

    url: Annotated[
        str | None,
        typer.Option(
            envvar="SLUICEGATE_URL",
            help="The server's URL; without it, that of the `up` on the data folder.",
            rich_help_panel=WHERE,
        ),
    ] = None


AdminToken = Annotated[
    str | None,
    typer.Option(
        envvar="SLUICEGATE_ADMIN_TOKEN",
        help="The admin token; without it, the one kept in the data folder.",
        rich_help_panel=WHERE,
    ),
]
KeySecret = Annotated[
    str | None,
    typer.Option(
        envvar="SLUICEGATE_KEY",
        help="An API key's secret; better given as SLUICEGATE_KEY, where `ps` does not show it.",
        rich_help_panel=WHERE,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Admin(Where):
    """A server, asked by its operator."""

    admin_token: AdminToken = None

    def server(self) -> "Server":
        """Return the control plane.

        Raises:
            UsageFailed: there is no token for this server.
            ServerNotReachable: nothing says where the server is.
        """
        url = url_of(self)
        token = self.admin_token or (find_token(self.data_dir) if is_local(url) else None)
        if token is None:
            # The token of a data folder is never sent to another machine.
            raise UsageFailed("no admin token: give --admin-token or set SLUICEGATE_ADMIN_TOKEN")
        return Server(url, token, as_json=self.as_json)


@dataclass(frozen=True, kw_only=True)
class Caller(Where):
    """A server, asked by the holder of an API key."""

    key: KeySecret = None

    def server(self) -> "Server":
        """Return the data plane.

        Raises:
            UsageFailed: no key is given.
            ServerNotReachable: nothing says where the server is.
        """
        if self.key is None:
            raise UsageFailed(
                "no API key: set SLUICEGATE_KEY or give --key (`sluicegate keys create NAME` makes one)"
            )
        return Server(url_of(self), self.key, as_json=self.as_json)


@dataclass(frozen=True, kw_only=True)
class Anyone(Admin):
    """A server, asked by the holder of an API key where one is given, else by the operator."""

    key: KeySecret = None

    @property
    def prefix(self) -> str:
        """What the paths of this plane begin with, before `/v1`."""
        return "/api" if self.key is None else ""

    def server(self) -> "Server":
        """Return the data plane with a key, else the control plane."""
        if self.key is None:
            return super().server()
        return Server(url_of(self), self.key, as_json=self.as_json)


class Server:
    """Requests to one server with one token; a context that closes its connections.

    Every request raises:
        CommandFailed: the server refused; its code, sentence and request id are in the message.
        ServerNotReachable: nobody answers, or somebody who is not Sluicegate.
    """

    def __init__(self, url: str, token: str, *, as_json: bool) -> None:
        self.url = url
        self.token = token
        self._as_json = as_json
        self._client = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # A proxy of the environment has no business between two processes of this machine.
            trust_env=not is_local(url),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._client.close()

    def get(self, path: str, params: Mapping[str, str | int | list[str]] | None = None) -> Any:
        """Return the JSON of a GET."""
        return self.send("GET", path, params=params).json()

    def pages(self, path: str, limit: int | None = None) -> list[Any]:
        """Return the items of every page of a list, or of as many pages as hold `limit` items."""
        items: list[Any] = []
        cursor: str | None = None
        while True:
            page = self.get(path, {} if cursor is None else {"cursor": cursor})
            items += page["items"]
            cursor = page["next_cursor"]
            if cursor is None or (limit is not None and len(items) >= limit):
                return items[:limit]

    def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, str | int | list[str]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request, with a JSON body unless it is None; return the answer that is not a refusal."""
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        typed = {"content-type": "application/json"} if content is not None else {}
        try:
            answer = self._client.request(
                method, path, content=content, params=params, headers={**typed, **(headers or {})}
            )
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise self.unreachable(exc) from exc
        if answer.is_success:
            return answer
        raise self.refusal(answer)

    def stream(self, path: str, headers: Mapping[str, str]) -> Any:
        """Open a GET whose answer is read as it comes; a context manager that gives the response."""
        return self._client.stream("GET", path, headers=dict(headers))

    def refusal(self, answer: httpx.Response) -> CommandFailed:
        """Return what to raise for an answer that is a refusal."""
        try:
            error = answer.json()["error"]
            sentence = f"{error['message']} [{error['code']}, request {error['request_id']}]"
            problems = error["details"].get("problems")
            hint = _hint(error["code"], error["details"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return ServerNotReachable(
                f"what answers at {self.url} is not Sluicegate: it says {answer.status_code}"
            )
        if self._as_json:
            sys.stderr.write(f"{answer.text}\n")
            raise typer.Exit(REFUSED)
        lines = problems if is_array(problems) else []
        return CommandFailed("\n".join([sentence, *(f"  - {_one_line(line)}" for line in lines), *hint]))

    def unreachable(self, exc: Exception) -> ServerNotReachable:
        """Return what to raise when nobody answers."""
        return ServerNotReachable(
            f"the server at {self.url} cannot be reached ({exc or type(exc).__name__}):"
            " start it with `sluicegate up`, or name another with --url"
        )


def url_of(where: Where) -> str:
    """Return the URL that was given, else that of the server on the data folder.

    Raises:
        ServerNotReachable: no server runs there.
    """
    if where.url is not None:
        url = where.url.rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise UsageFailed(f"--url {url!r} must begin with http:// or https://")
        return url
    server = find_server(where.data_dir.expanduser().resolve())
    if server is None:
        raise ServerNotReachable(
            f"no server runs on the data folder {str(where.data_dir)!r}: start one with `sluicegate up`,"
            " or name one with --url or SLUICEGATE_URL"
        )
    return server.url


def is_local(url: str) -> bool:
    """Tell whether a URL leads to this machine's loopback."""
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _one_line(problem: JSON) -> str:
    if not is_object(problem):
        return str(problem)
    return ", ".join(f"{name}: {value}" for name, value in problem.items() if value is not None)


def _hint(code: str, details: Mapping[str, Any]) -> list[str]:
    """Return what the details of a refusal say to do next."""
    hints = {
        "admin_token_on_data_plane": "this is the admin token; give a key instead: --key or SLUICEGATE_KEY",
        "data_key_on_control_plane": "this is a key; give the admin token instead: --admin-token",
        "unknown_client": "`sluicegate connections list` shows the connections that there are",
    }
    hint = hints.get(str(details.get("reason")))
    if (code, details.get("what")) == ("conflict", "connection"):
        hint = "`sluicegate connections set NAME …` changes one that is there"
    nearest = details.get("nearest")
    return [*([f"  {hint}"] if hint else []), *([f"  did you mean {nearest}?"] if nearest else [])]
