"""Providers and chat requests for tests of the API."""

from collections.abc import Mapping
from typing import Any

import httpx

from tests.api.bench import Agent, APIBench
from tests.support.fake_provider import UPSTREAM_MODEL, FakeProvider

MODEL = "neutral-model"
"""The neutral name that tests ask for."""

CREDENTIAL = "provider-secret-0123456789"

HELLO = [{"role": "user", "content": "Hello?"}]


async def register(
    api: APIBench, base_url: str, model: Mapping[str, Any] | None = None, **settings: Any
) -> httpx.Response:
    """Register a provider on the loopback network with one model."""
    body = {
        "slug": "fake",
        "base_url": base_url,
        "network": "loopback",
        "credential": CREDENTIAL,
        "model_aliases": {MODEL: {"upstream_model": UPSTREAM_MODEL, **(model or {})}},
        **settings,
    }
    response = await api.operator("POST", "/api/v1/providers", json=body)
    assert response.status_code == 201, response.text
    return response


async def chat(
    api: APIBench, agent: Agent, headers: Mapping[str, str] | None = None, **fields: Any
) -> httpx.Response:
    """Ask the model; `fields` are added to the request's body."""
    body = {"model": MODEL, "messages": HELLO, **fields}
    return await api.http.post(
        "/v1/chat/completions", headers={**agent.headers, **(headers or {})}, json=body
    )


async def chat_provider(api: APIBench, provider: FakeProvider, **settings: Any) -> None:
    """Register a running provider."""
    await register(api, provider.base_url, **settings)
