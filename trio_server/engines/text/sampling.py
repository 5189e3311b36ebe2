"""Drawing one token from a lane's logits: a llama.cpp sampler chain, or a bare argmax where that is the same thing.

The chain's order is section 9.4 of the chat page. Only `loop.py` calls this, on the engine thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from trio_server.engines.text.generation import PENALTY_WINDOW_TOKENS, Sampling, TokenLogprobs
from trio_server.engines.text.llama import Context, LlamaError

Logits = npt.NDArray[np.float32]

_SMALLEST_DIVISOR = 1e-15
"""What llama.cpp divides logits by must not make infinities of them (their softmax is not a number). Far below, a
temperature is greedy and a repetition penalty is as strong as it can be, so that nothing is lost by a floor."""


def fold_seed(seed: int) -> int:
    """A signed 64-bit seed as llama.cpp's 32 bits, never the value that it reads as "random"."""
    unsigned = seed & 0xFFFF_FFFF_FFFF_FFFF
    folded = (unsigned & 0xFFFF_FFFF) ^ (unsigned >> 32)
    return 0xFFFF_FFFE if folded == 0xFFFF_FFFF else folded


def log_probabilities(logits: Logits, token: int, top: int) -> TokenLogprobs:
    """Natural-log softmax of the raw logits at `token` and at the `top` most likely tokens, best first."""
    wide = logits.astype(np.float64)
    peak = float(wide.max())
    normaliser = peak + math.log(float(np.exp(wide - peak).sum()))
    best: tuple[tuple[int, float], ...] = ()
    if top:
        # A stable order among equals: by falling logit, then by token id.
        candidates = np.argpartition(wide, -top)[-top:] if top < len(wide) else np.arange(len(wide))
        order = candidates[np.lexsort((candidates, -wide[candidates]))]
        best = tuple((int(index), float(wide[index]) - normaliser) for index in order)
    return TokenLogprobs(float(wide[token]) - normaliser, best)


class Sampler:
    """One request's way of drawing tokens. `close()` frees the native chain; drawing afterwards is an error."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], max_tokens: int, vocabulary_size: int) -> None:
        self._chain: Any = None
        if sampling.is_argmax:
            return
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        if not chain:
            raise LlamaError("llama.cpp cannot make a sampler chain")
        self._chain = chain

        def add(sampler: Any) -> None:
            if not sampler:
                raise LlamaError("llama.cpp cannot make a sampler")
            llama_cpp.llama_sampler_chain_add(chain, sampler)

        if sampling.logit_bias:
            biases = [llama_cpp.llama_logit_bias(token, bias) for token, bias in sampling.logit_bias]
            entries = (llama_cpp.llama_logit_bias * len(biases))(*biases)
            add(llama_cpp.llama_sampler_init_logit_bias(vocabulary_size, len(entries), entries))
        if sampling.repetition_penalty != 1.0:
            repetition = llama_cpp.llama_sampler_init_penalties(
                vocabulary_size,
                PENALTY_WINDOW_TOKENS,
                max(sampling.repetition_penalty, _SMALLEST_DIVISOR),
                0.0,
                0.0,
            )
            for token in prompt[-PENALTY_WINDOW_TOKENS:]:
                llama_cpp.llama_sampler_accept(repetition, token)
            add(repetition)
        if sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
            # A second penalty sampler, never shown the prompt: OpenAI counts the generation alone, all of it.
            add(
                llama_cpp.llama_sampler_init_penalties(
                    vocabulary_size, max_tokens, 1.0, sampling.frequency_penalty, sampling.presence_penalty
                )
            )
        if sampling.temperature < _SMALLEST_DIVISOR:
            add(llama_cpp.llama_sampler_init_greedy())
            return
        if sampling.top_k > 0:
            add(llama_cpp.llama_sampler_init_top_k(sampling.top_k))
        if sampling.top_p < 1.0:
            add(llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p > 0.0:
            add(llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1))
        add(llama_cpp.llama_sampler_init_temp(sampling.temperature))
        add(llama_cpp.llama_sampler_init_dist(sampling.seed))

    def draw(self, context: Context, index: int) -> int:
        """The next token, from the logits of the batch's token `index`. Raises `LlamaError` when they are not numbers."""
        if self._chain is None:
            logits = context.logits(index)
            token = int(logits.argmax())
            if not math.isfinite(logits[token]):
                raise LlamaError("the model's output is not a number")
            return token
        token = int(llama_cpp.llama_sampler_sample(self._chain, context.handle, index))
        if token < 0:
            raise LlamaError("the sampler found no token to draw")
        if not math.isfinite(context.logits(index)[token]):
            raise LlamaError("the model's output is not a number")
        return token

    def close(self) -> None:
        if self._chain is not None:
            llama_cpp.llama_sampler_free(self._chain)
            self._chain = None
