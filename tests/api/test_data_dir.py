"""One process at a time on a data folder, however the last one ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from api.data_dir import DataDir, DataDirInUse, DataDirUnusable

HOLD = """
import sys
from pathlib import Path
from api.data_dir import DataDir
with DataDir(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder_of(folder: Path) -> "subprocess.Popen[str]":
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_process_is_refused_and_told_the_pid_of_the_first(tmp_path: Path) -> None:
    with holder_of(tmp_path) as holder:
        with (
            pytest.raises(DataDirInUse, match=f"process {holder.pid}: stop it") as refused,
            DataDir(tmp_path),
        ):
            pass
        assert (refused.value.pid, refused.value.path) == (holder.pid, tmp_path)
        holder.kill()


def test_a_killed_holder_leaves_the_folder_free(tmp_path: Path) -> None:
    with holder_of(tmp_path) as holder:
        holder.kill()
    with DataDir(tmp_path) as held:
        assert (held.path / "up.lock").read_text() == f"{os.getpid()}\n"


def test_a_holder_that_left_leaves_the_folder_free(tmp_path: Path) -> None:
    for _ in range(2):
        with DataDir(tmp_path), pytest.raises(DataDirInUse), DataDir(tmp_path):
            pass


def test_a_child_of_the_holder_does_not_keep_the_folder(tmp_path: Path) -> None:
    with DataDir(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child, DataDir(tmp_path):
        assert child.poll() is None
        child.kill()


def test_a_new_folder_is_readable_to_its_owner_alone(tmp_path: Path) -> None:
    with DataDir(tmp_path / "new" / "data") as held:
        assert held.path.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirUnusable, match="Not a directory"), DataDir(tmp_path / "file" / "data"):
        pass
