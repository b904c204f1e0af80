"""Keeps parsed snapshots and compiled schemas, both immutable, by digest. Pure: no I/O."""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from governance.argument_rules import NO_RULES, CompiledRules, FrozenRule
from governance.canonical import digest_of
from governance.schemas import SchemaProblem, ToolSchema, compile_schema
from governance.snapshots import ToolSnapshot


@dataclass(frozen=True)
class KnownTool:
    """A snapshot and its compiled argument schema."""

    snapshot: ToolSnapshot
    schema: ToolSchema | SchemaProblem
    rules: CompiledRules = NO_RULES


class ToolCache:
    """A least-recently-used cache that its owner shares between threads.

    A digest names its content, so an entry can be dropped at any time and can never be stale.
    """

    def __init__(self, capacity: int = 2_000) -> None:
        """Keep at most `capacity` tools."""
        self._capacity = capacity
        self._known: OrderedDict[str, KnownTool] = OrderedDict()
        self._rules: OrderedDict[str, CompiledRules] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str, load: Callable[[], bytes]) -> KnownTool:
        """Return the tool of a digest; `load` gives its bytes and is called only when it is unknown."""
        with self._lock:
            known = self._known.get(digest)
            if known is not None:
                self._known.move_to_end(digest)
                return known
        snapshot = ToolSnapshot.from_json(json.loads(load()))
        rules = self.rules([FrozenRule.from_json(rule) for rule in snapshot.argument_rules])
        known = KnownTool(snapshot, compile_schema(snapshot.input_schema), rules)
        with self._lock:
            self._known[digest] = known
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return known

    def rules(self, rules: Sequence[FrozenRule]) -> CompiledRules:
        """Return rules with their schemas compiled; those of one content are compiled once."""
        if not rules:
            return NO_RULES
        name = digest_of([rule.to_json() for rule in rules])
        with self._lock:
            known = self._rules.get(name)
            if known is not None:
                self._rules.move_to_end(name)
                return known
        compiled = CompiledRules(rules)
        with self._lock:
            self._rules[name] = compiled
            while len(self._rules) > self._capacity:
                self._rules.popitem(last=False)
        return compiled
