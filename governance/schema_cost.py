"""Bound what checking a value against a schema can cost, before the schema is used. Pure: no I/O.

A schema of a few lines can ask for 2**40 evaluations, by applying a definition twice that applies the next
one twice, and so on; and a schema written by a tool's server is not trusted. Work is counted in evaluations
of one subschema at one place of the value.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from governance.canonical import JSON, is_array, is_object

CAP: Final = 1_000_000
"""Counts stop here: past it, only "too many" is of interest."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_IN_PLACE = ("not", "if", "then", "else")
_IN_PLACE_GROUPS = ("allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
_EVERY_PROPERTY = ("additionalProperties", "unevaluatedProperties", "propertyNames")
_EVERY_ITEM = ("additionalItems", "unevaluatedItems", "contains")
_KEPT_APART = ("$defs", "definitions")
# To find out what is unevaluated, the validator goes through the subschemas applied in place once more.
_LOOK_AGAIN = ("unevaluatedProperties", "unevaluatedItems")
_DRAFT_4 = "draft-04"


class SchemaRefused(ValueError):
    """The schema is not one that can be checked safely; the message says why."""


@dataclass
class _Node:
    """A subschema and, by number, the subschemas it applies.

    `in_place` apply to the same value. Of `properties` at most one applies to a child (they differ in name),
    of `every_property` all may; `positions` and `every_item` are the same for arrays.
    """

    own: int
    in_place: list[int]
    properties: list[int]
    every_property: list[int]
    positions: list[int]
    every_item: list[int]

    @property
    def edges(self) -> Iterator[int]:
        """Every subschema applied, whichever the place."""
        for group in (self.in_place, self.properties, self.every_property, self.positions, self.every_item):
            yield from group


class SchemaGraph:
    """The subschemas of a schema and how they apply each other, references followed.

    `patterns` are the regular expressions among them.
    """

    def __init__(self, schema: JSON) -> None:
        """Read a schema, an object or a boolean.

        Raises:
            SchemaRefused: a reference leads out of the schema, or an identifier inside it moves the base of
                references.
        """
        root: dict[str, JSON] = schema if is_object(schema) else {}
        self._root = root
        self._anchors = _anchors(root)
        self._numbers: dict[int, int] = {}
        self._pending: list[dict[str, JSON]] = []
        self._nodes: list[_Node] = []
        self.patterns: list[str] = []
        self._add([root])
        while len(self._nodes) < len(self._pending):
            self._nodes.append(self._read(self._pending[len(self._nodes)]))

    def evaluations(self) -> int:
        """Bound the evaluations at one place of a value, each recursion entered once.

        The validator remembers what it found for a recursive reference at a place, so this bounds its work on
        the question whether a value fits.
        """
        work = [1] * len(self._nodes)
        self._pass(self._post_order(lambda node: node.edges), work, work)
        return work[0]

    def unrolled_evaluations(self, depth: int) -> int:
        """Bound the same where nothing is remembered, for values nested at most `depth` deep.

        Explaining why a value does not fit works so.
        """
        order = self._post_order(lambda node: node.in_place)
        work = [0] * len(self._nodes)
        for _ in range(depth + 1):
            below, work = work, [0] * len(self._nodes)
            self._pass(order, work, below)
            if work == below:
                break
        return work[0]

    def _pass(self, order: Sequence[int], work: list[int], below: Sequence[int]) -> None:
        """Fill `work` from the bounds for child values, `below`.

        `order` has what a node applies before the node. What comes later is applied through recursion on the
        same value, which the validator enters once.
        """
        counts, on_objects, on_arrays = ([0] * len(work) for _ in range(3))
        for number in order:
            node = self._nodes[number]
            counts[number] = _capped(node.own, (counts[inner] for inner in node.in_place))
            on_objects[number] = _capped(
                max((below[child] for child in node.properties), default=0),
                (below[child] for child in node.every_property),
                (on_objects[inner] for inner in node.in_place),
            )
            on_arrays[number] = _capped(
                max((below[child] for child in node.positions), default=0),
                (below[child] for child in node.every_item),
                (on_arrays[inner] for inner in node.in_place),
            )
            work[number] = _capped(counts[number], [max(on_objects[number], on_arrays[number])])

    def _post_order(self, edges_of: Callable[[_Node], Iterable[int]]) -> list[int]:
        """Order the nodes so that the ends of a node's edges come before it, where edges make no circle."""
        order: list[int] = []
        seen: set[int] = set()
        for start in range(len(self._nodes)):
            if start in seen:
                continue
            seen.add(start)
            path = [(start, iter(edges_of(self._nodes[start])))]
            while path:
                number, edges = path[-1]
                following = next((edge for edge in edges if edge not in seen), None)
                if following is None:
                    order.append(number)
                    path.pop()
                else:
                    seen.add(following)
                    path.append((following, iter(edges_of(self._nodes[following]))))
        return order

    def _add(self, schemas: Iterable[JSON]) -> list[int]:
        numbers: list[int] = []
        for schema in schemas:
            if not is_object(schema):
                continue
            if id(schema) not in self._numbers:
                self._numbers[id(schema)] = len(self._pending)
                self._pending.append(schema)
            numbers.append(self._numbers[id(schema)])
        return numbers

    def _read(self, schema: dict[str, JSON]) -> _Node:
        self.patterns += [
            value for key, value in schema.items() if key == "pattern" and isinstance(value, str)
        ]
        names = schema.get("patternProperties")
        self.patterns += names if is_object(names) else ()
        parts = _parts(schema)
        for key in _REFERENCES:
            parts.in_place.extend(self._targets(schema.get(key)))
        return _Node(
            own=1 + len(_members(schema.get("enum"))),
            in_place=self._add(parts.in_place) * (2 if any(key in schema for key in _LOOK_AGAIN) else 1),
            properties=self._add(parts.properties),
            every_property=self._add(parts.every_property),
            positions=self._add(parts.positions),
            every_item=self._add(parts.every_item),
        )

    def _targets(self, reference: JSON) -> list[JSON]:
        if not isinstance(reference, str):
            return []
        if not reference.startswith("#"):
            refused = f"the reference {reference[:80]!r} leads out of the schema; none is ever fetched"
            raise SchemaRefused(refused)
        fragment = unquote(reference[1:])
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment, [])
        return [_pointed_at(self._root, fragment)]


