"""`sluicegate execute`: one tool call."""

import sys
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import uuid4

import httpx
import typer

from api.commands.failures import REFUSED
from api.commands.json_input import parse
from api.commands.narrowing import Narrowing
from api.commands.option_groups import with_groups
from api.commands.output import print_json, print_note
from api.commands.server import Caller

app = typer.Typer()


@app.command()
@with_groups
def execute(
    caller: Caller,
    narrowing: Narrowing,
    name: Annotated[str, typer.Argument(help="The tool, such as orders-find_order.")],
    arguments: Annotated[str, typer.Argument(help="Its arguments, a JSON object.")] = "{}",
    idempotency_key: Annotated[
        str | None, typer.Option(help="A name of your own: repeating it never runs the tool twice.")
    ] = None,
) -> None:
    """Call a tool and print its message; exit status 1 when the tool says that it failed."""
    parse(arguments, "the arguments")
    headers = narrowing.headers() | ({} if idempotency_key is None else {"idempotency-key": idempotency_key})
    call = {
        "id": f"call_{uuid4().hex}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    with caller.server() as server:
        answer = server.send("POST", "/v1/mcp/tool/execute", body=call, headers=headers)
    Outcome(answer).show(as_json=caller.as_json)


@dataclass(frozen=True)
class Outcome:
    """The answer to one call."""

    answer: httpx.Response

    def show(self, *, as_json: bool) -> None:
        """Print the message, or that the call goes on; ends with status 1 for a tool that failed."""
        body: dict[str, Any] = self.answer.json()
        round_id = self.answer.headers.get("x-sluicegate-round-id")
        is_error = self.answer.headers.get("x-sluicegate-is-error") == "true"
        if as_json:
            print_json(
                {
                    "message": body if self.answer.status_code == 200 else None,
                    "is_error": is_error,
                    "round_id": round_id,
                    "invocation_id": self.answer.headers.get("x-sluicegate-invocation-id"),
                }
            )
        elif self.answer.status_code == 202:
            print_note(f"The call goes on as round {round_id}; look with: sluicegate rounds show {round_id}")
        else:
            sys.stdout.write(f"{body['content']}\n")
        if is_error:
            print_note("The tool says that it failed.")
            raise typer.Exit(REFUSED)
