"""What may be configured of guardrails, and what is wrong with what may not be. Pure: no I/O."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from governance.argument_rules import RuleProblem
from governance.canonical import JSON, NotCanonicalError, canonical_bytes, is_array, is_object
from governance.guardrails import LONGEST_TIMEOUT_S, MOST_GUARDRAILS, Guardrail, GuardrailKind, Stage, build
from governance.redaction import kinds_of

LARGEST_GUARDRAILS: Final = 256 * 1024
"""Bytes of all guardrails together."""

SHORTEST_SECRET: Final = 32
"""Characters of the secret that a webhook's requests are signed with."""

SEALED_FIELD: Final = "sealed_secret"
"""The field in which a stored guardrail keeps its secret; nobody may write it."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_FIELDS: Final = frozenset({"name", "kind", "stages", "selector", "settings", "timeout_s", "secret"})
_SELECTORS: Final = frozenset({"connections", "tools", "keys"})
_SETTINGS: Final[Mapping[GuardrailKind, frozenset[str]]] = {
    GuardrailKind.REDACTION: frozenset({"find", "action"}),
    GuardrailKind.SIZE: frozenset({"max_bytes"}),
    GuardrailKind.PATTERNS: frozenset({"deny", "allow", "fields"}),
    GuardrailKind.PLUGIN: frozenset({"plugin", "options"}),
    GuardrailKind.WEBHOOK: frozenset({"url", "network"}),
}


def guardrails_problem(guardrails: JSON) -> RuleProblem | None:
    """Say why guardrails may not be configured, and where; None if they may.

    A guardrail is {"name", "kind", "stages"?, "selector"?, "settings"?, "timeout_s"?, "secret"?}; see
    docs/security.md for the settings of each kind.
    """
    if not is_array(guardrails) or len(guardrails) > MOST_GUARDRAILS:
        return RuleProblem("guardrails", f"is a list of at most {MOST_GUARDRAILS}")
    try:
        content = canonical_bytes(guardrails)
    except NotCanonicalError:
        return RuleProblem("guardrails", "cannot be written as JSON in UTF-8")
    if len(content) > LARGEST_GUARDRAILS or b"\\u0000" in content:
        return RuleProblem("guardrails", f"is longer than {LARGEST_GUARDRAILS} bytes, or holds NUL")
    seen: set[str] = set()
    for number, guardrail in enumerate(guardrails):
        place = f"guardrails[{number}]"
        found = _problem(guardrail)
        if found is not None:
            return RuleProblem(f"{place}.{found[0]}" if found[0] else place, found[1])
        if guardrail["name"] in seen:
            return RuleProblem(f"{place}.name", "stands here twice")
        seen.add(guardrail["name"])
    return None


_Problem = tuple[str, str] | None


def _problem(guardrail: JSON) -> _Problem:
    if not is_object(guardrail) or "name" not in guardrail or "kind" not in guardrail:
        return "", "is an object with name and kind"
    unknown = sorted(set(guardrail) - _FIELDS)
    if unknown:
        return unknown[0][:100], "is no field of a guardrail"
    if not isinstance(guardrail["name"], str) or not _NAME.fullmatch(guardrail["name"]):
        return "name", "is 1 to 64 lower-case letters, digits, hyphens and underscores"
    if guardrail["kind"] not in list(GuardrailKind):
        return "kind", f"is one of {', '.join(GuardrailKind)}"
    for check in (_stages_problem, _selector_problem, _timeout_problem, _settings_problem, _secret_problem):
        found = check(guardrail)
        if found is not None:
            return found
    return None


def _stages_problem(guardrail: Mapping[str, JSON]) -> _Problem:
    stages = guardrail.get("stages")
    if stages is None:
        return None
    good = is_array(stages) and stages and all(stage in list(Stage) for stage in stages)
    return None if good else ("stages", "names before, after or both")


def _selector_problem(guardrail: Mapping[str, JSON]) -> _Problem:
    selector = guardrail.get("selector")
    if selector is None:
        return None
    if not is_object(selector):
        return "selector", "is an object of connections, tools and keys"
    unknown = sorted(set(selector) - _SELECTORS)
    if unknown:
        return f"selector.{unknown[0][:100]}", "is none of connections, tools and keys"
    for name, values in selector.items():
        if values is not None and not _is_texts(values):
            return f"selector.{name}", "is a list of names; leave it out for all"
    return None


def _timeout_problem(guardrail: Mapping[str, JSON]) -> _Problem:
    timeout_s = guardrail.get("timeout_s")
    if timeout_s is None:
        return None
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    good = number and 0.05 <= timeout_s <= LONGEST_TIMEOUT_S
    return None if good else ("timeout_s", f"is a number of seconds from 0.05 to {LONGEST_TIMEOUT_S:g}")


def _settings_problem(guardrail: Mapping[str, JSON]) -> _Problem:
    kind = GuardrailKind(guardrail["kind"])
    settings: JSON = guardrail.get("settings")
    if settings is None:
        settings = dict[str, JSON]()
    if not is_object(settings):
        return "settings", "is an object"
    unknown = sorted(set(settings) - _SETTINGS[kind])
    if unknown:
        return f"settings.{unknown[0][:100]}", f"is no setting of a guardrail of kind {kind.value}"
    return _OF_KIND[kind](settings) or _building_problem(guardrail, kind)


def _redaction_problem(settings: Mapping[str, JSON]) -> _Problem:
    if settings.get("action", "redact") not in ("redact", "block"):
        return "settings.action", "is redact or block"
    if "find" not in settings:
        return None
    try:
        kinds_of(settings["find"] if _is_texts(settings["find"]) else ["?"])
    except ValueError:
        return "settings.find", "names secrets, personal or kinds of finding"
    return None


def _size_problem(settings: Mapping[str, JSON]) -> _Problem:
    most = settings.get("max_bytes")
    good = isinstance(most, int) and not isinstance(most, bool) and most >= 2
    return None if good else ("settings.max_bytes", "is a number of bytes from 2")


def _patterns_problem(settings: Mapping[str, JSON]) -> _Problem:
    if not settings.get("deny") and not settings.get("allow"):
        return "settings", "holds patterns under deny or allow"
    for name in ("deny", "allow", "fields"):
        if settings.get(name) is not None and not _is_texts(settings[name]):
            return f"settings.{name}", "is a list of texts"
    if settings.get("allow") and not settings.get("fields"):
        return "settings.fields", "names the properties whose texts have to match allow"
    return None


def _plugin_problem(settings: Mapping[str, JSON]) -> _Problem:
    if not isinstance(settings.get("plugin"), str) or not settings["plugin"]:
        return "settings.plugin", "is the name of an entry point of the group sluicegate.guardrails"
    options = settings.get("options")
    return None if options is None or is_object(options) else ("settings.options", "is an object")


def _webhook_problem(settings: Mapping[str, JSON]) -> _Problem:
    url = settings.get("url")
    if not isinstance(url, str) or not url.startswith(("https://", "http://")) or len(url) > 2048:
        return "settings.url", "is an http or https URL"
    networks = ("public", "private", "loopback")
    good = settings.get("network", "public") in networks
    return None if good else ("settings.network", f"is one of {', '.join(networks)}")


def _building_problem(guardrail: Mapping[str, JSON], kind: GuardrailKind) -> _Problem:
    """Try to make a built-in guardrail: only so is it known that its patterns can be used."""
    if kind in (GuardrailKind.PLUGIN, GuardrailKind.WEBHOOK):
        return None
    try:
        build(
            Guardrail.from_json(
                {"name": guardrail["name"], "kind": kind, "settings": guardrail.get("settings")}
            )
        )
    except (ValueError, KeyError) as error:
        return "settings", str(error)[:200]
    return None


def _secret_problem(guardrail: Mapping[str, JSON]) -> _Problem:
    secret = guardrail.get("secret")
    if secret is None:
        return None
    if guardrail["kind"] != GuardrailKind.WEBHOOK:
        return "secret", "is for webhooks"
    good = isinstance(secret, str) and SHORTEST_SECRET <= len(secret) <= 1024
    return None if good else ("secret", f"is text of at least {SHORTEST_SECRET} characters")


def _is_texts(value: JSON) -> bool:
    return is_array(value) and bool(value) and all(isinstance(item, str) and item for item in value)


_OF_KIND: Final[Mapping[GuardrailKind, Callable[[Mapping[str, JSON]], _Problem]]] = {
    GuardrailKind.REDACTION: _redaction_problem,
    GuardrailKind.SIZE: _size_problem,
    GuardrailKind.PATTERNS: _patterns_problem,
    GuardrailKind.PLUGIN: _plugin_problem,
    GuardrailKind.WEBHOOK: _webhook_problem,
}
