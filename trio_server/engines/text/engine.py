"""The trio side of the text engine: start it, give it generations, get their events, stop them.

The engine thread runs `loop.TextLoop`; this file owns nothing native. Who may submit at all is the lanes' business
(`trio_server/admission`), so `submit` never waits and never refuses a request that holds a lane.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

import trio

from trio_server.engines.text import llama
from trio_server.engines.text.generation import Event, Failed, Finished, Generation
from trio_server.engines.text.loop import Cancel, Command, Submit, TextLoop
from trio_server.engines.text.pacing import Pacing
from trio_server.engines.text.padding import BLOCK_TOKENS, measure
from trio_server.engines.text.prefix_cache import PrefixCache
from trio_server.engines.thread import Engine, EngineError, EngineThread

WARM_UP_LIMIT_S = 600.0
WEDGED_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What to load and in which shape. `threads` and `threads_batch` are CPU threads of decoding and of prefilling."""

    path: str
    lanes: int
    max_context: int
    prefill_chunk: int
    threads: int
    threads_batch: int
    decode_share_percent: int = 25
    kv_format: str = "f16"
    flash_attention: str = "auto"
    gpu_layers: int = 0
    mmap: bool = True
    mlock: bool = False
    reuse_prompt: bool = True
    pool_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is known of a loaded model. `vocabulary` may be used from any thread while the engine runs."""

    vocabulary: llama.Vocabulary
    chat_template: str | None
    metadata: dict[str, str]
    max_context: int
    lanes: int
    fingerprint: str
    size_bytes: int

    def sampling_default(self, name: str) -> float | None:
        """A value of the GGUF's own sampling row (`general.sampling.<name>`), or `None`."""
        text = self.metadata.get(f"general.sampling.{name}")
        try:
            value = float(text) if text is not None else math.nan
        except ValueError:
            return None
        return value if math.isfinite(value) else None


