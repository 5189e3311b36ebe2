"""The Quart app: blueprints, key check, CORS, request ids, and every error as JSON in OpenAI's shape.

`create_app(server)` is called by `server.py` and by tests. What a route does is in `routes/`; what a connection may do to
the process is in `listeners/`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

import trio
from hypercorn.typing import ASGISendCallable
from quart import Request, Response, request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge

from trio_server.observe import events, log
from trio_server.observe.log import RateLimitedByKey
from trio_server.routes import access, body, chat, health, models, tokenize
from trio_server.routes.errors import SHUTDOWN_RETRY_AFTER_S, as_api_error, error_response
from trio_server.routes.life import KEY, RequestLife
from trio_server.wire import errors
from trio_server.wire.errors import ApiError

if TYPE_CHECKING:
    from trio_server.server import Server

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
HEALTH_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/health"})


class Connection(TrioASGIHTTPConnection):
    """Gives each request its id, its nursery and its place among the running ones, and each answer its headers."""

    app: App

    async def handle_request(self, nursery: trio.Nursery, request: Request, send: ASGISendCallable) -> None:  # type: ignore[override]
        id = self._trace_id() or log.new_request_id()
        log.request_id.set(id)
        started_s = trio.current_time()
        with self.app.server.running.request() as work:
            cast(dict[str, Any], request.scope)[KEY] = RequestLife(id, nursery, work, started_s)
            await super().handle_request(nursery, request, send)

    async def _send_response(self, send: ASGISendCallable, response: Any) -> None:
        # Here and not in `after_request`, so that no answer is without them, however early it was made.
        life: RequestLife = cast(Any, self.scope)[KEY]
        headers = response.headers
        headers["X-Request-Id"] = f"req_{life.id}"
        for name, value in access.cors_headers(self.app.server.settings.server.cors_origins, self._origin()):
            headers.add(name, value)
        if self.app.server.stopping.is_set():
            headers["Connection"] = "close"
        try:
            await super()._send_response(send, response)
        finally:
            path = self.scope["path"]
            if path not in HEALTH_PATHS:
                log.emit(
                    events.HTTP_REQUEST if response.status_code < 500 else events.HTTP_REQUEST_FAILED,
                    method=self.scope["method"],
                    route=path,
                    http_status=response.status_code,
                    duration_ms=(trio.current_time() - life.started_s) * 1000,
                    client_request_id=self._client_request_id(),
                )

    def _header(self, wanted: bytes) -> str | None:
        for name, value in self.scope["headers"]:
            if name == wanted:
                return value.decode("latin1")
        return None

    def _origin(self) -> str | None:
        return self._header(b"origin")

    def _trace_id(self) -> str | None:
        """The trace that a caller's tracing has begun, by the W3C's `traceparent`."""
        found = _TRACEPARENT.fullmatch(self._header(b"traceparent") or "")
        return found[1] if found and found[1] != "0" * 32 else None

    def _client_request_id(self) -> str | None:
        """The client's own id, for the log alone: never adopted, and only what is plain text."""
        own = self._header(b"x-request-id") or self._header(b"x-client-request-id")
        return own[:128] if own and own.isascii() and own.isprintable() else None


class App(QuartTrio):
    """A Quart app that knows the server it belongs to."""

    asgi_http_class = Connection
    request_class = body.ApiRequest

    def __init__(self, server: Server) -> None:
        super().__init__("trio_server", static_folder=None)
        self.server = server

    async def handle_exception(self, error: Exception) -> Response:
        return error_response(as_api_error(error))


def create_app(server: Server) -> App:
    """The whole API of `server` as an ASGI app for `listeners.serve`."""
    app = App(server)
    app.config.update(
        RESPONSE_TIMEOUT=None,  # its default cuts any stream after a minute, silently
        BODY_TIMEOUT=None,
        MAX_CONTENT_LENGTH=body.LIMIT_BYTES,
        PROVIDE_AUTOMATIC_OPTIONS=False,
    )
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    for routes in (health, models, chat, tokenize):
        app.register_blueprint(routes.blueprint(server))
    refused_keys = RateLimitedByKey()

    @app.before_request
    async def admit() -> Response | None:
        """Stages R and A: what can be refused without reading a byte of the body."""
        _check_path(request)
        if request.method == "OPTIONS":
            return _preflight(request)
        if request.routing_exception is not None or request.path in HEALTH_PATHS:
            return None
        settings = server.settings.server
        if server.api_key is not None:
            try:
                access.check_key(server.api_key, request.headers.getlist("Authorization"))
            except ApiError:
                _log_refused_key(refused_keys, request)
                raise
        elif server.bound_to_loopback:
            access.check_host(request.headers.get("Host", ""), settings.bind, settings.allowed_hosts)
        if server.stopping.is_set():
            raise ApiError(
                errors.SERVER_SHUTTING_DOWN, "the server is shutting down", retry_after_s=SHUTDOWN_RETRY_AFTER_S
            )
        return None

    @app.errorhandler(ApiError)
    async def refuse(error: ApiError) -> Response:
        if error.code is errors.REQUEST_TOO_LARGE:
            return body.too_large_response(error, request)
        return error_response(error)

    @app.errorhandler(HTTPException)
    async def refuse_http(error: HTTPException) -> Response:
        return await _http_refusal(error)

    return app


async def _http_refusal(error: HTTPException) -> Response:
    if isinstance(error, RequestEntityTooLarge):
        return body.too_large_response(body.too_large(), request)
    if isinstance(error, MethodNotAllowed):
        methods = ", ".join(sorted({*(error.valid_methods or ()), "OPTIONS"}))
        return error_response(
            ApiError(
                errors.METHOD_NOT_ALLOWED,
                f"{request.method} is not allowed here; this path takes {methods}",
                headers=(("Allow", methods),),
            )
        )
    if isinstance(error, NotFound):
        return error_response(_not_found(request))
    code = errors.INVALID_REQUEST if (error.code or 500) < 500 else errors.INTERNAL_ERROR
    response = error_response(ApiError(code, f"this path does not take such a request ({error.name})"))
    response.status_code = error.code or 500
    return response


def _not_found(request: Request) -> ApiError:
    if request.path.startswith("/v1/v1"):
        return ApiError(errors.NOT_FOUND, "the path has /v1 twice; the base URL already ends with it")
    return ApiError(errors.NOT_FOUND, "no such path; the API is under /v1")


def _check_path(request: Request) -> None:
    """An encoded slash is decoded before routing and leading ones are dropped, so one path could pass for another."""
    if b"%2f" in request.scope.get("raw_path", b"").lower() or "//" in request.scope["path"]:
        raise _not_found(request)


def _preflight(request: Request) -> Response:
    """`OPTIONS` on any path that exists: 200, empty, no key."""
    if isinstance(request.routing_exception, NotFound):
        raise _not_found(request)
    response = Response(b"", status=200)
    del response.headers["Content-Type"]
    for name, value in access.preflight_headers(
        request.headers.getlist("Access-Control-Request-Headers"),
        private_network=request.headers.get("Access-Control-Request-Private-Network", "").lower() == "true",
    ):
        response.headers.add(name, value)
    return response


def _log_refused_key(limiter: RateLimitedByKey, request: Request) -> None:
    client = request.remote_addr or "unknown"
    if (count := limiter.admit(client, trio.current_time())) is not None:
        log.emit(
            events.AUTH_REFUSED,
            route=request.path,
            client_address=client,
            reason="wrong" if "Authorization" in request.headers else "missing",
            count=count,
        )
