"""Every way in which asking a provider can fail, as types.

::

    ChatError                    code, retryable, details
    ├── NotReached               no usable answer: connection, timeout, our own outbound guard
    ├── Refused                  the provider answered with an error, by status or in a stream
    └── BrokenAnswer             an answer that is no chat completion: undecodable, empty, cut off, too large

A model's own refusal to answer is no exception: it is an answer. Messages and details never hold credentials
or what was asked; texts from the provider are cleaned and cut first.
"""

from collections.abc import Mapping

from activities.chat_http.types import JSON


class ChatError(Exception):
    """The root: one request that has no answer.

    Args:
        code: A word for programs, e.g. ``read_timeout``; stable.
        message: A sentence for people, without secrets.
        retryable: Whether the same request may succeed later, unchanged.
        details: JSON facts. Keys in use: ``http_status``, ``retry_after_s``, ``provider_code``,
            ``provider_type``, ``provider_message``, ``content_type``, ``max_bytes``.
    """

    def __init__(
        self, code: str, message: str, *, retryable: bool, details: Mapping[str, JSON] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = retryable
        self.details: dict[str, JSON] = dict(details or {})

    @property
    def http_status(self) -> int | None:
        """The status of the HTTP response, if one arrived."""
        status = self.details.get("http_status")
        return status if isinstance(status, int) else None

    @property
    def retry_after_s(self) -> float | None:
        """Seconds the provider asked us to wait, bounded to a day; None if it named none."""
        wait_s = self.details.get("retry_after_s")
        return float(wait_s) if isinstance(wait_s, int | float) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(code={self.code!r}, {self.message!r})"


class NotReached(ChatError):
    """No answer came back; `may_have_run` tells whether the request had begun to leave and may be billed."""

    def __init__(self, code: str, message: str, *, may_have_run: bool, retryable: bool = True) -> None:
        super().__init__(code, message, retryable=retryable)
        self.may_have_run = may_have_run


class Refused(ChatError):
    """The provider answered with an error; its words are in `details`."""

    def text(self, key: str) -> str:
        """Return a text of `details`, "" where there is none."""
        value = self.details.get(key)
        return value if isinstance(value, str) else ""


class BrokenAnswer(ChatError):
    """The provider's answer cannot be used."""

    def __init__(self, code: str, message: str, details: Mapping[str, JSON] | None = None) -> None:
        super().__init__(code, message, retryable=True, details=details)
