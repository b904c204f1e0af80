"""Configuration as a document: what a file may say of connections, keys, grants, tools and overlays.

A file describes what it names and nothing else: a field, a section or an object that it leaves out is left as
it is, unless pruning is asked for.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from api.bodies import problem_of
from api.configuration.problems import DocumentProblem
from api.schemas.connections import ConnectionSettings, NoAuth, ToolTimeout
from api.schemas.quotas import PutQuotaBody
from governance.argument_rules import RuleLevel, rules_problem
from governance.canonical import JSON
from governance.codes import IdempotencyClass
from governance.decision import RequestFilterMode
from governance.execution_policy import overlay_problem
from governance.filters import tool_list_problem
from governance.guardrail_settings import guardrails_problem
from governance.names import check_connection_name
from governance.quotas import money_text, money_units

SHORTEST_SECRET = 32
"""Characters of a secret that an operator brings along."""

NULL_MEANS_NONE = frozenset({"tools_to_execute", "max_concurrency", "tool_prices", "ca_bundle"})
"""Settings of a connection that null takes away; of every other it says nothing."""

SECTION = ConfigDict(extra="forbid")


class KeyDocument(BaseModel):
    """A key by its name; `tools` is its whole tool configuration, `quota` all its limits; null for none."""

    model_config = SECTION

    enabled: bool | None = None
    request_filter: RequestFilterMode | None = None
    may_explain: bool | None = None
    secret: str | None = None
    tools: dict[str, list[str] | None] | None = None
    quota: PutQuotaBody | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.secret is not None and (problem := secret_problem(self.secret)):
            raise ValueError(f"secret: {problem}")
        for client, names in (self.tools or {}).items():
            if problem := tool_list_problem(names):
                raise ValueError(f"tools.{client}: {problem}")
        return self

    @property
    def settings(self) -> dict[str, JSON]:
        """What is said of the key itself."""
        return self.model_dump(
            mode="json", exclude_unset=True, exclude_none=True, exclude={"secret", "tools", "quota"}
        )

    @property
    def says_tools(self) -> bool:
        """Whether the file speaks of the tool configuration at all."""
        return "tools" in self.model_fields_set

    @property
    def says_quota(self) -> bool:
        """Whether the file speaks of the quota at all."""
        return "quota" in self.model_fields_set

    @property
    def limits(self) -> dict[str, JSON] | None:
        """The quota as the control plane shows it, None for no limits."""
        if self.quota is None:
            return None
        said: dict[str, JSON] = self.quota.model_dump(mode="json")
        return {
            name: money_text(money_units(value)) if isinstance(value, str) else value
            for name, value in said.items()
        }

    @property
    def secret_hash(self) -> str | None:
        """The form in which the secret is registered."""
        return None if self.secret is None else hashlib.sha256(self.secret.encode()).hexdigest()


class ConnectionDocument(ConnectionSettings):
    """A connection by its name."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if problem := tool_list_problem(self.tools_to_execute):
            raise ValueError(f"tools_to_execute: {problem}")
        return self

    @property
    def settings(self) -> dict[str, JSON]:
        """What is said of the connection; null says nothing, but where it means none."""
        said = self.model_dump(mode="json", exclude_unset=True, exclude={"auth"})
        if self.auth is not None:
            # The values are needed here: they go to the control plane, which seals them.
            headers = {} if isinstance(self.auth, NoAuth) else {"headers": self.auth.revealed()}
            said["auth"] = {"kind": self.auth.kind, **headers}
        return {name: value for name, value in said.items() if value is not None or name in NULL_MEANS_NONE}


class ToolDocument(BaseModel):
    """What an operator sets on a tool; null of `idempotency` and `timeout_s` leaves it to the connection."""

    model_config = SECTION

    idempotency: IdempotencyClass | None = None
    timeout_s: ToolTimeout | None = None
    requires_approval: bool = False

    @property
    def settings(self) -> dict[str, JSON]:
        """What is said of the tool."""
        return self.model_dump(mode="json", exclude_unset=True)


