"""There is one way to a tool: the governed wrapper. Every other way in would show up here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("activities", "workflows", "api", "models", "governance")


def sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))


def files_that_name(attribute: str) -> set[str]:
    """Return the files that reach for an attribute of that name."""
    return {
        name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == attribute
    }


def files_that_import(name: str) -> set[str]:
    return {
        file
        for file, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names)
    }


@pytest.mark.parametrize(
    ("name", "owners"),
    [
        # Who sends tools/call: the runner of MCP servers, and below it the transport itself.
        ("resume_call", {"activities/mcp_runner.py"}),
        # Who marks a send: the gate that the wrapper gives to every runner.
        ("before_send", None),
    ],
)
def test_only_runners_reach_the_transport(name: str, owners: set[str] | None) -> None:
    found = {file for file in files_that_name(name) if not file.startswith("activities/mcp_http/")}
    if owners is not None:
        assert found == owners
    else:
        assert found
        assert all(file.endswith("_runner.py") for file in found)


def test_only_the_wrapper_opens_and_settles_calls() -> None:
    assert files_that_import("open_call") == {"activities/tool_calls.py"}
    assert files_that_import("mark_call_sent") == {"activities/send_gate.py"}
    assert files_that_import("settle_call") == {"activities/tool_calls.py"}
    assert files_that_import("mark_sent") == {"activities/ledger.py"}


def test_only_two_workflows_ask_the_wrapper() -> None:
    """A round, and an operator's retry; executing one call, a direct start and a subagent are rounds."""
    assert files_that_import("ToolCalls") == {"workflows/provider_round.py", "workflows/call_retry.py"}


def test_only_the_wrapper_runs_a_runner() -> None:
    runs = {
        name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "run"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in {"runner", "runners"}
    }
    assert runs == {"activities/tool_calls.py"}
