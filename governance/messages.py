"""The sentences of errors, in each language we speak, made from a code and its details. Pure: no I/O.

A sentence names only values that stand in `details`, so callers can write their own from the same facts.
"""

from collections.abc import Mapping
from enum import StrEnum
from string import Formatter
from typing import Any

from governance.canonical import JSON
from governance.codes import ErrorCode


class Language(StrEnum):
    """A language that messages are written in."""

    EN = "en"
    ZH_CN = "zh-CN"


_SENTENCES: Mapping[ErrorCode, tuple[str, str]] = {
    ErrorCode.INVALID_REQUEST: (
        "The request is malformed: {problem}. Correct it and send it again.",
        "请求格式不正确：{problem}。请更正后重新发送。",
    ),
    ErrorCode.INVALID_KEY: (
        (
            "The credential is missing, unknown or expired. Send 'Authorization: Bearer <credential>' with"
            " an API key on /v1 and /mcp, with the admin token on /api/v1."
        ),
        (
            "凭据缺失、未知或已过期。请发送 'Authorization: Bearer <credential>'："
            "/v1 与 /mcp 使用 API 密钥，/api/v1 使用管理员令牌。"
        ),
    ),
    ErrorCode.KEY_DISABLED: (
        "This API key is disabled. Ask an operator to enable it.",
        "此 API 密钥已停用，请联系管理员启用。",
    ),
    ErrorCode.FORBIDDEN: ("This credential may not do that.", "此凭据无权执行该操作。"),
    ErrorCode.NOT_FOUND: ("There is no {what} {name}.", "不存在 {what} {name}。"),
    ErrorCode.METHOD_NOT_ALLOWED: (
        "{path} does not take {method}; see the Allow header.",
        "{path} 不支持 {method} 方法，请参阅 Allow 响应头。",
    ),
    ErrorCode.CONFLICT: ("{what} {name} exists already.", "{what} {name} 已存在。"),
    ErrorCode.WRONG_STATE: (
        "The {what} {name} is {state}, which does not allow this.",
        "{what} {name} 当前状态为 {state}，不允许此操作。",
    ),
    ErrorCode.PRECONDITION_FAILED: (
        "{what} was changed meanwhile (now {etag}). Read it again and repeat the edit with If-Match.",
        "{what} 已被他人修改（当前 {etag}）。请重新读取，并以 If-Match 重试。",
    ),
    ErrorCode.INVALID_FILTER: (
        "The filter {where} holds {entry}: {reason}",
        "过滤条件 {where} 中的 {entry} 无效：{reason}",
    ),
    ErrorCode.INVALID_ARGUMENTS: (
        "The arguments of {tool} are not valid; see details.problems for what each place needs.",
        "工具 {tool} 的参数无效，请按 details.problems 逐项更正。",
    ),
    ErrorCode.TOO_MANY_CALLS: (
        "A round takes at most {limit} calls, and this one has {count}. Split it.",
        "一个轮次最多 {limit} 个调用，本次有 {count} 个，请拆分。",
    ),
    ErrorCode.BODY_TOO_LARGE: (
        "The body is longer than {limit_bytes} bytes.",
        "请求体超过 {limit_bytes} 字节。",
    ),
    ErrorCode.DUPLICATE_CALL_ID: (
        "Two calls of this round have the id {call_id}; only the first one is run.",
        "本轮次有两个调用使用了标识 {call_id}，仅执行第一个。",
    ),
    ErrorCode.TOOL_NOT_FOUND: (
        "There is no tool {tool} for this request.",
        "本次请求中不存在工具 {tool}。",
    ),
    ErrorCode.TOOL_NOT_ALLOWED: (
        "Tool {tool} is not available to this request.",
        "工具 {tool} 不在本次请求的可用范围内",
    ),
    ErrorCode.IMPLEMENTATION_NOT_ALLOWED: (
        "Tool {tool} may not be bound to {implementation}; the rule is {rule}.",
        "工具 {tool} 不能绑定到实现 {implementation}；规则：{rule}。",
    ),
    ErrorCode.NO_RUNNER: (
        "Nothing here makes calls of {tool}: its source is {source_kind}. It was not sent.",
        "此处无法执行对工具 {tool} 的调用：其来源为 {source_kind}。未发送任何内容。",
    ),
    ErrorCode.SUBAGENT_REFUSED: (
        "{tool} did not start a subagent; the rule is {rule}.",
        "{tool} 未启动子代理；规则：{rule}。",
    ),
    ErrorCode.GUARDRAIL_BLOCKED: (
        "The guardrail {guardrail} blocked {tool} {stage} the call: {reason}.",
        "护栏 {guardrail} 在{stage}拦截了工具 {tool}：{reason}。",
    ),
    ErrorCode.APPROVAL_UNAVAILABLE: (
        "Tool {tool} needs a person's approval, which this installation cannot ask for yet.",
        "工具 {tool} 需要人工审批，而当前环境尚不支持审批。",
    ),
    ErrorCode.APPROVAL_DENIED: ("The call of {tool} was not approved.", "对工具 {tool} 的调用未获批准。"),
    ErrorCode.CREDENTIAL_REQUIRED: (
        "Tool {tool} needs a credential of this key first.",
        "工具 {tool} 需要此密钥先完成授权。",
    ),
    ErrorCode.QUOTA_EXCEEDED: (
        "The quota of this key is used up: {limit} is {limit_value}. Try again in {retry_after} s.",
        "此密钥的额度已用尽：{limit} 上限为 {limit_value}。请在 {retry_after} 秒后重试。",
    ),
    ErrorCode.BUSY: (
        "The server of {tool} takes no more calls; nothing was sent in {waited_s} s. Try again later.",
        "工具 {tool} 的服务器并发已满，等待 {waited_s} 秒后仍未发送；请稍后重试。",
    ),
    ErrorCode.TOO_MANY_FAILURES: (
        "Too many requests from this address had no valid credential. Try again in {retry_after_s} s.",
        "来自此地址的请求多次未提供有效凭据，请在 {retry_after_s} 秒后重试。",
    ),
    ErrorCode.IDEMPOTENCY_CONFLICT: (
        "This Idempotency-Key was used before with another body. Use a new key for a new request.",
        "此 Idempotency-Key 已用于不同的请求体。新请求请使用新的键。",
    ),
    ErrorCode.TOOL_TIMEOUT: (
        "Tool {tool} did not answer within {timeout_s} s. Whether it ran is {outcome}.",
        "工具 {tool} 在 {timeout_s} 秒内没有应答，是否已执行：{outcome}。",
    ),
    ErrorCode.TOOL_ERROR: (
        "The server of {tool} answered with an error: {server_message}",
        "工具 {tool} 的服务器返回错误：{server_message}",
    ),
    ErrorCode.TOOL_RESULT_ERROR: (
        "Tool {tool} reports that it failed; its content says why.",
        "工具 {tool} 报告执行失败，原因见其返回内容。",
    ),
    ErrorCode.UPSTREAM_UNAVAILABLE: (
        "The server of {tool} cannot be reached; nothing was sent.",
        "无法连接工具 {tool} 的服务器，未发送任何内容。",
    ),
    ErrorCode.UPSTREAM_REFUSED: (
        "The server of {tool} refused the request ({reason}); the tool did not run.",
        "工具 {tool} 的服务器拒绝了请求（{reason}），工具未执行。",
    ),
    ErrorCode.UPSTREAM_PROTOCOL_ERROR: (
        "The server of {tool} broke the protocol: {reason}",
        "工具 {tool} 的服务器违反了协议：{reason}",
    ),
    ErrorCode.SESSION_NOT_FOUND: (
        "The server of {tool} has forgotten its session; the tool did not run. The next call opens another.",
        "工具 {tool} 的服务器已丢失会话，工具未执行；下次调用将重新建立会话。",
    ),
    ErrorCode.OUTCOME_UNKNOWN: (
        "The call of {tool} was sent and no answer came ({reason}). It may have run; check before repeating.",
        "对工具 {tool} 的调用已发出但没有应答（{reason}），是否已执行未知；重试前请先核实。",
    ),
    ErrorCode.RESULT_TOO_LARGE: (
        "The result of {tool} is larger than {limit_bytes} bytes and was not kept; the tool did run.",
        "工具 {tool} 的结果超过 {limit_bytes} 字节，未予保存；工具已执行。",
    ),
    ErrorCode.MODEL_NOT_FOUND: (
        "There is no model {model}; GET /v1/models lists those there are.",
        "不存在模型 {model}；可通过 GET /v1/models 查看可用模型。",
    ),
    ErrorCode.PROMPT_TOO_LARGE: (
        "The request is too long for model {model}: {provider_message}",
        "请求内容超出模型 {model} 的长度上限：{provider_message}",
    ),
    ErrorCode.PROVIDER_RATE_LIMITED: (
        "The provider of model {model} takes no more requests at the moment. Try again later.",
        "模型 {model} 的供应方暂时限流，请稍后重试。",
    ),
    ErrorCode.PROVIDER_CREDITS_EXHAUSTED: (
        "The account at the provider of model {model} is used up; an operator must fill it.",
        "模型 {model} 的供应方账户额度已用尽，需由管理员充值。",
    ),
    ErrorCode.PROVIDER_AUTH_EXPIRED: (
        "The provider of model {model} does not accept our credential; an operator must renew it.",
        "模型 {model} 的供应方拒绝了平台凭据，需由管理员更新。",
    ),
    ErrorCode.PROVIDER_OVERLOADED: (
        "The provider of model {model} failed. Try again later.",
        "模型 {model} 的供应方出现故障，请稍后重试。",
    ),
    ErrorCode.PROVIDER_UNREACHABLE: (
        "The provider of model {model} gave no answer ({reason}).",
        "模型 {model} 的供应方没有应答（{reason}）。",
    ),
    ErrorCode.PROVIDER_REJECTED: (
        "The provider of model {model} refused the request: {provider_message}",
        "模型 {model} 的供应方拒绝了请求：{provider_message}",
    ),
    ErrorCode.INVALID_PROVIDER_RESPONSE: (
        "The provider of model {model} gave an answer that cannot be used ({reason}).",
        "模型 {model} 的供应方返回了无法使用的应答（{reason}）。",
    ),
    ErrorCode.NOT_SENT: (
        "The call of {tool} was not sent before its round ended.",
        "轮次结束前未发送对工具 {tool} 的调用。",
    ),
    ErrorCode.CANCELED: ("The call of {tool} was canceled.", "对工具 {tool} 的调用已取消。"),
    ErrorCode.CANCEL_UNAVAILABLE: (
        "The workflow engine cannot be reached, so the round was not told to stop. Send the cancel again.",
        "工作流引擎不可用，取消请求未能送达轮次，请稍后重新发送。",
    ),
    ErrorCode.ROUND_ABANDONED: (
        "This round was not started and never will be; nothing was sent. Use another Idempotency-Key.",
        "此轮次未启动，且不会再启动；未发送任何内容。请使用新的 Idempotency-Key。",
    ),
    ErrorCode.START_GRANT_REQUIRED: (
        "To start a round through Temporal takes a grant of POST /v1/rounds/grants. Nothing was sent.",
        "通过 Temporal 启动轮次须先由 POST /v1/rounds/grants 取得授权，未发送任何内容。",
    ),
    ErrorCode.DATABASE_BUSY: (
        "The database is busy; nothing was sent. Try again in a moment.",
        "数据库繁忙，未发送任何内容，请稍后重试。",
    ),
    ErrorCode.ENGINE_UNAVAILABLE: (
        "The workflow engine cannot be reached; nothing was sent, and nothing will be. Try again later.",
        "工作流引擎不可用；未发送任何内容，之后也不会发送。请稍后重试。",
    ),
    ErrorCode.INTERNAL_ERROR: (
        "Something went wrong on our side. Give the request id to an operator.",
        "内部错误，请将请求标识提供给管理员。",
    ),
}

