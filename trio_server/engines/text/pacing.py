"""How many prompt tokens the next step may take, so that decoding lanes keep their pace.

Pure arithmetic on measured step times; `loop.py` feeds it and asks it. The rules, in the order they apply:

1. Nobody decodes: a step is as long as `prefill_chunk` allows, but aims at `ALONE_STEP_S`, since a cancel waits for it.
2. `decode_share` 0: one decode round per full chunk.
3. Otherwise the prompt part of a step takes at most the time that leaves the decode part its share of the engine, and at
   most `STALL_FACTOR` decode rounds (or `UNFELT_STALL_S`, which nobody feels), so that no gap between two tokens of a
   stream grows beyond about 2.5 times its idle value however long the other's prompt is.
4. A prompt with at most `SHORT_PROMPT_TOKENS` left is taken whole: one short stall buys it a first token at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

ALONE_STEP_S = 0.5
STALL_FACTOR = 1.5
UNFELT_STALL_S = 0.02
SHORT_PROMPT_TOKENS = 64
SMALLEST_CHUNK_TOKENS = 8
_SMOOTHING = 0.2


@dataclass(slots=True)
class Pacing:
    """Learns what steps cost and sizes the prompt part of the next one."""

    prefill_chunk: int
    decode_share_percent: int = 25
    _prefill_token_s: float | None = None
    _decode_step_s: dict[int, float] = field(default_factory=dict)

    @property
    def prompt_token_s(self) -> float:
        """The expected seconds per prompt token; a plain guess until one was measured."""
        return 0.002 if self._prefill_token_s is None else self._prefill_token_s

    def record(self, decoding: int, prompt_tokens: int, elapsed_s: float) -> None:
        """A step with `decoding` decode tokens and `prompt_tokens` prompt tokens took `elapsed_s` seconds."""
        if prompt_tokens == 0:
            if decoding:
                before = self._decode_step_s.get(decoding)
                self._decode_step_s[decoding] = _smooth(before, elapsed_s)
            return
        share = max(0.0, elapsed_s - (self.decode_step_s(decoding) or 0.0)) / prompt_tokens
        if prompt_tokens >= SMALLEST_CHUNK_TOKENS or self._prefill_token_s is None:
            self._prefill_token_s = _smooth(self._prefill_token_s, share)

    def decode_step_s(self, decoding: int) -> float | None:
        """The expected time of a step of `decoding` lanes and no prompt, or `None` when nothing like it was seen."""
        if decoding == 0:
            return 0.0
        known = self._decode_step_s.get(decoding)
        if known is not None or not self._decode_step_s:
            return known
        nearest = min(self._decode_step_s, key=lambda lanes: abs(lanes - decoding))
        return self._decode_step_s[nearest] * (1 + (decoding - nearest) / (nearest + 2))

    def prompt_tokens(self, decoding: int, remaining: int) -> int:
        """How many of the `remaining` tokens of the first waiting prompt the next step takes, at least 1."""
        most = min(remaining, self.prefill_chunk)
        token_s = self._prefill_token_s
        if decoding == 0:
            if token_s is None:
                return min(most, SHORT_PROMPT_TOKENS * 2)
            return min(most, max(SMALLEST_CHUNK_TOKENS, int(ALONE_STEP_S / token_s) if token_s > 0 else most))
        if self.decode_share_percent == 0 or remaining <= SHORT_PROMPT_TOKENS:
            return most
        step_s = self.decode_step_s(decoding)
        if step_s is None or not token_s:
            return min(most, SHORT_PROMPT_TOKENS)
        share = self.decode_share_percent / 100
        allowed_s = min(step_s * (1 - share) / share, max(step_s * STALL_FACTOR, UNFELT_STALL_S))
        return min(most, max(SMALLEST_CHUNK_TOKENS, int(allowed_s / token_s)))


def _smooth(before: float | None, now: float) -> float:
    return now if before is None else before + (now - before) * _SMOOTHING
