"""Tool lists as operators write them, checked before they are stored."""

from api.errors import APIProblem
from governance.canonical import JSON
from governance.codes import ErrorCode
from governance.filters import tool_list_problem

LONGEST_NAME = 512
"""Characters in the longest upstream name that can be stored."""


def checked_tool_list(value: JSON, where: str) -> tuple[str, ...]:
    """Return a tool list that may be written, each name once; None counts as empty.

    Raises:
        APIProblem: invalid_filter with 422, as for every list that an operator writes.
    """
    problem = tool_list_problem(value)
    if problem is not None:
        raise invalid_list(where, str(value), problem)
    names: list[str] = value or []
    for name in names:
        if "\x00" in name or len(name) > LONGEST_NAME:
            raise invalid_list(where, name, "too long, or holds the character NUL")
    return tuple(dict.fromkeys(names))


def invalid_list(where: str, entry: str, reason: str) -> APIProblem:
    """Refuse an entry of a configuration; `where` is its path in the body."""
    details = {"where": where, "entry": entry[:200].replace("\x00", ""), "reason": reason}
    return APIProblem(ErrorCode.INVALID_FILTER, details, status=422)
