"""The command line as a process: what it says when something is wrong, and how quickly it starts."""

import ast
import json
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from api.commands import connections
from api.commands.failures import CommandFailed
from api.commands.output import clean
from api.commands.root import COMMANDS, load
from models import connection
from tests.support.command_line import ROOT, Done, environment, run, sluicegate

pytestmark = pytest.mark.anyio


@pytest.fixture
def nobody() -> str:
    """The URL of a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


async def python(code: str, data_dir: Path) -> Done:
    return await run([sys.executable, "-c", code], environment(data_dir))


async def test_an_old_python_is_told_which_one_is_needed_before_anything_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; sys.version_info = (3, 10, 4, 'final', 0)\n"
        "import atexit; atexit.register(lambda: print('typer' in sys.modules))\n"
        "from api.cli import main; main()"
    )
    done = await python(code, tmp_path)
    assert (done.status, done.out) == (2, "False\n")
    assert done.err.startswith("error: Sluicegate needs Python 3.11 or newer, and this is Python 3.10 (")


def test_the_entry_point_can_be_read_by_older_pythons() -> None:
    for path in (ROOT / "api" / "cli.py", ROOT / "api" / "__init__.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))


async def test_client_commands_load_neither_the_worker_nor_the_api(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from api.commands.root import COMMANDS, USE, load\n"
        "for name in COMMANDS: COMMANDS[name].panel == USE and load(name)\n"
        "print(sorted({'worker', 'temporalio', 'sqlalchemy', 'fastapi', 'alembic'} & sys.modules.keys()))"
    )
    assert await python(code, tmp_path) == Done(0, "[]\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_overview_can_be_loaded(name: str) -> None:
    command = load(name)
    assert command.name == name
    assert command.help or command.no_args_is_help


async def test_a_mistyped_command_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    done = await sluicegate("key", "list", data_dir=tmp_path)
    assert done.status == 2
    assert "Did you mean 'keys'" in done.err


@pytest.mark.parametrize("command", [("keys", "list"), ("connections", "list"), ("rounds", "list")])
async def test_a_server_that_is_away_is_named_and_has_a_status_of_its_own(
    command: tuple[str, ...], tmp_path: Path, nobody: str
) -> None:
    done = await sluicegate(*command, "--url", nobody, "--admin-token", "sga_x", data_dir=tmp_path)
    assert done.status == 3
    assert done.err.startswith(f"error: the server at {nobody} cannot be reached (")
    assert "sluicegate up" in done.err


async def test_without_a_server_on_the_data_folder_the_command_says_how_to_start_one(tmp_path: Path) -> None:
    (tmp_path / "server.json").write_text('{"url": "http://127.0.0.1:1"')
    for command in (("status",), ("keys", "list")):
        done = await sluicegate(*command, data_dir=tmp_path)
        assert done.status == 3
        assert repr(str(tmp_path)) in done.err
        assert "`sluicegate up`" in done.err


async def test_a_server_that_is_something_else_is_told_apart(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as foreign:
        Thread(target=foreign.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{foreign.server_port}"
        done = await sluicegate("keys", "list", "--url", url, "--admin-token", "sga_x", data_dir=tmp_path)
        foreign.shutdown()
    assert (done.status, done.err) == (3, f"error: what answers at {url} is not Sluicegate: it says 501\n")


async def test_the_token_of_a_data_folder_is_not_sent_to_another_machine(tmp_path: Path) -> None:
    token = tmp_path / "admin.token"
    token.write_text("sga_secret")
    token.chmod(0o600)
    done = await sluicegate("keys", "list", "--url", "http://192.0.2.1:8080", data_dir=tmp_path)
    assert done.status == 2
    assert "no admin token" in done.err


async def test_an_admin_token_that_others_can_read_is_refused(tmp_path: Path, nobody: str) -> None:
    token = tmp_path / "admin.token"
    token.write_text("sga_secret")
    token.chmod(0o644)
    done = await sluicegate("keys", "list", "--url", nobody, data_dir=tmp_path)
    assert done.status == 1
    assert f"chmod 600 {token}" in done.err


async def test_a_missing_key_is_a_usage_error_that_says_how_to_get_one(tmp_path: Path, nobody: str) -> None:
    done = await sluicegate("tools", "list", "--url", nobody, data_dir=tmp_path)
    assert done.status == 2
    assert "SLUICEGATE_KEY" in done.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"tool_calls": [\n  {"id": "a" "type": 1}]}', "line 2 column 14"),
        ('{"a": 1, "a": 2}', "line 1 column 10"),
        ("", "line 1 column 1"),
    ],
    ids=["missing comma", "duplicate key", "blank"],
)
async def test_bad_json_is_refused_with_its_place(
    text: str, problem: str, tmp_path: Path, nobody: str
) -> None:
    path = tmp_path / "calls.json"
    path.write_text(text)
    where = {"SLUICEGATE_URL": nobody, "SLUICEGATE_KEY": "sgk_x"}
    done = await sluicegate("rounds", "start", "-f", str(path), data_dir=tmp_path, extra=where)
    assert done.status == 2
    assert done.err.startswith(f"error: {str(path)!r}: not valid JSON, ")
    assert problem in done.err
    given = await sluicegate("rounds", "start", "-f", "-", data_dir=tmp_path, extra=where, given=text)
    assert "standard input: not valid JSON" in given.err


async def test_bad_arguments_of_a_call_are_refused_with_their_place(tmp_path: Path, nobody: str) -> None:
    where = {"SLUICEGATE_URL": nobody, "SLUICEGATE_KEY": "sgk_x"}
    done = await sluicegate("execute", "orders-find", "{order: 1}", data_dir=tmp_path, extra=where)
    assert done.status == 2
    assert "the arguments: not valid JSON" in done.err
    assert "line 1 column 2" in done.err


async def test_calls_in_a_file_that_holds_none_are_refused(tmp_path: Path, nobody: str) -> None:
    path = tmp_path / "calls.json"
    path.write_text(json.dumps({"messages": []}))
    where = {"SLUICEGATE_URL": nobody, "SLUICEGATE_KEY": "sgk_x"}
    done = await sluicegate("rounds", "start", "-f", str(path), data_dir=tmp_path, extra=where)
    assert done.status == 2
    assert "`tool_calls`" in done.err


def test_the_choices_of_the_command_line_are_those_of_the_product() -> None:
    for name in ("Network", "SessionScope", "OnSessionLoss", "EventStream"):
        offered = [choice.value for choice in getattr(connections, name)]
        assert offered == [choice.value for choice in getattr(connection, name)]


def test_output_cannot_drive_the_terminal() -> None:
    assert clean("a\x1b[2J\r\n\u202eb\u200d") == "a\\x1b[2J\\r\\n\\u202eb\\u200d"


def test_every_failure_has_a_status_that_is_documented() -> None:
    documented = (ROOT / "api" / "cli.py").read_text()
    statuses = {CommandFailed.status, *(kind.status for kind in CommandFailed.__subclasses__())}
    assert statuses == {1, 2, 3}
    assert all(f"{status} " in documented for status in statuses)
