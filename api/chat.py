"""Chat requests on their way to a provider: what is added, what is replaced, what its failures mean."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from activities.chat_http.errors import ChatError, NotReached, Refused
from activities.chat_http.wire import dump_json
from api.catalog import functions_of
from api.errors import APIProblem, Audited, malformed
from api.identity import DataCaller
from api.schemas.chat import ChatBody
from governance.canonical import JSON
from governance.chat_failures import (
    CALLERS_OWN_STATUSES,
    FAILURE_PLANS,
    ProviderFailureKind,
    kind_of_refusal,
)
from governance.codes import ErrorCode
from governance.injection import Injection, NoTools, plan_injection
from models.base import new_id
from models.catalog import load_world
from models.database import ReadSession
from models.key import ApiKey
from models.provider import ChatModel, find_model

TOOLS_HEADER = "x-sluicegate-tools"
"""How many tools of the key were added to the request."""

NO_TOOLS_HEADER = "x-sluicegate-no-tools"
"""Why none was added, so that a model without tools is not taken for one that did not want them."""

TIMEOUTS = frozenset({"connect_timeout", "pool_timeout", "read_timeout", "write_timeout", "answer_timeout"})


@dataclass(frozen=True)
class PreparedChat:
    """A chat request that may be sent: its bytes, to whom, and what of the answer is the caller's."""

    key_id: str
    request_id: str
    model: ChatModel
    injection: Injection
    body: bytes
    wants_stream: bool
    wants_usage: bool
    """Whether the caller asked for the usage of a stream; else its chunk is kept from the caller."""
    has_quota: bool = False
    """Whether the key has an account that the request is to be taken from."""
    lease_id: str = field(default_factory=new_id)
    """Under which it counts as running, where the key's calls at once are limited."""

    @property
    def asks_for_usage(self) -> bool:
        """Whether a stream is asked for its usage, by us if not by the caller."""
        return self.wants_stream and self.model.provider.reports_stream_usage

    @property
    def headers(self) -> dict[str, str]:
        """The headers of an answer that tell of the tools."""
        headers = {TOOLS_HEADER: str(len(self.injection.names))}
        if self.injection.reason is not None:
            headers[NO_TOOLS_HEADER] = self.injection.reason.value
        return headers


def prepare_chat(session: ReadSession, key: ApiKey, caller: DataCaller, body: ChatBody) -> PreparedChat:
    """Find the model, choose the tools and write the request.

    Raises:
        APIProblem: model_not_found; invalid_request for more tools or tokens than the model takes.
    """
    model = find_model(session, body.model) if "\x00" not in body.model else None
    if model is None:
        raise APIProblem(ErrorCode.MODEL_NOT_FOUND, {"model": body.model[:128]})
    injection, texts = _tools(session, key, caller, body, model)
    own = body.tools or []
    if texts and model.max_tools is not None and len(own) + len(texts) > model.max_tools:
        raise malformed(
            f"model {model.name} takes {model.max_tools} tools and the request has {len(own) + len(texts)};"
            " narrow them with the header x-mcp-include-tools",
            limit=model.max_tools,
            count=len(own) + len(texts),
        )
    wants_stream = bool(body.stream)
    return PreparedChat(
        key_id=key.id,
        request_id=caller.request_id,
        model=model,
        injection=injection,
        body=_request_bytes(_fields(body, model, streams=wants_stream), own, texts),
        wants_stream=wants_stream,
        wants_usage=bool((body.stream_options or {}).get("include_usage")),
        has_quota=bool(key.has_quota),
    )


def _tools(
    session: ReadSession, key: ApiKey, caller: DataCaller, body: ChatBody, model: ChatModel
) -> tuple[Injection, list[str]]:
    """Return the tools to add and their texts; the same function decides as for listing and executing."""
    if not model.supports_tools:
        return Injection((), NoTools.MODEL_WITHOUT_TOOLS), []
    if body.functions is not None:
        return Injection((), NoTools.LEGACY_FUNCTIONS), []
    world = load_world(session, key, caller.request_filter)
    visible = {tool.exposed_name: tool for tool in world.visible()}
    injection = plan_injection(
        list(visible), body.tools or (), asks_for_nothing=caller.request_filter.asks_for_nothing
    )
    chosen = [visible[name] for name in injection.names]
    return injection, functions_of(session, chosen, caller.deps.functions)


