"""`sluicegate rounds`: start rounds of tool calls, look at them, follow and cancel them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer
from httpx_sse import EventSource, ServerSentEvent

from api.commands.failures import CommandFailed, UsageFailed
from api.commands.json_input import read_json_file
from api.commands.narrowing import Narrowing
from api.commands.option_groups import with_groups
from api.commands.output import clean, print_facts, print_json, print_line, print_note, print_table, when
from api.commands.server import Admin, Anyone, Caller, Server
from api.commands.timeline import print_timeline
from governance.canonical import JSON, is_array, is_object

ROUNDS = "/v1/rounds"

FAILED = "round_failed"
"""The event of a round that failed by the engine's fault; its caller may have it go on as a repeat."""

ENDS = frozenset({"round_completed", "round_canceled", "round_abandoned"})
"""Kinds of events after which none ever follows."""

NOT_IN_LINE = frozenset({"number", "kind", "at", "position", "invocation_id"})
"""Members of an event that its line shows elsewhere, or that only programs need."""

ENDED = frozenset({"completed", "canceled", "abandoned", "failed"})
"""States that a round stays in, but for one that failed and is repeated."""

MAX_RECONNECTS = 20
"""Streams that end without news, one after another, before following is given up."""

app = typer.Typer(no_args_is_help=True)

RoundId = Annotated[str, typer.Argument(metavar="ROUND", help="A round's id.")]


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """How to start a round."""

    file: Annotated[
        Path, typer.Option("-f", "--file", help="The calls: JSON with `tool_calls`; - is standard input.")
    ]
    wait: Annotated[
        float | None, typer.Option(min=0, help="Seconds to wait for the end (the server's default is 30).")
    ] = None
    idempotency_key: Annotated[
        str | None, typer.Option(help="A name of your own: repeating it never runs a tool twice.")
    ] = None


@app.command()
@with_groups
def start(caller: Caller, narrowing: Narrowing, options: StartOptions) -> None:
    """Run tool calls as one round; the file may be an assistant message as the model gave it."""
    body: dict[str, Any] = {"tool_calls": tool_calls_of(read_json_file(options.file), str(options.file))}
    if options.wait is not None:
        body["wait"] = options.wait
    headers = narrowing.headers()
    if options.idempotency_key is not None:
        headers["idempotency-key"] = options.idempotency_key
    with caller.server() as server:
        answer = server.send("POST", ROUNDS, body=body, headers=headers)
    if caller.as_json:
        print_json(answer.json())
    elif answer.status_code == 202:
        round_id = answer.json()["round_id"]
        print_line(f"Round {round_id} goes on; follow it with: sluicegate rounds events {round_id}")
    else:
        show_round(answer.json())


@app.command()
@with_groups
def show(asking: Anyone, round_id: RoundId) -> None:
    """Show a round: with --key one of that key's, else, for the operator, any."""
    with asking.server() as server:
        found = server.get(f"{asking.prefix}{ROUNDS}/{quote(round_id, safe='')}")
    if asking.as_json:
        print_json(found)
    else:
        show_round(found)


@app.command()
@with_groups
def events(
    caller: Caller,
    round_id: RoundId,
    after: Annotated[int, typer.Option(min=0, help="Begin after the event of this number.")] = 0,
) -> None:
    """Follow a round until it ends, a line an event; one that failed goes on in its repeat."""
    event: dict[str, Any] = {}
    with caller.server() as server:
        for event in follow(server, round_id, after):
            if caller.as_json:
                print_line(json.dumps(event, ensure_ascii=False))
            else:
                print_line(event_line(event))
    if event.get("kind") == FAILED:
        print_note(
            f"A repeat under its own Idempotency-Key has it go on; follow that with:"
            f" sluicegate rounds events {round_id} --after {event['number']}"
        )


@app.command()
@with_groups
def cancel(caller: Caller, round_id: RoundId) -> None:
    """Ask a round to stop; what was sent already may have run."""
    with caller.server() as server:
        answer = server.send("POST", f"{ROUNDS}/{quote(round_id, safe='')}/cancel")
    if caller.as_json:
        print_json(answer.json())
    else:
        told = "was told to stop" if answer.status_code == 202 else "had ended already"
        print_line(f"Round {round_id} {told}; its state is {answer.json()['state']}.")


