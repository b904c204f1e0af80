"""What has to change so that a gateway is as a document says. Pure: no I/O."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from api.configuration.document import ConnectionDocument, Document, KeyDocument
from api.configuration.problems import DocumentProblem
from governance.canonical import JSON, is_object
from governance.connection_auth import shown_auth

FROM_REFERENCE = "(by reference)"
"""What is shown instead of a value that came by reference."""


UNSET: Mapping[str, JSON] = {"idempotency": None, "timeout_s": None, "requires_approval": False}
"""The settings of a tool on which nothing was set."""


class Action(StrEnum):
    """What a change does."""

    CREATE = "create"
    EDIT = "edit"
    REMOVE = "remove"


class Kind(StrEnum):
    """What a change is made to, in the order in which changes are made."""

    CONNECTION = "connection"
    KEY = "key"
    SECRET = "secret"  # noqa: S105 - a kind of thing.
    TOOLS = "tools"
    QUOTA = "quota"
    OVERLAYS = "overlays"
    SETTINGS = "settings"
    RULES = "rules"
    GUARDRAILS = "guardrails"


@dataclass(frozen=True)
class FieldChange:
    """A field before and after; `shown` replaces values that came by reference."""

    name: str
    before: JSON
    after: JSON
    shown: str | None = None

    def to_json(self) -> dict[str, JSON]:
        """Return the change as shown, without a value that came by reference."""
        if self.shown is not None:
            return {"field": self.name, "after": self.shown}
        return {"field": self.name, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Change:
    """One request to the control plane; `etag` is that of what the plan was made on."""

    action: Action
    kind: Kind
    name: str
    body: JSON = None
    fields: tuple[FieldChange, ...] = ()
    etag: str | None = None

    def to_json(self) -> dict[str, JSON]:
        """Return the change as shown."""
        return {
            "action": self.action.value,
            "kind": self.kind.value,
            "name": self.name,
            "fields": [field.to_json() for field in self.fields],
        }


@dataclass(frozen=True)
class Current:
    """A gateway as it is: connections and keys as shown, by name; tool configurations by the key's name."""

    connections: Mapping[str, Mapping[str, JSON]]
    keys: Mapping[str, Mapping[str, JSON]]
    tools: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict[str, Mapping[str, JSON]])
    quotas: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict[str, Mapping[str, JSON]])
    """Quotas as shown, by the key's name."""
    known_secrets: frozenset[str] = frozenset()
    """Names of keys that have the secret of the document already."""
    overlays: Sequence[JSON] = ()
    overlays_etag: str | None = None
    rules: Mapping[tuple[str, str], Mapping[str, JSON]] = field(
        default_factory=dict[tuple[str, str], Mapping[str, JSON]]
    )
    """Argument rules as shown, by section and name; what is not there yet has none."""
    settings: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict[str, Mapping[str, JSON]])
    """Tools of the gateway as shown, by exposed name; what is not there yet is left out."""
    guardrails: Sequence[JSON] = ()
    guardrails_etag: str | None = None


def plan(
    document: Document, current: Current, secrets: Mapping[tuple[str, ...], str], *, prune: bool = False
) -> tuple[Change, ...]:
    """Return the changes in the order in which they can be made; () where all is as the document says.

    Raises:
        DocumentProblem: a key is granted tools of a connection that nobody knows, or a new connection has no
            URL.
    """
    _check_clients(document, current, prune=prune)
    changes: list[Change] = []
    for name, connection in (document.connections or {}).items():
        changes += _connection(name, connection, current.connections.get(name), secrets)
    for name, key in (document.keys or {}).items():
        changes += _key(name, key, current)
    if document.overlays is not None and list(current.overlays) != document.overlays:
        change = FieldChange("overlays", list(current.overlays), document.overlays)
        body = {"overlays": document.overlays}
        changes.append(Change(Action.EDIT, Kind.OVERLAYS, "tools", body, (change,), current.overlays_etag))
    changes += _settings(document, current)
    changes += _rules(document, current)
    changes += _guardrails(document, current)
    if prune:
        changes += _removals(document, current)
    return tuple(changes)