class ArgumentRulesDocument(BaseModel):
    """Argument rules by the name of what they are set on; tools are those of the gateway, by exposed name.

    A list is the whole list of its key, connection or tool; an empty one removes its rules.
    """

    model_config = SECTION

    connections: dict[str, list[Any]] | None = None
    keys: dict[str, list[Any]] | None = None
    tools: dict[str, list[Any]] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for (section, name), rules in self.entries().items():
            problem = rules_problem(RULE_LEVELS[section], rules)
            if problem is not None:
                raise ValueError(f"{section}.{name}.{problem.path}: {problem.problem}")
        return self

    def entries(self) -> dict[tuple[str, str], list[JSON]]:
        """Return the rules by section and name."""
        sections = {"connections": self.connections, "keys": self.keys, "tools": self.tools}
        return {
            (section, name): rules
            for section, found in sections.items()
            for name, rules in (found or {}).items()
        }


RULE_LEVELS = {
    "connections": RuleLevel.CONNECTION,
    "keys": RuleLevel.KEY,
    "tools": RuleLevel.TOOL,
}
"""The level of each section of argument rules, in the order in which they are set."""


class Document(BaseModel):
    """A whole file."""

    model_config = SECTION

    version: Literal[1]
    connections: dict[str, ConnectionDocument] | None = None
    keys: dict[Annotated[str, Field(min_length=1, max_length=100)], KeyDocument] | None = None
    overlays: Annotated[list[dict[str, Any]], Field(max_length=1000)] | None = None
    tools: dict[str, ToolDocument] | None = None
    """Tools of the gateway, by exposed name."""
    argument_rules: ArgumentRulesDocument | None = None
    guardrails: list[Any] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.connections or {}:
            if problem := check_connection_name(name):
                raise ValueError(problem)
        if self.guardrails is not None and (found := guardrails_problem(self.guardrails)):
            raise ValueError(f"{found.path}: {found.problem}")
        for number, overlay in enumerate(self.overlays or ()):
            if problem := overlay_problem(overlay):
                raise ValueError(f"overlays[{number}]: {problem}")
        return self


def read_document(value: JSON, secrets: Mapping[tuple[str, ...], str]) -> Document:
    """Return a parsed and resolved file as a document.

    `secrets` are the places whose value came by reference; no problem names what stands there.

    Raises:
        DocumentProblem: with every problem and its place.
    """
    try:
        document = Document.model_validate(value, strict=False)
    except ValidationError as error:
        found = [
            f"{_place(fault['loc'])}: {problem_of(fault['type'], fault['msg'])}"
            for fault in error.errors(include_input=False)
        ]
        raise DocumentProblem("\n".join(found)) from None
    for name, connection in (document.connections or {}).items():
        headers = connection.settings.get("auth", {}).get("headers", {})
        for header in headers:
            if ("connections", name, "auth", "headers", header) not in secrets:
                place = f"connections.{name}.auth.headers.{header}"
                raise DocumentProblem(f"{place}: write env:NAME or file:PATH, never the value itself")
    for name, key in (document.keys or {}).items():
        if key.secret is not None and ("keys", name, "secret") not in secrets:
            raise DocumentProblem(f"keys.{name}.secret: write env:NAME or file:PATH, never the secret itself")
    for number, guardrail in enumerate(document.guardrails or ()):
        if guardrail.get("secret") is not None and ("guardrails", str(number), "secret") not in secrets:
            raise DocumentProblem(
                f"guardrails[{number}].secret: write env:NAME or file:PATH, never the secret itself"
            )
    return document


def secret_problem(secret: str) -> str | None:
    """Say why a secret may not be used, or None; never repeats it."""
    if secret.startswith("sga_"):
        return "it begins as admin tokens do"
    if len(secret) < SHORTEST_SECRET:
        return f"it is shorter than {SHORTEST_SECRET} characters"
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        return "it holds characters that a header cannot carry"
    return None


def _place(parts: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in parts) or "the file"
