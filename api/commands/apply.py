"""`sluicegate apply`: make a running gateway as a file says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from api.commands.connections import CONNECTIONS
from api.commands.failures import REFUSED, CommandFailed, UsageFailed
from api.commands.key_names import KEYS
from api.commands.option_groups import with_groups
from api.commands.output import clean, print_json, print_line
from api.commands.policies import OVERLAYS
from api.commands.server import Admin, Server
from api.configuration.document import Document, read_document
from api.configuration.loading import References, parse_yaml
from api.configuration.plan import Action, Change, Current, Kind, plan
from api.configuration.problems import DocumentProblem

app = typer.Typer()

SIGNS = {Action.CREATE: "+", Action.EDIT: "~", Action.REMOVE: "-"}


GUARDRAILS = "/api/v1/guardrails"

SETTINGS = {
    "idempotency": ("idempotency", "idempotency"),
    "timeout_s": ("timeout", "timeout_s"),
    "requires_approval": ("approval", "required"),
}
"""Where each setting of a tool is put below its definition, and the field of the body."""

REQUESTS = {
    (Kind.CONNECTION, Action.CREATE): ("POST", CONNECTIONS),
    (Kind.CONNECTION, Action.EDIT): ("PATCH", f"{CONNECTIONS}/{{name}}"),
    (Kind.CONNECTION, Action.REMOVE): ("DELETE", f"{CONNECTIONS}/{{name}}"),
    (Kind.KEY, Action.CREATE): ("POST", KEYS),
    (Kind.KEY, Action.EDIT): ("PATCH", f"{KEYS}/{{key}}"),
    (Kind.KEY, Action.REMOVE): ("DELETE", f"{KEYS}/{{key}}"),
    (Kind.SECRET, Action.EDIT): ("PUT", f"{KEYS}/{{key}}/secrets/{{secret}}"),
    (Kind.TOOLS, Action.EDIT): ("PUT", "/api/v1/mcp/keys/{key}/tools"),
    (Kind.TOOLS, Action.REMOVE): ("DELETE", "/api/v1/mcp/keys/{key}/tools"),
    (Kind.QUOTA, Action.EDIT): ("PUT", "/api/v1/mcp/keys/{key}/quota"),
    (Kind.QUOTA, Action.REMOVE): ("DELETE", "/api/v1/mcp/keys/{key}/quota"),
    (Kind.OVERLAYS, Action.EDIT): ("PUT", OVERLAYS),
    (Kind.GUARDRAILS, Action.EDIT): ("PUT", GUARDRAILS),
}
"""Method and path of every change that a plan can hold."""


@app.command()
@with_groups
def apply(
    admin: Admin,
    file: Annotated[
        Path, typer.Option("-f", "--file", help="The configuration, YAML or JSON; - is standard input.")
    ],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show what differs and change nothing; exit status 1 if anything does."
        ),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove keys and connections that a section of the file leaves out."),
    ] = False,
) -> None:
    """Make connections, keys, grants, tools and overlays as a file says; what it leaves out stays as it is.

    A value `env:NAME` or `file:PATH` is read from there: in connections, and as a key's `secret`. Applying a
    file twice changes nothing the second time. A change that somebody made meanwhile is not overwritten.
    """
    document, references = load(file)
    with admin.server() as server:
        try:
            changes = plan(document, read_current(server, document), references.found, prune=prune)
        except DocumentProblem as problem:
            raise UsageFailed(f"{str(file)!r}: {problem}") from problem
        _show(admin, changes)
        if dry_run:
            raise typer.Exit(REFUSED if changes else 0)
        made = _make(server, changes)
    if admin.as_json:
        print_json({"changes": [change.to_json() for change in changes], "secrets": made})
        return
    for name, secret in made.items():
        print_line(f"The secret of key {name}, shown this once: {secret}")
    print_line(f"{len(changes)} changes made." if changes else "Nothing to change.")


def load(file: Path) -> tuple[Document, References]:
    """Read a configuration file.

    Raises:
        UsageFailed: it cannot be read or cannot be meant; with the place.
    """
    try:
        text = typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text("utf-8")
        references = References(file.parent)
        return read_document(references.resolve(parse_yaml(text)), references.found), references
    except UnicodeDecodeError as exc:
        raise UsageFailed(f"{str(file)!r} is not UTF-8 (byte {exc.start})") from exc
    except OSError as exc:
        raise UsageFailed(f"{str(file)!r} cannot be read: {exc.strerror}") from exc
    except DocumentProblem as problem:
        raise UsageFailed(f"{str(file)!r}: {problem}") from problem


def read_current(server: Server, document: Document) -> Current:
    """Read what a document speaks of from the control plane."""
    keys = {key["name"]: key for key in server.pages(KEYS)}
    wanted = {name: key for name, key in (document.keys or {}).items() if name in keys}
    overlays = server.get(OVERLAYS)
    guardrails: dict[str, Any] = {"guardrails": [], "etag": None}
    if document.guardrails is not None:
        guardrails = server.get(GUARDRAILS)
    connections = {found["name"]: found for found in server.pages(CONNECTIONS)}
    return Current(
        connections=connections,
        rules=_read_rules(server, document, {name: key["id"] for name, key in keys.items()}),
        keys=keys,
        tools={
            name: server.get(f"/api/v1/mcp/keys/{keys[name]['id']}/tools")
            for name, key in wanted.items()
            if key.says_tools
        },
        quotas={
            name: server.get(f"/api/v1/mcp/keys/{keys[name]['id']}/quota")
            for name, key in wanted.items()
            if key.says_quota
        },
        known_secrets=frozenset(
            name
            for name, key in wanted.items()
            if key.secret_hash is not None and _has_secret(server, keys[name]["id"], key.secret_hash)
        ),
        overlays=overlays["overlays"],
        overlays_etag=overlays["etag"],
        settings={
            name: server.get(path) for name in document.tools or {} if (path := _tool_path(server, name))
        },
        guardrails=guardrails["guardrails"],
        guardrails_etag=guardrails["etag"],
    )


def _read_rules(
    server: Server, document: Document, ids: dict[str, str]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the argument rules of what a document names and what is there already."""
    entries = {} if document.argument_rules is None else document.argument_rules.entries()
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for section, name in entries:
        path = rules_path(server, section, name, ids)
        if path is not None:
            found[section, name] = server.get(path)
    return found