def _check_clients(document: Document, current: Current, *, prune: bool) -> None:
    known = set(document.connections or {})
    if document.connections is None or not prune:
        known |= set(current.connections)
    for name, key in (document.keys or {}).items():
        for client in sorted(set(key.tools or {}) - known):
            raise DocumentProblem(f"keys.{name}.tools.{client}: there is no such connection")


def _connection(
    name: str,
    wanted: ConnectionDocument,
    now: Mapping[str, JSON] | None,
    secrets: Mapping[tuple[str, ...], str],
) -> Iterator[Change]:
    place = ("connections", name)
    if now is None:
        if wanted.url is None:
            raise DocumentProblem(f"connections.{name}.url: a new connection needs one")
        fields = _differences(wanted.settings, {}, place, secrets)
        yield Change(Action.CREATE, Kind.CONNECTION, name, {"name": name, **wanted.settings}, fields)
        return
    fields = _differences(wanted.settings, now, place, secrets)
    if fields:
        body = {change.name: change.after for change in fields}
        yield Change(Action.EDIT, Kind.CONNECTION, name, body, fields, now["etag"])


def _key(name: str, wanted: KeyDocument, current: Current) -> Iterator[Change]:
    now = current.keys.get(name)
    if now is None:
        fields = _differences(wanted.settings, {}, ("keys", name), {})
        # A key is made enabled; one that is to be disabled is edited right after.
        body = {field: value for field, value in wanted.settings.items() if field != "enabled"}
        yield Change(Action.CREATE, Kind.KEY, name, {"name": name, **body}, fields)
        if wanted.enabled is False:
            yield Change(Action.EDIT, Kind.KEY, name, {"enabled": False})
    elif fields := _differences(wanted.settings, now, ("keys", name), {}):
        body = {change.name: change.after for change in fields}
        yield Change(Action.EDIT, Kind.KEY, name, body, fields, now["etag"])
    if wanted.secret_hash is not None and name not in current.known_secrets:
        shown = FieldChange("secret", None, None, FROM_REFERENCE)
        yield Change(Action.EDIT, Kind.SECRET, name, wanted.secret_hash, (shown,))
    yield from _tools(name, wanted, current)
    yield from _quota(name, wanted, current)


def _tools(name: str, wanted: KeyDocument, current: Current) -> Iterator[Change]:
    if not wanted.says_tools:
        return
    shown = current.tools.get(name, {"mcp_configs": None, "etag": None})
    before = None
    if shown["mcp_configs"] is not None:
        before = {entry["client"]: sorted(entry["tools_to_execute"]) for entry in shown["mcp_configs"]}
    after = None
    if wanted.tools is not None:
        after = {client: sorted(set(tools or ())) for client, tools in wanted.tools.items()}
    if before == after:
        return
    fields = (FieldChange("tools", before, after),)
    if wanted.tools is None:
        yield Change(Action.REMOVE, Kind.TOOLS, name, None, fields, shown["etag"])
        return
    configs = [
        {"client": client, "tools_to_execute": list(tools or ())} for client, tools in wanted.tools.items()
    ]
    yield Change(Action.EDIT, Kind.TOOLS, name, {"mcp_configs": configs}, fields, shown["etag"])


def _quota(name: str, wanted: KeyDocument, current: Current) -> Iterator[Change]:
    shown = current.quotas.get(name, {"limits": None, "etag": None})
    before, after = shown["limits"], wanted.limits
    if not wanted.says_quota or before == after:
        return
    fields = (FieldChange("quota", _said(before), _said(after)),)
    action = Action.REMOVE if after is None else Action.EDIT
    yield Change(action, Kind.QUOTA, name, after, fields, shown["etag"])


