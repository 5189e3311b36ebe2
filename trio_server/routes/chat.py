"""`POST /v1/chat/completions`: one body, or a stream of chunks, from the same turn.

The order of the stages is part of the contract (chat page, section 2): parse and validate, take the load, prepare the
prompt, take a lane, generate. A streamed answer is made by one task, which holds the lane, and written by another; they
meet in a channel, so a client that reads slowly holds no lane.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio
from quart import Blueprint, Response

from trio_server.admission import EngineFull
from trio_server.engines.text.generation import Event, Generation, Sampling, Token
from trio_server.engines.text.sampling import fold_seed
from trio_server.models.caps import ContextLengthExceeded, token_cap
from trio_server.models.load import Load, Prompt
from trio_server.models.sampling_rows import resolve
from trio_server.models.turn import Turn
from trio_server.routes.body import read_request
from trio_server.routes.errors import as_api_error, cut_error, interrupted
from trio_server.routes.life import RequestLife, current
from trio_server.routes.models import pin_load
from trio_server.routes.report import Report
from trio_server.wire import errors, sse
from trio_server.wire.answers import ChatCompletion, ChunkStream, Usage, logprob_entry
from trio_server.wire.chat import ChatRequest, SamplingFields, check_vocabulary, parse_chat_request
from trio_server.wire.errors import ApiError

if TYPE_CHECKING:
    from trio_server.server import Server

KEEP_ALIVE_S = 15.0
COALESCED_CHUNKS = 64
STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is ready for a lane: everything stages V to P have decided."""

    asked: ChatRequest
    load: Load
    generation: Generation
    answer: ChatCompletion
    report: Report

    def usage(self, turn: Turn) -> Usage:
        return Usage(len(self.generation.prompt), turn.completion_tokens, turn.cached_tokens)


def blueprint(server: Server) -> Blueprint:
    routes = Blueprint("chat", __name__)

    @routes.post("/v1/chat/completions")
    async def complete() -> Response:
        asked = await read_request(parse_chat_request, server.settings.server.body_timeout)
        load = pin_load(server, asked.model)
        check_vocabulary(asked, load.vocabulary.size)
        life = current()
        limit_s = server.settings.server.request_timeout
        deadline_s = trio.current_time() + limit_s
        job = await _prepare(server, asked, load, life, deadline_s, limit_s)
        try:
            if asked.stream:
                return await _stream(job, life)
            return await _answer(job, life, deadline_s, limit_s)
        except EngineFull as full:
            job.report.rejected(errors.ENGINE_FULL.code, errors.ENGINE_FULL.status, full.retry_after_s)
            raise

    return routes


async def _prepare(
    server: Server, asked: ChatRequest, load: Load, life: RequestLife, deadline_s: float, limit_s: float
) -> Job:
    """Stage P: what may still be refused with a 400 is refused here, before a lane is asked for."""
    settings = server.settings
    prompt: Prompt | None = None
    with life.work.cancellable(), trio.CancelScope(deadline=deadline_s):
        prompt = await load.prepare(
            [message.as_template_input() for message in asked.messages],
            system_policy=settings.server.system_message_policy,
            developer_policy=settings.server.developer_message_policy,
        )
    if prompt is None:
        raise interrupted(life, limit_s)
    try:
        cap = token_cap(
            len(prompt.tokens),
            asked.max_tokens,
            settings.model.default_max_tokens,
            load.loaded.max_context,
            asked.max_tokens_param,
        )
    except ContextLengthExceeded as error:
        raise ApiError(
            errors.CONTEXT_LENGTH_EXCEEDED, str(error), asked.max_tokens_param if error.by_cap else "messages"
        ) from None
    generation = Generation(
        load.engine.new_id(),
        prompt.tokens,
        cap,
        _sampling(load, asked.sampling),
        top_logprobs=asked.top_logprobs if asked.logprobs else None,
        ignore_eos=asked.ignore_eos,
        agent=asked.request_class == "agent",
    )
    return Job(
        asked,
        load,
        generation,
        ChatCompletion(f"chatcmpl-{life.id}", int(time.time()), load.id, load.loaded.fingerprint),
        Report("/v1/chat/completions", load.id, asked.request_class, len(prompt.tokens), life.started_s),
    )


def _sampling(load: Load, asked: SamplingFields) -> Sampling:
    row = resolve(
        load.sampling_row,
        {
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
            "min_p": asked.min_p,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "repetition_penalty": asked.repetition_penalty,
        },
    )
    seed = asked.seed if asked.seed is not None else secrets.randbits(63)
    return Sampling(
        temperature=row.temperature,
        top_p=row.top_p,
        top_k=row.top_k,
        min_p=row.min_p,
        presence_penalty=row.presence_penalty,
        frequency_penalty=row.frequency_penalty,
        repetition_penalty=row.repetition_penalty,
        seed=fold_seed(seed),
        logit_bias=tuple(
            # -100 is OpenAI's spelling of a ban.
            (token, -math.inf if bias == -100 else bias)
            for token, bias in asked.logit_bias.items()
        ),
    )


