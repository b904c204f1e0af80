"""What a person reads when `make` cannot set the project up, and when no PostgreSQL server is there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresUnavailable, find_binary

ROOT = Path(__file__).parents[2]
TOO_OLD = "exit 1"
WITHOUT_PIP = 'case "$2" in *version_info*) exit 0 ;; *) exit 1 ;; esac'


def set_up(folder: Path, python: str) -> "subprocess.CompletedProcess[str]":
    """Run the set-up in an empty checkout, with a Python that answers as the shell code does."""
    fake = folder / "python"
    fake.write_text(f"#!/bin/sh\n{python}\n")
    fake.chmod(0o755)
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "venv", folder / ".ci")
    return subprocess.run(
        ["sh", ".ci/venv", "requirements.lock"],
        cwd=folder,
        env={**os.environ, "PYTHON": str(fake)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_python_that_is_too_old_is_refused_with_the_version_needed(tmp_path: Path) -> None:
    ended = set_up(tmp_path, TOO_OLD)
    assert ended.returncode != 0
    assert "needs Python 3.11 or newer" in ended.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_python_that_cannot_make_environments_is_refused_with_the_package_to_install(
    tmp_path: Path,
) -> None:
    ended = set_up(tmp_path, WITHOUT_PIP)
    assert ended.returncode != 0
    assert "apt-get install python3-venv" in ended.stderr


def test_a_missing_postgresql_server_is_refused_with_the_package_to_install() -> None:
    with pytest.raises(PostgresUnavailable, match="apt-get install postgresql"):
        find_binary("no-program-of-this-name")
