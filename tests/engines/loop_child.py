"""`python -m tests.engines.loop_child MODEL SHAPE EXAMPLES`: random histories over the real llama.cpp.

A process of its own, since a `GGML_ASSERT` ends the one it happens in. Exits 0 and prints what was done, or fails loudly.
Besides the driver's checks, greedy answers are compared with those of the same prompt alone on an empty context: that is
what would show a batch, a reuse or a copy that took the wrong cells.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engines.loop_driver import Course, Driver, Operation, operations, perform
from trio_server.engines.text import llama
from trio_server.engines.text.generation import Failed
from trio_server.engines.text.loop import TextLoop
from trio_server.engines.text.pacing import Pacing
from trio_server.engines.text.padding import BLOCK_TOKENS
from trio_server.engines.text.prefix_cache import PrefixCache

SEQUENCES, TOKENS = 3, 256
NEAR_TIE = (
    0.25  # logits move by up to 0.15 with the shape of a batch: attention in tiles and row by row round differently
)
"""A difference between the two best logits that another order of additions may turn round."""
_PLAIN = llama.ContextOptions(SEQUENCES, TOKENS, batch_tokens=0, threads=1, threads_batch=1)
SHAPES = {
    "streams": _PLAIN,
    "pool": replace(_PLAIN, pool_tokens=TOKENS),
    "quantised streams": replace(_PLAIN, kv_format="q8_0", flash_attention="on"),
    "quantised pool": replace(_PLAIN, kv_format="q8_0", flash_attention="on", pool_tokens=TOKENS + 100),
    "streams without flash attention": replace(_PLAIN, flash_attention="off"),
}


def make_driver(
    model: llama.Model, options: llama.ContextOptions, chunk: int, share: int, copy_at_least: int
) -> Driver:
    context = llama.Context(model, replace(options, batch_tokens=chunk + options.sequences + BLOCK_TOKENS))
    cache = PrefixCache(options.sequences, enabled=model.memory_can_be_cut, copy_at_least=copy_at_least)
    loop = TextLoop(
        context,
        model.vocabulary,
        pacing=Pacing(chunk, share),
        cache=cache,
        memory_can_be_cut=model.memory_can_be_cut,
        block=BLOCK_TOKENS,
    )
    return Driver(loop, context, cache)


def alone(model: llama.Model, options: llama.ContextOptions, course: Course) -> Course:
    """The generation of `course` again, with nothing beside it and nothing before it."""
    driver = make_driver(model, options, 128, 25, 128)
    asked = course.generation
    id = driver.submit(asked.prompt, asked.max_tokens, ignore_eos=asked.ignore_eos, top_logprobs=2)
    driver.run()
    driver.loop.close()
    return driver.courses[id]


def first_difference(course: Course, reference: Course) -> tuple[int, float] | None:
    """Where two answers part, and how far apart the reference's two best logits were there; `None` if they agree.

    The answer of a generation that was cancelled, or failed, need only be the beginning of the reference.
    """
    expected = reference.tokens[: len(course.tokens)]
    if course.tokens == expected:
        return None
    place = next(i for i, token in enumerate(course.tokens) if i >= len(expected) or token != expected[i])
    if place >= len(expected):  # the reference ended there: no logits were reported for its end token
        return place, float("inf")
    (_, best), (_, second) = reference.logprobs[place].top
    return place, best - second


def main(path: str, shape: str, examples: int) -> Counter[str]:
    llama.route_native_log(lambda level, text: sys.stderr.write(f"{level}: {text}\n") if level == "error" else None)
    model = llama.Model(llama.ModelOptions(path))
    done: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        todo=operations(longest_prompt=TOKENS, longest_answer=60, vocabulary=model.vocabulary.size, at_least=40),
        chunk=st.sampled_from([128, 37, 1, 255]),
        share=st.sampled_from([0, 25]),
        copy_at_least=st.sampled_from([128, 5]),
    )
    def histories(todo: list[Operation], chunk: int, share: int, copy_at_least: int) -> None:
        driver = make_driver(model, SHAPES[shape], chunk, share, copy_at_least)
        try:
            perform(driver, todo)
        finally:
            driver.loop.close()
        courses = driver.courses.values()
        for course in [course for course in courses if course.generation.sampling.is_argmax and course.tokens][-4:]:
            difference = first_difference(course, alone(model, SHAPES[shape], course))
            done["compared"] += 1
            if difference is not None:
                place, gap = difference
                assert gap < NEAR_TIE, f"token {place} of {course} differs from the one alone, by a logit gap of {gap}"
                done["near ties"] += 1
        done["histories"] += 1
        done["steps"] += driver.steps
        for course in courses:
            done["generations"] += 1
            done["tokens"] += len(course.tokens)
            done["reused"] += bool(course.cached_tokens)
            done["cancelled"] += course.end == "cancelled"
            done["memory full"] += isinstance(course.end, Failed) and "full" in course.end.message

    histories()
    model.close()
    return done


if __name__ == "__main__":
    sys.stdout.write(f"{dict(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))}\n")
