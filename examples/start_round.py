"""Start a round through Temporal, as an agent loop of its own would, and read the results from the API.

    SLUICEGATE_KEY=sgk_… python -m examples.start_round KEY_ID [CALLS.json]

KEY_ID is the key in whose name the calls are made (`sluicegate keys list` shows it); its secret in
SLUICEGATE_KEY is only for reading the results. SLUICEGATE_TEMPORAL_ADDRESS and SLUICEGATE_URL say where the
servers are; the defaults are those of `sluicegate up`.

What is used here is the public contract: the workflow type, the task queue, `RoundInput`, and the workflow id
made of the key's id and the SHA-256 of the round key. Sending the same round key again gives the same round.
"""

import asyncio
import hashlib
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from workflows.messages import (
    PROVIDER_ROUND,
    TASK_QUEUE,
    InlineCall,
    RoundInput,
    RoundResult,
    round_workflow_id,
)

CALLS = Path(__file__).with_name("calls.json")


async def run_round(key_id: str, calls: list[InlineCall]) -> RoundResult:
    """Run the calls as one round and return how it ended."""
    address = os.environ.get("SLUICEGATE_TEMPORAL_ADDRESS", "127.0.0.1:7233")
    try:
        client = await Client.connect(address)
    except RuntimeError:
        sys.exit(f"no Temporal at {address}: set SLUICEGATE_TEMPORAL_ADDRESS; `sluicegate status` shows it")
    round_key = f"example-{uuid.uuid4()}"
    ended: RoundResult = await client.execute_workflow(
        PROVIDER_ROUND,
        RoundInput(key_id=key_id, round_key=round_key, calls=calls),
        id=round_workflow_id(key_id, hashlib.sha256(round_key.encode()).hexdigest()),
        task_queue=TASK_QUEUE,
        result_type=RoundResult,
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    return ended


def read_calls(path: Path) -> list[InlineCall]:
    """Read tool calls as a model gives them."""
    given = json.loads(path.read_text("utf-8"))["tool_calls"]
    return [InlineCall(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in given]


def read_api(path: str, secret: str) -> Any:
    """Return the JSON of a GET with the key's secret; what keeps it from being read ends the example."""
    url = os.environ.get("SLUICEGATE_URL", "http://127.0.0.1:8080")
    try:
        answer = httpx.get(url + path, headers={"authorization": f"Bearer {secret}"}).raise_for_status()
    except httpx.TransportError:
        sys.exit(f"no API at {url}: set SLUICEGATE_URL; `sluicegate status` shows it")
    except httpx.HTTPStatusError as refusal:
        sys.exit(f"{url} refused to show {path}: {refusal.response.text}")
    return answer.json()


def print_results(round_id: str, secret: str) -> None:
    """Print a line for each call."""
    for row in read_api(f"/v1/rounds/{round_id}", secret)["results"]:
        print(f"{row['tool_call_id']}  {row['status']:<9}  {row['tool']}: {row['content']}")


def main() -> None:
    """Run the example; what is missing is said before anything is started."""
    secret = os.environ.get("SLUICEGATE_KEY")
    if len(sys.argv) not in (2, 3) or not secret:
        sys.exit("usage: SLUICEGATE_KEY=sgk_… python -m examples.start_round KEY_ID [CALLS.json]")
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else CALLS
    try:
        calls = read_calls(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} holds no tool calls: {error!r}; examples/calls.json shows how they look")
    # Before anything runs: whoever cannot read the results should not have to guess what was done.
    read_api("/v1/mcp/tools", secret)
    try:
        ended = asyncio.run(run_round(sys.argv[1], calls))
    except WorkflowFailureError as failure:
        sys.exit(f"the round failed: {failure.cause}")
    print(f"round {ended.round_id} is {ended.state}: {ended.succeeded} succeeded, {ended.failed} failed,")
    print(f"  {ended.refused} refused, {ended.canceled} canceled, {ended.unknown} with unknown outcome")
    print_results(ended.round_id, secret)


if __name__ == "__main__":
    main()
