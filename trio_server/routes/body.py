"""Reading a request body: bounded, with an idle timeout, and parsed off the trio thread when it is large.

Section 3 of the chat page. `RequestBody` replaces quart-trio's, whose bound would count only what was not read yet.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import trio
from quart import Request, Response, request
from quart_trio.wrappers.request import TrioBody, TrioRequest
from werkzeug.exceptions import RequestEntityTooLarge

from trio_server.wire import errors
from trio_server.wire.errors import ApiError
from trio_server.wire.json_body import parse_object

T = TypeVar("T")

LIMIT_BYTES = 16 * 1024 * 1024
PARSED_IN_PLACE_BYTES = 1024 * 1024
DRAIN_LIMIT_S = 2.0
DRAIN_LIMIT_BYTES = 8 * 1024 * 1024


class RequestBody(TrioBody):
    """A body that holds at most the limit and drops what comes after, but knows how much came and when it ended."""

    def __init__(self, expected_content_length: int | None, max_content_length: int | None) -> None:
        super().__init__(expected_content_length, max_content_length)
        self.received_bytes = 0
        self._drained = trio.Event()

    def append(self, data: bytes) -> None:
        self.received_bytes += len(data)
        limit = self._max_content_length
        if limit is not None and self.received_bytes > limit and self._must_raise is None:
            self._must_raise = RequestEntityTooLarge()
            self._data.clear()
            self._has_data.set()
        if self._must_raise is not None:
            if limit is None or self.received_bytes > limit + DRAIN_LIMIT_BYTES:
                self._drained.set()
            return
        if data:
            self._data.extend(data)
            self._has_data.set()

    def set_complete(self) -> None:
        super().set_complete()
        self._drained.set()

    async def drained(self) -> None:
        """Wait until the client has sent all, or more than is worth reading."""
        await self._drained.wait()


class ApiRequest(TrioRequest):
    body_class = RequestBody


def too_large(limit_bytes: int = LIMIT_BYTES) -> ApiError:
    return ApiError(errors.REQUEST_TOO_LARGE, f"the request body is larger than this server's {limit_bytes}-byte limit")


def too_large_response(error: ApiError, incoming: Request) -> Response:
    """The 413, followed by a short wait for a client that is still writing, so that it can read the answer."""
    payload = json.dumps(error.body()).encode()

    async def answer() -> AsyncGenerator[bytes, None]:
        yield payload
        body = incoming.body
        if isinstance(body, RequestBody):
            with trio.move_on_after(DRAIN_LIMIT_S):
                await body.drained()

    response = Response(answer(), status=413, content_type="application/json")
    response.headers["Content-Length"] = str(len(payload))
    response.headers["Connection"] = "close"
    return response


async def read_request(parse: Callable[[dict[str, Any]], T], idle_timeout_s: float) -> T:
    """The body of the current request, as JSON and through `parse`. Raises `ApiError` 400, 408, 413 or 415.

    A large body is parsed in a worker thread; when cancelled, this returns at once and the thread's result is dropped.
    """
    if request.mimetype == "multipart/form-data":
        raise ApiError(errors.UNSUPPORTED_MEDIA_TYPE, "this route takes a JSON body, not multipart/form-data")
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(errors.UNSUPPORTED_MEDIA_TYPE, "this route takes no Content-Encoding but identity")
    raw = await _read(idle_timeout_s)
    if len(raw) <= PARSED_IN_PLACE_BYTES:
        return parse(parse_object(raw))
    return await trio.to_thread.run_sync(lambda: parse(parse_object(raw)), abandon_on_cancel=True)


async def _read(idle_timeout_s: float) -> bytes:
    pieces = bytearray()
    body = request.body
    try:
        while True:
            with trio.fail_after(idle_timeout_s):
                try:
                    pieces += await body.__anext__()
                except StopAsyncIteration:
                    return bytes(pieces)
    except RequestEntityTooLarge:
        raise too_large() from None
    except trio.TooSlowError:
        raise ApiError(
            errors.BODY_TIMEOUT,
            f"no byte of the request body came for {idle_timeout_s:g} s",
            headers=(("Connection", "close"),),
        ) from None
