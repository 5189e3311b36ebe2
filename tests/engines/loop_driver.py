"""Driving a `TextLoop` in tests: a stand-in for llama.cpp's context, and a driver that checks every step.

The stand-ins behave as llama.cpp does where the loop can tell the difference: positions must be consecutive, a full pool
keeps nothing of a batch, copied cells are shared. `Driver` works over them and over the real context alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from hypothesis import strategies as st

from trio_server.engines.text.generation import Event, Failed, Finished, Generation, Sampling, Started, Token
from trio_server.engines.text.llama import LlamaError, MemoryFull
from trio_server.engines.text.loop import Cancel, Command, Submit, TextLoop
from trio_server.engines.text.prefix_cache import PrefixCache

END = 2
"""The stand-in vocabulary's end-of-generation token."""


class FakeVocabulary:
    size = 5000
    end_of_generation = frozenset({END})

    def piece(self, token: int) -> bytes:
        return f"<{token}>".encode()


class FakeBatch:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[tuple[int, int, int, bool]] = []  # token, position, sequence, logits wanted

    @property
    def count(self) -> int:
        return len(self.entries)

    @property
    def room(self) -> int:
        return self.capacity - len(self.entries)

    def clear(self) -> None:
        self.entries.clear()

    def add(self, token: int, position: int, sequence: int) -> int:
        return self.extend([token], position, sequence, want_last=True)

    def extend(self, tokens: Iterable[int], position: int, sequence: int, *, want_last: bool) -> int:
        for offset, token in enumerate(tokens):
            self.entries.append((token, position + offset, sequence, False))
        if want_last:
            self.entries[-1] = (*self.entries[-1][:3], True)
        if len(self.entries) > self.capacity:
            raise LlamaError("the batch is full")
        return len(self.entries) - 1


class FakeContext:
    """Memory as lists of (token, cell). `answer` says what a sequence that holds `tokens` generates next."""

    def __init__(
        self,
        sequences: int = 4,
        tokens_per_sequence: int = 10_000,
        *,
        batch_tokens: int = 520,
        pool_tokens: int | None = None,
        answer: Callable[[list[int]], int] = lambda tokens: 1000 + len(tokens),
    ) -> None:
        self.sequences = sequences
        self.tokens_per_sequence = min(tokens_per_sequence, pool_tokens or tokens_per_sequence)
        self.pool_tokens = pool_tokens
        self.batch = FakeBatch(batch_tokens)
        self.answer = answer
        self.memory: list[list[tuple[int, int]]] = [[] for _ in range(sequences)]
        self.decoded: list[list[tuple[int, int]]] = []
        """Of each decode: (sequence, how many tokens), in batch order."""
        self.calls: list[str] = []
        self.can_cut = True
        self.fail: Exception | None = None
        self.closed = False
        self._cells = count()

    def decode(self) -> None:
        if self.fail is not None:
            raise self.fail
        entries = self.batch.entries
        if not entries:
            return
        ends = {sequence: len(held) for sequence, held in enumerate(self.memory)}
        for token, position, sequence, _ in entries:
            assert 0 <= token < FakeVocabulary.size
            assert position == ends[sequence], "a gap or an overlap in the positions of a sequence"
            ends[sequence] += 1
            assert ends[sequence] <= self.tokens_per_sequence
        order = [sequence for _, _, sequence, _ in entries]
        if self.pool_tokens is not None:
            used = {cell for held in self.memory for _, cell in held}
            if len(used) + len(entries) > self.pool_tokens:
                raise MemoryFull("full")
        for token, _, sequence, _ in entries:
            self.memory[sequence].append((token, next(self._cells)))
        self.decoded.append([(sequence, order.count(sequence)) for sequence in dict.fromkeys(order)])

    def tokens(self, sequence: int) -> list[int]:
        return [token for token, _ in self.memory[sequence]]

    def draw(self, index: int) -> int:
        _, _, sequence, wanted = self.batch.entries[index]
        assert wanted, "logits that nobody asked for"
        return self.answer(self.tokens(sequence))

    def cut(self, sequence: int, keep: int) -> bool:
        if not self.can_cut and 0 < keep < len(self.memory[sequence]):
            return False
        self.calls.append(f"cut {sequence} {keep}")
        del self.memory[sequence][keep:]
        return True

    def copy(self, source: int, target: int) -> None:
        self.calls.append(f"copy {source} {target}")
        self.memory[target] = list(self.memory[source])

    def end_position(self, sequence: int) -> int:
        return len(self.memory[sequence])

    def close(self) -> None:
        self.closed = True


