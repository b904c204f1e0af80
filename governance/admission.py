"""Admit or refuse one call: name, decision, arguments, schema, in this order. Pure: no I/O."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from governance.argument_rules import NO_RULES, BrokenRule, CompiledRules
from governance.arguments import InvalidArguments, parse_arguments
from governance.canonical import JSON
from governance.codes import Classification, ErrorCode
from governance.decision import DecisionContext, Denied, GovernedTool, NeedsApproval, decide
from governance.failures import CallError
from governance.messages import message_for
from governance.names import nearest_name
from governance.schemas import SchemaProblem, ToolSchema


@dataclass(frozen=True)
class Admitted:
    """The call may be made with these arguments, a JSON object."""

    arguments: dict[str, JSON]


@dataclass(frozen=True)
class Refused:
    """The call may not be made. `level` and `reason` are for operators and never shown to the caller."""

    error: CallError
    level: str | None = None
    reason: str | None = None
    audited: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    """Further facts for the audit trail: the argument rule and its revision."""


def call_error(
    code: ErrorCode,
    details: Mapping[str, JSON],
    classification: Classification = Classification.RUNTIME,
    *,
    retryable: bool = False,
) -> CallError:
    """Make an error whose sentence follows from its code and details."""
    return CallError(classification, code, message_for(code, details), retryable, dict(details))


def judge_name(
    context: DecisionContext, tools: Mapping[str, GovernedTool], name: str
) -> GovernedTool | Refused:
    """Find the tool of a name and decide whether the caller may use it."""
    tool = tools.get(name)
    if tool is None:
        return _unknown_name(context, tools, name)
    decision = decide(context, tool)
    match decision:
        case Denied(level, code, reason):
            details: dict[str, JSON] = {"tool": name}
            if code is ErrorCode.TOOL_NOT_FOUND:
                details["reason"] = reason
            return Refused(call_error(code, details, Classification.AUTHORIZATION), level.value, reason)
        case NeedsApproval(reason):
            error = call_error(ErrorCode.APPROVAL_UNAVAILABLE, {"tool": name}, Classification.AUTHORIZATION)
            return Refused(error, None, reason)
        case _:
            return tool


def judge_arguments(
    name: str,
    raw: JSON,
    schema_of: Callable[[], ToolSchema | SchemaProblem],
    rules: Sequence[CompiledRules] = (NO_RULES,),
) -> Admitted | Refused:
    """Parse the arguments as the model gave them; check them against the tool's schema and every rule.

    `schema_of` is asked only once the arguments are an object, since making a schema costs more.
    """
    parsed = parse_arguments(raw)
    if isinstance(parsed, InvalidArguments):
        return _invalid(name, parsed)
    schema = schema_of()
    if isinstance(schema, SchemaProblem):
        details = {"tool": name, "reason": "schema_unusable"}
        return Refused(call_error(ErrorCode.TOOL_NOT_FOUND, details), "connection", schema.reason)
    problems = schema.check(parsed.value)
    if problems:
        return _invalid(name, InvalidArguments(problems))
    for compiled in rules:
        broken = compiled.check(parsed.value)
        if broken is not None:
            return _breaks_rule(name, broken)
    return Admitted(parsed.value)


def _breaks_rule(name: str, broken: BrokenRule) -> Refused:
    """Refuse arguments that an operator's rule does not allow; the caller learns the rule's id."""
    refused = _invalid(name, InvalidArguments(broken.problems))
    error = call_error(
        ErrorCode.INVALID_ARGUMENTS,
        {**refused.error.details, "rule": broken.rule.id},
        Classification.AUTHORIZATION,
    )
    return Refused(error, broken.rule.level.value, "argument_rule", broken.audited())


def _invalid(name: str, invalid: InvalidArguments) -> Refused:
    details: dict[str, JSON] = {
        "tool": name,
        "problems": [
            {
                "path": problem.path,
                "expected": problem.expected,
                "got": problem.got,
                "position": problem.position,
            }
            for problem in invalid.problems
        ],
    }
    return Refused(
        call_error(ErrorCode.INVALID_ARGUMENTS, details, Classification.SEMANTIC), None, "arguments"
    )


def _unknown_name(context: DecisionContext, tools: Mapping[str, GovernedTool], name: str) -> Refused:
    """Refuse a name that no tool has, with the nearest name that the caller may see and no other."""
    visible = (exposed for exposed, tool in tools.items() if not isinstance(decide(context, tool), Denied))
    details: dict[str, JSON] = {"tool": name, "reason": "unknown_name"}
    nearest = nearest_name(name, visible)
    if nearest is not None:
        details["nearest"] = nearest
    return Refused(call_error(ErrorCode.TOOL_NOT_FOUND, details), None, "unknown_name")