# Not streamed


async def _answer(job: Job, life: RequestLife, deadline_s: float, limit_s: float) -> Response:
    """Generate to the end, then answer. The lane is free before a byte of the answer is written, a 504 included."""
    turn = Turn(job.asked.stop)
    pieces: list[str] = []
    entries: list[Token] = []

    def take(event: Event) -> None:
        text, tokens = _feed(job, turn, event)
        pieces.append(text)
        entries.extend(tokens)

    try:
        with life.work.cancellable(), job.load.generating(job.generation) as events:
            with trio.CancelScope(deadline=deadline_s):
                async for event in events:
                    take(event)
                    if turn.finish_reason is not None:
                        break
            # A result that is complete when the deadline fires is delivered.
            while turn.finish_reason is None:
                try:
                    take(events.receive_nowait())
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
    except trio.Cancelled:
        job.report.cancelled("client_gone")
        raise
    if turn.finish_reason is None:
        job.report.cancelled("deadline" if life.work.cut is None else "shutdown")
        raise interrupted(life, limit_s)
    job.report.done(turn.finish_reason)
    return Response(
        job.answer.completion_body(
            "".join(pieces),
            turn.finish_reason,
            job.usage(turn),
            [_entry(job.load, token) for token in entries] if job.asked.logprobs else None,
        ),
        content_type="application/json",
    )


# Streamed


async def _stream(job: Job, life: RequestLife) -> Response:
    """Take a lane, then answer at once; what goes wrong from here on is a frame."""
    send, receive = trio.open_memory_channel[bytes](math.inf)
    await life.nursery.start(_produce, job, life, send)
    return Response(_frames(receive), status=200, headers=STREAM_HEADERS)


async def _produce(
    job: Job, life: RequestLife, send: trio.MemorySendChannel[bytes], *, task_status: trio.TaskStatus[None]
) -> None:
    """Hold the lane, turn events into frames. Never waits for the client: the channel is bounded by the token cap."""
    turn = Turn(job.asked.stop)
    chunks = ChunkStream(job.answer, include_usage=job.asked.include_usage)
    started = False
    with send:
        try:
            with life.work.cancellable(), job.load.generating(job.generation) as events:
                started = True
                send.send_nowait(chunks.role())
                task_status.started()
                async for event in events:
                    text, tokens = _feed(job, turn, event)
                    if text:
                        entries = [_entry(job.load, token) for token in tokens] if job.asked.logprobs else None
                        send.send_nowait(chunks.content(text, entries))
                    if turn.finish_reason is not None:
                        break
        except trio.Cancelled:
            job.report.cancelled("client_gone")
            raise
        except Exception as error:
            if not started:
                raise
            send.send_nowait(chunks.error(as_api_error(error).body()))
            return
        if turn.finish_reason is None:
            assert life.work.cut is not None
            job.report.cancelled("shutdown")
            send.send_nowait(chunks.error(cut_error(life.work.cut).body()))
            return
        send.send_nowait(chunks.finish(turn.finish_reason))
        if job.asked.include_usage:
            send.send_nowait(chunks.usage(job.usage(turn)))
        send.send_nowait(sse.DONE)
        job.report.done(turn.finish_reason)


async def _frames(receive: trio.MemoryReceiveChannel[bytes]) -> AsyncGenerator[bytes, None]:
    """The body of a stream: whatever frames are ready in one write, a comment when there are none for a while."""
    with receive:
        while True:
            frame: bytes | None = None
            with trio.move_on_after(KEEP_ALIVE_S):
                try:
                    frame = await receive.receive()
                except trio.EndOfChannel:
                    return
            if frame is None:
                yield sse.KEEP_ALIVE
                continue
            ready = [frame]
            while len(ready) < COALESCED_CHUNKS:
                try:
                    ready.append(receive.receive_nowait())
                except (trio.WouldBlock, trio.EndOfChannel):
                    break
            yield b"".join(ready)


# Both


def _feed(job: Job, turn: Turn, event: Event) -> tuple[str, tuple[Token, ...]]:
    delta = turn.feed(event)
    if isinstance(event, Token):
        job.report.token()
    elif turn.finish_reason is None:
        job.report.admitted(turn.cached_tokens)
    return delta.text, delta.entries


def _entry(load: Load, token: Token) -> dict[str, Any]:
    assert token.logprobs is not None
    spell = load.vocabulary.spell
    return logprob_entry(
        token.piece,
        token.logprobs.logprob,
        [(spell(id), logprob) for id, logprob in token.logprobs.top],
    )
