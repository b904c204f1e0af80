"""`sluicegate providers`: where chat completions are asked for, and under which names of models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from api.commands.connections import Network
from api.commands.failures import UsageFailed
from api.commands.option_groups import with_groups
from api.commands.output import print_json, print_note, print_table
from api.commands.server import Admin
from api.configuration.loading import References
from api.configuration.problems import DocumentProblem

PROVIDERS = "/api/v1/providers"

app = typer.Typer(no_args_is_help=True)

Slug = Annotated[
    str, typer.Argument(metavar="NAME", help="A provider's name: lower-case letters, digits, _-.")
]


@dataclass(frozen=True, kw_only=True)
class Access:
    """How a provider is reached, and what it knows us by."""

    credential: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="From env:VARIABLE or file:PATH.")
    ] = None
    credential_header: Annotated[
        str | None, typer.Option(help="Carries the credential as it is; without it, `Authorization: Bearer`.")
    ] = None
    network: Annotated[
        Network | None, typer.Option(help="Which addresses may be dialled (default public).")
    ] = None

    def to_json(self) -> dict[str, str]:
        """Return what was given as the control plane takes it."""
        given = {
            "credential": None if self.credential is None else _secret(self.credential),
            "credential_header": self.credential_header,
            "network": self.network,
        }
        return {name: value for name, value in given.items() if value is not None}


@app.command()
@with_groups
def add(
    admin: Admin,
    access: Access,
    name: Slug,
    address: Annotated[str, typer.Argument(metavar="URL", help="Up to and with its /v1.")],
    model: Annotated[
        list[str],
        typer.Option(
            metavar="NAME[=UPSTREAM]",
            help="A model: what callers call it, and what the provider calls it if that differs; repeatable.",
        ),
    ],
) -> None:
    """Add a provider of chat completions; nothing is sent to it."""
    aliases = dict(_model(text) for text in model)
    body = {"slug": name, "base_url": address, "model_aliases": aliases, **access.to_json()}
    with admin.server() as server:
        made = server.send("POST", PROVIDERS, body=body).json()
    if admin.as_json:
        print_json(made)
    else:
        _print([made])


@app.command("list")
@with_groups
def list_providers(admin: Admin) -> None:
    """List the providers and their models."""
    with admin.server() as server:
        found = server.pages(PROVIDERS)
    if admin.as_json:
        print_json(found)
    else:
        _print(found)


@app.command()
@with_groups
def remove(admin: Admin, name: Slug) -> None:
    """Remove a provider, its credential and its models; requests under way end as they would have."""
    with admin.server() as server:
        gone = server.send("DELETE", f"{PROVIDERS}/{quote(name, safe='')}").json()
    if admin.as_json:
        print_json(gone)
    else:
        print_note(f"Provider {name} is removed, and with it {len(gone['models'])} models.")


def _model(text: str) -> tuple[str, dict[str, str]]:
    name, equals, upstream = text.partition("=")
    if not name or (equals and not upstream):
        raise UsageFailed(f"--model {text[:60]!r} is not NAME or NAME=UPSTREAM, such as small=vendor-small-1")
    return name, {"upstream_model": upstream or name}


def _secret(source: str) -> str:
    """Read a credential from where the option says; its value never stands on a command line."""
    if not source.startswith(("env:", "file:")):
        raise UsageFailed("--credential is env:VARIABLE or file:PATH, never the credential itself")
    try:
        return str(References(Path()).walk(source, ("credential",)))
    except DocumentProblem as problem:
        raise UsageFailed(f"--credential {problem}") from problem


def _print(providers: list[dict[str, Any]]) -> None:
    print_table(
        ("name", "url", "enabled", "credential", "models"),
        [
            (
                one["slug"],
                one["base_url"],
                one["enabled"],
                "sealed" if one["has_credential"] else "none",
                sorted(one["model_aliases"]),
            )
            for one in providers
        ],
        empty="There are no providers; `sluicegate providers add NAME URL --model MODEL` makes one.",
    )
