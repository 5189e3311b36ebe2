"""The requests now running: counted for a drain, and cut together when the drain's time is over.

The app runs each request in `with running.request() as work:`; a route puts what may be cut in
`with work.cancellable() as scope:`. `Running.cut` cancels those scopes of all requests; each then finds the reason in
`work.cut` and ends its answer with it. Used by shutdown, later by a model switch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio


@dataclass(frozen=True, slots=True)
class Cut:
    """Why requests were cut: an error code of the catalogue and its message."""

    code: str
    message: str


@dataclass(eq=False, slots=True)
class Work:
    """One running request. `cut` is set when it was cut, and stays."""

    cut: Cut | None = None
    _scopes: set[trio.CancelScope] = field(default_factory=set)

    @contextmanager
    def cancellable(self) -> Iterator[trio.CancelScope]:
        """A scope that a cut cancels, at once if it has happened already. Leaving it raises nothing."""
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            if self.cut is not None:
                scope.cancel()
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def end(self, cut: Cut) -> None:
        """Cut this request, unless it was cut before."""
        if self.cut is None:
            self.cut = cut
            for scope in list(self._scopes):
                scope.cancel()


class Running:
    """The set of running requests. Trio side only."""

    def __init__(self) -> None:
        self._works: set[Work] = set()
        self._idle = trio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._works)

    @contextmanager
    def request(self) -> Iterator[Work]:
        """Count a request as running while the block lasts."""
        work = Work()
        if not self._works:
            self._idle = trio.Event()
        self._works.add(work)
        try:
            yield work
        finally:
            self._works.discard(work)
            if not self._works:
                self._idle.set()

    def cut(self, reason: Cut) -> int:
        """Cut every running request, and say how many there were."""
        works = list(self._works)
        for work in works:
            work.end(reason)
        return len(works)

    async def drained(self) -> None:
        """Wait until nothing runs."""
        while self._works:
            await self._idle.wait()
