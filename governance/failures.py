"""The error payload of a call: one shape for every layer. Pure: no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from governance.canonical import JSON
from governance.codes import Classification, ErrorCode


def _no_details() -> dict[str, JSON]:
    return {}


@dataclass(frozen=True)
class CallError:
    """Why a call has no result of its own.

    `details` carries every value that `message` names, so that a caller can write the sentence in
    another language; it never holds arguments, tokens or schema text.
    """

    classification: Classification
    code: ErrorCode
    message: str
    retryable: bool = False
    details: Mapping[str, JSON] = field(default_factory=_no_details)

    def to_json(self) -> dict[str, JSON]:
        """Return the payload as stored and as shown: classification, code, message, retryable, details."""
        return {
            "classification": self.classification.value,
            "code": self.code.value,
            "message": self.message,
            "retryable": self.retryable,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, payload: Mapping[str, JSON]) -> "CallError":
        """Read a stored payload back."""
        return cls(
            classification=Classification(payload["classification"]),
            code=ErrorCode(payload["code"]),
            message=str(payload["message"]),
            retryable=bool(payload["retryable"]),
            details=dict(payload.get("details") or {}),
        )