@dataclass(frozen=True)
class _Parts:
    """What stands in a schema where subschemas stand, by how it is applied (see `_Node`)."""

    in_place: list[JSON]
    properties: list[JSON]
    every_property: list[JSON]
    positions: list[JSON]
    every_item: list[JSON]
    apart: list[JSON]


def _parts(schema: dict[str, JSON]) -> _Parts:
    items = schema.get("items")
    return _Parts(
        in_place=[
            *(schema.get(key) for key in _IN_PLACE),
            *(member for key in _IN_PLACE_GROUPS for member in _members(schema.get(key))),
        ],
        properties=_members(schema.get("properties")),
        every_property=[
            *_members(schema.get("patternProperties")),
            *(schema.get(key) for key in _EVERY_PROPERTY),
        ],
        positions=[*_members(schema.get("prefixItems")), *(items if is_array(items) else ())],
        every_item=[items, *(schema.get(key) for key in _EVERY_ITEM)],
        apart=[member for key in _KEPT_APART for member in _members(schema.get(key))],
    )


def _anchors(root: dict[str, JSON]) -> dict[str, list[JSON]]:
    """Return the anchored subschemas by name; refuse identifiers that would move the base of references."""
    found: dict[str, list[JSON]] = {}
    base = "id" if _DRAFT_4 in str(root.get("$schema")) else "$id"
    pending: list[JSON] = [root]
    while pending:
        schema = pending.pop()
        if not is_object(schema):
            continue
        if schema is not root and isinstance(schema.get(base), str):
            refused = f"a subschema has an {base}; references are followed within one schema only"
            raise SchemaRefused(refused)
        for key in _ANCHORS:
            name = schema.get(key)
            if isinstance(name, str):
                found.setdefault(name, []).append(schema)
        parts = _parts(schema)
        pending += parts.in_place + parts.properties + parts.every_property
        pending += parts.positions + parts.every_item + parts.apart
    return found


def _capped(first: int, *others: Iterable[int]) -> int:
    return min(CAP, first + sum(map(sum, others)))


def _members(value: JSON) -> list[JSON]:
    if is_object(value):
        return list(value.values())
    return value if is_array(value) else []


def _pointed_at(root: JSON, pointer: str) -> JSON:
    """Follow a JSON Pointer; None where it leads nowhere, which compiling the schema then reports."""
    value = root
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if is_object(value):
            value = value.get(name)
        elif is_array(value) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
