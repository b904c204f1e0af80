"""Secrets are opened under activities/ alone: the API seals, and asks for clients instead of credentials.

Source: docs/decisions/0010-pass-through-chat-opens-credentials.md.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def openings(source: str) -> list[int]:
    """Return the lines that call `open` on something named as a vault."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "open"
        and "vault" in ast.unparse(node.func.value).lower()
    ]


@pytest.mark.parametrize("folder", ["api", "governance", "workflows"])
def test_nothing_outside_of_activities_opens_a_secret(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / folder).rglob("*.py")
        if (lines := openings(path.read_text("utf-8")))
    }
    assert found == {}


def test_the_search_finds_what_it_looks_for() -> None:
    assert openings("self._vault.open(sealed, purpose)\ndeps.vault.seal(a, b)\nopen('vault')") == [1]
    assert openings((ROOT / "activities/chat_providers.py").read_text("utf-8"))
