"""An MCP server that behaves as the core document's test server: ``python core_matrix_server.py``.

It listens on a free port of loopback, writes it as its first line, and ends with its standard input. The path
``/mcp`` speaks MCP of 2024-11-05 over single-threaded HTTP/1.1; ``/control`` arms one-shot failures and shows
the log of requests, and is not logged itself.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar
from uuid import uuid4

NO_SESSION = {"code": -32000, "message": "Session not found"}
SWITCHES = ("session_not_found", "protocol_error", "semantic_error")


class Server(HTTPServer):
    """Holds sessions, switches and the log."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.name = uuid4().hex[:8]
        self.sessions: set[str] = set()
        self.issued: list[str] = []
        self.armed: dict[str, int] = dict.fromkeys(SWITCHES, 0)
        self.log: list[dict[str, Any]] = []

    def take(self, switch: str) -> bool:
        """Use up one arming of a switch."""
        if self.armed[switch] == 0:
            return False
        self.armed[switch] -= 1
        return True


class Handler(BaseHTTPRequestHandler):
    """Answers one request and closes the connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    answers: ClassVar[dict[str, str]] = {
        "initialize": "_initialize",
        "tools/list": "_list",
        "tools/call": "_call",
    }

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        if self.path == "/control":
            self.server.armed[body["arm"]] += body.get("times", 1)
            self._json(200, {})
            return
        method = body.get("method")
        self._note(method)
        if method == "notifications/initialized":
            self._answer(202, b"", "text/plain")
        elif method in self.answers:
            getattr(self, self.answers[method])(body)
        else:
            self._json(404, {"error": "unknown method"})

    def do_GET(self) -> None:
        if self.path == "/control":
            shown = {"log": self.server.log, "sessions": self.server.issued, "name": self.server.name}
            self._json(200, shown)
            return
        self._note("stream")
        if self._session() not in self.server.sessions:
            self._json(404, {"jsonrpc": "2.0", "id": None, "error": NO_SESSION})
            return
        ready = {"jsonrpc": "2.0", "method": "notifications/ready", "params": {"session": self._session()}}
        self._answer(200, f": keep-alive\n\ndata: {json.dumps(ready)}\n\n".encode(), "text/event-stream")

    def do_DELETE(self) -> None:
        self._note("close")
        if self._session() in self.server.sessions:
            self.server.sessions.remove(self._session())
            self._answer(204, b"", "text/plain")
        else:
            self._json(404, {"jsonrpc": "2.0", "id": None, "error": NO_SESSION})

    def _initialize(self, body: dict[str, Any]) -> None:
        session = f"session-{len(self.server.issued) + 1}"
        self.server.issued.append(session)
        self.server.sessions.add(session)
        result = {
            "protocolVersion": "2024-11-05",
            "serverInfo": {"name": "fake-mcp", "version": "1.0.0"},
            "capabilities": {"tools": {}},
        }
        self._json(200, {"jsonrpc": "2.0", "id": body["id"], "result": result}, {"Mcp-Session-Id": session})

    def _list(self, body: dict[str, Any]) -> None:
        echo = {"name": "echo", "description": "Echo.", "inputSchema": {"type": "object"}}
        self._json(200, {"jsonrpc": "2.0", "id": body["id"], "result": {"tools": [echo]}})

    def _call(self, body: dict[str, Any]) -> None:
        lost = {"jsonrpc": "2.0", "id": body["id"], "error": NO_SESSION}
        if self._session() not in self.server.sessions:
            self._json(404, lost)
        elif self.server.take("session_not_found"):
            self.server.sessions.remove(self._session())
            self._json(404, lost)
        elif self.server.take("protocol_error"):
            self._json(200, {"jsonrpc": "2.0", "id": body["id"]})
        elif self.server.take("semantic_error"):
            error = {"code": -32001, "message": "refused by the tool"}
            self._json(200, {"jsonrpc": "2.0", "id": body["id"], "error": error})
        else:
            text = f"echo: {body['params']['arguments'].get('message')}"
            result = {"content": [{"type": "text", "text": text}], "isError": False}
            self._json(200, {"jsonrpc": "2.0", "id": body["id"], "result": result})

    def _session(self) -> str:
        return str(self.headers.get("Mcp-Session-Id"))

    def _note(self, what: str | None) -> None:
        self.server.log.append(
            {
                "verb": self.command,
                "what": what,
                "status": None,
                "session": self.headers.get("Mcp-Session-Id"),
            }
        )

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._answer(status, json.dumps(value).encode(), "application/json", headers)

    def _answer(
        self, status: int, body: bytes, content_type: str, headers: dict[str, str] | None = None
    ) -> None:
        if self.path != "/control":
            self.server.log[-1]["status"] = status
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Connection": "close", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Write nothing: the log is asked for."""


def main() -> None:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
