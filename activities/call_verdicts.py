"""Judge the calls of a round while it is frozen: admit each to a tool, or refuse it with a reason."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from governance.admission import Refused, call_error, judge_arguments, judge_name
from governance.argument_rules import NO_RULES, CompiledRules
from governance.canonical import JSON, canonical_bytes, digest
from governance.codes import Classification, ErrorCode
from governance.decision import Denied, Level, decide, revisions_of
from governance.tool_cache import KnownTool, ToolCache
from models.argument_rule import key_rules
from models.audit import AuditFact, AuditKind
from models.catalog import World
from models.key import ApiKey
from models.round import NewEvent, Round, RoundCall
from models.tool import CatalogTool, load_snapshots


@dataclass(frozen=True)
class AdmittedCall:
    """A call that was admitted: the tool it is bound to and the arguments it will send."""

    call: RoundCall
    tool: CatalogTool
    arguments: bytes


@dataclass(frozen=True)
class RefusedCall:
    """A call that was refused, and why."""

    call: RoundCall
    refused: Refused


@dataclass(frozen=True)
class AskedCall:
    """A call as it was asked for, and its arguments as the model gave them, which may have been purged."""

    call: RoundCall
    content: bytes | None


class KnownTools:
    """Loads snapshots through the cache, within one transaction."""

    def __init__(self, session: Session, tools: ToolCache, key: ApiKey | None = None) -> None:
        """Use a session, a cache and, where calls are judged, the key whose rules hold."""
        self._session = session
        self._tools = tools
        self._key = key

    def known(self, digest_: str) -> KnownTool:
        """Return a tool by the digest of its snapshot."""
        return self._tools.get(digest_, lambda: load_snapshots(self._session, {digest_})[digest_])

    def rules_of_key(self, tool: CatalogTool) -> CompiledRules:
        """Return the rules of the caller's key that hold for a tool."""
        if self._key is None:
            return NO_RULES
        return self._tools.rules(key_rules(self._key, tool.exposed_name, tool.connection_name))


def judge_calls(
    world: World, calls: Sequence[AskedCall], loader: KnownTools
) -> list[AdmittedCall | RefusedCall]:
    """Judge each call in the model's order; of two with one id the later is refused."""
    seen: set[str] = set()
    verdicts: list[AdmittedCall | RefusedCall] = []
    for asked in calls:
        call = asked.call
        if call.call_id in seen:
            error = call_error(ErrorCode.DUPLICATE_CALL_ID, {"call_id": call.call_id})
            verdicts.append(RefusedCall(call, Refused(error, None, "duplicate_call_id")))
            continue
        seen.add(call.call_id)
        verdicts.append(_judge(world, asked, loader))
    return verdicts


def _judge(world: World, asked: AskedCall, snapshots: KnownTools) -> AdmittedCall | RefusedCall:
    call = asked.call
    found = _judge_implementation(world, call.tool_name) or judge_name(
        world.context, world.governed, call.tool_name
    )
    if isinstance(found, Refused):
        return RefusedCall(call, found)
    tool = world.catalog[found.exposed_name]
    raw = json.loads(asked.content)["arguments"] if asked.content else None
    known = snapshots.known(tool.snapshot_digest)
    rules = (known.rules, snapshots.rules_of_key(tool))
    verdict = judge_arguments(call.tool_name, raw, lambda: known.schema, rules)
    if isinstance(verdict, Refused):
        return RefusedCall(call, verdict)
    return AdmittedCall(call, tool, canonical_bytes(verdict.arguments))


def _judge_implementation(world: World, name: str) -> Refused | None:
    """Refuse a call whose wanted implementation may not be bound, to a caller that may see the tool."""
    refused = world.refused.get(name)
    if refused is None or isinstance(
        decide(world.context, replace(world.governed[name], withheld=None)), Denied
    ):
        return None
    details: dict[str, JSON] = {
        "tool": name,
        "implementation": refused.implementation_ref,
        "rule": refused.rule.value,
    }
    error = call_error(ErrorCode.IMPLEMENTATION_NOT_ALLOWED, details, Classification.AUTHORIZATION)
    return Refused(error, Level.CATALOG.value, refused.rule.value)


def audited_verdict(
    row: Round, world: World, verdict: AdmittedCall | RefusedCall, pending: Collection[int]
) -> AuditFact:
    """Return what the audit says of a verdict; at the `pending` positions guardrails have yet to judge."""
    call = verdict.call
    tool = world.governed.get(call.tool_name)
    revisions = revisions_of(world.context, None if tool is None else tool.connection)
    if isinstance(verdict, AdmittedCall):
        return AuditFact(
            AuditKind.CALL_ADMITTED,
            actor=row.key_id,
            request_id=row.request_id,
            round_id=row.id,
            tool_name=call.tool_name,
            # What guardrails may still take out leaves no digest: a card number can be found by trying.
            arguments_digest=None if call.position in pending else digest(verdict.arguments),
            data={"position": call.position, "snapshot": verdict.tool.snapshot_digest, **revisions},
        )
    return AuditFact(
        AuditKind.CALL_REFUSED,
        actor=row.key_id,
        request_id=row.request_id,
        round_id=row.id,
        tool_name=call.tool_name,
        code=verdict.refused.error.code.value,
        arguments_digest=call.arguments_digest,
        data={
            "position": call.position,
            "level": verdict.refused.level,
            "reason": verdict.refused.reason,
            **verdict.refused.audited,
            **revisions,
        },
    )


def refusal_event(verdict: RefusedCall) -> NewEvent:
    """Return the event of the round that tells of a refused call."""
    data: Mapping[str, JSON] = {
        "position": verdict.call.position,
        "tool_call_id": verdict.call.call_id,
        "tool": verdict.call.tool_name,
        "code": verdict.refused.error.code.value,
    }
    return NewEvent("call_refused", data)
