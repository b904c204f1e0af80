"""`sluicegate keys`: API keys, their secrets and their tool configuration."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from api.commands import key_quotas
from api.commands.failures import UsageFailed
from api.commands.key_names import KEYS, Key, configuration_of, path_of
from api.commands.option_groups import with_groups
from api.commands.output import print_facts, print_json, print_line, print_note, print_table, when
from api.commands.server import Admin

app = typer.Typer(no_args_is_help=True)
tools_app = typer.Typer(no_args_is_help=True, help="The tools that a key may use.")
app.add_typer(tools_app, name="tools")
app.add_typer(key_quotas.app, name="quota")

Name = Annotated[str, typer.Argument(help="A name that no other key has.")]
Overlap = Annotated[int, typer.Option(min=0, help="Seconds that the secrets before stay valid.")]
Grants = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONNECTION=TOOLS...",
        help="Tools by comma, `*` for all, nothing for none: 'orders=find_order,refund_order' 'reports=*'.",
    ),
]
RequestFilter = Annotated[
    str | None, typer.Option(help="What filter headers do beside a tool configuration: override or narrow.")
]
MayExplain = Annotated[
    bool | None, typer.Option("--may-explain/--may-not-explain", help="Let callers see why tools are hidden.")
]


@app.command()
@with_groups
def create(
    admin: Admin, name: Name, request_filter: RequestFilter = None, may_explain: MayExplain = None
) -> None:
    """Make a key; its secret is shown this once."""
    body = _without_none({"name": name, "request_filter": request_filter, "may_explain": may_explain})
    with admin.server() as server:
        made = server.send("POST", KEYS, body=body).json()
    _show_secret(admin, made)


@app.command("list")
@with_groups
def list_keys(admin: Admin) -> None:
    """List the keys, newest first."""
    with admin.server() as server:
        keys = server.pages(KEYS)
    if admin.as_json:
        print_json(keys)
        return
    print_table(
        ("id", "name", "enabled", "tool config", "secrets", "created"),
        [
            (
                key["id"],
                key["name"],
                key["enabled"],
                "own" if key["has_tool_config"] else "none: connections decide",
                [secret["hint"] for secret in key["secrets"]],
                when(key["created_at"]),
            )
            for key in keys
        ],
        empty="There are no keys; `sluicegate keys create NAME` makes one.",
    )


@app.command()
@with_groups
def show(admin: Admin, key: Key) -> None:
    """Show a key, its secrets' hints and its settings."""
    with admin.server() as server:
        found = server.get(path_of(server, key))
    if admin.as_json:
        print_json(found)
        return
    print_facts(
        [
            ("Id", found["id"]),
            ("Name", found["name"]),
            ("Enabled", found["enabled"]),
            ("Request filter", found["request_filter"]),
            ("May explain", found["may_explain"]),
            ("Own tool config", found["has_tool_config"]),
            ("Created", when(found["created_at"])),
        ]
    )
    print_table(
        ("secret", "made", "expires"),
        [
            (one["hint"], when(one["created_at"]), when(one["expires_at"]) or "never")
            for one in found["secrets"]
        ],
        empty="It has no secrets; `sluicegate keys rotate` makes one.",
    )


@app.command()
@with_groups
def rotate(admin: Admin, key: Key, overlap: Overlap = 0) -> None:
    """Give a key a new secret, shown this once; those before end after the overlap."""
    with admin.server() as server:
        made = server.send("POST", f"{path_of(server, key)}/secrets", body={"overlap_s": overlap}).json()
    _show_secret(admin, made)
    if not admin.as_json:
        _note_old_secrets(made)


@app.command()
@with_groups
def disable(admin: Admin, key: Key) -> None:
    """Refuse a key's requests until it is enabled again."""
    _edit(admin, key, {"enabled": False}, "disabled")


@app.command()
@with_groups
def enable(admin: Admin, key: Key) -> None:
    """Take a key's requests again."""
    _edit(admin, key, {"enabled": True}, "enabled")


