"""The guarantees, each tried with real calls and judged by what reached our server."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from api.mcp_server.frames import INVALID_PARAMS
from api.verification.scene import ALLOWED, GRANTED, TOOLS, UNLISTED, Key, Scene, SceneProblem
from governance.audit_chain import link_hash

PAGES = 20
"""Pages of the audit trail that are searched for a refusal, newest first."""

CHAINED = 5000
"""Links of the audit trail that are walked over, from its end; `sluicegate audit verify` walks over all."""

REPEATS = 6
"""How often one call is sent with one idempotency key, at once."""

MARKED = (
    "accept-language",
    "baggage",
    "cookie",
    "forwarded",
    "idempotency-key",
    "mcp-param-verify",
    "proxy-authorization",
    "referer",
    "traceparent",
    "user-agent",
    "x-api-key",
    "x-forwarded-for",
    "x-request-id",
    "x-verify",
)
"""Headers in which a mark is planted; none of them is ours to pass on."""


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    check: str
    holds: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as printed."""
        return {"check": self.check, "holds": self.holds, "detail": self.detail}


Check = Callable[[Scene], Awaitable[str | None]]
"""Tries one guarantee; returns how it was broken, None where it holds."""


async def run_checks(scene: Scene, only: Collection[str] = ()) -> list[Finding]:
    """Try every guarantee, or those named, one after the other; one that cannot be tried does not hold."""
    findings: list[Finding] = []
    wanted = {name: check for name, check in CHECKS.items() if not only or name in only}
    for name, (check, holds) in wanted.items():
        scene.probe.forget()
        try:
            broken = await check(scene)
        except (SceneProblem, httpx.HTTPError, KeyError, TypeError, ValueError) as problem:
            broken = f"could not be tried: {type(problem).__name__}: {problem}"
        findings.append(Finding(name, broken is None, holds if broken is None else broken))
    return findings


async def list_is_call(scene: Scene) -> str | None:
    """Compare, for every key and several filters, four ways of saying what it may use."""
    filters: list[dict[str, str]] = [
        {},
        {"x-mcp-include-clients": scene.connection},
        {"x-mcp-include-tools": scene.tool(GRANTED)},
        {"x-mcp-include-tools": "none"},
    ]
    for key in scene.keys:
        for headers in filters:
            if broken := await _compare(scene, key, headers):
                return broken
    return None


async def _compare(scene: Scene, key: Key, headers: Mapping[str, str]) -> str | None:
    listed = await scene.listed(key, headers)
    ways = {"listed over MCP": await scene.mcp_listed(key, headers)}
    if key.key_id is not None:
        ways["explained"] = await scene.explained(key, headers)
    if key.expected is not None:
        ways["configured"] = _expected(key, scene, headers)
    ways["executed"] = await _executed(scene, key, headers)
    for way, names in ways.items():
        if names != listed:
            filters = ", ".join(f"{name}: {value}" for name, value in headers.items()) or "no filter"
            return f"key {key.label}, {filters}: listed {sorted(listed)}, but {way} {sorted(names)}"
    return None


def _expected(key: Key, scene: Scene, headers: Mapping[str, str]) -> set[str]:
    """Return what a key of ours may use: its own configuration overrides all but an empty header."""
    wanted = headers.get("x-mcp-include-tools")
    names = set(key.expected or ())
    if wanted == "none":
        return set()
    return names & {GRANTED} if wanted == scene.tool(GRANTED) and key.label == "wide" else names


async def _executed(scene: Scene, key: Key, headers: Mapping[str, str]) -> set[str]:
    names: set[str] = set()
    for tool in TOOLS:
        nonce = secrets.token_hex(8)
        answer = await scene.execute(key, tool, {"nonce": nonce}, headers)
        reached = scene.probe.count(nonce)
        if reached > 1 or (reached == 1) != (answer.status_code == 200):
            raise SceneProblem(
                f"{tool} was answered {answer.status_code} and reached the server {reached} times"
            )
        if reached:
            names.add(tool)
    return names


async def denied_reaches_nobody(scene: Scene) -> str | None:
    """Send calls that may not be made, every way there is."""
    nothing = next(key for key in scene.keys if key.label == "nothing")
    for key, tool in ((scene.wide, UNLISTED), (nothing, ALLOWED), (nothing, UNLISTED)):
        arguments = {"nonce": secrets.token_hex(8)}
        executed = await scene.execute(key, tool, arguments)
        as_round = await scene.round(key, tool, arguments)
        over_mcp = await scene.mcp(key, "tools/call", {"name": scene.tool(tool), "arguments": arguments}, {})
        if scene.probe.count(arguments["nonce"]):
            return f"{tool}, which key {key.label} may not use, reached the server"
        if executed.status_code != 403 or as_round.json()["results"][0]["status"] != "refused":
            return f"{tool}, which key {key.label} may not use, was answered {executed.status_code}"
        if over_mcp.json().get("error", {}).get("code") != INVALID_PARAMS:
            return f"{tool}, which key {key.label} may not use, was answered over MCP: {over_mcp.text[:200]}"
    return None


