"""Guardrails: hooks around a call that allow it, block it, redact what it carries or note something. Pure.

Hooks run in the operator's order, each on what the one before it left. The first that blocks ends it, and
whatever a hook does that is not a verdict (it crashes, hangs, or answers something else) blocks as well.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from governance.canonical import JSON, NotCanonicalError, canonical_bytes, is_array, is_object
from governance.redaction import kinds_of, redact_json
from governance.schemas import SchemaProblem, ToolSchema, compile_schema

MOST_GUARDRAILS: Final = 50
"""Guardrails of an installation."""

LONGEST_REASON: Final = 200
"""Characters of the reason of a block that callers are shown."""

LARGEST_NOTES: Final = 4 * 1024
"""Bytes of what a hook notes about one call."""

LARGEST_CHECKED: Final = 4 * 1024 * 1024
"""Bytes of arguments or of a result that redaction and patterns look through; more is blocked."""

MOST_GROWTH: Final = 64 * 1024
"""Bytes by which redaction may make a value longer."""


class Stage(StrEnum):
    """On which side of the call a hook stands."""

    BEFORE = "before"
    AFTER = "after"


class GuardrailKind(StrEnum):
    """What a guardrail is."""

    REDACTION = "redaction"
    SIZE = "size"
    PATTERNS = "patterns"
    PLUGIN = "plugin"
    WEBHOOK = "webhook"


@dataclass(frozen=True)
class GuardedCall:
    """What a hook learns of the call; `connection` is None for a tool of no connection."""

    key_id: str
    connection: str | None
    tool: str
    upstream_name: str
    round_id: str
    position: int
    tool_call_id: str

    def to_json(self) -> dict[str, JSON]:
        """Return the call as webhooks are told of it."""
        return {
            "key_id": self.key_id,
            "connection": self.connection,
            "tool": self.tool,
            "upstream_name": self.upstream_name,
            "round_id": self.round_id,
            "position": self.position,
            "tool_call_id": self.tool_call_id,
        }


@dataclass(frozen=True)
class GuardrailRequest:
    """What a hook is asked about: arguments before the call, the server's answer after it, both JSON.

    The answer is the result as the server gave it, or {"server_message": text} where it answered with an
    error. `value` belongs to the hook: changing it changes nothing.
    """

    guardrail: str
    stage: Stage
    call: GuardedCall
    value: JSON


@dataclass(frozen=True)
class Allow:
    """Nothing is to be said against it."""


@dataclass(frozen=True)
class Annotate:
    """It may go on, and `notes` are to be written to the audit trail: JSON, never arguments or results."""

    notes: Mapping[str, JSON]


@dataclass(frozen=True)
class Redact:
    """It may go on with `value` in the place of what was there."""

    value: JSON
    notes: Mapping[str, JSON] = field(default_factory=dict[str, JSON])


@dataclass(frozen=True)
class Block:
    """It may not go on; `reason` is shown to the caller and never quotes what was found."""

    reason: str
    notes: Mapping[str, JSON] = field(default_factory=dict[str, JSON])


Verdict: TypeAlias = Allow | Annotate | Redact | Block
"""What a hook answers."""

Hook: TypeAlias = Callable[[GuardrailRequest], Verdict]
"""A hook of our own or of a plugin."""


@dataclass(frozen=True)
class Selector:
    """For which calls a guardrail is meant: all that are named must fit; None names everything."""

    connections: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def selects(self, call: GuardedCall) -> bool:
        """Say whether the guardrail is meant for a call; `tools` are exposed names, `keys` ids."""
        return (
            (self.connections is None or call.connection in self.connections)
            and (self.tools is None or call.tool in self.tools)
            and (self.keys is None or call.key_id in self.keys)
        )


@dataclass(frozen=True)
class Guardrail:
    """One configured hook; `settings` are those of its kind, `sealed_secret` a webhook's, in base64."""

    name: str
    kind: GuardrailKind
    stages: frozenset[Stage]
    selector: Selector
    settings: Mapping[str, JSON]
    timeout_s: float
    sealed_secret: str | None = None

    @classmethod
    def from_json(cls, payload: Mapping[str, JSON]) -> "Guardrail":
        """Read a guardrail that was checked by `guardrails_problem`."""
        selector: dict[str, JSON] = payload.get("selector") or dict[str, JSON]()
        stages: list[str] = payload.get("stages") or list(Stage)
        settings: dict[str, JSON] = payload.get("settings") or dict[str, JSON]()
        return cls(
            name=payload["name"],
            kind=GuardrailKind(payload["kind"]),
            stages=frozenset(map(Stage, stages)),
            selector=Selector(
                connections=_names(selector.get("connections")),
                tools=_names(selector.get("tools")),
                keys=_names(selector.get("keys")),
            ),
            settings=settings,
            timeout_s=float(payload.get("timeout_s") or DEFAULT_TIMEOUT_S),
            sealed_secret=payload.get("sealed_secret"),
        )


