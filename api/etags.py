"""Entity tags of settings, made from their content, so that only a real change moves them."""

from collections.abc import Mapping

from fastapi import Request

from api.errors import APIProblem
from governance.canonical import JSON, digest_of
from governance.codes import ErrorCode

_LENGTH = 32


def etag_of(settings: JSON) -> str:
    """Return the strong entity tag of settings, a JSON value."""
    return f'"{digest_of(settings)[:_LENGTH]}"'


def if_match_of(request: Request) -> str | None:
    """Return the If-Match header as one list, None where it is absent."""
    values = request.headers.getlist("if-match")
    return ",".join(values) if values else None


def check_if_match(if_match: str | None, etag: str, what: str, *, required: bool = False) -> None:
    """Let an edit through only if it was made on what is there now.

    Source: RFC 9110, section 13.1.1 (If-Match); RFC 6585, section 3 (428).

    Raises:
        APIProblem: precondition_failed with 412, or with 428 where the header is required and missing.
    """
    details: Mapping[str, JSON] = {"what": what, "etag": etag}
    if if_match is None:
        if required:
            raise APIProblem(ErrorCode.PRECONDITION_FAILED, details, status=428)
        return
    tags = [tag.strip() for tag in if_match.split(",")]
    if "*" not in tags and etag not in tags:
        raise APIProblem(ErrorCode.PRECONDITION_FAILED, details)
