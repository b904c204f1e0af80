"""Tools as chat completion providers take them, kept as JSON text by snapshot digest."""

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from governance.canonical import JSON, is_object
from governance.content import without_lone_surrogates

ANY_OBJECT: Mapping[str, JSON] = {"type": "object", "properties": {}}
"""The parameters of a tool whose server sent no usable schema."""


def function_text(snapshot: bytes) -> str:
    """Write a stored snapshot as `{"type":"function","function":{"name","description","parameters"}}`."""
    stored: dict[str, JSON] = without_lone_surrogates(json.loads(snapshot))
    schema = stored["input_schema"]
    function = {
        "name": stored["exposed_name"],
        "description": stored["description"] or "",
        "parameters": schema if is_object(schema) else ANY_OBJECT,
    }
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False, separators=(",", ":"))


class FunctionCache:
    """A least-recently-used cache; digests name content, so nothing in it can be stale."""

    def __init__(self, capacity: int = 20_000) -> None:
        """Keep at most `capacity` tools."""
        self._capacity = capacity
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, digests: Iterable[str]) -> dict[str, str]:
        """Return the texts of those digests that are kept."""
        with self._lock:
            found: dict[str, str] = {}
            for digest in digests:
                text = self._texts.get(digest)
                if text is not None:
                    self._texts.move_to_end(digest)
                    found[digest] = text
            return found

    def keep(self, texts: Mapping[str, str]) -> None:
        """Keep texts by digest, and let the least used ones go."""
        with self._lock:
            self._texts.update(texts)
            while len(self._texts) > self._capacity:
                self._texts.popitem(last=False)
