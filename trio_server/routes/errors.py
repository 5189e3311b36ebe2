"""Exceptions as answers: whatever a route or a service raised, in OpenAI's error shape.

`as_api_error` is the one place where services' exceptions meet the catalogue; `app.py` calls it for plain answers and the
streaming routes for error frames.
"""

from __future__ import annotations

import json

from quart import Response

from trio_server.admission import Cut, EngineFull
from trio_server.engines.text.policies import PolicyRefused
from trio_server.engines.text.templates import RenderFailed
from trio_server.engines.thread import EngineError
from trio_server.observe import events, log
from trio_server.routes.life import RequestLife
from trio_server.wire import errors
from trio_server.wire.errors import CATALOGUE, ApiError

SHUTDOWN_RETRY_AFTER_S = 5


def error_response(error: ApiError) -> Response:
    """The error as a whole JSON answer."""
    response = Response(json.dumps(error.body()), status=error.status, content_type="application/json")
    for name, value in error.headers():
        response.headers[name] = value
    if error.code is errors.SERVER_SHUTTING_DOWN:
        response.headers["Connection"] = "close"
    return response


def cut_error(cut: Cut) -> ApiError:
    """The error a cut request ends with."""
    retry = SHUTDOWN_RETRY_AFTER_S if cut.code == errors.SERVER_SHUTTING_DOWN.code else None
    return ApiError(CATALOGUE[cut.code], cut.message, retry_after_s=retry)


def _timeout(limit_s: float) -> ApiError:
    return ApiError(
        errors.REQUEST_TIMEOUT,
        f"the request did not finish within the server's {limit_s:g} s limit; stream it, lower max_tokens, or raise"
        " --server-request-timeout (TRIO_SERVER_SERVER_REQUEST_TIMEOUT)",
    )


def interrupted(life: RequestLife, limit_s: float) -> ApiError:
    """Why a scope of this request ended before its work: it was cut, or its deadline passed."""
    return cut_error(life.work.cut) if life.work.cut is not None else _timeout(limit_s)


def as_api_error(error: BaseException) -> ApiError:
    """Any exception as the answer it stands for. One that nobody foresaw is logged with its traceback and becomes a 500."""
    match error:
        case ApiError():
            return error
        case EngineFull():
            return ApiError(
                errors.ENGINE_FULL,
                "every lane is in use; retry after the time in Retry-After",
                retry_after_s=error.retry_after_s,
            )
        case EngineError():
            return ApiError(errors.ENGINE_ERROR, str(error))
        case RenderFailed():
            return ApiError(errors.RENDER_FAILED, f"the chat template refused the messages: {error}", "messages")
        case PolicyRefused():
            return ApiError(errors.INVALID_REQUEST, str(error), f"messages[{error.index}].role")
        case BaseExceptionGroup():
            # Nurseries wrap what they raise. One cause is an answer; of several, the foreseen one says more.
            inner = [as_foreseen for member in error.exceptions if (as_foreseen := _foreseen(member)) is not None]
            if inner:
                return inner[0]
    log.emit_exception(events.REQUEST_FAILED, error)
    return ApiError(
        errors.INTERNAL_ERROR,
        f"the server failed on this request; its log names it as {log.request_id.get() or 'unknown'}",
    )


def _foreseen(error: BaseException) -> ApiError | None:
    if isinstance(error, BaseExceptionGroup):
        return next((found for member in error.exceptions if (found := _foreseen(member)) is not None), None)
    if isinstance(error, ApiError | EngineFull | EngineError | RenderFailed | PolicyRefused):
        return as_api_error(error)
    return None
