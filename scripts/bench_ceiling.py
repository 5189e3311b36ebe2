"""The ceiling: the bare llama.cpp loop in this process on the same batch, without server, scheduler or HTTP.

All prompts are prefilled in as few batches as hold them, then every lane decodes in lockstep, greedily: no token is
sampled from more than its largest logit, none is turned into text. As a server would, each lane keeps what its next prompt
has in common with its last (`reuse=False`: nothing). No server on the same library can do the same work faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from trio_server.engines.text import llama
from trio_server.engines.text.templates import ChatTemplate


@dataclass(frozen=True, slots=True)
class CeilingRun:
    tokens: list[list[int]]
    tokens_per_s: float
    prefill_s: float
    decode_step_s: float


class Ceiling:
    """A model and a context of the shape that the servers get."""

    def __init__(
        self, path: str, *, threads: int, lanes: int, context: int, reuse: bool, unified: bool = False
    ) -> None:
        llama.route_native_log(lambda level, text: None)
        self._model = llama.Model(llama.ModelOptions(path))
        self._vocabulary = self._model.vocabulary
        self._context = llama.Context(
            self._model,
            llama.ContextOptions(
                sequences=lanes,
                tokens_per_sequence=context,
                batch_tokens=2048,
                threads=threads,
                threads_batch=threads,
                pool_tokens=lanes * context if unified else None,
            ),
        )
        self._reuse = reuse
        self._held: list[list[int]] = [[] for _ in range(lanes)]
        source = self._model.chat_template()
        if source is None:
            raise SystemExit("the model has no chat template")
        self._template = ChatTemplate(source)

    def run(self, prompts: list[str], max_tokens: int) -> CeilingRun:
        """Generate `max_tokens` for each prompt, all lanes together."""
        context = self._context
        batch = context.batch
        tokens = [
            self._vocabulary.tokenize(self._template.render([{"role": "user", "content": prompt}]), add_special=False)
            for prompt in prompts
        ]
        if (
            max(map(len, tokens)) + max_tokens > self._context.tokens_per_sequence
            or len(tokens) > self._context.sequences
        ):
            raise SystemExit("the ceiling needs more --context or --lanes for this load")
        start_s = time.perf_counter()
        last = self._prefill(tokens)
        prefilled_s = time.perf_counter()
        made = [last]
        for step in range(max_tokens - 1):
            batch.clear()
            for lane, token in enumerate(last):
                batch.add(token, len(tokens[lane]) + step, lane)
            context.decode()
            last = [int(context.logits(lane).argmax()) for lane in range(len(last))]
            made.append(last)
        end_s = time.perf_counter()
        return CeilingRun(
            [list(lane) for lane in zip(*made, strict=True)],
            len(prompts) * max_tokens / (end_s - start_s),
            prefilled_s - start_s,
            (end_s - prefilled_s) / max(1, max_tokens - 1),
        )

    def _prefill(self, prompts: list[list[int]]) -> list[int]:
        """Feed all prompts, a full batch at a time. Gives the first token of each lane."""
        batch = self._context.batch
        last: list[int] = []
        ends: list[int] = []

        def evaluate() -> None:
            self._context.decode()
            last.extend(int(self._context.logits(index).argmax()) for index in ends)
            ends.clear()
            batch.clear()

        batch.clear()
        for lane, prompt in enumerate(prompts):
            done = common_length(self._held[lane], prompt[:-1]) if self._reuse else 0
            self._context.cut(lane, done)
            self._held[lane] = prompt
            while done < len(prompt):
                taken = prompt[done : done + batch.room]
                is_end = done + len(taken) == len(prompt)
                index = batch.extend(taken, done, lane, want_last=is_end)
                if is_end:
                    ends.append(index)
                done += len(taken)
                if batch.room == 0:
                    evaluate()
        if batch.count:
            evaluate()
        return last

    def close(self) -> None:
        self._context.close()
        self._model.close()


def common_length(a: list[int], b: list[int]) -> int:
    """How many tokens both start with."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