def _names(values: list[str] | None) -> frozenset[str] | None:
    return None if values is None else frozenset(values)


DEFAULT_TIMEOUT_S: Final = 2.0
"""How long a hook may take where its guardrail does not say."""

LONGEST_TIMEOUT_S: Final = 10.0
"""The longest time that one hook may be given."""


def matching(guardrails: Iterable[Guardrail], stage: Stage, call: GuardedCall) -> tuple[Guardrail, ...]:
    """Return the guardrails that are meant for one side of a call, in the operator's order."""
    return tuple(one for one in guardrails if stage in one.stages and one.selector.selects(call))


def read_verdict(answer: JSON) -> Verdict | None:
    """Read the verdict of a webhook: {"verdict", "reason"?, "value"?, "notes"?}; None for anything else."""
    if not is_object(answer) or set(answer) - {"verdict", "reason", "value", "notes"}:
        return None
    notes: JSON = answer.get("notes")
    if notes is None:
        notes = dict[str, JSON]()
    match answer.get("verdict"):
        case "allow" if set(answer) <= {"verdict"}:
            return Allow()
        case "annotate" if "value" not in answer and "reason" not in answer:
            return Annotate(notes)
        case "redact" if "value" in answer and "reason" not in answer:
            return Redact(answer["value"], notes)
        case "block" if "value" not in answer:
            return Block(answer.get("reason", ""), notes)
        case _:
            return None


def verdict_problem(verdict: object, stage: Stage, value: JSON) -> str | None:
    """Say why what a hook answered cannot be meant, None where it can; hooks are not trusted to be right."""
    if isinstance(verdict, Allow):
        return None
    if isinstance(verdict, Annotate):
        return _notes_problem(verdict.notes)
    if isinstance(verdict, Block):
        return _notes_problem(verdict.notes) if _is_text(verdict.reason) else "not_a_verdict"
    if isinstance(verdict, Redact):
        return _redacted_problem(verdict.value, stage, value) or _notes_problem(verdict.notes)
    return "not_a_verdict"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _redacted_problem(redacted: JSON, stage: Stage, value: JSON) -> str | None:
    if stage is Stage.BEFORE and not is_object(redacted):
        return "redacted_arguments_are_no_object"
    if type(redacted) is not type(value):
        return "redacted_value_is_of_another_type"
    if not _is_json(redacted):
        return "redacted_value_is_not_json"
    grown = len(canonical_bytes(redacted)) - len(canonical_bytes(value))
    return "redacted_value_is_larger" if grown > MOST_GROWTH else None


def _notes_problem(notes: object) -> str | None:
    if not is_object(notes) or not _is_json(notes):
        return "notes_are_not_json"
    return "notes_too_large" if len(canonical_bytes(notes)) > LARGEST_NOTES else None