async def no_secret_leaves(scene: Scene) -> str | None:
    """Plant marks in headers, and search everything that our server received for them and for secrets."""
    marks = {name: f"mark-{secrets.token_hex(8)}" for name in MARKED}
    call = {"nonce": "marks"}
    # The end differs, since one of the headers names the call for its repeats.
    first, second = ({name: f"{mark}{number}" for name, mark in marks.items()} for number in (1, 2))
    await scene.execute(scene.wide, ALLOWED, call, first)
    await scene.mcp(scene.wide, "tools/call", {"name": scene.tool(ALLOWED), "arguments": call}, second)
    await scene.mcp(scene.wide, "tools/list", {}, first)
    await scene.operator("POST", f"/api/v1/mcp/clients/{scene.connection}/refresh", headers=first)
    if scene.probe.count("marks") != 2:
        return "the marked calls did not reach the server, so nothing was proved"
    sought = {**marks, "admin token": scene.admin_token}
    sought |= {f"secret of key {key.label}": key.secret for key in scene.keys}
    for name, text in sought.items():
        if any(request.holds(text) for request in scene.probe.received):
            return f"the server received the {name}"
    return None


async def at_most_once(scene: Scene) -> str | None:
    """Send one call several times at once under one idempotency key, then another call under it."""
    once, named = {"nonce": secrets.token_hex(8)}, {"idempotency-key": f"verify-{secrets.token_hex(8)}"}
    sending = (scene.execute(scene.wide, ALLOWED, once, named) for _ in range(REPEATS))
    answers = [*await asyncio.gather(*sending), await scene.execute(scene.wide, ALLOWED, once, named)]
    count = scene.probe.count(once["nonce"])
    if count != 1:
        return f"{len(answers)} requests under one idempotency key reached the server {count} times"
    bodies = {answer.content for answer in answers}
    if any(answer.status_code != 200 for answer in answers) or len(bodies) != 1:
        return f"repeats of one call were answered {sorted({answer.status_code for answer in answers})}"
    other = await scene.execute(scene.wide, ALLOWED, {"nonce": "other"}, named)
    if other.status_code != 409 or scene.probe.count("other"):
        return f"another call under the same idempotency key was answered {other.status_code}"
    return None


async def audit_is_complete(scene: Scene) -> str | None:
    """Make a call and have one refused, and look for each fact in the audit trail."""
    nonce, request_id = secrets.token_hex(8), f"verify-{secrets.token_hex(8)}"
    made = await scene.execute(scene.wide, ALLOWED, {"nonce": nonce})
    refused = await scene.execute(scene.wide, UNLISTED, {"nonce": nonce}, {"x-request-id": request_id})
    as_round = (await scene.round(scene.wide, UNLISTED, {"nonce": nonce})).json()
    round_id = made.headers.get("x-sluicegate-round-id", "")
    rows = (await scene.made("GET", "/api/v1/audit", params={"round_id": round_id}))["items"]
    kinds = [row["kind"] for row in rows]
    for kind in ("call_admitted", "call_sent", "call_settled"):
        if kinds.count(kind) != 1:
            return f"a call that reached the server once has {kinds.count(kind)} rows {kind!r}"
    denied = await _refusal(scene, request_id)
    if denied is None:
        return f"a refusal ({refused.status_code}) has no row"
    wanted = (scene.wide.key_id, scene.tool(UNLISTED), "tool_not_allowed")
    if (denied["actor"], denied["tool_name"], denied["code"]) != wanted:
        return f"the row of a refusal does not say who, what and why: {denied}"
    path = {"round_id": as_round["round_id"], "kind": "call_refused"}
    in_round = (await scene.made("GET", "/api/v1/audit", params=path))["items"]
    if len(in_round) != 1:
        return f"a call refused in a round has {len(in_round)} rows"
    if any(key.secret in str([*rows, denied, *in_round]) for key in scene.keys):
        return "a row of the audit trail holds a secret"
    return None


