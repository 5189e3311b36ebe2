"""The error catalogue: every code this server can answer with, declared once.

The source is section 27 of the chat page. A route raises `ApiError`; `app.py` renders it. Services and engines never raise
it: they have exceptions of their own, which the routes translate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """One row of the catalogue.

    `retry` is what the `x-should-retry` header says to an OpenAI SDK, which otherwise repeats 408, 409, 429 and every 5xx
    twice by itself; `None` leaves the decision to the SDK.
    """

    code: str
    status: int
    type: str
    retry: bool | None = None


_BAD_REQUEST: Final = "invalid_request_error"

CATALOGUE: dict[str, ErrorCode] = {}


def _declare(code: str, status: int, error_type: str = _BAD_REQUEST, *, retry: bool | None = None) -> ErrorCode:
    row = ErrorCode(code, status, error_type, retry)
    CATALOGUE[code] = row
    return row


INVALID_JSON = _declare("invalid_json", 400)
INVALID_REQUEST = _declare("invalid_request_error", 400)
UNSUPPORTED_VALUE = _declare("unsupported_value", 400)
INVALID_SAMPLING_PARAMETER = _declare("invalid_sampling_parameter", 400)
CONTEXT_LENGTH_EXCEEDED = _declare("context_length_exceeded", 400)
REASONING_EFFORT_UNSUPPORTED = _declare("reasoning_effort_unsupported", 400)
THINKING_UNSUPPORTED = _declare("thinking_unsupported", 400)
RENDER_FAILED = _declare("render_failed", 400)
UNSUPPORTED_CONTENT_PART = _declare("unsupported_content_part", 400)
VIDEO_UNSUPPORTED = _declare("video_unsupported", 400)
VISION_DISABLED = _declare("vision_disabled", 400)
INVALID_API_KEY = _declare("invalid_api_key", 401)
HOST_REFUSED = _declare("host_refused", 403)
MODEL_NOT_FOUND = _declare("model_not_found", 404, "model_not_found")
NOT_FOUND = _declare("not_found", 404)
METHOD_NOT_ALLOWED = _declare("method_not_allowed", 405)
BODY_TIMEOUT = _declare("body_timeout", 408)
REQUEST_TOO_LARGE = _declare("request_too_large", 413, "request_too_large")
UNSUPPORTED_MEDIA_TYPE = _declare("unsupported_media_type", 415)
HEADERS_TOO_LARGE = _declare("headers_too_large", 431)
ENGINE_ERROR = _declare("engine_error", 500, "engine_error")
INTERNAL_ERROR = _declare("internal_error", 500, "internal_error")
NOT_IMPLEMENTED = _declare("not_implemented", 501)
ENGINE_FULL = _declare("engine_full", 503, "engine_full", retry=True)
SERVER_NOT_READY = _declare("server_not_ready", 503, "server_not_ready")
SERVER_SHUTTING_DOWN = _declare("server_shutting_down", 503, "server_shutting_down")
REQUEST_TIMEOUT = _declare("request_timeout", 504, "request_timeout", retry=False)


class ApiError(Exception):
    """An answer in OpenAI's error shape.

    `param` names the field at fault (a path such as `messages[2].content[0]`), or is `None`. `retry_after_s` becomes the
    `Retry-After` header. The message never holds a key, a path of the server or another request's data.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        param: str | None = None,
        *,
        retry_after_s: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self._headers = headers

    @property
    def status(self) -> int:
        return self.code.status

    def body(self) -> dict[str, Any]:
        """The JSON body; all four keys are always present."""
        return {
            "error": {
                "message": self.message,
                "type": self.code.type,
                "param": self.param,
                "code": self.code.code,
            }
        }

    def headers(self) -> list[tuple[str, str]]:
        headers = list(self._headers)
        if self.retry_after_s is not None:
            headers.append(("Retry-After", str(self.retry_after_s)))
        if self.code.retry is not None:
            headers.append(("x-should-retry", "true" if self.code.retry else "false"))
        return headers