def rules_path(server: Server, section: str, name: str, ids: dict[str, str]) -> str | None:
    """Return the path of the argument rules of a key, a connection or a tool; None where it is not there."""
    if section == "keys":
        return f"/api/v1/mcp/keys/{ids[name]}/argument-rules" if name in ids else None
    if section == "connections":
        known = {found["name"] for found in server.pages(CONNECTIONS)}
        return f"{CONNECTIONS}/{quote(name, safe='')}/argument-rules" if name in known else None
    tool = _tool_path(server, name)
    return None if tool is None else f"{tool}/argument-rules"


def _tool_path(server: Server, name: str) -> str | None:
    """Return the path of a tool of the gateway, by its exposed name; None where it is not there."""
    tools = server.get("/api/v1/tools", {"tool_name": name, "scope": "gateway"})["items"]
    return f"/api/v1/tools/{tools[0]['id']}" if tools else None


def _has_secret(server: Server, key_id: str, secret_hash: str) -> bool:
    answer: dict[str, bool] = server.get(f"{KEYS}/{key_id}/secrets/{secret_hash}")
    return answer["registered"]


def _make(server: Server, changes: Sequence[Change]) -> dict[str, str]:
    """Make the changes one by one; return the secrets of keys that were made without one of their own."""
    ids = {key["name"]: key["id"] for key in server.pages(KEYS)} if changes else {}
    brought = {change.name for change in changes if change.kind is Kind.SECRET}
    secrets: dict[str, str] = {}
    for number, change in enumerate(changes):
        try:
            answer = _send(server, change, ids)
        except CommandFailed as failed:
            done = f"{number} of {len(changes)} changes are made; then {_line(change)}"
            raise CommandFailed(f"{done}: {failed}") from failed
        if change.kind is Kind.KEY and change.action is Action.CREATE:
            ids[change.name] = answer["id"]
            if change.name not in brought:
                secrets[change.name] = answer["secret"]
    return secrets


def _send(server: Server, change: Change, ids: dict[str, str]) -> Any:
    if change.kind is Kind.SETTINGS:
        return _put_settings(server, change)
    headers = {} if change.etag is None else {"if-match": change.etag}
    method, path = (
        _rules_request(server, change, ids) if change.kind is Kind.RULES else _request_of(change, ids)
    )
    body = None if change.kind is Kind.SECRET else change.body
    answer = server.send(method, path, body=body, headers=headers)
    return answer.json() if answer.content else None


def _put_settings(server: Server, change: Change) -> None:
    """Put the settings of a tool one after the other, each on what the one before it left."""
    path, etag = _tool_path(server, change.name), change.etag
    if path is None:
        raise CommandFailed("there is no such tool")
    for setting, value in change.body.items():
        place, field = SETTINGS[setting]
        headers = {} if etag is None else {"if-match": etag}
        etag = server.send("PUT", f"{path}/{place}", body={field: value}, headers=headers).json()["etag"]


def _rules_request(server: Server, change: Change, ids: dict[str, str]) -> tuple[str, str]:
    """Return method and path of a change of rules; what they are set on may be made by the same file."""
    section, _, name = change.name.partition("/")
    path = rules_path(server, section, name, ids)
    if path is None:
        raise CommandFailed(f"there is no such {section.removesuffix('s')}")
    return "PUT", path


def _request_of(change: Change, ids: dict[str, str]) -> tuple[str, str]:
    """Return method and path of a change."""
    method, path = REQUESTS[change.kind, change.action]
    return method, path.format(name=quote(change.name, safe=""), key=ids.get(change.name), secret=change.body)


def _show(admin: Admin, changes: Sequence[Change]) -> None:
    if admin.as_json:
        return
    for change in changes:
        print_line(_line(change))
        for field in change.fields:
            if field.shown is not None:
                print_line(f"    {field.name}: {field.shown}")
            elif change.action is Action.CREATE:
                print_line(clean(f"    {field.name}: {field.after}"))
            else:
                print_line(clean(f"    {field.name}: {field.before} -> {field.after}"))


def _line(change: Change) -> str:
    return clean(f"{SIGNS[change.action]} {change.kind.value} {change.name}")
