"""The audit trail, its chain and its head on the control plane."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.schemas.values import AnyJSON
from governance.audit_chain import ChainFault
from models.audit import AuditKind

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 in hexadecimal."""


class AuditBody(BaseModel):
    """One fact of the audit trail; `number` and `hash` are those of its link, null until it is sealed."""

    id: int
    at: datetime
    kind: AuditKind
    actor: str
    request_id: str | None
    round_id: str | None
    invocation_id: str | None
    tool_name: str | None
    code: str | None
    arguments_digest: str | None
    data: dict[str, AnyJSON]
    number: int | None
    previous_hash: str | None
    hash: str | None


class AuditPage(BaseModel):
    """Facts, newest first."""

    items: list[AuditBody]
    next_cursor: str | None


class AuditHeadBody(BaseModel):
    """How far the trail is sealed, and from where its events are still there. Keep it elsewhere."""

    length: int
    hash: str
    sealed_at: datetime | None
    pruned_length: int
    pruned_hash: str
    pruned_at: datetime | None


class KeptHead(BaseModel):
    """A head that was exported earlier; whatever else the export holds is left aside."""

    length: int = Field(ge=0, le=2**62)
    hash: Hash


class VerifyAuditBody(BaseModel):
    """What to hold the trail against."""

    model_config = ConfigDict(extra="forbid")

    heads: Annotated[list[KeptHead], Field(max_length=100, description="Heads that were kept apart.")] = []
    last: Annotated[
        int | None, Field(ge=1, le=2**62, description="Links to walk over, from the end; without it all.")
    ] = None


class ChainProblemBody(BaseModel):
    """A fault of the trail and where it is."""

    fault: ChainFault
    number: int
    event_id: int | None


class AuditVerificationBody(AuditHeadBody):
    """What a walk along the trail found."""

    holds: bool
    checked: int
    problems: list[ChainProblemBody]


class PruneAuditBody(BaseModel):
    """From when on events are kept."""

    model_config = ConfigDict(extra="forbid")

    before: datetime = Field(description="Events older than this are removed; a time with its zone.")


class PrunedAuditBody(BaseModel):
    """What was removed, and from where the trail goes on."""

    removed: int
    pruned_length: int
    pruned_hash: str
