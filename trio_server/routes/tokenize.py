"""`POST /v1/tokenize` and `POST /v1/detokenize`: stages R to P of the chat route's own code, and no lane.

Section 26 of the chat page.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from quart import Blueprint, Response, jsonify

from trio_server.models.load import Prompt
from trio_server.routes.body import read_request
from trio_server.routes.errors import interrupted
from trio_server.routes.life import current
from trio_server.routes.models import pin_load
from trio_server.wire.tokenize import check_token_ids, parse_detokenize_request, parse_tokenize_request

if TYPE_CHECKING:
    from trio_server.server import Server

T = TypeVar("T")


def blueprint(server: Server) -> Blueprint:
    routes = Blueprint("tokenize", __name__)

    @routes.post("/v1/tokenize")
    async def tokenize() -> Response:
        asked = await read_request(parse_tokenize_request, server.settings.server.body_timeout)
        load = pin_load(server, asked.model)

        async def count() -> Prompt:
            if asked.prompt is not None:
                raw = asked.prompt
                return await load.in_thread(
                    lambda: Prompt(raw, tuple(load.vocabulary.tokenize(raw, add_special=False)))
                )
            return await load.prepare(
                [message.as_template_input() for message in asked.messages or ()],
                system_policy=server.settings.server.system_message_policy,
                developer_policy=server.settings.server.developer_message_policy,
            )

        prompt = await _within_deadline(server, count)
        answer: dict[str, Any] = {"count": len(prompt.tokens), "max_model_len": load.loaded.max_context}
        if asked.return_token_ids:
            answer["token_ids"] = prompt.tokens
        if asked.return_text:
            answer["text"] = prompt.text
        return jsonify(answer)

    @routes.post("/v1/detokenize")
    async def detokenize() -> Response:
        asked = await read_request(parse_detokenize_request, server.settings.server.body_timeout)
        load = pin_load(server, asked.model)
        check_token_ids(asked.token_ids, load.vocabulary.size)

        async def spell() -> str:
            return await load.in_thread(lambda: load.vocabulary.detokenize(asked.token_ids).decode("utf-8", "replace"))

        return jsonify({"text": await _within_deadline(server, spell)})

    return routes


async def _within_deadline(server: Server, work: Callable[[], Awaitable[T]]) -> T:
    limit_s = server.settings.server.request_timeout
    life = current()
    with life.work.cancellable(), trio.move_on_after(limit_s):
        return await work()
    raise interrupted(life, limit_s)