def _said(limits: Mapping[str, JSON] | None) -> JSON:
    """Return the limits that are set, for people to read."""
    return None if limits is None else {name: value for name, value in limits.items() if value is not None}


def _settings(document: Document, current: Current) -> Iterator[Change]:
    for name, wanted in (document.tools or {}).items():
        now = current.settings.get(name, {**UNSET, "etag": None})
        fields = _differences(wanted.settings, now, ("tools", name), {})
        if fields:
            body = {change.name: change.after for change in fields}
            yield Change(Action.EDIT, Kind.SETTINGS, name, body, fields, now["etag"])


def _rules(document: Document, current: Current) -> Iterator[Change]:
    entries = {} if document.argument_rules is None else document.argument_rules.entries()
    for (section, name), wanted in entries.items():
        shown = current.rules.get((section, name), {"rules": [], "etag": None})
        if shown["rules"] != wanted:
            change = FieldChange("rules", shown["rules"], wanted)
            yield Change(
                Action.EDIT, Kind.RULES, f"{section}/{name}", {"rules": wanted}, (change,), shown["etag"]
            )


def _guardrails(document: Document, current: Current) -> Iterator[Change]:
    if document.guardrails is None:
        return
    hashes = {found["name"]: found.get("secret_hash") for found in current.guardrails}
    wanted = [_hashed(guardrail, hashes) for guardrail in document.guardrails]
    if list(current.guardrails) != wanted:
        change = FieldChange("guardrails", list(current.guardrails), wanted)
        body = {"guardrails": document.guardrails}
        yield Change(Action.EDIT, Kind.GUARDRAILS, "all", body, (change,), current.guardrails_etag)


def _hashed(guardrail: Mapping[str, JSON], hashes: Mapping[str, str | None]) -> dict[str, JSON]:
    """Return a guardrail as it would be shown: its secret by its SHA-256; one that is not named stays."""
    shown = {name: value for name, value in guardrail.items() if value is not None and name != "secret"}
    secret = guardrail.get("secret")
    hash_ = hashes.get(guardrail["name"])
    if secret is not None:
        hash_ = hashlib.sha256(secret.encode()).hexdigest()
    return shown if hash_ is None else {**shown, "secret_hash": hash_}


def _removals(document: Document, current: Current) -> Iterator[Change]:
    if document.keys is not None:
        for name in sorted(set(current.keys) - set(document.keys)):
            yield Change(Action.REMOVE, Kind.KEY, name, etag=current.keys[name]["etag"])
    if document.connections is not None:
        for name in sorted(set(current.connections) - set(document.connections)):
            yield Change(Action.REMOVE, Kind.CONNECTION, name, etag=current.connections[name]["etag"])


def _differences(
    wanted: Mapping[str, JSON],
    now: Mapping[str, JSON],
    place: tuple[str, ...],
    secrets: Mapping[tuple[str, ...], str],
) -> tuple[FieldChange, ...]:
    changes: list[FieldChange] = []
    for name, value in wanted.items():
        before = now.get(name)
        # No list and an empty one both grant nothing.
        if before == value or (not before and not value and name == "tools_to_execute"):
            continue
        if name == "auth" and is_object(before) and _is_same_auth(value, before, now.get("id")):
            continue
        by_reference = any(found[: len(place) + 1] == (*place, name) for found in secrets)
        changes.append(FieldChange(name, before, value, FROM_REFERENCE if by_reference else None))
    return tuple(changes)


def _is_same_auth(wanted: JSON, shown: Mapping[str, JSON], connection_id: JSON) -> bool:
    """Compare headers with what is shown of those that are set, which is a fingerprint."""
    if not is_object(wanted) or wanted["kind"] != shown["kind"]:
        return False
    headers = {name: str(value) for name, value in wanted.get("headers", {}).items()}
    return not headers or shown_auth(str(connection_id), headers)["fingerprint"] == shown["fingerprint"]
