"""One generation's answer as it grows: engine events in, text out, and the figures at the end.

Pure; the streamed and the plain answer are both made by this class, so they cannot differ. Called by `routes/chat.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trio_server.engines.text.generation import Event, Failed, Finished, Started, Token
from trio_server.engines.text.pipeline import Delta, TextPipeline
from trio_server.engines.thread import EngineError

NOTHING: Delta[Token] = Delta("", (), False)


class Turn:
    """Feed it every event of a generation until `finish_reason` is set.

    `cached_tokens` and `completion_tokens` follow section 18 of the chat page: the end-of-generation token is not counted,
    a token that completes a stop sequence is.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._pipeline: TextPipeline[Token] = TextPipeline(stop)
        self.finish_reason: str | None = None
        self.cached_tokens = 0
        self.completion_tokens = 0

    def feed(self, event: Event) -> Delta[Token]:
        """The text that may be delivered now, with the tokens it came from. Raises `EngineError` for a failure."""
        if isinstance(event, Token):
            self.completion_tokens += 1
            delta = self._pipeline.feed(event.piece, event if event.logprobs is not None else None)
            if delta.stopped:
                self.finish_reason = "stop"
            return delta
        if isinstance(event, Finished):
            delta = self._pipeline.finish()
            # A stop sequence may have been complete for a while, but held: one that began earlier could still have won.
            self.finish_reason = "stop" if delta.stopped else event.reason
            return delta
        if isinstance(event, Started):
            self.cached_tokens = event.cached_tokens
            return NOTHING
        assert isinstance(event, Failed)
        raise EngineError(event.message)