LOCAL_VALUES: Mapping[Language, Mapping[str, str]] = {
    Language.EN: {},
    Language.ZH_CN: {
        "before": "调用前",
        "after": "调用后",
        "unknown": "未知",
        "not_sent": "未发送",
        "round": "轮次",
        "key": "密钥",
        "connection": "连接",
    },
}
"""Words among the details that are ours and not names, so they can be said in the reader's language."""


class _Lenient(Formatter):
    """Leaves a gap visible instead of failing: an error about an error helps nobody."""

    def get_value(self, key: int | str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        del args
        return kwargs.get(str(key), "?")


def message_for(code: ErrorCode, details: Mapping[str, JSON], language: Language = Language.EN) -> str:
    """Write the sentence of an error from its code and details."""
    english, chinese = _SENTENCES[code]
    words = LOCAL_VALUES[language]
    shown = {
        name: words.get(value, value) if isinstance(value, str) else value for name, value in details.items()
    }
    return _Lenient().vformat(english if language is Language.EN else chinese, (), shown)


def preferred_language(accept_language: str | None) -> Language:
    """Choose a language by an Accept-Language header; English where nothing fits.

    Source: RFC 9110, section 12.5.4.
    """
    best, best_weight = Language.EN, 0.0
    for part in (accept_language or "").split(","):
        tag, _, parameters = part.strip().partition(";")
        weight = _weight(parameters)
        language = Language.ZH_CN if tag.lower().startswith("zh") else Language.EN
        if tag and (tag == "*" or tag.lower().startswith(("zh", "en"))) and weight > best_weight:
            best, best_weight = language, weight
    return best


def _weight(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
