"""The figures of one request for the log: admitted, first token, done, or how else it ended.

Both modes of the chat route hold one `Report`. It measures on the trio side, so a token's time is when its event arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trio

from trio_server.observe import events, log


@dataclass(slots=True)
class Report:
    """Tell it what happens; it writes the request's log events. Times are seconds of `trio.current_time()`."""

    endpoint: str
    model: str
    request_class: str
    prompt_tokens: int
    started_s: float = field(default_factory=trio.current_time)
    cached_tokens: int = 0
    tokens: int = 0
    _first_s: float | None = None
    _last_s: float = 0.0
    _longest_gap_s: float = 0.0

    def admitted(self, cached_tokens: int) -> None:
        self.cached_tokens = cached_tokens
        log.emit(
            events.REQUEST_ADMITTED,
            endpoint=self.endpoint,
            request_model=self.model,
            request_class=self.request_class,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=cached_tokens,
        )

    def token(self) -> None:
        now_s = trio.current_time()
        if self._first_s is None:
            self._first_s = now_s
            log.emit(events.REQUEST_TTFT, ttft_ms=(now_s - self.started_s) * 1000)
        else:
            self._longest_gap_s = max(self._longest_gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.tokens += 1

    def done(self, finish_reason: str) -> None:
        figures: dict[str, Any] = {}
        if self._first_s is not None and self.tokens > 1:
            decoding_s = self._last_s - self._first_s
            figures["itl_ms_mean"] = decoding_s / (self.tokens - 1) * 1000
            figures["itl_ms_max"] = self._longest_gap_s * 1000
            if decoding_s > 0:
                figures["tok_s"] = (self.tokens - 1) / decoding_s
        log.emit(
            events.REQUEST_DONE,
            duration_ms=self._duration_ms(),
            tokens=self.tokens,
            finish_reason=finish_reason,
            request_class=self.request_class,
            cached_tokens=self.cached_tokens,
            **figures,
        )

    def cancelled(self, reason: str) -> None:
        log.emit(
            events.REQUEST_CANCELLED,
            reason=reason,
            finish_reason="cancelled",
            tokens=self.tokens,
            duration_ms=self._duration_ms(),
        )

    def rejected(self, code: str, status: int, retry_after_s: int | None) -> None:
        log.emit(events.REQUEST_REJECTED, reason=code, status=status, retry_after_s=retry_after_s)

    def _duration_ms(self) -> float:
        return (trio.current_time() - self.started_s) * 1000
