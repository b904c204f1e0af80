"""How requests end on the wire: by one length, or not at all."""

import asyncio
import logging
from urllib.parse import urlsplit

import pytest

from tests.api.bench import ADMIN_TOKEN, APIBench
from tests.support.live_server import live_server

pytestmark = pytest.mark.anyio

SMUGGLED = f"GET /api/v1/keys HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {ADMIN_TOKEN}\r\n\r\n"


async def test_a_request_with_two_lengths_is_refused_and_nothing_after_it_is_served(api: APIBench) -> None:
    body = "0\r\n\r\n" + SMUGGLED
    head = f"content-length: {len(body)}\r\ntransfer-encoding: chunked\r\n\r\n"
    async with live_server(api.app) as url, asyncio.timeout(5):
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"POST /v1/mcp/tool/execute HTTP/1.1\r\nhost: gateway\r\n{head}{body}".encode())
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code": "invalid_request"' in answer
    assert b"connection: close" in answer.lower()
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_caller_that_hangs_up_within_its_body_is_no_failure_of_ours(
    api: APIBench, caplog: pytest.LogCaptureFixture
) -> None:
    ended = asyncio.Event()

    class Listener(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            ended.set()

    listener = Listener()
    logger = logging.getLogger("api.middleware")
    logger.addHandler(listener)
    try:
        with caplog.at_level(logging.INFO, logger=logger.name):
            async with live_server(api.app) as url, asyncio.timeout(5):
                address = urlsplit(url)
                _, writer = await asyncio.open_connection(address.hostname, address.port)
                head = "content-length: 100\r\nauthorization: Bearer sgk_x\r\n\r\n"
                writer.write(f"POST /v1/mcp/tool/execute HTTP/1.1\r\nhost: gateway\r\n{head}{{".encode())
                await writer.drain()
                writer.close()
                await writer.wait_closed()
                await ended.wait()
    finally:
        logger.removeHandler(listener)

    assert [record.levelname for record in caplog.records if record.name == logger.name] == ["INFO"]
    assert "Traceback" not in caplog.text