async def _refusal(scene: Scene, request_id: str) -> dict[str, Any] | None:
    """Find the row of a refused request among the newest."""
    params: dict[str, Any] = {"kind": "request_refused", "limit": 200}
    for _ in range(PAGES):
        page = await scene.made("GET", "/api/v1/audit", params=params)
        for row in page["items"]:
            if row["request_id"] == request_id:
                found: dict[str, Any] = row
                return found
        if page["next_cursor"] is None:
            return None
        params["cursor"] = page["next_cursor"]
    return None


async def audit_is_chained(scene: Scene) -> str | None:
    """Make a call, have the trail sealed, and compute the links of its rows anew from what is shown."""
    made = await scene.execute(scene.wide, ALLOWED, {"nonce": secrets.token_hex(8)})
    kept = await scene.made("POST", "/api/v1/audit/seal")
    params = {"round_id": made.headers.get("x-sluicegate-round-id", "")}
    rows = (await scene.made("GET", "/api/v1/audit", params=params))["items"]
    for row in rows:
        link = {name: row.pop(name) for name in ("number", "previous_hash", "hash")}
        if link["number"] is None or link["number"] > kept["length"]:
            return f"row {row['id']} is not sealed, although everything was"
        if link_hash(link["previous_hash"], link["number"], row) != link["hash"]:
            return f"row {row['id']} is not what was sealed"
    if not rows:
        return "a call that was made has no rows"
    head = {"length": kept["length"], "hash": kept["hash"]}
    body = {"heads": [head], "last": CHAINED}
    found = await scene.made("POST", "/api/v1/audit/verify", json=body)
    if not found["holds"]:
        return f"the trail is broken: {found['problems'][:3]}"
    if found["checked"] < min(CHAINED, kept["length"] - kept["pruned_length"]):
        return f"only {found['checked']} links of the trail were checked"
    return None


async def planes_are_apart(scene: Scene) -> str | None:
    """Use every credential where it does not belong, and none at all."""
    admin = Key("admin", scene.admin_token)
    data = {"authorization": f"Bearer {scene.wide.secret}"}
    tried = {
        "a key on the control plane": await scene.http.get("/api/v1/keys", headers=data),
        "the admin token on the data plane": await scene.execute(admin, ALLOWED, {"nonce": "planes"}),
        "the admin token over MCP": await scene.mcp(admin, "tools/list", {}, {}),
        "no credential on the data plane": await scene.http.get("/v1/mcp/tools"),
        "no credential on the control plane": await scene.http.get("/api/v1/keys"),
        "no credential over MCP": await scene.http.post("/mcp", json={}),
    }
    for what, answer in tried.items():
        if answer.status_code not in (401, 403):
            return f"{what} was answered {answer.status_code}"
    return "the call of a wrong credential reached the server" if scene.probe.count("planes") else None


async def access_ends(scene: Scene) -> str | None:
    """Rotate a secret away, and disable a key: from the next request on, neither may call."""
    made = await scene.made("POST", "/api/v1/keys", json={"name": f"{scene.connection} ending"})
    old = Key("ending", made["secret"], made["id"])
    scene.keys.append(old)
    path = f"/api/v1/keys/{old.key_id}"
    fresh = Key("ending", (await scene.made("POST", f"{path}/secrets", json={}))["secret"])
    with_old, with_new = [await scene.execute(key, ALLOWED, {"nonce": "rotated"}) for key in (old, fresh)]
    if (with_old.status_code, with_new.status_code) != (401, 200) or scene.probe.count("rotated") != 1:
        return f"after a rotation the old secret was answered {with_old.status_code}"
    await scene.made("PATCH", path, json={"enabled": False})
    disabled = await scene.execute(fresh, ALLOWED, {"nonce": "disabled"})
    if disabled.status_code != 403 or scene.probe.count("disabled"):
        return f"a disabled key was answered {disabled.status_code}"
    return None


CHECKS: Mapping[str, tuple[Check, str]] = {
    "list is call": (list_is_call, "every key is shown exactly what it can execute, on every route"),
    "denied reaches nobody": (denied_reaches_nobody, "refused calls reached the server 0 times"),
    "no secret leaves": (no_secret_leaves, "no key, token or header of a caller reached the server"),
    "at most once": (at_most_once, "one idempotency key is one call, and another call under it is refused"),
    "audit is complete": (audit_is_complete, "every call and every refusal has its rows"),
    "audit is chained": (audit_is_chained, "the audit trail is sealed, and nothing of it was changed"),
    "planes are apart": (planes_are_apart, "no credential is good for the other plane"),
    "access ends": (access_ends, "a rotated secret and a disabled key end at once"),
}
"""Every check by name, with what it means when it holds."""
