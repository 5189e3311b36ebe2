"""Every log event, declared once: its name, level, sentence and attributes.

`log.emit` takes these and nothing else, so that no request data can slip into the log by way of a free dictionary, and
docs/logging.md cannot drift. Names are stable; what varies is in the attributes. Section 6.4 of the observability page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

TRACE: Final = 5
DEBUG: Final = 10
INFO: Final = 20
WARN: Final = 30
ERROR: Final = 40


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of log event. `attributes` are the only ones `emit` accepts, with the name each has in the log."""

    name: str
    level: int
    body: str
    attributes: Mapping[str, str]
    about_requests: bool = False


EVENTS: dict[str, Event] = {}


# OpenTelemetry's names, where it has one.
_NAMES: Final = {
    "method": "http.request.method",
    "route": "http.route",
    "http_status": "http.response.status_code",
    "client_address": "client.address",
    "request_model": "gen_ai.request.model",
    "exception_type": "exception.type",
    "exception_message": "exception.message",
    "exception_stacktrace": "exception.stacktrace",
    "dependency_name": "dependency.name",
    "request_class": "class",
}


def _declare(name: str, level: int, body: str, attributes: str = "", *, about_requests: bool = False) -> Event:
    names = {attribute: _NAMES.get(attribute, attribute) for attribute in attributes.split()}
    event = Event(f"trio_server.{name}", level, body, names, about_requests)
    EVENTS[event.name] = event
    return event


PROCESS_STARTED = _declare("process.started", INFO, "server started", "version bind api_key_required log_format")
PROCESS_READY = _declare("process.ready", INFO, "server ready", "startup_ms load_ms url")
PROCESS_STOPPING = _declare("process.stopping", INFO, "server stopping", "signal in_flight")
PROCESS_DRAINING = _declare("process.draining", INFO, "waiting for running requests", "remaining")
PROCESS_STOPPED = _declare("process.stopped", INFO, "server stopped", "drained cut uptime_ms")
ACCESS_OPEN_BIND = _declare(
    "access.open_bind",
    WARN,
    "no key is set and the address is not loopback: anyone who can reach it can use this server",
    "bind",
)
AUTH_REFUSED = _declare("auth.refused", WARN, "request without a valid key", "route client_address reason count")
HTTP_REQUEST = _declare(
    "http.request", DEBUG, "request answered", "method route http_status duration_ms client_request_id"
)
HTTP_REQUEST_FAILED = _declare(
    "http.request_failed",
    WARN,
    "request answered with a server error",
    "method route http_status duration_ms client_request_id",
)
REQUEST_ADMITTED = _declare(
    "request.admitted",
    INFO,
    "request admitted",
    "endpoint request_model request_class prompt_tokens cached_tokens",
    about_requests=True,
)
REQUEST_TTFT = _declare("request.ttft", INFO, "first token", "ttft_ms", about_requests=True)
REQUEST_DONE = _declare(
    "request.done",
    INFO,
    "request done",
    "duration_ms tokens tok_s finish_reason itl_ms_mean itl_ms_max request_class cached_tokens",
    about_requests=True,
)
REQUEST_CANCELLED = _declare(
    "request.cancelled", INFO, "request cancelled", "reason finish_reason tokens duration_ms", about_requests=True
)
REQUEST_REJECTED = _declare(
    "request.rejected", INFO, "request rejected", "reason status retry_after_s", about_requests=True
)
_EXCEPTION = "exception_type exception_message exception_stacktrace"
REQUEST_FAILED = _declare("request.failed", ERROR, "request failed unexpectedly", _EXCEPTION)
MODEL_LOAD_STARTED = _declare("model.load.started", INFO, "loading model", "model kind")
MODEL_LOADED = _declare(
    "model.loaded", INFO, "model loaded", "model kind duration_ms memory_bytes adapted context lanes"
)
MODEL_LOAD_FAILED = _declare("model.load.failed", ERROR, "model failed to load", "model kind reason")
ENGINE_FAILED = _declare("engine.failed", ERROR, "engine failed", f"engine {_EXCEPTION}")
ENGINE_WEDGED = _declare("engine.wedged", ERROR, "an engine has been sitting in one step for a minute", "engine")
LOG_DROPPED = _declare("log.dropped", WARN, "log lines were dropped", "count severity")
# Comes with the level and the words of its source.
DEPENDENCY_LOG = _declare(
    "dependency.log", DEBUG, "what a library says; warnings and errors as such", "dependency_name"
)