def _fields(body: ChatBody, model: ChatModel, *, streams: bool) -> dict[str, JSON]:
    """Return the caller's fields, without its tools, as the provider is to get them."""
    fields = {name: getattr(body, name) for name in ChatBody.model_fields if name in body.model_fields_set}
    fields |= {**(body.model_extra or {}), "model": model.upstream_model}
    fields.pop("tools", None)
    _limit_output(fields, model)
    if streams and model.provider.reports_stream_usage:
        # What an answer cost is metered also where the caller does not ask for it.
        fields["stream_options"] = {**(body.stream_options or {}), "include_usage": True}
    return fields


def _limit_output(fields: dict[str, JSON], model: ChatModel) -> None:
    limit = model.max_output_tokens
    if limit is None:
        return
    asked = {
        name: fields[name] for name in ("max_tokens", "max_completion_tokens") if fields.get(name) is not None
    }
    for name, value in asked.items():
        if value > limit:
            raise malformed(f"{name}: model {model.name} writes at most {limit} tokens", limit=limit)
    if not asked:
        fields[model.provider.output_limit_parameter.value] = limit


def _request_bytes(fields: Mapping[str, JSON], own: list[JSON], texts: list[str]) -> bytes:
    """Write the request; tools are joined as texts, so that a long list is not encoded for each request.

    The caller's own tools come first. Without any there is no such field, since an empty list is refused.
    """
    body = dump_json(fields)
    if not own and not texts:
        return body
    tools = b",".join([*(dump_json(tool) for tool in own), *(text.encode() for text in texts)])
    return body[:-1] + b',"tools":[' + tools + b"]}"


def problem_of_chat(error: ChatError, chat: PreparedChat) -> APIProblem:
    """Say to the caller what a provider's failure means for it; an operator finds the rest in the audit."""
    kind = kind_of(error)
    plan = FAILURE_PLANS[kind]
    details: dict[str, JSON] = {"model": chat.model.name, "kind": kind.value, "reason": error.code}
    status: int | None = None
    match kind:
        case ProviderFailureKind.PROMPT_TOO_LARGE:
            details["provider_message"] = error.details.get("provider_message", "")
        case ProviderFailureKind.REJECTED:
            # Where our own settings are at fault, the provider's words name what callers need not know.
            is_callers = error.http_status is None or error.http_status in CALLERS_OWN_STATUSES
            shown = error.details.get("provider_message", "") if is_callers else f"HTTP {error.http_status}"
            details["provider_message"] = shown
            status = 400 if is_callers else 502
        case ProviderFailureKind.UNREACHABLE:
            status = 504 if error.code in TIMEOUTS else 502
        case _:
            pass
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        details["retry_after_s"] = error.retry_after_s
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return APIProblem(
        plan.code,
        details,
        status=status,
        retryable=plan.retryable and (error.retryable or isinstance(error, Refused)),
        headers={**headers, **chat.headers},
        audited=Audited(data={"provider": chat.model.provider.slug, **_facts_for_operators(error, details)}),
    )


def _facts_for_operators(error: ChatError, shown: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return a failure's facts for the audit; words about what the caller wrote may quote it and stay out."""
    told_the_caller = shown.get("provider_message") == error.details.get("provider_message")
    return {
        name: value
        for name, value in error.details.items()
        if name != "provider_message" or not told_the_caller
    }


def kind_of(error: ChatError) -> ProviderFailureKind:
    """Return the kind of a failure, by the table of the core document."""
    match error:
        case Refused():
            return kind_of_refusal(
                error.http_status,
                error.text("provider_code"),
                error.text("provider_type"),
                error.text("provider_message"),
            )
        case NotReached():
            return ProviderFailureKind.UNREACHABLE
        case _:
            return ProviderFailureKind.INVALID_RESPONSE


def shown_answer(body: dict[str, JSON], chat: PreparedChat) -> bytes:
    """Write an answer or a chunk for the caller, under the name by which it asked for the model."""
    return dump_json({**body, "model": chat.model.name})


def without_usage(body: dict[str, JSON]) -> dict[str, JSON]:
    """Return a chunk without the field that only a request for usage brings."""
    return {name: value for name, value in body.items() if name != "usage"}
