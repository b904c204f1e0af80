"""Admission of one call: name, decision, arguments, schema."""

import pytest

from governance.admission import Admitted, Refused, judge_arguments, judge_name
from governance.canonical import JSON
from governance.codes import Classification, ErrorCode
from governance.decision import ConnectionRules, DecisionContext, GovernedTool, KeyRules
from governance.filters import NO_FILTER
from governance.schemas import SchemaProblem, ToolSchema, compile_schema
from tests.governance.schema_cases import compiled, properties

READ = GovernedTool("conn-read", "conn", "read")
WRITE = GovernedTool("conn-write", "conn", "write")
SECRET = GovernedTool("conn-rewrite", "conn", "rewrite")
PAY = GovernedTool("conn-pay", "conn", "pay", requires_approval=True)
GONE = GovernedTool("off-read", "off", "read")
TOOLS = {tool.exposed_name: tool for tool in (READ, WRITE, SECRET, PAY, GONE)}
CONTEXT = DecisionContext(
    KeyRules(enabled=True, mcp_configs=None),
    {
        "conn": ConnectionRules(
            "conn", enabled=True, tools_to_execute=("read", "write", "pay"), open_to_all_keys=False
        ),
        "off": ConnectionRules("off", enabled=False, tools_to_execute=("*",), open_to_all_keys=False),
    },
    NO_FILTER,
)


def refused(name: str) -> Refused:
    judged = judge_name(CONTEXT, TOOLS, name)
    assert isinstance(judged, Refused)
    return judged


def test_a_visible_tool_is_found_by_its_name() -> None:
    assert judge_name(CONTEXT, TOOLS, "conn-read") is READ


def test_a_hidden_tool_is_refused_and_only_the_operator_learns_why() -> None:
    judged = refused("conn-rewrite")

    assert judged.error.code is ErrorCode.TOOL_NOT_ALLOWED
    assert judged.error.details == {"tool": "conn-rewrite"}
    assert (judged.level, judged.reason) == ("connection", "not_on_connection_list")
    assert "connection" not in judged.error.message


def test_a_tool_of_a_disabled_connection_is_not_found_for_that_reason() -> None:
    judged = refused("off-read")

    assert judged.error.code is ErrorCode.TOOL_NOT_FOUND
    assert judged.error.details == {"tool": "off-read", "reason": "connection_disabled"}


@pytest.mark.parametrize("name", ["conn_read", "conn.read", "mcp__conn__read"])
def test_another_spelling_is_not_found_and_the_right_one_is_named(name: str) -> None:
    judged = refused(name)

    assert judged.error.code is ErrorCode.TOOL_NOT_FOUND
    assert judged.error.details == {"tool": name, "reason": "unknown_name", "nearest": "conn-read"}


def test_the_nearest_name_is_never_one_that_the_caller_may_not_see() -> None:
    assert refused("conn_rewrite").error.details["nearest"] == "conn-write"
    assert "nearest" not in refused("zzz").error.details


def test_a_tool_that_requires_approval_is_refused_for_that() -> None:
    assert refused("conn-pay").error.code is ErrorCode.APPROVAL_UNAVAILABLE


def never() -> ToolSchema | SchemaProblem:
    raise AssertionError("The schema was asked for arguments that are no object.")


def test_arguments_that_fit_are_admitted_as_an_object() -> None:
    schema = compiled(properties(n={"type": "integer"}))

    assert judge_arguments("t", '{"n": 9007199254740993}', lambda: schema) == Admitted(
        {"n": 9007199254740993}
    )
    assert judge_arguments("t", "", lambda: schema) == Admitted({})


@pytest.mark.parametrize("raw", ["[1]", '{"a":1,"a":2}', 7, "{"])
def test_arguments_that_are_no_object_are_refused_before_the_schema_is_made(raw: JSON) -> None:
    judged = judge_arguments("t", raw, never)

    assert isinstance(judged, Refused)
    assert (judged.error.code, judged.error.classification) == (
        ErrorCode.INVALID_ARGUMENTS,
        Classification.SEMANTIC,
    )
    assert judged.error.details["tool"] == "t"


def test_arguments_that_do_not_fit_are_refused_with_what_to_correct() -> None:
    schema = compiled(properties(n={"type": "integer"}))

    judged = judge_arguments("t", {"n": "hunter2"}, lambda: schema)
    assert isinstance(judged, Refused)
    problem = {"path": "/n", "expected": "integer", "got": "string", "position": None}
    assert judged.error.details == {"tool": "t", "problems": [problem]}
    assert "hunter2" not in str(judged)


def test_a_tool_whose_schema_cannot_be_used_is_not_found() -> None:
    judged = judge_arguments("t", {}, lambda: compile_schema({"$ref": "http://x.test/"}))

    assert isinstance(judged, Refused)
    assert judged.error.code is ErrorCode.TOOL_NOT_FOUND
    assert judged.error.details == {"tool": "t", "reason": "schema_unusable"}
    assert "never fetched" not in judged.error.message
    assert judged.reason is not None
    assert "http://x.test/" in judged.reason
