"""Programs, runtimes, conversations and tasks: the bodies of both planes."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from api.schemas.connections import ToolTimeout
from api.schemas.values import AnyJSON, ShortText, StoredId, Text
from governance.codes import IdempotencyClass
from governance.modes import GovernanceMode, SourceKind
from models.connection import Transport
from models.conversation import ConversationState
from models.mcp_session import SessionState
from models.task import TaskKind, TaskState

Slug = Annotated[Text, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
"""The name of a program or runtime."""

Fingerprint = Annotated[Text, StringConstraints(min_length=1, max_length=255)]
"""What a program or runtime calls one release of itself."""


class CreateProgramBody(BaseModel):
    """A program to register; it acts as `key_id`, or as a new key of its own."""

    model_config = ConfigDict(extra="forbid")

    name: Slug
    key_id: StoredId | None = None
    execution_runtime: Slug | None = None
    declares_runtime: bool = False
    may_relax_policy: bool = False


class EditProgramBody(BaseModel):
    """What to change of a program; a field that is absent stays as it is."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool | None = None
    execution_runtime: Slug | None = None
    declares_runtime: bool | None = None
    may_relax_policy: bool | None = None


class ProgramBody(BaseModel):
    """A program and the settings that only an operator changes."""

    id: str
    name: str
    key_id: str
    execution_runtime: str | None
    declares_runtime: bool
    may_relax_policy: bool
    enabled: bool
    created_at: datetime
    updated_at: datetime
    etag: str


class ProgramPage(BaseModel):
    """Programs by name."""

    items: list[ProgramBody]
    next_cursor: str | None


class RegisterVersionBody(BaseModel):
    """A version of a program: what it declares in its handshakes, see `POST /program_api/capabilities`."""

    fingerprint: Fingerprint
    protocol_version: Text
    sdk_version: Text
    protocol_methods: list[AnyJSON] = []
    tool_catalog: list[AnyJSON] = []
    profile_catalog: dict[str, AnyJSON] = {}
    config_schema_snapshot: dict[str, AnyJSON] = {}
    conversation_override_schema_snapshot: dict[str, AnyJSON] = {}
    default_config_snapshot: dict[str, AnyJSON] = {}


class HandshakeBody(RegisterVersionBody):
    """What a program declares of itself, and of its runtime where it may speak for it."""

    execution_capability_payload: dict[str, AnyJSON] = {}
    execution_tool_catalog: list[AnyJSON] = []


class VersionBody(BaseModel):
    """A version; `secret` only in the answer that made it."""

    id: str
    program: str
    fingerprint: str
    definition_digest: str
    created_at: datetime
    secret: str | None = None


class VersionList(BaseModel):
    """The versions of a program, oldest first."""

    items: list[VersionBody]


class NewCredentialBody(BaseModel):
    """A further secret, shown once."""

    id: str
    secret: str


class CreateRuntimeBody(BaseModel):
    """An execution runtime to register."""

    model_config = ConfigDict(extra="forbid")

    name: Slug
    fingerprint: Fingerprint


class EditRuntimeBody(BaseModel):
    """What to change of a runtime."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool


class RuntimeBody(BaseModel):
    """An execution runtime and what it last declared; `secret` only in the answer that made it."""

    id: str
    name: str
    fingerprint: str
    enabled: bool
    capability_payload: dict[str, AnyJSON]
    tool_catalog: list[AnyJSON]
    created_at: datetime
    updated_at: datetime
    etag: str
    secret: str | None = None


class RuntimePage(BaseModel):
    """Runtimes by name."""

    items: list[RuntimeBody]
    next_cursor: str | None


class CapabilitiesBody(BaseModel):
    """What is known of the caller: its planes, the effective catalog and the governed one."""

    model_config = ConfigDict(extra="allow")

    method_id: Literal["capabilities_handshake", "capabilities_refresh"]
    execution_plane: dict[str, AnyJSON] | None = None
    program_plane: dict[str, AnyJSON] | None = None
    effective_tool_catalog: list[AnyJSON] | None = None
    governed_effective_tool_catalog: list[AnyJSON] | None = None


class CreateConversationBody(BaseModel):
    """A conversation to begin; `override_payload` changes the program's default configuration for it."""

    model_config = ConfigDict(extra="forbid")

    override_payload: dict[str, AnyJSON] = {}


class ConversationBody(BaseModel):
    """A conversation."""

    conversation_id: str
    state: ConversationState
    override_payload: dict[str, AnyJSON]


