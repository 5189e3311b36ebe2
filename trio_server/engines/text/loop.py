"""The continuous-batching loop: one `llama_decode` per step for all lanes, prompts fed in chunks between their tokens.

A step takes the commands that came in, lets every decoding lane contribute its last token and the first waiting prompts a
chunk each (how much: `pacing.py`), evaluates them in one batch, and draws one token for each lane whose logits are ready.
Which sequence of the KV memory a prompt runs on, and what it can skip, is `prefix_cache.py`'s answer. Runs on the engine
thread (`engines/thread.py`); `engine.py` is its only caller.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trio_server.engines.text.generation import Event, Failed, Finished, Generation, Sampling, Started, Token
from trio_server.engines.text.llama import Context, LlamaError, MemoryFull, Vocabulary
from trio_server.engines.text.pacing import Pacing
from trio_server.engines.text.prefix_cache import PrefixCache, token_array
from trio_server.engines.text.sampling import Sampler, log_probabilities

PACKED_PROMPT_TOKENS = 32
"""Prompts whose rests together are no longer than this share a step; beyond, the first one's first token comes sooner."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a generation."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a generation; its KV state stays for reuse. One that has ended already is passed over."""

    id: int


Command = Submit | Cancel


class TokenSampler(Protocol):
    """What the loop needs of `sampling.Sampler`."""

    def draw(self, context: Context, index: int) -> int: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Lane:
    generation: Generation
    sequence: int
    prompt: array[int]
    order: float
    sampler: TokenSampler
    position: int = 0
    last_token: int = 0
    generated: int = 0

    @property
    def prompt_left(self) -> int:
        return len(self.prompt) - self.position


@dataclass(slots=True)
class _Part:
    """What one lane has in the batch: `tokens` from its position on; `index` is the last one's, -1 if no logits are due."""

    lane: _Lane
    tokens: Sequence[int]
    index: int = -1


@dataclass(slots=True)
class _Plan:
    parts: list[_Part] = field(default_factory=list)
    decoding: int = 0
    prompt_tokens: int = 0


