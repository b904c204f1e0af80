"""What a round froze of a tool, named by its content. Pure: no I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from governance.canonical import JSON, digest_of
from governance.codes import IdempotencyClass
from governance.execution_policy import PolicyLayer


@dataclass(frozen=True)
class ToolSnapshot:
    """Everything a call needs to know of its tool, so that later edits change nothing for a round.

    `connection` is the connection's public id, `connection_name` its name and `server_url` its address then,
    all None for a tool of no connection. Schemas and annotations are JSON as the source sent them, shared and
    never copied; they must not be changed. `argument_rules` are those of the connection and the tool, each a
    `governance.argument_rules.FrozenRule`; arguments must satisfy all of them.
    """

    exposed_name: str
    upstream_name: str
    connection: str | None
    connection_name: str | None
    source_kind: str
    description: str | None
    input_schema: JSON
    output_schema: JSON = None
    annotations: JSON = None
    parallel_safe: bool = False
    policy_provenance: tuple[PolicyLayer, ...] = ()
    timeout_s: float = 60.0
    idempotency: IdempotencyClass = IdempotencyClass.UNSAFE
    requires_approval: bool = False
    argument_rules: tuple[JSON, ...] = ()
    server_url: str | None = None
    idempotency_provenance: tuple[tuple[str, str], ...] = ()
    """(layer, class) of all that had a say, the last of which decided; empty where the source alone had."""
    timeout_provenance: tuple[tuple[str, float], ...] = ()
    """(layer, seconds), likewise."""

    def with_idempotency(self, wanted: IdempotencyClass) -> "ToolSnapshot":
        """Return the snapshot with an operator's setting of the tool, which goes before its source's."""
        layer = "source" if self.connection is None else "connection"
        provenance = ((layer, self.idempotency.value), ("tool", wanted.value))
        return replace(self, idempotency=wanted, idempotency_provenance=provenance)

    def with_timeout(self, wanted_s: float) -> "ToolSnapshot":
        """Return the snapshot with an operator's time limit of the tool, which goes before its source's."""
        layer = "source" if self.connection is None else "connection"
        provenance = ((layer, float(self.timeout_s)), ("tool", float(wanted_s)))
        return replace(self, timeout_s=float(wanted_s), timeout_provenance=provenance)

    def to_json(self) -> dict[str, JSON]:
        """Return the snapshot as stored; `digest` is taken over this."""
        stored: dict[str, JSON] = {
            "exposed_name": self.exposed_name,
            "upstream_name": self.upstream_name,
            "connection": self.connection,
            "connection_name": self.connection_name,
            "source_kind": self.source_kind,
            "description": self.description,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "annotations": self.annotations,
            "parallel_safe": self.parallel_safe,
            "policy_provenance": [layer.to_json() for layer in self.policy_provenance],
            "timeout_s": float(self.timeout_s),
            "idempotency": self.idempotency.value,
            "requires_approval": self.requires_approval,
            "argument_rules": list(self.argument_rules),
            "server_url": self.server_url,
        }
        if self.idempotency_provenance:
            # Left out where it is empty, so that snapshots that were stored before have the digest they had.
            stored["idempotency_provenance"] = [
                {"layer": layer, "value": value} for layer, value in self.idempotency_provenance
            ]
        if self.timeout_provenance:
            stored["timeout_provenance"] = [
                {"layer": layer, "value": value} for layer, value in self.timeout_provenance
            ]
        return stored

    @classmethod
    def from_json(cls, payload: Mapping[str, JSON]) -> "ToolSnapshot":
        """Read a stored snapshot back; its digest is the one it was stored under."""
        return cls(
            exposed_name=payload["exposed_name"],
            upstream_name=payload["upstream_name"],
            connection=payload["connection"],
            connection_name=payload["connection_name"],
            source_kind=payload["source_kind"],
            description=payload["description"],
            input_schema=payload["input_schema"],
            output_schema=payload["output_schema"],
            annotations=payload["annotations"],
            parallel_safe=payload["parallel_safe"],
            policy_provenance=tuple(
                PolicyLayer(layer["layer"], layer["value"]) for layer in payload["policy_provenance"]
            ),
            timeout_s=payload["timeout_s"],
            idempotency=IdempotencyClass(payload["idempotency"]),
            requires_approval=payload["requires_approval"],
            argument_rules=tuple(payload["argument_rules"]),
            server_url=payload["server_url"],
            idempotency_provenance=tuple(
                (layer["layer"], layer["value"]) for layer in payload.get("idempotency_provenance", ())
            ),
            timeout_provenance=tuple(
                (layer["layer"], layer["value"]) for layer in payload.get("timeout_provenance", ())
            ),
        )

    @cached_property
    def digest(self) -> str:
        """Name the snapshot by its content, as 64 hexadecimal digits; computed once.

        Raises:
            NotCanonicalError: a schema or text cannot be written as JSON in UTF-8.
        """
        return digest_of(self.to_json())


def frozen_set_digest(pairs: Iterable[tuple[str, str]]) -> str:
    """Name a set of tools by its (exposed name, snapshot digest) pairs; order and repeats do not matter."""
    return digest_of(sorted({(name, snapshot) for name, snapshot in pairs}))
