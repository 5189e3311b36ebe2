"""The ceiling: the bare llama.cpp loop in this process on the same batch, without server, scheduler or HTTP.

All prompts are prefilled in one go, then every lane decodes in lockstep, greedily. No server on the same library can be
faster with the same work.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from trio_server.engines.text import llama
from trio_server.engines.text.templates import ChatTemplate


@dataclass(frozen=True, slots=True)
class CeilingRun:
    tokens_per_s: float
    prefill_s: float
    decode_step_s: float


class Ceiling:
    """A model and a context of the shape that the servers get."""

    def __init__(self, path: str, *, threads: int, lanes: int, context: int) -> None:
        llama.route_native_log(lambda level, text: None)
        self._model = llama.Model(llama.ModelOptions(path))
        self._vocabulary = self._model.vocabulary
        self._context = llama.Context(
            self._model,
            llama.ContextOptions(
                sequences=lanes, tokens_per_sequence=context, batch_tokens=2048, threads=threads, threads_batch=threads
            ),
        )
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
        for lane in range(len(prompts)):
            context.cut(lane, 0)
        start_s = time.perf_counter()
        last: list[int] = []
        for lane, prompt in enumerate(tokens):
            batch.clear()
            index = batch.extend(prompt, 0, lane, want_last=True)
            context.decode()
            last.append(int(context.logits(index).argmax()))
        prefilled_s = time.perf_counter()
        for step in range(max_tokens - 1):
            batch.clear()
            for lane, token in enumerate(last):
                batch.add(token, len(tokens[lane]) + step, lane)
            context.decode()
            last = [int(context.logits(lane).argmax()) for lane in range(len(last))]
        end_s = time.perf_counter()
        return CeilingRun(
            len(prompts) * max_tokens / (end_s - start_s),
            prefilled_s - start_s,
            (end_s - prefilled_s) / max(1, max_tokens - 1),
        )

    def close(self) -> None:
        self._context.close()
        self._model.close()
