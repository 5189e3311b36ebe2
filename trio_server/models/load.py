"""One loaded model with everything its requests share: engine, lanes, template, sampling row, limits.

A request takes the load once and keeps it. Rendering and tokenizing run in worker threads behind a limiter of their own,
so that neither blocks the trio thread nor is starved by other thread work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from trio_server.admission import Lanes
from trio_server.engines.text.engine import Loaded, TextEngine
from trio_server.engines.text.generation import Event, Generation
from trio_server.engines.text.policies import apply_policies, render_with_fallback
from trio_server.engines.text.templates import ChatTemplate, RenderFailed, TemplateInvalid
from trio_server.engines.thread import EngineError
from trio_server.models.plan import TextPlan
from trio_server.models.sampling_rows import SamplingRow, model_row

T = TypeVar("T")

PREPARING_THREADS = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation as the model reads it."""

    text: str
    tokens: tuple[int, ...]


class Load:
    """A text model that serves. Trio side only."""

    def __init__(self, plan: TextPlan, engine: TextEngine, loaded: Loaded) -> None:
        """Raises `EngineError` when the model's chat template is not valid Jinja."""
        self.plan = plan
        self.engine = engine
        self.loaded = loaded
        self.lanes = Lanes(loaded.lanes)
        self.sampling_row: SamplingRow = model_row(loaded.sampling_default)
        self.vocabulary = loaded.vocabulary
        self._preparing = trio.CapacityLimiter(PREPARING_THREADS)
        source = plan.chat_template or loaded.chat_template
        try:
            self._template = self._make_template(source) if source else None
        except TemplateInvalid as error:
            raise EngineError(f"the chat template is not valid: {error}") from error

    @property
    def id(self) -> str:
        return self.plan.id

    def _make_template(self, source: str) -> ChatTemplate:
        def text(token: int) -> str:
            return self.vocabulary.spell(token).decode("utf-8", "replace") if token >= 0 else ""

        return ChatTemplate(source, bos_token=text(self.vocabulary.bos), eos_token=text(self.vocabulary.eos))

    async def prepare(
        self, messages: Sequence[Mapping[str, Any]], *, system_policy: str, developer_policy: str
    ) -> Prompt:
        """Render and tokenize a conversation. Raises `RenderFailed` or `PolicyRefused`; when cancelled, it returns at once
        and the thread's work is dropped when it ends.
        """

        def work() -> Prompt:
            if self._template is None:
                raise RenderFailed("the model has no chat template; name one with --model-chat-template")
            arranged = apply_policies(messages, system_policy, developer_policy)
            text = render_with_fallback(self._template, arranged)
            return Prompt(text, tuple(self._tokenize(text)))

        return await self.in_thread(work)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run a short piece of CPU work on this load's own worker threads."""
        return await trio.to_thread.run_sync(work, limiter=self._preparing, abandon_on_cancel=True)

    def _tokenize(self, text: str) -> list[int]:
        """Token ids of a rendered conversation. BOS comes exactly once, whether the template or the tokenizer writes it."""
        tokens = self.vocabulary.tokenize(text, add_special=False)
        bos = self.vocabulary.bos
        if self.vocabulary.adds_bos and bos >= 0 and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    @contextmanager
    def generating(self, generation: Generation) -> Iterator[trio.MemoryReceiveChannel[Event]]:
        """A lane with `generation` running on it, until the block is left.

        Raises `EngineFull` when no lane is free and `EngineError` when the engine is dead. The stop command is posted
        before the lane is free again, so whoever gets it next follows it through the same queue.
        """
        with self.lanes.lease_nowait() as lease:
            try:
                with self.engine.generating(generation) as events:
                    yield events
            except EngineError:
                lease.engine_failed()
                raise