class CreateTaskBody(BaseModel):
    """A task to create; its tools are frozen with it."""

    model_config = ConfigDict(extra="forbid")

    conversation_id: StoredId
    logical_work_id: ShortText
    profile_key: Text | None = None
    implementations: Annotated[
        dict[str, Text],
        Field(description="The implementation wanted of a tool, by reference, where it is not the default."),
    ] = {}
    input: AnyJSON = None


class SessionFacts(BaseModel):
    """The MCP session that a binding's calls use; its id is only ever masked."""

    transport_kind: Transport
    server_url: str
    tool_name: str = Field(description="The tool's name on its server.")
    session_id: str | None = Field(description="Masked; null where there is none.")
    session_state: SessionState
    last_sse_event: dict[str, AnyJSON] | None = Field(None, description="Its method and time.")
    initialize_result: dict[str, AnyJSON] | None = Field(None, description="While the session is open.")


class BindingPayloadBody(BaseModel):
    """What a binding shows beside its decision; empty until its server was first called."""

    mcp: SessionFacts | None = None


class BindingBody(BaseModel):
    """What a tool's name means for a task."""

    tool_binding_id: str
    tool_name: str
    tool_definition_id: str
    tool_implementation_id: str
    governance_mode: GovernanceMode
    binding_reason: str
    snapshot_digest: str
    binding_payload: BindingPayloadBody


class TaskBody(BaseModel):
    """A task and the bindings that were frozen with it."""

    agent_task_run_id: str
    conversation_id: str
    turn_id: str
    logical_work_id: str
    attempt_no: int
    kind: TaskKind
    state: TaskState
    profile_key: str
    frozen_set_digest: str
    created_at: datetime
    finished_at: datetime | None
    bindings: list[BindingBody]


class DefinitionBody(BaseModel):
    """A tool definition as operators govern it."""

    id: str
    scope: str
    tool_name: str
    tool_kind: str
    governance_mode: GovernanceMode
    approved: list[str]
    pinned_digest: str | None
    changed_since_pinned: bool
    requires_approval: bool
    idempotency: IdempotencyClass | None = Field(description="The tool's own; null follows its connection.")
    timeout_s: float | None = Field(description="The tool's own time limit; null follows its connection.")
    retired: bool
    implementations: list["ImplementationBody"]
    etag: str


class ImplementationBody(BaseModel):
    """One candidate of a definition; `parallel_safe` with the layers that it came from, the last decides."""

    id: str
    implementation_ref: str
    source_kind: SourceKind
    is_default: bool
    is_added: bool
    retired: bool
    content_digest: str
    snapshot_digest: str
    parallel_safe: bool
    policy_provenance: list[dict[str, AnyJSON]]
    idempotency: IdempotencyClass
    idempotency_provenance: list[dict[str, str]] = Field(
        description="The layers that it came from, the last decides; empty where the tool has no setting."
    )
    timeout_s: float = Field(description="How long a call may take, in seconds.")
    timeout_provenance: list[dict[str, AnyJSON]] = Field(description="As with idempotency.")


class DefinitionPage(BaseModel):
    """Tool definitions by id."""

    items: list[DefinitionBody]
    next_cursor: str | None


class PutApprovedBody(BaseModel):
    """The whole approved list, as references of implementations; null goes back to the default alone."""

    model_config = ConfigDict(extra="forbid")

    implementations: list[Text] | None


class PutApprovalBody(BaseModel):
    """Whether a person has to approve each call; until approvals exist, such a call is refused."""

    model_config = ConfigDict(extra="forbid")

    required: bool


class PutIdempotencyBody(BaseModel):
    """How calls of the tool may be repeated; null leaves it to its connection."""

    model_config = ConfigDict(extra="forbid")

    idempotency: IdempotencyClass | None


class PutTimeoutBody(BaseModel):
    """How long a call of the tool may take; null leaves it to its connection."""

    model_config = ConfigDict(extra="forbid")

    timeout_s: ToolTimeout | None


class AddImplementationBody(BaseModel):
    """A tool of a connection, by its upstream name, that is to stand in for the tool."""

    model_config = ConfigDict(extra="forbid")

    client: ShortText
    upstream_name: Annotated[Text, StringConstraints(min_length=1, max_length=512)]


class PutPinBody(BaseModel):
    """What to accept of a tool: the content of an implementation, by default the default's of now."""

    model_config = ConfigDict(extra="forbid")

    content_digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
