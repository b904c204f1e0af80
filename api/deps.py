"""What the API is built from: handed to `create_app`, reached by routes through the request."""

import asyncio
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from alembic.script import ScriptDirectory
from fastapi import Depends, Request
from temporalio.client import Client

import models.migrations
from activities.chat_providers import ChatProviders
from api.engine import Engine
from api.function_format import FunctionCache
from governance.tool_cache import ToolCache
from models.database import Database
from models.vault import Vault
from settings import Settings


@dataclass(frozen=True)
class APIDeps:
    """Everything the API needs; whoever builds it also closes it.

    `temporal` may be None or unreachable: reads go on, and what needs the engine answers 503. In a process
    with a worker it is the worker's own client, else `eager_start` has no effect.
    """

    settings: Settings
    database: Database
    vault: Vault
    admin_token_hash: str
    """SHA-256 of the control plane's token, see `models.key.hash_secret`."""
    temporal: Client | None
    search_attributes: bool = True
    """False where the cluster does not know our search attributes."""
    eager_start: bool = True
    """Whether a worker of this process may take a new round at once."""
    tools: ToolCache = field(default_factory=ToolCache)
    functions: FunctionCache = field(default_factory=FunctionCache)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process drains: event streams end, so that the server can."""
    chat_keep_alive_s: float = 15.0
    """A chat stream without a token for this long gets a comment, so that proxies keep the connection."""

    @cached_property
    def engine(self) -> Engine:
        """The workflow engine, as the API uses it."""
        return Engine(
            self.temporal,
            self.settings,
            search_attributes=self.search_attributes,
            eager_start=self.eager_start,
        )

    @cached_property
    def chat(self) -> ChatProviders:
        """The clients of chat providers: the one way in which the API itself dials."""
        return ChatProviders(self.vault)

    async def aclose(self) -> None:
        """Close what was made here; what was handed in is the builder's."""
        if "chat" in self.__dict__:
            await self.chat.aclose()

    @cached_property
    def schema_head(self) -> str | None:
        """The database revision that this release needs."""
        return ScriptDirectory(str(Path(models.migrations.__file__).parent)).get_current_head()


def deps_of(request: Request) -> APIDeps:
    """Return what the app was built from."""
    deps: APIDeps = request.app.state.deps
    return deps


Deps = Annotated[APIDeps, Depends(deps_of)]
"""What a route asks for to reach the dependencies."""
