"""What goes in and out of the text engine's doors: generation requests, sampling settings, and the events of a step.

Plain frozen data, shared by the engine thread and the trio side; nothing here touches llama.cpp or trio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PENALTY_WINDOW_TOKENS = 64
"""How far back `repetition` looks, prompt included (llama.cpp's own default)."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one token is drawn. The neutral values are those of plain greedy decoding with nothing else in force.

    `seed` is 32 bits, already folded; `logit_bias` holds (token id, addend to the raw logit), minus infinity bans it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def penalised(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def is_argmax(self) -> bool:
        """Whether the draw is the most likely token of the raw logits, so that no sampler chain is needed."""
        return self.temperature == 0.0 and not self.logit_bias and not self.penalised


@dataclass(frozen=True, slots=True)
class Generation:
    """One request at the engine's door.

    `max_tokens` is at least 1 and `len(prompt) + max_tokens` at most the context; the engine refuses what breaks that.
    `top_logprobs`: `None` for no log-probabilities, else how many alternatives to report beside the drawn token.
    """

    id: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    top_logprobs: int | None = None
    ignore_eos: bool = False
    agent: bool = False
    retain: bool = True  # keep the KV state for later prompts


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities from the raw logits: the drawn token's, and the most likely ones, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt has a sequence; `cached_tokens` of it need no prefill."""

    id: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token and the bytes it adds to the text (possibly none, possibly half a character)."""

    id: int
    token: int
    piece: bytes
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The engine ended the generation: an end-of-generation token (not among the `Token`s), or the cap."""

    id: int
    reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine could not go on with this generation. `message` is fit for the client."""

    id: int
    message: str


Event = Started | Token | Finished | Failed
