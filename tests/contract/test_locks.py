"""The lock files pin, with hashes, all that pyproject.toml asks for, and name no package index."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
RUNTIME = [*PROJECT["dependencies"], *EXTRAS["demo"], *PYPROJECT["build-system"]["requires"]]
LOCKS = {"requirements.lock": RUNTIME, "requirements-dev.lock": [*RUNTIME, *EXTRAS["dev"]]}


def pinned(lock: str) -> dict[str, Version]:
    """Read what a lock file pins: canonical name to version."""
    pins = re.findall(
        r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", (ROOT / lock).read_text(), flags=re.MULTILINE
    )
    return {canonicalize_name(name): Version(version) for name, version in pins}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index_and_no_file(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    # Options such as --index-url or -e would start a line with a dash.
    assert re.search(r"^-", text, flags=re.MULTILINE) is None


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_of_the_project_is_pinned_to_a_version_it_admits(lock: str) -> None:
    pins = pinned(lock)
    wanted = [Requirement(text) for text in LOCKS[lock]]
    unmet = [
        str(requirement)
        for requirement in wanted
        if requirement.name != PROJECT["name"]
        and pins.get(canonicalize_name(requirement.name), Version("0")) not in requirement.specifier
    ]
    assert unmet == []


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash(lock: str) -> None:
    entries = re.split(r"^(?=[A-Za-z0-9])", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_development_lock_pins_the_same_versions() -> None:
    assert pinned("requirements.lock").items() <= pinned("requirements-dev.lock").items()