class TextLoop:
    """The scheduler over one context. Every method runs on the engine thread."""

    def __init__(
        self,
        context: Context,
        vocabulary: Vocabulary,
        *,
        pacing: Pacing,
        cache: PrefixCache,
        memory_can_be_cut: bool = True,
        sampler: Callable[[Sampling, Sequence[int], int, int], TokenSampler] = Sampler,
        on_close: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._context = context
        self._vocabulary = vocabulary
        self._pacing = pacing
        self._cache = cache
        self._memory_can_be_cut = memory_can_be_cut
        self._make_sampler = sampler
        self._on_close = on_close
        self._clock = clock
        self._lanes: dict[int, _Lane] = {}  # by generation id

    @property
    def busy(self) -> bool:
        return bool(self._lanes)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.sampler.close()
        self._lanes.clear()
        self._context.close()
        self._on_close()

    def step(self, commands: list[Command]) -> list[Event]:
        """One step. `LlamaError` out of here means that the context can no longer be trusted: the engine has crashed."""
        events: list[Event] = []
        for command in commands:
            if isinstance(command, Submit):
                self._submit(command.generation, events)
            elif (lane := self._lanes.get(command.id)) is not None:
                self._end(lane)
        if not self._lanes:
            return events
        started = self._clock()
        plan = self._decode(events)
        for part in plan.parts:
            self._commit(part, events)
        self._pacing.record(plan.decoding, plan.prompt_tokens, self._clock() - started)
        return events

    # Taking requests in and letting them go

    def _submit(self, generation: Generation, events: list[Event]) -> None:
        prompt = generation.prompt
        if not prompt or generation.max_tokens < 1:
            events.append(Failed(generation.id, "the prompt is empty or no token may be generated"))
            return
        if len(prompt) + generation.max_tokens > self._context.tokens_per_sequence:
            events.append(Failed(generation.id, "the prompt and the tokens asked for do not fit the context"))
            return
        if min(prompt) < 0 or max(prompt) >= self._vocabulary.size:
            events.append(Failed(generation.id, "the prompt holds a token id outside the vocabulary"))
            return
        sampler = self._make_sampler(generation.sampling, prompt, generation.max_tokens, self._vocabulary.size)
        placement = self._cache.place(prompt, agent=generation.agent)
        sequence, keep = placement.sequence, placement.keep
        if placement.copy_from is not None:
            self._context.copy(placement.copy_from, sequence)
        if not self._memory_can_be_cut:
            keep = 0
        if not self._context.cut(sequence, keep):
            # This memory cannot be cut there: start over rather than go on from a state that is in doubt.
            keep = 0
            self._context.cut(sequence, 0)
        self._cache.truncate(sequence, keep)
        left = len(prompt) - keep
        self._lanes[generation.id] = _Lane(
            generation,
            sequence,
            token_array(prompt),
            # Shortest rest first, but only as far as it pays: a prompt is overtaken at most by those that came before
            # it would have been done, so none can starve.
            order=self._clock() + left * self._pacing.prompt_token_s,
            sampler=sampler,
            position=keep,
        )
        events.append(Started(generation.id, keep))

    def _end(self, lane: _Lane) -> None:
        del self._lanes[lane.generation.id]
        lane.sampler.close()
        self._cache.release(lane.sequence)

    # One batch

    def _plan(self, *, with_prompts: bool) -> _Plan:
        lanes = sorted(self._lanes.values(), key=lambda lane: lane.sequence)
        plan = _Plan(decoding=sum(1 for lane in lanes if lane.prompt_left <= 0))
        chunks = self._chunks(plan.decoding) if with_prompts else {}
        batch = self._context.batch
        batch.clear()
        # In rising order of sequences: llama.cpp puts neighbours among separate KV streams into one pass only then.
        for lane in lanes:
            if lane.prompt_left <= 0:
                index = batch.add(lane.last_token, lane.position, lane.sequence)
                plan.parts.append(_Part(lane, (lane.last_token,), index))
            elif size := chunks.get(lane.sequence):
                tokens = lane.prompt[lane.position : lane.position + size]
                last = size == lane.prompt_left
                index = batch.extend(tokens, lane.position, lane.sequence, want_last=last)
                plan.parts.append(_Part(lane, tokens, index if last else -1))
                plan.prompt_tokens += size
        return plan

    def _chunks(self, decoding: int) -> dict[int, int]:
        """Prompt tokens to take this step, by sequence."""
        waiting = [lane for lane in self._lanes.values() if lane.prompt_left > 0]
        if not waiting:
            return {}
        waiting.sort(key=lambda lane: (lane.generation.agent, lane.order))
        room = self._context.batch.capacity - decoding
        first, *others = waiting
        size = min(self._pacing.prompt_tokens(decoding, first.prompt_left), room)
        chunks = {first.sequence: size}
        total = size
        if size == first.prompt_left:
            for lane in others:
                if total + lane.prompt_left > min(PACKED_PROMPT_TOKENS, room):
                    break
                chunks[lane.sequence] = lane.prompt_left
                total += lane.prompt_left
        return chunks

    def _decode(self, events: list[Event]) -> _Plan:
        """Evaluate one batch, making room as far as it takes. The last resort is to fail the newest request."""
        with_prompts = True
        while self._lanes:
            plan = self._plan(with_prompts=with_prompts)
            try:
                self._context.decode()
            except MemoryFull:
                victim = self._cache.evict()
                if victim is not None:
                    self._context.cut(victim, 0)
                elif with_prompts and plan.decoding and plan.prompt_tokens:
                    with_prompts = False
                else:
                    newest = max(self._lanes.values(), key=lambda lane: lane.generation.id)
                    events.append(Failed(newest.generation.id, "the KV memory is full; retry, or lower max_tokens"))
                    self._end(newest)
            else:
                return plan
        return _Plan()

    def _commit(self, part: _Part, events: list[Event]) -> None:
        """The part's tokens are in the KV memory now; draw the next one if the lane's logits are there."""
        lane, generation = part.lane, part.lane.generation
        lane.position += len(part.tokens)
        self._cache.append(lane.sequence, part.tokens)
        if part.index < 0:
            return
        try:
            token = lane.sampler.draw(self._context, part.index)
        except LlamaError as error:
            events.append(Failed(generation.id, str(error)))
            self._end(lane)
            return
        if token in self._vocabulary.end_of_generation and not generation.ignore_eos:
            events.append(Finished(generation.id, "stop"))
            self._end(lane)
            return
        logprobs = None
        if generation.top_logprobs is not None:
            logprobs = log_probabilities(self._context.logits(part.index), token, generation.top_logprobs)
        events.append(Token(generation.id, token, self._vocabulary.piece(token), logprobs))
        lane.last_token = token
        lane.generated += 1
        if lane.generated >= generation.max_tokens:
            events.append(Finished(generation.id, "length"))
            self._end(lane)
