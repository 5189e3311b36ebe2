"""Whether the process lives and whether it would serve: `/healthz`, `/livez`, `/readyz`, `/health`. No key, no document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quart import Blueprint, Response, jsonify

if TYPE_CHECKING:
    from trio_server.server import Server


def blueprint(server: Server) -> Blueprint:
    routes = Blueprint("health", __name__)

    @routes.get("/healthz")
    @routes.get("/livez")
    async def healthz() -> Response:
        response = jsonify({"status": "ok" if server.healthy else "failed"})
        response.status_code = 200 if server.healthy else 503
        return response

    @routes.get("/readyz")
    @routes.get("/health")
    async def readyz() -> Response:
        """A full engine is ready: being full is load, not ill health."""
        reason = server.unready_reason
        if reason is None:
            return jsonify({"status": "ok"})
        response = jsonify({"status": reason, "ready": False, "reason": reason})
        response.status_code = 503
        response.headers["Retry-After"] = "1"
        return response

    return routes
