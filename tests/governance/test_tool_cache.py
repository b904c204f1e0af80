"""The cache of snapshots and their schemas."""

from functools import partial

from governance.canonical import canonical_bytes
from governance.schemas import SchemaProblem, ToolSchema
from governance.snapshots import ToolSnapshot
from governance.tool_cache import ToolCache


class Store:
    """Snapshots by digest, counting how often each is read."""

    def __init__(self, *schemas: dict[str, object]) -> None:
        made = [ToolSnapshot("a-b", "b", "1", "a", "mcp", None, schema) for schema in schemas]
        self.snapshots = {snapshot.digest: snapshot for snapshot in made}
        self.digests = [snapshot.digest for snapshot in made]
        self.reads: list[str] = []

    def load(self, digest: str) -> bytes:
        self.reads.append(digest)
        return canonical_bytes(self.snapshots[digest].to_json())


def test_a_tool_is_loaded_once_and_shared() -> None:
    store = Store({"type": "object"})
    (digest,) = store.digests
    cache = ToolCache()

    first = cache.get(digest, lambda: store.load(digest))
    assert cache.get(digest, lambda: store.load(digest)) is first
    assert store.reads == [digest]
    assert first.snapshot == store.snapshots[digest]
    assert isinstance(first.schema, ToolSchema)


def test_a_schema_that_cannot_be_used_is_remembered_as_such() -> None:
    store = Store({"$ref": "http://x.test/"})
    (digest,) = store.digests

    assert isinstance(ToolCache().get(digest, lambda: store.load(digest)).schema, SchemaProblem)


def test_the_tool_not_used_for_longest_makes_room() -> None:
    store = Store({"title": "a"}, {"title": "b"}, {"title": "c"})
    one, two, three = store.digests
    cache = ToolCache(capacity=2)

    for digest in (one, two, one, three, one, two):
        cache.get(digest, partial(store.load, digest))
    assert store.reads == [one, two, three, two]