class FakeSampler:
    """Draws what the context answers. Counts how many are open, so that a leak shows."""

    def __init__(self) -> None:
        self.open = 0
        self.made: list[tuple[Sampling, Sequence[int], int, int]] = []
        self.fail_after: dict[int, int] = {}
        """The prompt's first token -> how many draws it gets before an error."""

    def __call__(self, sampling: Sampling, prompt: Sequence[int], max_tokens: int, vocabulary_size: int) -> Any:
        self.made.append((sampling, prompt, max_tokens, vocabulary_size))
        self.open += 1
        return _Draws(self, prompt[0])


class _Draws:
    def __init__(self, samplers: FakeSampler, key: int) -> None:
        self._samplers = samplers
        self._key = key
        self._closed = False

    def draw(self, context: Any, index: int) -> int:
        assert not self._closed
        left = self._samplers.fail_after.get(self._key)
        if left is not None:
            if left == 0:
                raise LlamaError("the model's output is not a number")
            self._samplers.fail_after[self._key] = left - 1
        return context.draw(index)  # type: ignore[no-any-return]

    def close(self) -> None:
        assert not self._closed, "closed twice"
        self._closed = True
        self._samplers.open -= 1


@dataclass(slots=True)
class Course:
    """What one generation has shown so far."""

    generation: Generation
    cached_tokens: int | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    end: Finished | Failed | str | None = None


class Driver:
    """The trio side's part, without trio: gives commands, follows each generation, and checks after every step that

    - the events of a generation come in order and end once,
    - what `PrefixCache` believes of each sequence is what the KV memory holds,
    - busy sequences are exactly the running generations'.
    """

    def __init__(self, loop: TextLoop, context: Any, cache: PrefixCache) -> None:
        self.loop, self.context, self.cache = loop, context, cache
        self.courses: dict[int, Course] = {}
        self.steps = 0
        self._commands: list[Command] = []
        self._ids = count(1)

    @property
    def running(self) -> list[int]:
        return [id for id, course in self.courses.items() if course.end is None]

    @property
    def free_lanes(self) -> int:
        return len(self.cache.kept) - len(self.running)

    def submit(self, prompt: Iterable[int], max_tokens: int = 8, **more: Any) -> int:
        """Put a generation in with the next step's commands. Returns its id."""
        generation = Generation(next(self._ids), tuple(prompt), max_tokens, **more)
        self.courses[generation.id] = Course(generation)
        self._commands.append(Submit(generation))
        return generation.id

    def cancel(self, id: int) -> None:
        self._commands.append(Cancel(id))
        if self.courses[id].end is None:
            self.courses[id].end = "cancelled"

    def step(self) -> list[Event]:
        commands, self._commands = self._commands, []
        # What a step leaves for the next decode's start is taken at once: these tests look at one step at a time.
        events: list[Event] = []
        self.loop.step(commands, events.extend)
        self.loop._flush(events.extend)
        self.steps += 1
        for event in events:
            self._follow(event)
        self.check()
        return events

    def run(self, limit: int = 100_000) -> None:
        """Step until nothing is left to do."""
        while self._commands or self.loop.busy:
            self.step()
            limit -= 1
            assert limit > 0, f"no end in sight: {self.running}"

    def _follow(self, event: Event) -> None:
        course = self.courses[event.id]
        generation = course.generation
        if course.end == "cancelled":
            refused = isinstance(event, Failed) and course.cached_tokens is None
            assert isinstance(event, Started) or refused, "a cancelled generation was worked on"
            return
        assert course.end is None, f"{event} after {course.end}"
        if isinstance(event, Started):
            assert course.cached_tokens is None
            assert 0 <= event.cached_tokens < len(generation.prompt)
            course.cached_tokens = event.cached_tokens
            return
        if isinstance(event, Failed):
            course.end = event
            return
        assert course.cached_tokens is not None
        if isinstance(event, Token):
            course.tokens.append(event.token)
            course.logprobs.append(event.logprobs)
            assert len(course.tokens) <= generation.max_tokens
        else:
            assert (event.reason == "length") == (len(course.tokens) == generation.max_tokens)
            course.end = event

    def check(self) -> None:
        for kept in self.cache.kept:
            held = self.context.end_position(kept.sequence)
            assert held == len(kept.tokens), f"sequence {kept.sequence}: memory {held}, believed {len(kept.tokens)}"
        assert sum(kept.busy for kept in self.cache.kept) == len(self.running)
        assert self.loop.busy == bool(self.running)


