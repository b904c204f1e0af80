"""What requests that schemathesis generates need of us; its process loads it, see test_schemathesis.py.

Each request gets the token of its plane and, in most cases, ids that exist. Addresses of servers are
replaced by one where nobody listens: nothing that is generated may be dialled.
"""

import json
import os
from typing import Any

import schemathesis

PLANES: dict[str, str] = json.loads(os.environ["SCHEMATHESIS_TOKENS"])
"""The token of each plane, by what its paths begin with."""

KNOWN: dict[str, str] = json.loads(os.environ["SCHEMATHESIS_KNOWN"])
"""A value that exists, by path and parameter, as in `/api/v1/keys/{key_id} key_id`."""

NOBODY = "http://127.0.0.1:9/mcp"
"""An address at which nobody listens."""

_ADDRESSES = ("url", "base_url")


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: dict[str, Any]) -> None:
    """Complete a request before it is sent."""
    path: str = case.operation.path
    token = next((token for start, token in PLANES.items() if path.startswith(start)), None)
    if token is not None:
        case.headers["Authorization"] = f"Bearer {token}"
    # A deleted seed would leave the other operations without one.
    if case.method != "DELETE":
        for place in (case.path_parameters, case.query):
            for name in place or {}:
                known = KNOWN.get(f"{path} {name}")
                if known is not None:
                    place[name] = known
    if isinstance(case.body, dict):
        _complete(path, case.body)


def _complete(path: str, body: dict[str, Any]) -> None:
    for name in _ADDRESSES:
        if isinstance(body.get(name), str):
            body[name] = NOBODY
    if path == "/v1/chat/completions" and isinstance(body.get("model"), str):
        body["model"] = KNOWN["model"]
    function = body.get("function")
    if path == "/v1/mcp/tool/execute" and isinstance(function, dict) and "name" in function:
        function["name"] = KNOWN["tool"]
