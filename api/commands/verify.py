"""`sluicegate verify`: try the guarantees on a running gateway, under its own configuration."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import httpx
import typer

from api.commands.failures import REFUSED, CommandFailed, UsageFailed
from api.commands.option_groups import with_groups
from api.commands.output import print_json, print_line, print_table
from api.commands.server import Admin, is_local
from api.mcp_server.probe import serving
from api.verification.checks import CHECKS, Finding, run_checks
from api.verification.scene import LIMIT_S, SceneProblem, new_probe, scene

app = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """Where the verification's own server listens, and how the gateway's workers reach it."""

    listen: Annotated[str, typer.Option(help="The address that the verification's server listens on.")] = (
        "127.0.0.1"
    )
    listen_port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 takes a free one.")] = 0
    network: Annotated[str, typer.Option(help="The network setting under which the workers may dial it.")] = (
        "loopback"
    )
    reach: Annotated[
        str | None,
        typer.Option(
            help="The host under which the workers reach it, where it is not the one it listens on."
        ),
    ] = None


@app.command()
@with_groups
def verify(
    admin: Admin,
    upstream: Upstream,
    key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="SLUICEGATE_VERIFY_KEYS", help="Secrets of keys to try beside the ones that are made."
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="The name of a check to try, and no others; repeatable.")
    ] = None,
) -> None:
    """Prove the guarantees with real calls to a server of the command's own; exit status 1 if one is broken.

    It makes a connection and three keys, and removes them again. Only tools of its own are called; meanwhile
    keys without a tool configuration see them too.
    """
    with admin.server() as server:
        url, token = server.url, server.token
    unknown = sorted(set(only or ()) - set(CHECKS))
    if unknown:
        raise UsageFailed(f"there is no check {unknown[0]!r}; there are: {', '.join(CHECKS)}")
    findings = asyncio.run(run_verification(url, token, upstream, key or [], only or []))
    if admin.as_json:
        print_json([finding.to_json() for finding in findings])
    else:
        rows = [(one.check, "holds" if one.holds else "BROKEN", one.detail) for one in findings]
        print_table(("guarantee", "", "what was seen"), rows, empty="")
        broken = sum(not finding.holds for finding in findings)
        print_line(
            f"{broken} of {len(findings)} guarantees are broken." if broken else "Every guarantee holds."
        )
    if not all(finding.holds for finding in findings):
        raise typer.Exit(REFUSED)


async def run_verification(
    url: str, token: str, upstream: Upstream, given: Sequence[str] = (), only: Collection[str] = ()
) -> list[Finding]:
    """Run every check, or those named, against the gateway at `url`.

    Raises:
        CommandFailed: the checks cannot be tried, because the gateway or its workers cannot be reached.
    """
    probe = new_probe()
    async with (
        serving(probe, upstream.listen, upstream.listen_port) as port,
        httpx.AsyncClient(base_url=url, timeout=LIMIT_S, trust_env=not is_local(url)) as http,
    ):
        address = f"http://{upstream.reach or upstream.listen}:{port}/mcp"
        try:
            async with scene(http, token, probe, (address, upstream.network), given) as built:
                return await run_checks(built, only)
        except (SceneProblem, httpx.HTTPError) as problem:
            raise CommandFailed(f"the verification could not be carried out: {problem}") from problem
