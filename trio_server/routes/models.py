"""`GET /v1/models` and `GET /v1/models/{id}`, and the stage at which a request takes the load it will keep.

Section 4 of the models page, as far as one loaded model goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quart import Blueprint, Response, jsonify

from trio_server.models.load import Load
from trio_server.wire import errors
from trio_server.wire.errors import ApiError

if TYPE_CHECKING:
    from trio_server.server import Server

NOT_READY_RETRY_AFTER_S = 1
NO_SPEECH: dict[str, Any] = {
    "available": False,
    "reason": "no speech model is configured",
    "model": None,
    "diarizer": {"available": False, "reason": "no diarizer model is configured", "model": None},
}


def pin_load(server: Server, name: str | None) -> Load:
    """Stage M: the load that serves `model: name`, for the whole of the request."""
    if server.status in ("loading", "failed"):
        raise not_ready(server)
    load = server.load
    if load is None:
        raise ApiError(
            errors.MODEL_NOT_FOUND,
            f"no model is loaded: {server.reason}" if server.reason else "no model is loaded",
            "model",
        )
    if name is not None and name != load.id:
        raise ApiError(errors.MODEL_NOT_FOUND, f"unknown model: {name[:200]} (loaded: {load.id})", "model")
    return load


def not_ready(server: Server) -> ApiError:
    message = "the model is loading; retry" if server.status == "loading" else f"the model failed: {server.reason}"
    return ApiError(errors.SERVER_NOT_READY, message, retry_after_s=NOT_READY_RETRY_AFTER_S)


def _row(load: Load) -> dict[str, Any]:
    return {
        "id": load.id,
        "object": "model",
        "created": load.plan.created,
        "owned_by": "trio-server",
        "active": True,
        "kind": "text",
        "available": True,
        "max_model_len": load.loaded.max_context,
        "decode_lanes": load.loaded.lanes,
        "adapted": load.plan.adapted,
    }


def blueprint(server: Server) -> Blueprint:
    routes = Blueprint("models", __name__)

    @routes.get("/v1/models")
    async def list_models() -> Response:
        rows = _rows()
        answer: dict[str, Any] = {
            "object": "list",
            "status": server.status,
            "data": rows,
            "models": [{"name": row["id"]} for row in rows],
            "speech": NO_SPEECH,
        }
        if server.reason and server.status in ("failed", "unloaded"):
            answer["reason"] = server.reason
        return _fresh(answer)

    @routes.get("/v1/models/<path:name>")
    async def retrieve_model(name: str) -> Response:
        for row in _rows():
            if row["id"] == name:
                return _fresh(row)
        loaded = server.load.id if server.load is not None else "none"
        raise ApiError(errors.MODEL_NOT_FOUND, f"unknown model: {name[:200]} (loaded: {loaded})", "model")

    def _rows() -> list[dict[str, Any]]:
        if server.status == "loading":
            raise not_ready(server)
        return [_row(server.load)] if server.load is not None else []

    def _fresh(answer: dict[str, Any]) -> Response:
        response = jsonify(answer)
        response.headers["Cache-Control"] = "no-store"
        return response

    return routes
