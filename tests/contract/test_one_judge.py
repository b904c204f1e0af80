"""`decide` is the only judge: nothing else reads the lists, profiles and policies that it decides by.

A second place that filters tools is a second answer: a tool would be listed and not callable, or the reverse.
"""

import ast
from pathlib import Path

import pytest

from governance.modes import SOURCES_WITH_RUNNER, SourceKind

ROOT = Path(__file__).parents[2]
FOLDERS = ("governance", "models", "workflows", "activities", "api")

MAY_IMPORT = {
    # What admits or refuses a name: read by the judge alone.
    "governance.filters.parse_tool_list": {"governance/decision.py"},
    "governance.filters.ToolList": {"governance/decision.py"},
    "governance.filters.ALL_TOOLS": set(),
    "governance.filters.NO_TOOLS": set(),
    # What a profile and a policy leave over: made into a context for the judge in one place.
    "governance.profiles.allowed_names": {"models/place.py"},
    "governance.subagents.withheld_tools": {"models/place.py"},
    # Which implementation may be bound: chosen in one place, for every way to a tool.
    "governance.modes.select_implementation": {"models/catalog.py"},
    # Whether anything can make a tool's calls.
    "governance.modes.SOURCES_WITH_RUNNER": {"models/catalog.py", "governance/catalogs.py"},
}


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


IMPORTS = {
    path.relative_to(ROOT).as_posix(): imports_of(path)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
}


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_filter_function_is_imported_by_the_judge_alone(name: str) -> None:
    users = {path for path, imports in IMPORTS.items() if name in imports}

    assert users == MAY_IMPORT[name]


@pytest.mark.parametrize("module", ["governance.filters", "governance.profiles", "governance.subagents"])
def test_no_module_of_filters_is_imported_whole(module: str) -> None:
    parent, _, last = module.rpartition(".")
    assert {path for path, found in IMPORTS.items() if {module, f"{parent}.{last}"} & found} == set()


@pytest.mark.parametrize(
    "path",
    [
        "models/catalog.py",
        "models/spawning.py",
        "activities/call_verdicts.py",
        "activities/surroundings.py",
        "api/catalog.py",
    ],
)
def test_every_way_to_a_tool_asks_the_judge(path: str) -> None:
    assert "governance.decision.decide" in IMPORTS[path]


def test_a_source_kind_has_a_runner_exactly_where_the_worker_registers_one() -> None:
    tree = ast.parse((ROOT / "worker.py").read_text())
    registered = {
        SourceKind[key.attr]
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name) and key.value.id == "SourceKind"
    }

    assert registered == SOURCES_WITH_RUNNER
