"""The table of all commands, each of whose modules is loaded only when it is the one that was asked for.

`sluicegate keys list` must not pay for the worker's imports (1 s and more), so the table holds a line of help
for each command and the name of its module, in which `app` is the command.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from api.commands.failures import CommandFailed


@dataclass(frozen=True)
class Entry:
    """Where a command is, and its line in the overview."""

    module: str
    help: str
    panel: str


RUN = "Run"
USE = "Use a running server"
CONFIGURE = "Configure and prove"

COMMANDS: Mapping[str, Entry] = {
    "up": Entry("up", "Run everything in one process: engine, database, API and worker.", RUN),
    "serve": Entry("serve", "Run the API against a Temporal server and a database.", RUN),
    "worker": Entry("worker", "Run a worker against a Temporal server and a database.", RUN),
    "migrate": Entry("migrate", "Bring the database, and Temporal's search attributes, up to date.", RUN),
    "status": Entry("status", "Show where the server of this data folder is.", USE),
    "keys": Entry("keys", "API keys, their secrets and the tools they may use.", USE),
    "connections": Entry("connections", "Connections to MCP servers.", USE),
    "providers": Entry("providers", "Providers of chat completions and their models.", USE),
    "policies": Entry("policies", "Which tools may run beside others.", USE),
    "tools": Entry("tools", "The tools that an API key may use.", USE),
    "execute": Entry("execute", "Call one tool.", USE),
    "rounds": Entry("rounds", "Rounds of tool calls.", USE),
    "outcomes": Entry("outcomes", "Calls of which nobody knows whether they ran.", USE),
    "usage": Entry("usage", "What was asked for, how it ended and what it cost.", USE),
    "reconcile": Entry("reconcile", "Repair at once what crashes left behind.", USE),
    "explain": Entry("explain", "Say for every tool whether a key may use it, and why not.", USE),
    "apply": Entry("apply", "Make the gateway as a configuration file says.", CONFIGURE),
    "import": Entry("import_config", "Take over the servers of an mcp.json.", CONFIGURE),
    "audit": Entry("audit", "The audit trail: its head, and the proof that it is whole.", CONFIGURE),
    "verify": Entry("verify", "Prove the guarantees with real calls to a server of its own.", CONFIGURE),
}


class LazyGroup(TyperGroup):
    """A group whose commands are stand-ins, with help and nothing else, until one is run."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for name, entry in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=entry.help, rich_help_panel=entry.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Load the command that the arguments begin with; refuses an unknown one."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else load(name), rest


def load(name: str) -> Any:
    """Import a command's module and return the command."""
    app: typer.Typer = import_module(f"api.commands.{COMMANDS[name].module}").app
    command = typer.main.get_command(app)
    command.name = name
    return command


root = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        typer.echo(f"sluicegate {metadata.version('sluicegate')}")
        raise typer.Exit


@root.callback(
    epilog="Exit status: 0 done, 1 refused or failed, 2 wrong command line, 3 server not reachable."
)
def sluicegate(
    *,
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=show_version)] = False,
) -> None:
    """Run the tool calls of LLM agents: governed, durable, auditable."""


def run() -> None:
    """Run the command line, and turn what a command refuses into a line and an exit status."""
    try:
        root(prog_name="sluicegate")
    except CommandFailed as failed:
        sys.stderr.write(f"error: {failed}\n")
        sys.exit(failed.status)
