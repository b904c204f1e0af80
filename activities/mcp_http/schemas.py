"""Checks tool results against the schemas servers declare, without ever fetching anything. Pure: no I/O."""

import hashlib
from collections import OrderedDict
from typing import Final

import jsonschema_rs

from activities.mcp_http import wire
from activities.mcp_http.types import JSON

MAX_SCHEMA_BYTES: Final = 256 * 1024
MAX_CACHED_SCHEMAS: Final = 512

_DIALECTS: Final = {
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
}
"""Dialects by ``$schema`` without its trailing ``#``; without ``$schema`` it is 2020-12."""

_PATTERNS: Final = jsonschema_rs.RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 20)
"""A pattern engine of linear time, so that no schema of a server can stall a worker."""


def remote_reference(schema: JSON) -> str | None:
    """Return a ``$ref`` of `schema` that points outside of it, or None.

    Source: MCP 2026-07-28, Tools, Security: network references are never fetched.
    """
    pending: list[JSON] = [schema]
    while pending:
        node = pending.pop()
        found = wire.as_object(node)
        if found is not None:
            for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
                target = found.get(keyword)
                if isinstance(target, str) and not target.startswith("#"):
                    return target
            pending.extend(found.values())
        pending.extend(wire.as_list(node) or ())
    return None


class SchemaCache:
    """Compiled schemas by content, least recently used dropped first."""

    def __init__(self) -> None:
        self._validators: OrderedDict[bytes, jsonschema_rs.Validator | None] = OrderedDict()

    @property
    def size(self) -> int:
        """How many schemas are held, at most `MAX_CACHED_SCHEMAS`."""
        return len(self._validators)

    def check(self, schema: JSON, value: JSON) -> bool | None:
        """Say whether `value` satisfies `schema`; None if the schema cannot be used.

        Unusable are schemas that are no schema, too large, of an unknown dialect, with references that leave
        the document, or with patterns that need a backtracking engine.
        """
        validator = self._validator(schema)
        if validator is None:
            return None
        try:
            return validator.is_valid(value)
        except ValueError:
            return None

    def is_usable(self, schema: JSON) -> bool:
        """Say whether results can be checked against `schema`."""
        return self._validator(schema) is not None

    def _validator(self, schema: JSON) -> jsonschema_rs.Validator | None:
        try:
            text = wire.dump_json(schema)
        except wire.BadJSON:
            return None
        key = hashlib.sha256(text).digest()
        if key in self._validators:
            self._validators.move_to_end(key)
        else:
            self._validators[key] = _compile(schema, len(text))
            if len(self._validators) > MAX_CACHED_SCHEMAS:
                self._validators.popitem(last=False)
        return self._validators[key]


def _compile(schema: JSON, size: int) -> jsonschema_rs.Validator | None:
    found = wire.as_object(schema)
    if found is None or size > MAX_SCHEMA_BYTES or remote_reference(schema) is not None:
        return None
    dialect = found.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    validator_class = _DIALECTS.get(dialect.removesuffix("#")) if isinstance(dialect, str) else None
    if validator_class is None:
        return None
    try:
        return validator_class(found, pattern_options=_PATTERNS, offline=True)
    except ValueError:
        return None
