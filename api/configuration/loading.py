"""Reads configuration files: YAML with exactly one meaning, and values by reference."""

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.events import AliasEvent

from api.configuration.problems import DocumentProblem
from governance.canonical import JSON, is_array, is_object

LARGEST_FILE = 4 * 1024 * 1024
"""Bytes of a configuration file."""

LARGEST_SECRET = 64 * 1024
"""Bytes of a file that a value refers to."""


class _Loader(yaml.SafeLoader):
    """Plain data without anchors, which can make a small file huge, and without repeated names."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(AliasEvent):
            raise ComposerError(None, None, "aliases are not allowed", self.get_mark())
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        names: set[Any] = set()
        for key_node, _ in node.value:
            name = self.construct_object(key_node, deep=True)  # pyright: ignore[reportUnknownMemberType]
            if not isinstance(name, str):
                problem = f"the name {name!r} is not text: put it in quotes"
                raise ConstructorError(None, None, problem, key_node.start_mark)
            if name in names:
                problem = f"{name!r} stands here twice"
                raise ConstructorError(None, None, problem, key_node.start_mark)
            names.add(name)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> JSON:
    """Return the value of YAML text, in which JSON is included.

    Raises:
        DocumentProblem: it is not YAML, repeats a name or uses anchors; with line and column.
    """
    if len(text.encode()) > LARGEST_FILE:
        raise DocumentProblem(f"the file is larger than {LARGEST_FILE} bytes")
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader, narrowed further.
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f" at line {mark.line + 1} column {mark.column + 1}"
        raise DocumentProblem(f"not valid YAML: {error.problem}{where}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DocumentProblem(f"not valid YAML: {type(error).__name__}") from error


@dataclass
class References:
    """Replaces `env:NAME` and `file:PATH` by what they refer to, and remembers where that was.

    Values are resolved where secrets may stand: in connections and as a key's or a guardrail's secret. A
    file's path is taken from the folder of the configuration file.
    """

    folder: Path
    environment: Callable[[str], str | None] = os.environ.get
    found: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])

    def resolve(self, value: JSON) -> JSON:
        """Return a parsed file with every reference resolved.

        Raises:
            DocumentProblem: a reference leads nowhere.
        """
        if not is_object(value):
            return value
        resolved = dict(value)
        if "connections" in value:
            resolved["connections"] = self.walk(value["connections"], ("connections",))
        if is_array(value.get("guardrails")):
            resolved["guardrails"] = [
                self._guardrail(number, found) for number, found in enumerate(value["guardrails"])
            ]
        if is_object(value.get("keys")):
            resolved["keys"] = {name: self._key(name, key) for name, key in value["keys"].items()}
        return resolved

    def _guardrail(self, number: int, guardrail: JSON) -> JSON:
        if not is_object(guardrail) or "secret" not in guardrail:
            return guardrail
        place = ("guardrails", str(number), "secret")
        return {**guardrail, "secret": self.walk(guardrail["secret"], place)}

    def _key(self, name: str, key: JSON) -> JSON:
        if not is_object(key) or "secret" not in key:
            return key
        return {**key, "secret": self.walk(key["secret"], ("keys", name, "secret"))}

    def walk(self, value: JSON, place: tuple[str, ...]) -> JSON:
        """Return a value with the references in it resolved; raises DocumentProblem, naming `place`."""
        if is_object(value):
            return {name: self.walk(item, (*place, name)) for name, item in value.items()}
        if is_array(value):
            return [self.walk(item, (*place, str(number))) for number, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        kind, colon, name = value.partition(":")
        if not colon or kind not in ("env", "file"):
            return value
        self.found[place] = value
        return self._environment(name, place) if kind == "env" else self._file(name, place)

    def _environment(self, name: str, place: tuple[str, ...]) -> str:
        value = self.environment(name)
        if not value:
            raise DocumentProblem(f"{'.'.join(place)}: the environment has no variable {name!r}")
        return value

    def _file(self, name: str, place: tuple[str, ...]) -> str:
        path = self.folder / name
        try:
            if path.stat().st_size > LARGEST_SECRET:
                raise DocumentProblem(f"{'.'.join(place)}: {name!r} is larger than {LARGEST_SECRET} bytes")
            return path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise DocumentProblem(f"{'.'.join(place)}: {name!r} cannot be read: {reason}") from error