@app.command("set")
@with_groups
def set_key(
    admin: Admin,
    key: Key,
    name: Annotated[str | None, typer.Option(help="A new name.")] = None,
    request_filter: RequestFilter = None,
    may_explain: MayExplain = None,
) -> None:
    """Change a key's name or settings; the id stays."""
    changes = _without_none({"name": name, "request_filter": request_filter, "may_explain": may_explain})
    if not changes:
        raise UsageFailed("nothing to change: give --name, --request-filter or --may-explain")
    _edit(admin, key, changes, "changed")


@app.command()
@with_groups
def delete(admin: Admin, key: Key) -> None:
    """Delete a key, its secrets and its tool configuration; its rounds and audit rows stay."""
    with admin.server() as server:
        server.send("DELETE", path_of(server, key))
    print_note(f"Key {key} is deleted.")


@tools_app.command("get")
@with_groups
def get_tools(admin: Admin, key: Key) -> None:
    """Show which tools a key's configuration grants."""
    with admin.server() as server:
        _show_config(admin, server.get(configuration_of(server, key, "tools")))


@tools_app.command("set")
@with_groups
def set_tools(admin: Admin, key: Key, grants: Grants = None) -> None:
    """Set a key's whole tool configuration; connections left out are blocked, and no grants block all."""
    body = {"mcp_configs": [_grant(text) for text in grants or []]}
    with admin.server() as server:
        _show_config(admin, server.send("PUT", configuration_of(server, key, "tools"), body=body).json())


@tools_app.command("clear")
@with_groups
def clear_tools(
    admin: Admin,
    key: Key,
    yes: Annotated[bool, typer.Option("--yes", help="Widen access without being asked.")] = False,
) -> None:
    """Remove a key's tool configuration: it may then use whatever the connections offer."""
    if not yes:
        typer.confirm(f"Key {key} may then use every tool that the connections offer. Go on?", abort=True)
    with admin.server() as server:
        path = configuration_of(server, key, "tools")
        etag = server.get(path)["etag"]
        server.send("DELETE", path, headers={"if-match": etag})
    print_note(f"Key {key} has no tool configuration any more.")


def _edit(admin: Admin, key: str, changes: dict[str, Any], done: str) -> None:
    with admin.server() as server:
        edited = server.send("PATCH", path_of(server, key), body=changes).json()
    if admin.as_json:
        print_json(edited)
    else:
        print_line(f"Key {edited['name']} ({edited['id']}) is {done}.")


def _show_secret(admin: Admin, made: dict[str, Any]) -> None:
    if admin.as_json:
        print_json(made)
        return
    print_facts([("Id", made["id"]), ("Name", made["name"]), ("Secret", made["secret"])])
    print_note("The secret is shown this once; give it to the caller as SLUICEGATE_KEY.")


def _note_old_secrets(made: dict[str, Any]) -> None:
    """Say until when callers can still use the secrets that they have."""
    now = datetime.now(UTC)
    ending = [one for one in made["secrets"] if one["expires_at"]]
    valid = [one for one in ending if datetime.fromisoformat(one["expires_at"]) > now]
    for secret in valid:
        print_note(f"The secret {secret['hint']} stays valid until {when(secret['expires_at'])}.")
    if ending and not valid:
        print_note("The secrets before are not valid any more.")


def _show_config(admin: Admin, config: dict[str, Any]) -> None:
    if admin.as_json:
        print_json(config)
        return
    if config["mcp_configs"] is None:
        print_line("The key has no tool configuration: it may use what the connections offer.")
        return
    print_table(
        ("connection", "tools"),
        [(entry["client"], entry["tools_to_execute"]) for entry in config["mcp_configs"]],
        empty="The configuration grants nothing.",
    )
    for unmatched in config["unmatched"]:
        print_note(f"note: {unmatched['client']} has no tool {unmatched['tool']!r} now; the grant is kept.")


def _grant(text: str) -> dict[str, Any]:
    connection, equals, tools = text.partition("=")
    if not equals or not connection:
        raise UsageFailed(f"{text!r} is not CONNECTION=TOOLS, such as 'orders=find_order' or 'orders=*'")
    return {"client": connection, "tools_to_execute": [tool for tool in tools.split(",") if tool]}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
