"""What we answer to requests of a server, and what we declare to be able to do. Pure: no I/O.

Source: MCP 2025-11-25, Client, Elicitation, Sampling and Roots; Utilities, Ping.
"""

from collections.abc import Mapping
from typing import Literal

from activities.mcp_http import wire
from activities.mcp_http.types import JSON

Elicitation = Literal["none", "decline", "ask"]

ELICIT = "elicitation/create"


def declared_capabilities(elicitation: Elicitation, version: str) -> dict[str, JSON]:
    """Return the client capabilities to declare: none but elicitation, and that only where it is served.

    A declared capability changes what servers do (some tools then wait for an answer), so nothing is declared
    for show. URL mode is never declared: nobody here opens a URL.
    """
    if elicitation == "none":
        return {}
    return {"elicitation": {} if version < "2025-11-25" else {"form": {}}}


def reply_to(request: wire.Request, elicitation: Elicitation) -> bytes | None:
    """Return the JSON-RPC response to post for a server's request; None if the caller must be asked first."""
    if request.method == "ping":
        return _result(request.id, {})
    if request.method == ELICIT and elicitation != "none":
        if request.params.get("mode", "form") != "form":
            return _error(request.id, wire.INVALID_PARAMS, "Elicitation mode not supported")
        return None if elicitation == "ask" else _result(request.id, {"action": "decline"})
    return _error(request.id, wire.METHOD_NOT_FOUND, "Method not found")


def elicitation_reply(request: wire.Request, answer: Mapping[str, JSON]) -> bytes:
    """Return the response that carries a person's answer to an elicitation."""
    return _result(request.id, dict(answer))


class InputNotServed(ValueError):
    """A server asks for an input that was not declared; `method` names it."""

    def __init__(self, method: str) -> None:
        super().__init__(f"the server asks for {method!r}, which is not declared")
        self.method = method


def input_reply(request: JSON, elicitation: Elicitation) -> dict[str, JSON] | None:
    """Return the answer to one entry of ``inputRequests``; None if the caller must be asked first.

    Raises:
        InputNotServed: It asks for something that was not declared.
    """
    asked = wire.as_object(request) or {}
    method, params = asked.get("method"), wire.as_object(asked.get("params")) or {}
    if method != ELICIT or elicitation == "none" or params.get("mode", "form") != "form":
        raise InputNotServed(wire.clean_text(method, 100) if isinstance(method, str) else "")
    return None if elicitation == "ask" else {"action": "decline"}


def _result(request_id: JSON, result: dict[str, JSON]) -> bytes:
    return wire.dump_json({"jsonrpc": "2.0", "id": request_id, "result": result})


def _error(request_id: JSON, code: int, message: str) -> bytes:
    return wire.dump_json({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}})