class TextEngine:
    """One loaded text model. `run` is its life; everything else is for while it runs. Trio side only."""

    def __init__(self, options: TextOptions) -> None:
        self.options = options
        self.loaded: Loaded | None = None
        self._context: llama.Context | None = None
        self._ids = count(1)
        self._channels: dict[int, trio.MemorySendChannel[Event]] = {}
        self._thread: EngineThread[Command, Event] = EngineThread(
            "text-engine", self._open, self._deliver, interrupt=self._interrupt
        )

    @property
    def alive(self) -> bool:
        return self._thread.alive

    @property
    def error(self) -> BaseException | None:
        """Why the engine is dead, if it died by itself."""
        return self._thread.error

    @property
    def wedged(self) -> bool:
        """Whether one step has been running for longer than any honest step takes."""
        return self._thread.stuck_for_s() > WEDGED_AFTER_S

    async def ended(self) -> None:
        """Wait until the engine has ended, by itself or because `run` was cancelled."""
        await self._thread.ended()

    @property
    def generations(self) -> int:
        """How many generations are running."""
        return len(self._channels)

    async def run(self, *, task_status: trio.TaskStatus[Loaded] = trio.TASK_STATUS_IGNORED) -> None:
        """Load, warm up, serve until cancelled. `started(loaded)` after the warm-up; a load that fails raises `EngineError`.

        Returns when the engine crashes: each running generation has got its `Failed` by then.
        """
        try:
            async with trio.open_nursery() as nursery:
                try:
                    await nursery.start(self._run_thread)
                except (llama.LlamaError, OSError) as error:
                    raise EngineError(str(error)) from error
                assert self.loaded is not None
                with trio.move_on_after(WARM_UP_LIMIT_S) as scope:
                    await self._warm_up()
                if scope.cancelled_caught:
                    raise EngineError(f"the warm-up did not end within {WARM_UP_LIMIT_S:g} s")
                task_status.started(self.loaded)
        except* EngineError as group:
            raise _first(group) from None

    async def _run_thread(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            await self._thread.run(task_status=task_status)
        finally:
            for id in list(self._channels):
                self._close(id, Failed(id, "the engine failed while generating; see the server log"))

    async def _warm_up(self) -> None:
        prompt = (max(self._vocabulary.bos, 0),)
        with self.generating(Generation(self.new_id(), prompt, 2, ignore_eos=True, retain=False)) as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise EngineError(f"the warm-up failed: {event.message}")

    @property
    def _vocabulary(self) -> llama.Vocabulary:
        assert self.loaded is not None
        return self.loaded.vocabulary

    def new_id(self) -> int:
        """An id for a `Generation`, rising."""
        return next(self._ids)

    @contextmanager
    def generating(self, generation: Generation) -> Iterator[trio.MemoryReceiveChannel[Event]]:
        """Run `generation` inside the block; its events come out of the channel, which ends after the last one.

        Leaving the block, however it is left, tells the engine to stop. The channel is unbounded: `max_tokens` bounds it,
        and the engine never waits for a reader. Raises `EngineError` when the engine is dead.
        """
        if not self.alive:
            raise EngineError("the engine has failed; see the server log")
        send, receive = trio.open_memory_channel[Event](math.inf)
        self._channels[generation.id] = send
        self._thread.post(Submit(generation))
        try:
            with receive:
                yield receive
        finally:
            if self._channels.pop(generation.id, None) is not None:
                self._thread.post(Cancel(generation.id))
                send.close()

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            channel = self._channels.get(event.id)
            if channel is None:
                continue  # cancelled on this side; the engine had not seen it yet
            if isinstance(event, Finished | Failed):
                self._close(event.id, event)
            else:
                self._send(channel, event)

    def _close(self, id: int, last: Event) -> None:
        channel = self._channels.pop(id)
        self._send(channel, last)
        channel.close()

    @staticmethod
    def _send(channel: trio.MemorySendChannel[Event], event: Event) -> None:
        # A reader may close its end before it leaves the block; an error from here would end the whole trio run.
        with suppress(trio.BrokenResourceError):
            channel.send_nowait(event)

    def _interrupt(self) -> None:
        if self._context is not None:
            self._context.abort()

    def _open(self) -> Engine[Command, Event]:
        options = self.options
        name = fingerprint(options.path)  # first: it may raise, and nothing is held yet
        model = llama.Model(
            llama.ModelOptions(options.path, gpu_layers=options.gpu_layers, mmap=options.mmap, mlock=options.mlock)
        )
        try:
            if not model.generates_text:
                raise llama.LlamaError("the model does not generate text")
            max_context = min(options.max_context, options.pool_tokens or options.max_context)
            context = llama.Context(
                model,
                llama.ContextOptions(
                    sequences=options.lanes,
                    tokens_per_sequence=max_context,
                    # Room for a full chunk beside one token of every lane, and for some padding.
                    batch_tokens=options.prefill_chunk + options.lanes + BLOCK_TOKENS,
                    threads=options.threads,
                    threads_batch=options.threads_batch,
                    kv_format=options.kv_format,
                    flash_attention=options.flash_attention,
                    pool_tokens=options.pool_tokens,
                ),
            )
        except llama.LlamaError:
            model.close()
            raise
        self._context = context
        self.loaded = Loaded(
            model.vocabulary,
            model.chat_template(),
            model.metadata(),
            max_context,
            options.lanes,
            name,
            model.size_bytes,
        )
        measured = measure(context)
        return TextLoop(
            context,
            model.vocabulary,
            pacing=Pacing(options.prefill_chunk, options.decode_share_percent, measured.prompt_token_s),
            cache=PrefixCache(
                options.lanes,
                enabled=options.reuse_prompt and model.memory_can_be_cut,
                copy_at_least=options.prefill_chunk,
            ),
            memory_can_be_cut=model.memory_can_be_cut,
            block=measured.block,
            on_close=model.close,
        )


def fingerprint(path: str) -> str:
    """`fp_` and 12 hex digits that change with the model file or the llama.cpp build, not with a restart."""
    status = os.stat(path)
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    digest = hashlib.sha256(head)
    digest.update(f"{status.st_size}:{status.st_mtime_ns}:{llama.build()}".encode())
    return "fp_" + digest.hexdigest()[:12]


def _first(group: BaseExceptionGroup[EngineError]) -> EngineError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, EngineError)
    return error
