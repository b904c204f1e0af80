"""Views of the catalog: what a request may use, and which level hides the rest."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from api.errors import unknown_profile
from api.function_format import FunctionCache, function_text
from governance.canonical import JSON
from governance.decision import Allowed, Denied, NeedsApproval, decide
from governance.filters import RequestFilter
from models.catalog import World, load_world
from models.conversation import Conversation
from models.key import ApiKey
from models.place import place_in
from models.round_place import has_profile
from models.tool import CatalogTool, load_snapshots


@dataclass(frozen=True)
class HiddenTool:
    """A tool that the request may not use; for operators and keys that may explain."""

    name: str
    level: str
    reason: str

    def to_json(self) -> dict[str, JSON]:
        """Return the tool as shown: name, level, reason."""
        return {"name": self.name, "level": self.level, "reason": self.reason}


def world_in(
    session: Session,
    key: ApiKey,
    request: RequestFilter,
    conversation: Conversation | None,
    profile_key: str | None = None,
) -> World:
    """Return what a key's caller may use in a conversation, or at the gateway without one.

    Raises:
        APIProblem: invalid_request for a profile that the conversation's program does not have.
    """
    if profile_key is not None and not has_profile(session, conversation, profile_key):
        raise unknown_profile(profile_key, status=400)
    return load_world(session, key, request, place_in(session, conversation, profile_key))


def list_text(texts: Sequence[str], hidden: Sequence[HiddenTool] | None) -> str:
    """Return a list of tools as JSON; each tool's text is kept as it is, and not encoded again."""
    body = '{"tools":[' + ",".join(texts) + "]"
    if hidden is not None:
        body += ',"hidden":' + json.dumps([tool.to_json() for tool in hidden], ensure_ascii=False)
    return body + "}"


def functions_of(session: Session, tools: Sequence[CatalogTool], functions: FunctionCache) -> list[str]:
    """Return the JSON texts of tools in function format, in the order given; reads only unknown snapshots."""
    wanted = [tool.snapshot_digest for tool in tools]
    texts = functions.known(wanted)
    missing = {digest for digest in wanted if digest not in texts}
    made = {digest: function_text(content) for digest, content in load_snapshots(session, missing).items()}
    functions.keep(made)
    texts |= made
    return [texts[digest] for digest in wanted]


def hidden_tools(world: World) -> list[HiddenTool]:
    """Return the tools that the request may not use, each with the first level that removed it."""
    hidden: list[HiddenTool] = []
    for name, tool in world.governed.items():
        decision = decide(world.context, tool)
        if isinstance(decision, Denied):
            hidden.append(HiddenTool(name, decision.level.value, decision.reason))
    return hidden


def explain(world: World) -> list[dict[str, JSON]]:
    """Return every live tool with the decision for it, in the order of their names."""
    return [
        _explained(world.catalog[name], decide(world.context, tool)) for name, tool in world.governed.items()
    ]


def _explained(tool: CatalogTool, decision: Allowed | NeedsApproval | Denied) -> dict[str, JSON]:
    shown: dict[str, JSON] = {
        "tool": tool.exposed_name,
        "client": tool.connection_name,
        "upstream_name": tool.upstream_name,
        "decision": "allowed",
        "level": None,
        "code": None,
        "reason": None,
    }
    match decision:
        case Denied(level, code, reason):
            shown |= {"decision": "denied", "level": level.value, "code": code.value, "reason": reason}
        case NeedsApproval(reason):
            shown |= {"decision": "needs_approval", "reason": reason}
        case Allowed():
            pass
    return shown