@app.command("list")
@with_groups
def list_rounds(
    admin: Admin, limit: Annotated[int, typer.Option(min=1, help="How many to show.")] = 50
) -> None:
    """List the rounds of all keys, newest first."""
    with admin.server() as server:
        found = server.pages("/api/v1/rounds", limit)
    if admin.as_json:
        print_json(found)
        return
    print_table(
        ("round", "key", "state", "calls", "unknown", "started", "ended"),
        [
            (
                one["round_id"],
                one["key_id"],
                one["state"],
                one["call_count"],
                one["has_unknown"],
                when(one["created_at"]),
                when(one["finished_at"]),
            )
            for one in found
        ],
        empty="There are no rounds yet.",
    )


def tool_calls_of(given: JSON, where: str) -> list[Any]:
    """Return the calls of a file: a list of them, or an object with `tool_calls`.

    Raises:
        UsageFailed: it is neither.
    """
    calls = given.get("tool_calls") if is_object(given) else given
    if not is_array(calls):
        raise UsageFailed(f"{where!r} holds neither a list of tool calls nor an object with `tool_calls`")
    return calls


def follow(server: Server, round_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events of a round until its last one, connecting again where the stream ends early.

    A round that failed may have been repeated, also since its stream ended: its events end where a further
    connection brings none.

    Raises:
        CommandFailed: the server refused, or no stream brings anything any more.
    """
    fruitless, kind = 0, ""
    while fruitless < MAX_RECONNECTS:
        fruitless += 1
        for sent in _stream(server, round_id, after):
            event: dict[str, Any] = sent.json()
            after, kind, fruitless = event["number"], event["kind"], 0
            yield event
            if kind in ENDS:
                return
        if kind == FAILED and fruitless:
            return
        if not kind and server.get(f"{ROUNDS}/{quote(round_id, safe='')}")["state"] in ENDED:
            # It ended with the event that the caller knows already, or before it.
            return
    raise CommandFailed(f"the server does not tell how round {round_id} goes on; look at it again later")


def _stream(server: Server, round_id: str, after: int) -> Iterator[ServerSentEvent]:
    path = f"{ROUNDS}/{quote(round_id, safe='')}/events"
    try:
        with server.stream(path, {"accept": "text/event-stream", "last-event-id": str(after)}) as answer:
            if not answer.is_success:
                answer.read()
                raise server.refusal(answer)
            yield from EventSource(answer).iter_sse()
    except httpx.RemoteProtocolError:
        # The server went away in the middle; the next connection tells whether it is back.
        return
    except httpx.TransportError as exc:
        raise server.unreachable(exc) from exc


def event_line(event: dict[str, Any]) -> str:
    """Write an event as a line for people."""
    number, kind, at = event["number"], event["kind"], event["at"]
    told = {name: value for name, value in event.items() if name not in NOT_IN_LINE and value is not None}
    if "stage" in told:
        told["stage"] += 1
    facts = "  ".join(f"{name}={value}" for name, value in told.items())
    return clean(f"{at[11:23]}  {number:>3}  {kind:<15}  {facts}")


def show_round(found: dict[str, Any]) -> None:
    """Print a round: how it stands, its timeline, its calls and the messages to append."""
    print_facts(
        [
            ("Round", found["round_id"]),
            ("State", found["state"]),
            ("Reason", found["state_reason"]),
            ("Key", found.get("key_id")),
            ("In the Temporal UI", found.get("engine_url")),
        ]
    )
    print_timeline(found["results"])
    print_line("")
    print_table(
        ("call", "tool", "stage", "status", "outcome", "reason"),
        [
            (
                one["tool_call_id"],
                one["tool"],
                None if one["stage"] is None else one["stage"] + 1,
                one["status"],
                one["outcome"],
                reason_of(one),
            )
            for one in found["results"]
        ],
        empty="It has no calls.",
    )
    if found["messages"] is None:
        print_note("It has not ended; its tool messages come then.")
        return
    print_line("")
    print_table(
        ("message for", "content"),
        [(message["tool_call_id"], message["content"]) for message in found["messages"]],
        empty="",
    )


def reason_of(result: dict[str, Any]) -> str:
    """Say why a call has no good result; nothing for one that has."""
    error = result["error"]
    if error is None:
        return ""
    problems: list[dict[str, Any]] = error["details"].get("problems") or []
    told = "; ".join(f"{one['path']} must be {one['expected']}, not {one['got']}" for one in problems)
    return f"{error['code']}: {told or error['message']}"
