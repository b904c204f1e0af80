"""Guardrails on the control plane."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.values import AnyJSON
from governance.guardrails import GuardrailKind, Stage


class PutGuardrailsBody(BaseModel):
    """The whole ordered list of guardrails; an empty one removes them."""

    model_config = ConfigDict(extra="forbid")

    guardrails: Annotated[
        AnyJSON,
        Field(
            description="[{name, kind, stages?, selector?, settings?, timeout_s?, secret?}]; the settings of"
            " each kind are in docs/security.md. `secret` signs a webhook's requests and is never shown."
        ),
    ]


class SelectorBody(BaseModel):
    """For which calls a guardrail is meant: what is left out names everything."""

    connections: list[str] | None = None
    tools: list[str] | None = None
    keys: list[str] | None = None


class GuardrailBody(BaseModel):
    """One guardrail."""

    name: str
    kind: GuardrailKind
    stages: list[Stage] | None = None
    selector: SelectorBody | None = None
    settings: dict[str, AnyJSON] | None = None
    timeout_s: float | None = None
    secret_hash: str | None = None


class GuardrailsBody(BaseModel):
    """The guardrails in order; `revision` counts their edits and stands in the audit trail."""

    guardrails: list[GuardrailBody]
    revision: int
    etag: str
