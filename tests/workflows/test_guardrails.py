"""Guardrails around real rounds: what they block reaches nobody, what they redact is all that is kept."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import select
from temporalio.client import Client, WorkflowFailureError

from activities.guardrail_hooks import GuardrailHooks
from activities.guardrail_http import Webhooks
from activities.ledger import CallPlace, OpenCall, Owner
from activities.opening import open_call
from activities.wanted import NotThisCallError
from governance.canonical import JSON
from governance.codes import RoundState
from governance.guardrails import Allow, Annotate, Block, GuardrailRequest, Hook, Redact
from governance.tool_cache import ToolCache
from models.audit import AuditEvent, AuditKind
from models.base import Base, new_id
from models.database import Database
from models.forgetting import USERS
from models.guardrail import replace_guardrails
from models.key import ApiKey
from models.payload import Payload
from models.vault import Vault
from tests.support.rounds import RoundBench, round_worker
from tests.support.scripted_runner import ScriptedRunner, echo, text_result
from tests.support.world import Call, ConnectionPlan, build_world

pytestmark = pytest.mark.anyio

MAIL = "nina.okafor@kranich.example"
PLAN = ConnectionPlan(tools={"read": {"type": "object"}, "write": {"type": "object"}})
REDACTION = {"name": "no-pii", "kind": "redaction"}


def plugin(name: str = "judge", **changes: Any) -> dict[str, Any]:
    return {"name": name, "kind": "plugin", "settings": {"plugin": name}, **changes}


@asynccontextmanager
async def bench(
    client: Client,
    database: Database,
    task_queue: str,
    guardrails: list[Any],
    *,
    runner: ScriptedRunner,
    hooks: Mapping[str, Hook] | None = None,
) -> AsyncIterator[RoundBench]:
    def load(name: str) -> Callable[[Mapping[str, JSON]], Hook]:
        return lambda _options: (hooks or {})[name]

    await database.write(replace_guardrails, guardrails)
    async with (
        GuardrailHooks(Webhooks(Vault(bytes(32))), load) as running,
        round_worker(client, database, runner, task_queue=task_queue, hooks=running) as built,
    ):
        yield built


async def payloads(database: Database) -> str:
    rows = await database.read(lambda session: session.scalars(select(Payload.content)).all())
    return b"\n".join(rows).decode()


async def audit(database: Database) -> list[AuditEvent]:
    return await database.read(
        lambda session: list(session.scalars(select(AuditEvent).order_by(AuditEvent.id)))
    )


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(database_url) as opened:
        yield opened


async def test_redacted_arguments_are_all_that_is_sent_stored_and_digested(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, PLAN)
    seen: list[JSON] = []

    async def script(call: OpenCall) -> JSON:
        seen.append(call.arguments)
        return text_result("done")

    runner = ScriptedRunner(script)
    async with bench(temporal_client, database, task_queue, [REDACTION], runner=runner) as rounds:
        record, result = await rounds.run(world.key_id, [Call("files-read", {"to": MAIL, "n": 1})])

    assert seen == [{"to": "[redacted:email]", "n": 1}]
    assert (record.statuses(), result.succeeded) == (["succeeded"], 1)
    assert MAIL not in await payloads(database)
    rows = await audit(database)
    assert [row.kind for row in rows] == [
        AuditKind.CALL_ADMITTED,
        AuditKind.CALL_GUARDED,
        AuditKind.CALL_SENT,
        AuditKind.CALL_SETTLED,
    ]
    admitted, guarded, sent, _ = rows
    assert admitted.arguments_digest is None
    assert guarded.arguments_digest == sent.arguments_digest == record.calls[0].sent_arguments_digest
    assert guarded.data["guardrails"] == [
        {"guardrail": "no-pii", "verdict": "redact", "notes": {"found": {"email": 1}}}
    ]
    assert MAIL not in str([row.data for row in rows])


async def test_a_redacted_result_is_all_that_is_kept(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PLAN)

    async def script(_call: OpenCall) -> JSON:
        return text_result(f"ask {MAIL}")

    guardrails = [{**REDACTION, "stages": ["after"]}]
    runner = ScriptedRunner(script)
    async with bench(temporal_client, sqlite_database, task_queue, guardrails, runner=runner) as rounds:
        record, _ = await rounds.run(world.key_id, [Call("files-read")])

    stored = await payloads(sqlite_database)
    assert "ask [redacted:email]" in stored
    assert MAIL not in stored
    assert record.statuses() == ["succeeded"]
    settled = (await audit(sqlite_database))[-1]
    assert settled.data["guardrails"][0]["verdict"] == "redact"


def crash(_request: GuardrailRequest) -> Any:
    raise RuntimeError("secret of the hook")


def lie(_request: GuardrailRequest) -> Any:
    return "allow"


def lie_about_the_type(_request: GuardrailRequest) -> Any:
    return Redact(["not", "an", "object"])


def lie_about_json(_request: GuardrailRequest) -> Any:
    return Redact({"a": {1, 2}})


def exhale(_request: GuardrailRequest) -> Any:
    raise SystemExit(3)


HOOKS: dict[str, tuple[Hook, str]] = {
    "blocks": (lambda _: Block("not today"), "not today"),
    "crashes": (crash, "guardrail_failed"),
    "exits": (exhale, "guardrail_failed"),
    "lies": (lie, "guardrail_failed"),
    "lies about the type": (lie_about_the_type, "guardrail_failed"),
    "lies about JSON": (lie_about_json, "guardrail_failed"),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("stage", ["before", "after"])
async def test_whatever_a_hook_does_but_allow_blocks(
    name: str, stage: str, sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    hook, reason = HOOKS[name]
    world = await build_world(sqlite_database, PLAN)
    runner = ScriptedRunner(echo)
    guardrails = [plugin(stages=[stage], selector={"tools": ["files-read"]})]
    async with bench(
        temporal_client, sqlite_database, task_queue, guardrails, runner=runner, hooks={"judge": hook}
    ) as rounds:
        calls = [Call("files-read", {"a": 1}, "guarded"), Call("files-write", {"b": 2}, "free")]
        record, result = await rounds.run(world.key_id, calls)

    details = {"tool": "files-read", "guardrail": "judge", "stage": stage, "reason": reason}
    if stage == "before":
        assert runner.sent == ["free"]
        assert record.calls[0].refusal is not None
        assert record.calls[0].refusal["details"] == details
        assert (record.statuses(), result.refused) == (["guardrail_blocked", "succeeded"], 1)
    else:
        assert runner.sent == ["guarded", "free"]
        invocation = record.invocations[record.calls[0].invocation_id or ""]
        assert invocation.error is not None
        assert (invocation.error["code"], invocation.error["details"]) == ("guardrail_blocked", details)
        assert invocation.response_digest is None
        assert record.statuses() == ["failed", "succeeded"]
    assert "secret of the hook" not in str([row.data for row in await audit(sqlite_database)])


async def test_arguments_that_a_guardrail_blocks_are_kept_nowhere(
    database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(database, PLAN)
    runner = ScriptedRunner(echo)
    hooks: dict[str, Hook] = {"judge": lambda _: Block("no")}
    guardrails = [plugin(stages=["before"], selector={"tools": ["files-read"]})]
    async with bench(temporal_client, database, task_queue, guardrails, runner=runner, hooks=hooks) as rounds:
        shared = {"pin": "4711-0815"}
        calls = [
            Call("files-read", {"to": MAIL}, "alone"),
            Call("files-read", shared, "shared"),
            Call("files-write", shared, "free"),
        ]
        record, _ = await rounds.run(world.key_id, calls)

    assert record.statuses() == ["guardrail_blocked", "guardrail_blocked", "succeeded"]
    stored = await payloads(database)
    assert MAIL not in stored
    # Another call that may have them sent the same arguments, so that they stay with that one.
    assert "4711-0815" in stored
    digests = [(call.arguments_digest, call.sent_arguments_digest) for call in record.calls]
    assert digests[:2] == [(None, None)] * 2
    assert digests[2][1] == record.invocations[record.calls[2].invocation_id or ""].request_digest


async def test_arguments_that_nobody_could_judge_are_kept_nowhere(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PLAN)
    asked, release = threading.Event(), threading.Event()

    def hang(_request: GuardrailRequest) -> Any:
        asked.set()
        release.wait(60)
        return Allow()

    runner = ScriptedRunner(echo)
    guardrails = [plugin(stages=["before"], timeout_s=20)]
    try:
        async with bench(
            temporal_client, sqlite_database, task_queue, guardrails, runner=runner, hooks={"judge": hang}
        ) as rounds:
            round_id, handle = await rounds.start(world.key_id, [Call("files-read", {"to": MAIL})])
            assert await asyncio.to_thread(asked.wait, 5)
            await handle.cancel()
            with pytest.raises(WorkflowFailureError):
                await handle.result()
            release.set()
            record = await rounds.record(round_id)
    finally:
        release.set()

    assert runner.sent == []
    assert record.row.state == RoundState.CANCELED
    assert MAIL not in await payloads(sqlite_database)


def test_forgetting_knows_every_column_that_names_a_payload() -> None:
    named = {
        f"{table.name}.{key.parent.name}"
        for table in Base.metadata.tables.values()
        for key in table.foreign_keys
        if key.column.table.name == Payload.__tablename__
    }

    assert named == {f"{column.class_.__tablename__}.{column.key}" for column in USERS}


async def test_a_hook_that_hangs_blocks_in_time_and_takes_no_other_plugin_with_it(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PLAN)
    release = threading.Event()

    def hang(_request: GuardrailRequest) -> Any:
        release.wait(60)
        return Allow()

    guardrails = [
        plugin("sound", timeout_s=5, selector={"tools": ["files-write"]}),
        plugin("hangs", timeout_s=0.1, selector={"tools": ["files-read"]}),
    ]
    hooks: dict[str, Hook] = {"hangs": hang, "sound": lambda _: Annotate({"seen": True})}
    runner = ScriptedRunner(echo)
    try:
        async with bench(
            temporal_client, sqlite_database, task_queue, guardrails, runner=runner, hooks=hooks
        ) as rounds:
            calls = [Call("files-read", {"n": n}, f"hung{n}") for n in range(6)]
            record, _ = await rounds.run(world.key_id, [*calls, Call("files-write", {}, "free")])
    finally:
        release.set()

    assert record.statuses() == ["guardrail_blocked"] * 6 + ["succeeded"]
    assert runner.sent == ["free"]
    reasons = {call.refusal["details"]["reason"] for call in record.calls if call.refusal}
    assert reasons == {"guardrail_timed_out"}


async def test_hooks_run_in_order_each_on_what_the_one_before_left(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PLAN)
    seen: list[tuple[str, JSON]] = []

    def add(letter: str) -> Hook:
        def hook(request: GuardrailRequest) -> Any:
            seen.append((letter, json.loads(json.dumps(request.value))))
            changed = {**request.value, "text": request.value["text"] + letter}
            # What a hook does to its own copy is not what is sent.
            request.value["text"] = "changed behind our back"
            return Redact(changed)

        return hook

    def look(request: GuardrailRequest) -> Any:
        seen.append(("look", request.value))
        request.value["text"] = "changed behind our back"
        return Allow()

    guardrails = [plugin(name, stages=["before"]) for name in ("b", "a", "look", "c")]
    hooks = {"a": add("a"), "b": add("b"), "c": add("c"), "look": look}
    runner = ScriptedRunner(echo)
    async with bench(
        temporal_client, sqlite_database, task_queue, guardrails, runner=runner, hooks=hooks
    ) as rounds:
        await rounds.run(world.key_id, [Call("files-read", {"text": ""})])

    assert [name for name, _ in seen] == ["b", "a", "look", "c"]
    assert [value["text"] for name, value in seen if name != "look"] == ["", "b", "ba"]
    assert '{"text":"bac"}' in await payloads(sqlite_database)


async def test_redacted_arguments_that_do_not_fit_the_schema_or_a_rule_are_blocked(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    world = await build_world(sqlite_database, ConnectionPlan(tools={"read": schema, "write": {}}))
    rule = {"id": "short", "schema": {"properties": {"text": {"maxLength": 3}}}}

    def set_rule(session: Any) -> None:
        session.get_one(ApiKey, world.key_id).argument_rules = {"revision": 1, "rules": [rule]}

    await sqlite_database.write(set_rule)
    hooks: dict[str, Hook] = {
        "schema": lambda _: Redact({"n": "x"}),
        "rule": lambda _: Redact({"text": "long"}),
    }
    guardrails = [
        plugin("schema", selector={"tools": ["files-read"]}, stages=["before"]),
        plugin("rule", selector={"tools": ["files-write"]}, stages=["before"]),
    ]
    runner = ScriptedRunner(echo)
    async with bench(
        temporal_client, sqlite_database, task_queue, guardrails, runner=runner, hooks=hooks
    ) as rounds:
        record, _ = await rounds.run(
            world.key_id, [Call("files-read", {"n": 1}), Call("files-write", {"text": "abc"})]
        )

    assert runner.sent == []
    refusals = [call.refusal["details"] for call in record.calls if call.refusal]
    assert [(one["guardrail"], one["reason"]) for one in refusals] == [
        ("schema", "redacted_arguments_do_not_fit"),
        ("rule", "redacted_arguments_do_not_fit"),
    ]


async def test_a_call_that_waits_for_its_guardrails_can_be_opened_by_nobody(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PLAN)
    tried: list[str] = []

    def look(request: GuardrailRequest) -> Any:
        tried.append(asyncio.run(opening(sqlite_database, request.call.round_id)))
        return Allow()

    runner = ScriptedRunner(echo)
    async with bench(
        temporal_client,
        sqlite_database,
        task_queue,
        [plugin(stages=["before"])],
        runner=runner,
        hooks={"judge": look},
    ) as rounds:
        record, _ = await rounds.run(world.key_id, [Call("files-read")])

    assert tried == ["its guardrails have not judged it."]
    assert record.statuses() == ["succeeded"]


async def opening(database: Database, round_id: str) -> str:
    """Try to open a call from a hook's thread, as a workflow started by hand would; return the refusal."""
    async with Database(database.url.render_as_string(hide_password=False)) as own:
        place = CallPlace(round_id, 0, 0, "s0.c0")
        with pytest.raises(NotThisCallError) as refused:
            await own.write(open_call, place, Owner("x", new_id()), ToolCache())
    return str(refused.value).rpartition(": ")[2]


async def test_rounds_keep_the_guardrails_that_they_froze_and_no_guardrails_cost_nothing(
    sqlite_database: Database, temporal_client: Client, task_queue: str
) -> None:
    world = await build_world(sqlite_database, PLAN)
    runner = ScriptedRunner(echo)
    async with bench(temporal_client, sqlite_database, task_queue, [], runner=runner) as rounds:
        before = sqlite_database.counts.writes, sqlite_database.counts.reads
        _, handle = await rounds.start(world.key_id, [Call("files-read")])
        await handle.result()
        after = sqlite_database.counts.writes, sqlite_database.counts.reads
        free = [event.event_type for event in await rounds.history(handle)]
        await sqlite_database.write(replace_guardrails, [{**REDACTION, "selector": {"keys": ["nobody"]}}])
        record, _ = await rounds.run(world.key_id, [Call("files-read")])

    # One write stores the round; the rest are freeze, open, sent, settle and finalize.
    assert (after[0] - before[0], after[1] - before[1]) == (6, 0)
    assert len(free) <= 14
    assert record.calls[0].guardrails_revision is None
