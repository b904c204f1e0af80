"""The top-level import names are ours alone.

They are ordinary words, and other distributions install packages of the same names: then tests see ours and
the installed command sees theirs, or two distributions write into one folder, all without an error.
"""

import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
TOP_LEVEL = [Path(entry).stem for entry in BUILD["only-include"]]


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_no_other_distribution_owns_the_name(name: str) -> None:
    owners = set(importlib.metadata.packages_distributions().get(name, ()))
    assert owners <= {"sluicegate"}


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_the_name_loads_from_this_root(name: str) -> None:
    loaded = importlib.import_module(name).__file__
    assert loaded is not None
    assert Path(loaded).is_relative_to(ROOT)


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_the_installed_project_finds_the_name_from_any_folder(name: str, tmp_path: Path) -> None:
    code = f"import importlib.util as u; print(u.find_spec({name!r}).origin)"
    found = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()).is_relative_to(ROOT)


@pytest.mark.parametrize("name", BUILD["packages"])
def test_every_folder_of_modules_is_a_package(name: str) -> None:
    # Alembic loads its versions file by file.
    folders = {module.parent for module in (ROOT / name).rglob("*.py")} - {
        ROOT / "models/migrations/versions"
    }
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_every_top_level_module_and_package_is_in_the_wheel() -> None:
    modules = {path.name for path in ROOT.glob("*.py")}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "examples"}
    assert modules | packages == set(BUILD["only-include"])
