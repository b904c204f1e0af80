"""What requests generated from the published API have found, each as a test of its own."""

import pytest

from tests.api.bench import APIBench, error_of

pytestmark = pytest.mark.anyio


async def test_a_server_that_may_not_be_dialled_fails_at_once_and_says_why(live_api: APIBench) -> None:
    # The refusal left the activity as an error of ours, which was repeated until the request gave up.
    body = {"name": "refused", "url": "http://127.0.0.1:9/mcp"}

    made = await live_api.operator("POST", "/api/v1/mcp/clients", json=body)

    shown = made.json()
    assert (made.status_code, shown["health"]) == (201, "failing")
    assert (shown["last_failure"]["stage"], shown["last_failure"]["code"]) == ("connect", "endpoint_refused")
    assert shown["sync"]["state"] == "finished"


@pytest.mark.parametrize(
    ("path", "what"), [("/api/v1/rounds?key=", "key"), ("/api/v1/audit?round_id=null", "round")]
)
async def test_a_list_of_nothing_that_exists_is_not_found_as_documented(
    api: APIBench, path: str, what: str
) -> None:
    response = await api.operator("GET", path)

    documented = api.app.openapi()["paths"][path.partition("?")[0]]["get"]["responses"]
    assert (response.status_code, error_of(response)["details"]["what"]) == (404, what)
    assert "404" in documented
