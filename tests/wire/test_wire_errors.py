"""The error catalogue against section 27 of the chat page, and an error as it leaves."""

from __future__ import annotations

import pytest

from trio_server.wire import errors
from trio_server.wire.errors import CATALOGUE, ApiError, ErrorCode

# code: status, type and what `x-should-retry` says. Section 27, with 20 and 22 for the retry.
PAGE: dict[str, tuple[int, str, bool | None]] = {
    **dict.fromkeys(
        (
            "invalid_json",
            "invalid_request_error",
            "unsupported_value",
            "invalid_sampling_parameter",
            "context_length_exceeded",
            "reasoning_effort_unsupported",
            "thinking_unsupported",
            "tool_choice_unsupported",
            "render_failed",
            "unsupported_content_part",
            "video_unsupported",
            "vision_disabled",
            "invalid_media",
            "media_budget_exceeded",
            "media_fetch_failed",
            "media_fetch_timeout",
            "media_not_countable",
            "wrong_model_kind",
            "model_unavailable",
        ),
        (400, "invalid_request_error", None),
    ),
    "invalid_api_key": (401, "invalid_request_error", None),
    "model_not_found": (404, "model_not_found", None),
    "not_found": (404, "invalid_request_error", None),
    "method_not_allowed": (405, "invalid_request_error", None),
    "body_timeout": (408, "invalid_request_error", None),
    "request_too_large": (413, "request_too_large", None),
    "unsupported_media_type": (415, "invalid_request_error", None),
    "engine_error": (500, "engine_error", None),
    "internal_error": (500, "internal_error", None),
    "tokenizer_unavailable": (501, "invalid_request_error", None),
    "model_switched": (503, "model_switched", None),
    "engine_full": (503, "engine_full", True),
    "model_switching": (503, "model_switching", None),
    "server_not_ready": (503, "server_not_ready", None),
    "model_switch_failed": (503, "model_switch_failed", False),
    "model_load_failed": (503, "model_load_failed", False),
    "server_shutting_down": (503, "server_shutting_down", None),
    "request_timeout": (504, "request_timeout", False),
    # Not of section 27: the Host check (observability page, 5.4), and the listener's own refusals (spec README, 20).
    "host_refused": (403, "invalid_request_error", None),
    "headers_too_large": (431, "invalid_request_error", None),
    "not_implemented": (501, "invalid_request_error", None),
}

# What this version serves can meet all of these.
SERVED = {
    "invalid_json",
    "invalid_request_error",
    "unsupported_value",
    "invalid_sampling_parameter",
    "context_length_exceeded",
    "reasoning_effort_unsupported",
    "thinking_unsupported",
    "render_failed",
    "unsupported_content_part",
    "video_unsupported",
    "vision_disabled",
    "invalid_api_key",
    "model_not_found",
    "not_found",
    "method_not_allowed",
    "body_timeout",
    "request_too_large",
    "unsupported_media_type",
    "engine_error",
    "internal_error",
    "engine_full",
    "server_not_ready",
    "server_shutting_down",
    "request_timeout",
}


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=lambda row: row.code)
def test_every_declared_code_is_a_row_of_the_page(row: ErrorCode) -> None:
    assert (row.status, row.type, row.retry) == PAGE[row.code]


def test_each_code_is_declared_once_and_by_a_name() -> None:
    named = [value for value in vars(errors).values() if isinstance(value, ErrorCode)]
    assert sorted(row.code for row in named) == sorted(CATALOGUE)
    assert set(CATALOGUE) >= SERVED


def test_the_body_always_has_its_four_keys() -> None:
    error = ApiError(errors.UNSUPPORTED_VALUE, "n: send 1 or omit it", "n")
    assert error.body() == {
        "error": {
            "message": "n: send 1 or omit it",
            "type": "invalid_request_error",
            "param": "n",
            "code": "unsupported_value",
        }
    }
    assert ApiError(errors.ENGINE_ERROR, "x").body()["error"]["param"] is None
    assert str(error) == error.message


def test_the_headers_of_an_error() -> None:
    assert ApiError(errors.INVALID_JSON, "x").headers() == []
    assert ApiError(errors.ENGINE_FULL, "x", retry_after_s=4).headers() == [
        ("Retry-After", "4"),
        ("x-should-retry", "true"),
    ]
    assert ApiError(errors.REQUEST_TIMEOUT, "x").headers() == [("x-should-retry", "false")]
    challenge = (("WWW-Authenticate", "Bearer"),)
    assert ApiError(errors.INVALID_API_KEY, "x", headers=challenge).headers() == list(challenge)
