"""How a step is shared between lanes that decode and prompts that are read: the balance of pace and first tokens.

Pure arithmetic on measured step times; `loop.py` feeds it and asks it. What a prompt token costs grows with the tokens
before it, and grows far less in runs of `TILE_TOKENS`, which llama.cpp's attention takes as one tile. The rules:

1. Nobody decodes: as many tiles as `prefill_chunk` allows, but aiming at `ALONE_STEP_S`, since a cancel waits for a step.
2. `decode_share` 0: one decode round per full chunk.
3. A prompt with at most `SHORT_PROMPT_TOKENS` left is taken whole, for a first token at once. While such prompts follow
   one another, decode rounds wait until the share owes `BURST_OWED_S` of them, and are then run until nothing is owed: the
   lanes of a burst start together, which makes better batches of all that follows.
4. A longer prompt is read beside the decoding lanes in one of two ways, whichever reads faster now. Small pieces in every
   step, so small that a gap between two tokens grows to at most about 2.5 times its idle length (or by `UNFELT_STALL_S`).
   Or whole tiles, each of which stalls the lanes, but only once in `ROUNDS_PER_STALL` rounds, so that 19 of 20 gaps keep
   their length. Either way the lanes keep at least their share of the engine's time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

ALONE_STEP_S = 0.5
STALL_FACTOR = 1.25
UNFELT_STALL_S = 0.016
BURST_OWED_S = 0.08
ROUNDS_PER_STALL = 25
SHORT_PROMPT_TOKENS = 64
TILE_TOKENS = 64
FIRST_GUESS_S = 0.002
_SMOOTHING = 0.2
_SHORT_CONTEXT = 256
_SHORTEST_S = 1e-6  # a clock may show no time at all


class Share(NamedTuple):
    """The next step: whether the lanes that can decode do, and how many prompt tokens are read."""

    decode: bool
    prompt_tokens: int


@dataclass(slots=True)
class Pacing:
    """Learns what steps cost and divides the next one. Times are seconds."""

    prefill_chunk: int
    decode_share_percent: int = 25
    first_token_s: float = FIRST_GUESS_S  # a prompt token with nothing before it, as measured when the model was loaded
    _slope_s: dict[bool, float] = field(default_factory=dict)  # what each token before it adds: {in tiles: seconds}
    _decode_step_s: dict[int, float] = field(default_factory=dict)
    _owed_s: float = 0.0
    _paying: bool = False  # short prompts wait until nothing is owed
    _rounds: int = ROUNDS_PER_STALL  # decode rounds since the last tile or undecoded step

    def divide(self, ready: int, remaining: int, position: int) -> Share:
        """The next step of `ready` lanes that can decode and a first prompt with `remaining` tokens from `position` on.

        `ready` and `remaining` are not both 0.
        """
        most = min(remaining, self.prefill_chunk)
        if most == 0:
            return Share(True, 0)
        if ready == 0:
            return Share(False, min(most, self._alone(position)))
        if self.decode_share_percent == 0:
            return Share(True, most)
        round_s = self.decode_step_s(ready)
        if remaining <= SHORT_PROMPT_TOKENS:
            self._paying = self._owed_s > 0 if self._paying else self._owed_s >= BURST_OWED_S
            return Share(True, 0) if self._paying else Share(False, most)
        if round_s is None:
            return Share(True, min(most, TILE_TOKENS))
        piece = self._piece(round_s, position)
        piece_rate = piece / (piece * self.prompt_token_s(position) + round_s)
        tile_s = TILE_TOKENS * self.prompt_token_s(position, tiles=True)
        rounds = max(ROUNDS_PER_STALL, round(tile_s * self._owing / round_s))
        if most < TILE_TOKENS or piece_rate >= TILE_TOKENS / (tile_s + rounds * round_s):
            return Share(True, min(most, piece))
        return Share(True, min(most, TILE_TOKENS) if self._rounds >= rounds else 0)

    def _alone(self, position: int) -> int:
        tiles = int(ALONE_STEP_S / self.prompt_token_s(position, tiles=True)) // TILE_TOKENS
        return max(1, tiles) * TILE_TOKENS

    def _piece(self, round_s: float, position: int) -> int:
        allowed_s = min(round_s / max(self._owing, 1e-3), max(round_s * STALL_FACTOR, UNFELT_STALL_S))
        piece = int(allowed_s / self.prompt_token_s(position))
        return max(1, piece - piece % 4 if piece > 4 else piece)

    @property
    def _owing(self) -> float:
        """Decode seconds owed per second of prompt."""
        share = self.decode_share_percent / 100
        return share / (1 - share)

    def prompt_token_s(self, position: int, *, tiles: bool = False) -> float:
        """The expected seconds of one prompt token behind `position` others."""
        slope = self._slope_s.get(tiles, self._slope_s.get(not tiles, 0.0))
        return max(self.first_token_s + slope * position, _SHORTEST_S)

    def decode_step_s(self, lanes: int) -> float | None:
        """The expected seconds of a round of `lanes` and no prompt, or `None` when nothing like it was seen."""
        if lanes == 0:
            return 0.0
        known = self._decode_step_s.get(lanes)
        if known is not None or not self._decode_step_s:
            return known
        nearest = min(self._decode_step_s, key=lambda other: abs(other - lanes))
        return self._decode_step_s[nearest] * (1 + (lanes - nearest) / (nearest + 2))

    def record(self, decoded: int, prompt_tokens: int, position: int, elapsed_s: float) -> None:
        """A step took `elapsed_s`: `decoded` lanes, and `prompt_tokens` of a prompt from `position` on."""
        round_s = (self.decode_step_s(decoded) or elapsed_s) if decoded else 0.0
        if prompt_tokens == 0:
            self._owed_s = max(0.0, self._owed_s - elapsed_s)
            self._rounds += 1
            self._decode_step_s[decoded] = max(_SHORTEST_S, _smooth(self._decode_step_s.get(decoded), elapsed_s))
            return
        prompt_s = max(0.0, elapsed_s - round_s)
        self._owed_s = max(0.0, self._owed_s + prompt_s * self._owing - round_s)
        self._rounds = self._rounds + 1 if decoded and prompt_tokens < TILE_TOKENS else 0
        token_s = prompt_s / prompt_tokens
        if position < _SHORT_CONTEXT:
            if prompt_tokens >= TILE_TOKENS // 4:  # of fewer, each pays more of what a batch costs anyway
                self.first_token_s = _smooth(self.first_token_s, token_s)
        else:
            tiles = prompt_tokens >= TILE_TOKENS
            slope_s = max(0.0, token_s - self.first_token_s) / position
            self._slope_s[tiles] = _smooth(self._slope_s.get(tiles), slope_s)


def _smooth(before: float | None, now: float) -> float:
    return now if before is None else before + (now - before) * _SMOOTHING
