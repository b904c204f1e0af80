"""The manifest of governance rules and the tests of these subjects name one another completely."""

import ast
from collections import Counter
from pathlib import Path

from tests.contract.governance_requirements import REQUIREMENTS

TESTS = Path(__file__).parents[1]

WHOLE_FILES = (
    "acceptance/test_governed_mcp",
    "acceptance/test_governed_tools",
    "api/test_added_implementations",
    "api/test_explained_places",
    "api/test_program_capabilities",
    "api/test_round_places",
    "api/test_task_endings",
    "api/test_tool_governance",
    "contract/test_one_judge",
    "governance/test_batching",
    "governance/test_catalog_entries",
    "governance/test_catalogs",
    "governance/test_denials",
    "governance/test_execution_policy",
    "governance/test_handshake",
    "governance/test_modes",
    "governance/test_profiles_and_subagents",
    "governance/test_snapshots",
    "governance/test_visible_worlds",
    "models/test_consistency",
    "models/test_immutable_rows",
    "models/test_invocation_consistency",
    "models/test_invocations",
    "models/test_projection",
    "models/test_tasks",
    "workflows/test_governed_rounds",
    "workflows/test_pins",
    "workflows/test_runner_registry",
    "workflows/test_subagent_tools",
)
"""Files of nothing but governance: each of their tests shows a rule."""


def cases_of(file: str) -> set[str]:
    path = TESTS / f"{file}.py"
    nodes = ast.parse(path.read_text()).body if path.exists() else []
    return {
        f"{file}::{node.name}"
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


NAMED = {test for requirement in REQUIREMENTS for test in requirement.tests}


def test_every_rule_is_shown_by_tests_that_exist() -> None:
    existing = set[str]().union(*(cases_of(test.partition("::")[0]) for test in NAMED))

    assert sorted(NAMED - existing) == []
    assert [requirement.id for requirement in REQUIREMENTS if not requirement.tests] == []


def test_every_test_of_these_subjects_shows_a_rule() -> None:
    wanted = {file: cases_of(file) for file in WHOLE_FILES}

    assert [file for file, found in wanted.items() if not found] == []
    assert sorted(set[str]().union(*wanted.values()) - NAMED) == []


def test_rules_have_ids_of_their_own_and_a_source() -> None:
    assert [name for name, count in Counter(r.id for r in REQUIREMENTS).items() if count > 1] == []
    assert all(requirement.source and requirement.rule.endswith(".") for requirement in REQUIREMENTS)
