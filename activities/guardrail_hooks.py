"""Runs guardrails in their order and holds them to their word: whatever is no verdict in time is a block.

Hooks run in threads, since they may compute for long; each plugin has threads of its own, so that one that
hangs takes nobody else's. A thread that hangs is left behind, and its plugin blocks once all of its threads
are lost.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Self, TypeAlias

from activities.guardrail_http import WebhookFailed, Webhooks
from governance.canonical import JSON, canonical_bytes
from governance.guardrails import (
    Annotate,
    Block,
    GuardedCall,
    Guardrail,
    GuardrailKind,
    GuardrailRequest,
    Hook,
    Redact,
    Stage,
    Verdict,
    build,
    read_verdict,
    shown_reason,
    verdict_problem,
)
from governance.strict_json import parse_json_strict

ENTRY_POINTS = "sluicegate.guardrails"
"""The group of entry points that plugins are found in; each is a function from its options to a hook."""

BUILT_IN_THREADS = 4
"""Threads for the hooks of our own."""

PLUGIN_THREADS = 4
"""Threads of each plugin; as many of its calls may hang before it blocks everything."""

ALL_HOOKS_S = 30.0
"""How long all hooks of one side of a call may take together; after that the call is blocked."""

PluginLoader: TypeAlias = Callable[[str], Callable[[Mapping[str, JSON]], Hook]]
"""Finds the factory of a plugin by name; raises LookupError where there is none."""

logger = logging.getLogger(__name__)


def _no_notes() -> list[dict[str, JSON]]:
    return []


@dataclass(frozen=True)
class Checked:
    """What became of a value: as it may go on, or who blocked it and why; and what is to be audited."""

    value: JSON
    blocked_by: str | None = None
    reason: str | None = None
    redacted: bool = False
    notes: list[dict[str, JSON]] = field(default_factory=_no_notes)
    """One entry for each hook that did more than allow: guardrail, verdict, notes; never a value."""


class HookLeft(Exception):
    """A hook tried to end more than itself."""

    def __init__(self, how: str) -> None:
        """Name the exception that it raised."""
        super().__init__(f"The hook raised {how}.")


def load_plugin(name: str) -> Callable[[Mapping[str, JSON]], Hook]:
    """Return the factory of an installed plugin.

    Raises:
        LookupError: no installed distribution has such an entry point.
    """
    for found in entry_points(group=ENTRY_POINTS, name=name):
        factory: Callable[[Mapping[str, JSON]], Hook] = found.load()
        return factory
    raise LookupError(f"There is no guardrail plugin {name!r}.")


class GuardrailHooks:
    """Holds threads, plugins and connections of guardrails; close it when the worker ends."""

    def __init__(self, webhooks: Webhooks, plugins: PluginLoader = load_plugin) -> None:
        """Ask `webhooks`, and find plugins with `plugins`."""
        self._webhooks = webhooks
        self._plugins = plugins
        self._own = ThreadPoolExecutor(BUILT_IN_THREADS, "guardrail")
        self._of_plugins: dict[str, ThreadPoolExecutor] = {}
        self._built: dict[str, tuple[Guardrail, Hook]] = {}

    async def __aenter__(self) -> Self:
        """Return the hooks."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Let go of the threads; one that hangs is not waited for."""
        for executor in (self._own, *self._of_plugins.values()):
            executor.shutdown(wait=False, cancel_futures=True)

    async def run(
        self, guardrails: Sequence[Guardrail], stage: Stage, call: GuardedCall, value: JSON
    ) -> Checked:
        """Run guardrails in order, each on what the one before it left, up to the first that blocks."""
        notes: list[dict[str, JSON]] = []
        redacted = False
        deadline = asyncio.get_running_loop().time() + ALL_HOOKS_S
        for guardrail in guardrails:
            verdict = await self._judge(guardrail, stage, call, value, deadline)
            if isinstance(verdict, Annotate | Redact | Block):
                kind = type(verdict).__name__.lower()
                notes.append({"guardrail": guardrail.name, "verdict": kind, "notes": dict(verdict.notes)})
            if isinstance(verdict, Block):
                reason = shown_reason(verdict.reason)
                return Checked(value, guardrail.name, reason, redacted=redacted, notes=notes)
            if isinstance(verdict, Redact):
                value, redacted = verdict.value, True
        return Checked(value, redacted=redacted, notes=notes)

    async def _judge(
        self, guardrail: Guardrail, stage: Stage, call: GuardedCall, value: JSON, deadline: float
    ) -> Verdict:
        """Return a verdict that holds; a hook that gives none has blocked."""
        try:
            async with asyncio.timeout_at(deadline):
                answer = await self._ask(guardrail, stage, call, value)
        except TimeoutError:
            return Block("guardrail_timed_out")
        except WebhookFailed as failed:
            logger.warning("guardrail %s: %s", guardrail.name, failed)
            return Block("guardrail_failed", {"failure": failed.reason})
        except Exception as error:
            # The edge to code of others: however it fails, the call is blocked and the worker goes on.
            logger.exception("a guardrail failed")
            return Block("guardrail_failed", {"failure": type(error).__name__[:100]})
        problem = verdict_problem(answer, stage, value)
        if problem is not None or answer is None:
            return Block("guardrail_failed", {"failure": problem or "not_a_verdict"})
        return answer

    async def _ask(
        self, guardrail: Guardrail, stage: Stage, call: GuardedCall, value: JSON
    ) -> Verdict | None:
        if guardrail.kind is GuardrailKind.WEBHOOK:
            question = {
                "guardrail": guardrail.name,
                "stage": stage.value,
                "call": call.to_json(),
                "value": value,
            }
            return read_verdict(await self._webhooks.ask(guardrail, question))
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(guardrail.timeout_s):
            executor = self._executor(guardrail)
            return await loop.run_in_executor(executor, self._call, guardrail, stage, call, value)

    def _call(self, guardrail: Guardrail, stage: Stage, call: GuardedCall, value: JSON) -> Verdict:
        hook = self._hook(guardrail)
        # A copy: what a hook does to it behind our back must not be what is sent.
        copy = parse_json_strict(canonical_bytes(value))
        try:
            return hook(GuardrailRequest(guardrail.name, stage, call, copy))
        except (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration) as error:
            # Code of others that asks to leave ends its own verdict, and neither this loop nor this process.
            raise HookLeft(type(error).__name__) from None

    def _hook(self, guardrail: Guardrail) -> Hook:
        known = self._built.get(guardrail.name)
        if known is not None and known[0] == guardrail:
            return known[1]
        if guardrail.kind is GuardrailKind.PLUGIN:
            factory = self._plugins(guardrail.settings["plugin"])
            hook = factory(dict(guardrail.settings.get("options") or {}))
        else:
            hook = build(guardrail)
        self._built[guardrail.name] = (guardrail, hook)
        return hook

    def _executor(self, guardrail: Guardrail) -> Executor:
        if guardrail.kind is not GuardrailKind.PLUGIN:
            return self._own
        name: str = guardrail.settings["plugin"]
        if name not in self._of_plugins:
            self._of_plugins[name] = ThreadPoolExecutor(PLUGIN_THREADS, f"guardrail-{name[:32]}")
        return self._of_plugins[name]