def _is_json(value: JSON) -> bool:
    """Say whether a value is JSON that comes back as it went: no tuples, no keys that are not text."""
    try:
        content = canonical_bytes(value)
    except (NotCanonicalError, TypeError):
        return False
    return b"\\u0000" not in content and _is_plain(value)


def _is_plain(value: JSON) -> bool:
    if is_object(value):
        return type(value) is dict and all(
            type(name) is str and _is_plain(item) for name, item in value.items()
        )
    if is_array(value):
        return type(value) is list and all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def shown_reason(reason: str) -> str:
    """Return a reason as callers are shown it: one line of printable text, never empty."""
    line = "".join(character if character.isprintable() else " " for character in reason).strip()
    return line[:LONGEST_REASON] or "blocked"


def build(guardrail: Guardrail) -> Hook:
    """Return the hook of a built-in guardrail.

    Raises:
        ValueError: it is none, or its settings cannot be used.
    """
    settings = guardrail.settings
    match guardrail.kind:
        case GuardrailKind.REDACTION:
            return _redaction(settings)
        case GuardrailKind.SIZE:
            return _size(int(settings["max_bytes"]))
        case GuardrailKind.PATTERNS:
            return _patterns(settings)
        case _:
            raise ValueError(f"{guardrail.kind.value} is not built in.")


def _redaction(settings: Mapping[str, JSON]) -> Hook:
    kinds = kinds_of(settings.get("find") or ("secrets", "personal"))
    blocks = settings.get("action") == "block"

    def check(request: GuardrailRequest) -> Verdict:
        if len(canonical_bytes(request.value)) > LARGEST_CHECKED:
            return Block("too_large_to_check")
        value, counts = redact_json(request.value, kinds)
        if not counts:
            return Allow()
        notes: dict[str, JSON] = {"found": counts}
        return Block(f"found {', '.join(sorted(counts))}", notes) if blocks else Redact(value, notes)

    return check


def _size(max_bytes: int) -> Hook:
    def check(request: GuardrailRequest) -> Verdict:
        size = len(canonical_bytes(request.value))
        return Block(f"larger than {max_bytes} bytes", {"bytes": size}) if size > max_bytes else Allow()

    return check


def _patterns(settings: Mapping[str, JSON]) -> Hook:
    deny = _compiled(settings.get("deny"), lambda some: {"not": {"anyOf": some}})
    allow = _compiled(settings.get("allow"), lambda some: {"anyOf": some})
    fields: Collection[str] | None = settings.get("fields")

    def check(request: GuardrailRequest) -> Verdict:
        texts = list(_texts(request.value, fields))
        if sum(map(len, texts)) > LARGEST_CHECKED:
            return Block("too_large_to_check")
        # Text that would take too long to match fits neither: it is denied, and it is not allowed.
        if deny is not None and not all(deny.check(text) == () for text in texts):
            return Block("denied_pattern")
        if allow is not None and not all(allow.check(text) == () for text in texts):
            return Block("not_an_allowed_pattern")
        return Allow()

    return check


def _compiled(patterns: JSON, schema_of: Callable[[list[JSON]], JSON]) -> ToolSchema | None:
    """Compile patterns to a schema of text on the linear-time engine; None where there are none."""
    if not patterns:
        return None
    compiled = compile_schema(schema_of([{"pattern": pattern} for pattern in patterns]), every_pattern=True)
    if isinstance(compiled, SchemaProblem):
        raise ValueError(compiled.reason)  # noqa: TRY004 - the value is what is wrong.
    return compiled


def _texts(value: JSON, fields: Collection[str] | None, inside: bool = False) -> Iterable[str]:  # noqa: FBT001, FBT002
    """Yield the strings of a value, names included, or those under the named properties alone."""
    wanted = fields is None or inside
    if isinstance(value, str):
        if wanted:
            yield value
    elif is_array(value):
        for item in value:
            yield from _texts(item, fields, inside)
    elif is_object(value):
        for name, item in value.items():
            if wanted:
                yield name
            yield from _texts(item, fields, inside or (fields is not None and name in fields))
