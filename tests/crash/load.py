"""Agents that ask for rounds through every crash, and the judge who compares answers with the log."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
from sqlalchemy import select

from activities.ledger import MAX_SENDS
from models.database import Database, ReadSession
from models.invocation import ToolInvocation
from models.round import Round
from models.send import load_sends
from tests.crash.cluster import Cluster

CLASSES = ("unsafe", "safe", "keyed")
ENDED = {"completed", "canceled", "failed", "abandoned"}
BETWEEN_REQUESTS_S = 0.1
"""How soon an agent asks again that was not served; a client's own pace, and nothing is awaited by it."""

BOUND_S = 180.0
"""How long a round may take to end, whatever was killed: reconciliation included."""


@dataclass
class AskedRound:
    """One round that an agent asked for, under one idempotency key, and what it was told in the end."""

    nonces: list[tuple[str, str]]
    key: str = field(default_factory=lambda: uuid4().hex)
    answer: dict[str, Any] | None = None
    refused: str | None = None


def round_of(per_class: int, tool: str = "work", classes: Iterable[str] = CLASSES) -> AskedRound:
    """Think of a round with so many calls of each class."""
    return AskedRound(
        [(name, uuid4().hex) for name in classes for _ in range(per_class)], key=f"{tool}-{uuid4().hex}"
    )


async def ask(
    cluster: Cluster, asked: AskedRound, hold_s: float, wait_s: float = 5, tries: float = math.inf
) -> None:
    """Ask until the round has ended or was refused for good, as an agent with an Idempotency-Key does.

    With `tries`, give up after so many requests.
    """
    tool = asked.key.split("-")[0]
    calls = [
        {
            "id": nonce,
            "type": "function",
            "function": {"name": f"{name}-{tool}", "arguments": {"nonce": nonce, "hold_s": hold_s}},
        }
        for name, nonce in asked.nonces
    ]
    headers = {"authorization": f"Bearer {cluster.secret}", "idempotency-key": asked.key}
    async with asyncio.timeout(BOUND_S), httpx.AsyncClient(trust_env=False, timeout=30) as http:
        while asked.answer is None and asked.refused is None and tries > 0:
            tries -= 1
            try:
                response = await http.post(
                    f"{cluster.api_url}/v1/rounds",
                    json={"tool_calls": calls, "wait": wait_s},
                    headers=headers,
                )
            except httpx.TransportError:
                await asyncio.sleep(BETWEEN_REQUESTS_S)
                continue
            take(asked, response)
            await asyncio.sleep(0 if response.status_code == 200 else BETWEEN_REQUESTS_S)


def take(asked: AskedRound, response: httpx.Response) -> None:
    body = response.json()
    if response.status_code == 200 and body["state"] in ENDED:
        asked.answer = body
    elif response.status_code not in {200, 202}:
        error = body["error"]
        # The database being away is worth another try, and so is what says so; anything else is for good.
        if not error["retryable"] and error["code"] != "internal_error":
            asked.refused = error["code"]


async def judge(cluster: Cluster, rounds: Sequence[AskedRound]) -> list[str]:
    """Return every way in which an answer is not what the upstream's log, or the ledger, says."""
    async with Database(cluster.database_url) as database:
        faults = await database.read(left_open, rounds)
    log = (await cluster.upstream_log())["log"]
    received: dict[str, int] = {}
    ran: dict[str, int] = {}
    for entry in log:
        received[entry["nonce"]] = received.get(entry["nonce"], 0) + 1
        ran[entry["nonce"]] = ran.get(entry["nonce"], 0) + (entry["ran_at"] is not None)
    for asked in rounds:
        if asked.refused is not None:
            if asked.refused != "round_abandoned":
                faults.append(f"round {asked.key} was refused: {asked.refused}")
            faults += [f"{n} arrived after a 503" for _, n in asked.nonces if received.get(n)]
            continue
        if asked.answer is None:
            faults.append(f"round {asked.key} has not ended")
            continue
        by_id = {result["tool_call_id"]: result for result in asked.answer["results"]}
        for name, nonce in asked.nonces:
            faults += _faults_of(name, by_id[nonce], received.get(nonce, 0), ran.get(nonce, 0))
    return faults


def _faults_of(name: str, result: dict[str, Any], received: int, ran: int) -> list[str]:
    nonce, status, outcome = result["tool_call_id"], result["status"], result["outcome"]
    reason = ((result["error"] or {}).get("details") or {}).get("outcome")
    said = f"{name} call {nonce}: {status}/{outcome} ({reason}), received {received}, ran {ran}"
    faults: list[str] = []
    if name in {"unsafe", "keyed"} and ran > 1:
        faults.append(f"ran more than once: {said}")
    if status not in {"succeeded", "failed", "canceled"}:
        faults.append(f"not terminal: {said}")
    if status == "succeeded" and ran < 1:
        faults.append(f"a success that never was: {said}")
    if status != "succeeded" and outcome == "known" and received:
        faults.append(f"known not to have run, but it arrived: {said}")
    return faults


def left_open(session: ReadSession, rounds: Iterable[AskedRound]) -> list[str]:
    """Return what the ledger holds of these rounds that contradicts itself once every one has ended."""
    faults: list[str] = []
    for invocation in invocations_of(session, rounds):
        sends = load_sends(session, invocation.id)
        key = invocation.idempotency_key
        if invocation.status.value == "running":
            faults.append(f"{key} still runs")
        doubtful = any(send.may_have_run for send in sends)
        if invocation.status.value != "succeeded" and doubtful and invocation.outcome.value == "known":
            faults.append(f"{key} is known although a send of it may have run")
        name = (invocation.error or {}).get("details", {}).get("tool", "")
        if invocation.status.value == "failed" and not name.startswith("unsafe") and len(sends) < MAX_SENDS:
            faults.append(f"{key} failed although it may be repeated and a send was left to it")
    return faults


def invocations_of(session: ReadSession, rounds: Iterable[AskedRound]) -> list[ToolInvocation]:
    keys = [asked.key for asked in rounds]
    query = select(ToolInvocation).join(Round, Round.id == ToolInvocation.round_id)
    return list(session.scalars(query.where(Round.round_key.in_(keys))))
