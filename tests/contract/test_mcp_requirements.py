"""The manifest of MCP rules and the tests of the transport name one another completely."""

import ast
from collections import Counter
from pathlib import Path

from tests.contract.mcp_requirements import REQUIREMENTS

TESTS = Path(__file__).parents[1] / "activities" / "mcp_http"


def existing_tests() -> set[str]:
    found: set[str] = set()
    for path in TESTS.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add(f"{path.stem}::{node.name}")
    return found


def named_tests() -> list[str]:
    return [test for requirement in REQUIREMENTS for test in requirement.tests]


def test_every_rule_is_shown_by_tests_that_exist() -> None:
    assert sorted(set(named_tests()) - existing_tests()) == []
    assert [requirement.id for requirement in REQUIREMENTS if not requirement.tests] == []


def test_every_test_of_the_transport_shows_a_rule() -> None:
    assert sorted(existing_tests() - set(named_tests())) == []


def test_rules_have_ids_of_their_own_and_a_source() -> None:
    assert [name for name, count in Counter(r.id for r in REQUIREMENTS).items() if count > 1] == []
    assert all(requirement.source and requirement.rule.endswith(".") for requirement in REQUIREMENTS)