Operation = tuple[str, tuple[int, ...]]


def operations(
    *, longest_prompt: int, longest_answer: int, vocabulary: int, at_least: int = 1
) -> st.SearchStrategy[list[Operation]]:
    """Lists of things to do to a loop. Prompts share prefixes of three families, in any length."""
    submit = st.tuples(
        st.integers(0, 2),  # family
        st.integers(0, longest_prompt),  # how much of the family's text
        st.integers(0, 12),  # own tokens after it
        st.integers(1, longest_answer),
        st.integers(0, 15),  # bits: agent, ignore_eos, logprobs, a sampler chain
        st.integers(1, vocabulary - 20),
    )
    submits = submit.map(lambda numbers: ("submit", numbers))
    steps = st.tuples(st.integers(1, 40)).map(lambda numbers: ("steps", numbers))
    cancels = st.tuples(st.sampled_from(["cancel", "replace"]), st.tuples(st.integers(0, 7)))
    return st.lists(st.one_of(submits, submits, submits, steps, steps, cancels), min_size=at_least, max_size=80)


def perform(driver: Driver, todo: Sequence[Operation]) -> None:
    """Do `todo`, then let everything end, and check that nothing is left."""
    for name, numbers in todo:
        match name:
            case "submit":
                _submit(driver, numbers)
            case "cancel" if driver.running:
                driver.cancel(driver.running[numbers[0] % len(driver.running)])
            case "replace" if driver.running:  # a lane given up and handed on within one step's commands
                id = driver.running[numbers[0] % len(driver.running)]
                driver.cancel(id)
                generation = driver.courses[id].generation
                driver.submit(generation.prompt, generation.max_tokens)
            case "steps":
                for _ in range(numbers[0]):
                    driver.step()
    driver.run()
    assert not driver.running
    assert not driver.loop.busy
    assert not any(kept.busy for kept in driver.cache.kept)
    for course in driver.courses.values():
        if isinstance(course.end, Failed):
            assert "KV memory is full" in course.end.message or "do not fit" in course.end.message


def _submit(driver: Driver, numbers: tuple[int, ...]) -> None:
    family, shared, own, max_tokens, bits, seed = numbers
    if driver.free_lanes == 0:
        return
    prompt = [10 + (family * 97 + place) % 300 for place in range(shared)] + [seed + place for place in range(own)]
    driver.submit(
        prompt or [seed],
        max_tokens,
        agent=bool(bits & 1),
        ignore_eos=bool(bits & 2),
        top_logprobs=3 if bits & 4 else None,
        sampling=Sampling(0.8, 0.95, 40, 0.05, 0.5, 0.5, 1.1, seed) if bits & 8 else Sampling(),
    )
