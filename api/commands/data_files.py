"""What a data folder tells the commands that use it: the running server, and the admin token."""

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from api.commands.failures import CommandFailed
from api.processes import ProcessId

RECORD_NAME = "server.json"
"""The file that says where the server of a data folder is."""

TOKEN_NAME = "admin.token"  # noqa: S105 - the name of the file that holds it.
"""The file that holds the control plane's token, readable to its owner alone."""

ADMIN_PREFIX = "sga_"
"""What the control plane's token begins with."""

DEFAULT_DATA_DIR = Path.home() / ".sluicegate"
"""The data folder unless told otherwise."""


@dataclass(frozen=True)
class RunningServer:
    """A server that `up` runs: its process and where to reach what."""

    process: ProcessId
    url: str
    temporal_address: str
    temporal_ui_url: str | None
    data_dir: str

    def to_json(self) -> Mapping[str, object]:
        """Return the record as stored and as `sluicegate status --json` shows it."""
        return asdict(self) | {"docs_url": f"{self.url}/docs"}


def write_record(server: RunningServer) -> None:
    """Store the record whole or not at all."""
    path = Path(server.data_dir) / RECORD_NAME
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(server.to_json()))
    draft.replace(path)


def remove_record(data_dir: Path) -> None:
    """Remove the record of a server that ends."""
    (data_dir / RECORD_NAME).unlink(missing_ok=True)


def find_server(data_dir: Path) -> RunningServer | None:
    """Return the server that runs on a data folder; None where none does, or nothing readable says so."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        raw = json.loads((data_dir / RECORD_NAME).read_text())
        process = ProcessId(**raw["process"])
        ui_url = raw["temporal_ui_url"]
        server = RunningServer(process, raw["url"], raw["temporal_address"], ui_url, raw["data_dir"])
        return server if server.process.is_running() else None
    return None


def find_token(data_dir: Path) -> str | None:
    """Return the admin token kept in a data folder, or None.

    Raises:
        CommandFailed: others can read the file, or we cannot.
    """
    path = data_dir / TOKEN_NAME
    try:
        mode = path.stat().st_mode
        if mode & 0o077:
            raise CommandFailed(f"the admin token {str(path)!r} can be read by others; run: chmod 600 {path}")
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise CommandFailed(f"the admin token {str(path)!r} cannot be read: {exc.strerror}") from exc


def keep_token(data_dir: Path) -> str:
    """Return the admin token of a data folder, made if there is none."""
    found = find_token(data_dir)
    if found is not None:
        return found
    path = data_dir / TOKEN_NAME
    draft = path.with_name(f"{TOKEN_NAME}.{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(ADMIN_PREFIX + secrets.token_urlsafe(32))
    try:
        # Linked, not renamed: where two processes make one at a time, the first one's token is the token.
        path.hardlink_to(draft)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return find_token(data_dir) or ""
