"""A load without a model: its lanes are real, its engine writes down what it is told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from trio_server.admission import Lanes
from trio_server.engines.text.generation import Event, Generation
from trio_server.engines.thread import EngineError
from trio_server.models.load import Load


class FakeEngine:
    """The doors of `TextEngine`. `commands` is what its thread would have read, in order."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, int]] = []
        self.sends: dict[int, trio.MemorySendChannel[Event]] = {}
        self.alive = True

    @contextmanager
    def generating(self, generation: Generation) -> Iterator[trio.MemoryReceiveChannel[Event]]:
        if not self.alive:
            raise EngineError("the engine has failed")
        self.commands.append(("start", generation.id))
        send, receive = trio.open_memory_channel[Event](math.inf)
        self.sends[generation.id] = send
        try:
            with receive:
                yield receive
        finally:
            self.commands.append(("stop", generation.id))
            send.close()


def fake_load(lanes: int) -> tuple[Load, FakeEngine]:
    load, engine = object.__new__(Load), FakeEngine()
    load.lanes = Lanes(lanes)
    load.engine = engine
    return load, engine


def generation(id: int) -> Generation:
    return Generation(id, (1, 2, 3), 10)
