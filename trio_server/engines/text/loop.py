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
from trio_server.engines.text.pacing import TILE_TOKENS, Pacing
from trio_server.engines.text.padding import riders, stragglers_first, tail
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
    ready: int = 0  # lanes that could decode
    decoding: int = 0  # those that do
    prompt_tokens: int = 0
    position: int = 0  # where the first prompt's part begins
    padded: list[tuple[int, int]] = field(default_factory=list)  # (sequence, tokens to keep) after the decode


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
        block: int = 1,
        sampler: Callable[[Sampling, Sequence[int], int, int], TokenSampler] = Sampler,
        on_close: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._context = context
        self._vocabulary = vocabulary
        self._pacing = pacing
        self._cache = cache
        self._memory_can_be_cut = memory_can_be_cut
        self._block = block if memory_can_be_cut else 1  # what padding.measure_block said
        self._make_sampler = sampler
        self._on_close = on_close
        self._clock = clock
        self._lanes: dict[int, _Lane] = {}  # by generation id
        self._events: list[Event] = []  # not delivered yet

    @property
    def busy(self) -> bool:
        return bool(self._lanes)

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.sampler.close()
        self._lanes.clear()
        self._context.close()
        self._on_close()

    def step(self, commands: list[Command], deliver: Callable[[list[Event]], None]) -> None:
        """One step: the events of the step before go out right before this one's decode, the last ones at once.

        `LlamaError` out of here means that the context can no longer be trusted: the engine has crashed.
        """
        events = self._events
        for command in commands:
            if isinstance(command, Submit):
                self._submit(command.generation, events)
            elif (lane := self._lanes.get(command.id)) is not None:
                self._end(lane)
        if self._lanes:
            plan = self._decode(deliver)
            for part in plan.parts:
                self._commit(part, self._events)
        if not self._lanes:
            self._flush(deliver)

    def _flush(self, deliver: Callable[[list[Event]], None]) -> None:
        if self._events:
            events, self._events = self._events, []
            deliver(events)

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
            order=self._clock() + left * self._pacing.prompt_token_s(keep, tiles=True),
            sampler=sampler,
            position=keep,
        )
        events.append(Started(generation.id, keep))

    def _end(self, lane: _Lane) -> None:
        del self._lanes[lane.generation.id]
        lane.sampler.close()
        if not lane.generation.retain:
            self._context.cut(lane.sequence, 0)
            self._cache.truncate(lane.sequence, 0)
        self._cache.release(lane.sequence)

    # One batch

    def _plan(self, *, with_prompts: bool, with_padding: bool) -> _Plan:
        lanes = sorted(self._lanes.values(), key=lambda lane: lane.sequence)
        decoding = [lane for lane in lanes if lane.prompt_left <= 0]
        waiting = self._waiting() if with_prompts else []
        first = waiting[0] if waiting else None
        share = self._pacing.divide(len(decoding), first.prompt_left if first else 0, first.position if first else 0)
        plan = _Plan(ready=len(decoding), decoding=len(decoding) if share.decode else 0)
        self._context.batch.clear()
        block = self._block if with_padding else 1
        prompts = self._chunks(waiting, share.prompt_tokens, decoding) if share.prompt_tokens else []
        before, behind = self._around(prompts, decoding if share.decode else [])
        extra = self._riders(decoding, block) if share.decode and not prompts else []
        if not prompts and not extra and block > 1:
            before = stragglers_first(before, block)
        self._add_decoding(plan, before, extra)
        self._add_prompts(plan, prompts, block)
        self._add_decoding(plan, behind, extra)
        return plan

    @staticmethod
    def _around(prompts: list[tuple[_Lane, int]], decoding: list[_Lane]) -> tuple[list[_Lane], list[_Lane]]:
        """The decoding lanes that stand before a chunk in the batch, and those behind it.

        llama.cpp goes through the batch and takes each sequence that follows the one before into the same pass; a chunk
        whose first token is in a pass with others is one short of a tile. So the chunk stands where it has no neighbour,
        and in its place when it has one on each side.
        """
        if not prompts:
            return decoding, []
        numbers = {lane.sequence for lane in decoding}
        first, last = prompts[0][0].sequence, prompts[-1][0].sequence
        if last + 1 not in numbers:
            return [], decoding
        if first - 1 not in numbers:
            return decoding, []
        return [lane for lane in decoding if lane.sequence < first], [
            lane for lane in decoding if lane.sequence > first
        ]

    def _add_decoding(self, plan: _Plan, decoding: list[_Lane], extra: list[int]) -> None:
        """As they come, with the riders in their places, so that neighbours in rising order share a pass."""
        for lane in decoding:
            while extra and extra[0] < lane.sequence:
                self._ride(extra.pop(0), plan)
            index = self._context.batch.add(lane.last_token, lane.position, lane.sequence)
            plan.parts.append(_Part(lane, (lane.last_token,), index))
        while decoding and extra:
            self._ride(extra.pop(0), plan)

    def _add_prompts(self, plan: _Plan, prompts: list[tuple[_Lane, int]], block: int) -> None:
        for lane, size in prompts:
            tokens = lane.prompt[lane.position : lane.position + size]
            last = size == lane.prompt_left
            index = self._context.batch.extend(tokens, lane.position, lane.sequence, want_last=last)
            plan.parts.append(_Part(lane, tokens, index if last else -1))
            if not plan.prompt_tokens:
                plan.position = lane.position
            plan.prompt_tokens += size
            if last and len(prompts) == 1:
                self._pad_behind(lane, size, plan, block)

    def _riders(self, lanes: list[_Lane], block: int) -> list[int]:
        """The free sequences that add a token to a decode step, rising."""
        limit = self._context.tokens_per_sequence
        free = {kept.sequence for kept in self._cache.kept if not kept.busy and len(kept.tokens) < limit}
        decoding = [lane.sequence for lane in lanes]
        return sorted(riders(decoding, free, len(self._cache.kept), block))

    def _ride(self, sequence: int, plan: _Plan) -> None:
        keep = len(self._cache.kept[sequence].tokens)
        self._context.batch.add(0, keep, sequence)  # with logits: the output layer has blocks too
        plan.padded.append((sequence, keep))

    def _pad_behind(self, lane: _Lane, size: int, plan: _Plan, block: int) -> None:
        end = lane.position + size
        count = min(tail(size, block), self._context.tokens_per_sequence - end, self._context.batch.room)
        if count > 0:
            self._context.batch.extend((0,) * count, end, lane.sequence, want_last=False)
            plan.padded.append((lane.sequence, end))

    def _waiting(self) -> list[_Lane]:
        """The lanes whose prompt is not read yet, in the order in which they are fed."""
        waiting = [lane for lane in self._lanes.values() if lane.prompt_left > 0]
        waiting.sort(key=lambda lane: (lane.generation.agent, lane.order))
        return waiting

    def _chunks(self, waiting: list[_Lane], size: int, decoding: list[_Lane]) -> list[tuple[_Lane, int]]:
        """Which prompts are read in this step and how much of each, by rising sequence."""
        first, *others = waiting
        room = self._context.batch.capacity - len(decoding)
        beside = {lane.sequence for lane in decoding}
        if size % TILE_TOKENS == 0 and {first.sequence - 1, first.sequence + 1} <= beside:
            size += 1  # its first token cannot but share a pass; the rest are whole tiles
        size = min(size, room, first.prompt_left)
        chunks = [(first, size)]
        total = size
        if size == first.prompt_left:
            for lane in others:
                total += lane.prompt_left
                if total > min(PACKED_PROMPT_TOKENS, room):
                    break
                chunks.append((lane, lane.prompt_left))
        chunks.sort(key=lambda chunk: chunk[0].sequence)
        return chunks

    def _decode(self, deliver: Callable[[list[Event]], None]) -> _Plan:
        """Evaluate one batch, making room as far as it takes. The last resort is to fail the newest request."""
        with_prompts = with_padding = True
        while self._lanes:
            plan = self._plan(with_prompts=with_prompts, with_padding=with_padding)
            self._flush(deliver)
            started = self._clock()
            try:
                self._context.decode()
            except MemoryFull:
                with_padding = False
                victim = self._cache.evict()
                if victim is not None:
                    self._context.cut(victim, 0)
                elif with_prompts and plan.ready and plan.prompt_tokens:
                    with_prompts = False
                else:
                    newest = max(self._lanes.values(), key=lambda lane: lane.generation.id)
                    self._events.append(
                        Failed(newest.generation.id, "the KV memory is full; retry, or lower max_tokens")
                    )
                    self._end(newest)
            else:
                for sequence, keep in plan.padded:
                    self._context.cut(sequence, keep)
                self._pacing.record(plan.decoding, plan.prompt_tokens, plan.position, self._clock() - started)
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
