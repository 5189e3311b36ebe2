"""Request ids and what every route has in common: traces, HEAD, slashes, preflights of each path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.live.support import ServerProcess, chat_body, server_process

pytestmark = [pytest.mark.gguf, pytest.mark.live]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(scope="module")
def server(q4_0_model: Path) -> Iterator[ServerProcess]:
    flags = ["--model-artifact", str(q4_0_model), "--model-threads", "1", "--model-max-context", "512"]
    with server_process(*flags, "--log-level", "debug") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def test_a_traceparent_gives_the_id_and_the_log_has_it_from_end_to_end(
    server: ServerProcess, client: httpx.Client
) -> None:
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "x-request-id": "my-own-id"}
    answer = client.post("/v1/chat/completions", json=chat_body("Hi", max_tokens=1), headers=headers)
    assert answer.headers["x-request-id"] == f"req_{TRACE}"
    assert answer.json()["id"] == f"chatcmpl-{TRACE}"
    client.get("/v1/models")  # one more line behind it, so that it is out
    names = [line["event_name"].rpartition("trio_server.")[2] for line in server.log if line.get("trace_id") == TRACE]
    assert names[:3] == ["request.admitted", "request.ttft", "request.done"]
    assert any(line["attributes"].get("client_request_id") == "my-own-id" for line in server.log)


@pytest.mark.parametrize("bad", ["", "x", f"ff-{TRACE}-00f067aa0ba902b7-01", f"00-{'0' * 32}-00f067aa0ba902b7-01"])
def test_a_bad_traceparent_is_passed_over(client: httpx.Client, bad: str) -> None:
    given = client.get("/v1/models", headers={"traceparent": bad}).headers["x-request-id"]
    assert given.startswith("req_")
    assert TRACE not in given
    assert "0" * 32 not in given


@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/livez", "/readyz", "/health"])
def test_head_works_wherever_get_does(client: httpx.Client, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b""


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/tokenize", "/v1/detokenize"])
def test_a_trailing_slash_is_the_same_route_and_every_path_answers_a_preflight(client: httpx.Client, path: str) -> None:
    asked = {"Origin": "http://page", "Access-Control-Request-Method": "POST"}
    for spelled in (path, path + "/"):
        answer = client.options(spelled, headers=asked)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["access-control-allow-origin"] == "*"
    assert client.options("/v1/nope", headers=asked).status_code == 404


@pytest.mark.parametrize("path", ["/v1%2Fmodels", "//v1/models", "/v1/v1/models"])
def test_a_path_that_passes_for_another_is_none(server: ServerProcess, path: str) -> None:
    with httpx.Client() as client:
        answer = client.get(httpx.URL(server.url).copy_with(raw_path=path.encode()))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_a_history_of_tool_calls_is_rendered_by_a_template_that_knows_none(client: httpx.Client) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "messages": [
            {"role": "system", "content": "A"},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "x", "content": "42"},
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "?"},
        ],
        "max_tokens": 2,
    }
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
