"""The batching loop over the real llama.cpp: it survives any history, and company never changes what a prompt is answered.

The random histories run in a child process, so that a `GGML_ASSERT` is a failed test that shows its last words. To search
longer: `python -m tests.engines.loop_child MODEL SHAPE EXAMPLES`.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.engines import loop_child
from tests.engines.loop_driver import Course, Driver
from trio_server.engines.text.generation import Generation
from trio_server.engines.text.llama import Context, ContextOptions, LlamaError, Model, ModelOptions

ROOT = Path(__file__).parents[2]
NEAR_TIE = (
    0.25  # logits move by up to 0.15 with the shape of a batch: attention in tiles and row by row round differently
)
CHUNK = 128


def run_histories(model: Path, shape: str, examples: int) -> str:
    child = subprocess.run(
        [sys.executable, "-m", "tests.engines.loop_child", str(model), shape, str(examples)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert child.returncode == 0, f"exit {child.returncode}\n{child.stdout}\n{child.stderr[-6000:]}"
    return child.stdout


@pytest.mark.parametrize("shape", list(loop_child.SHAPES))
def test_random_histories(tiny_llama: Path, shape: str) -> None:
    done = run_histories(tiny_llama, shape, 40)
    assert "'memory full': 0" in done or "pool" in shape, "only a pool can be too small"


def test_random_histories_of_a_recurrent_model(tiny_mamba: Path) -> None:
    assert "'reused': 0" in run_histories(tiny_mamba, "streams", 30)


@pytest.mark.gguf
@pytest.mark.parametrize("shape", ["streams", "pool"])
def test_random_histories_of_the_real_model(q4_0_model: Path, shape: str) -> None:
    run_histories(q4_0_model, shape, 2)


# The same answer in any company

LAYOUTS = {
    "streams": ContextOptions(8, 512, batch_tokens=0, threads=1, threads_batch=1),
    "pool": ContextOptions(8, 512, batch_tokens=0, threads=1, threads_batch=1, pool_tokens=2048),
}
SUBJECTS = ["rivers", "clouds", "stones", "gardens", "engines", "letters", "bridges", "mirrors"]


class Company:
    """One layout, its loop, and the answers that its prompts get alone."""

    def __init__(self, model: Model, layout: ContextOptions) -> None:
        self.model, self.layout = model, layout
        self.driver: Driver = loop_child.make_driver(model, layout, CHUNK, 25, CHUNK)
        self._alone: dict[Generation, Course] = {}

    def tokens(self, text: str) -> list[int]:
        return self.model.vocabulary.tokenize(text, add_special=True)

    def prompts(self) -> list[list[int]]:
        """Eight prompts of about 15, 30, ... 120 tokens."""
        return [
            self.tokens(f"<|im_start|>user\nTell me about {subject}{', please' * (7 * place + 2)}.<|im_end|>\n")
            for place, subject in enumerate(SUBJECTS)
        ]

    def check(self, ids: Sequence[int]) -> None:
        """Each answer is the one that its prompt gets alone, but for a near-tie, which is shown."""
        for id in ids:
            course = self.driver.courses[id]
            reference = loop_child.alone(self.model, self.layout, course)
            difference = loop_child.first_difference(course, reference)
            if difference is None:
                continue
            place, gap = difference
            shown = f"token {place} of {course.tokens}, alone {reference.tokens}: {reference.logprobs[place:][:1]}"
            assert gap < NEAR_TIE, shown
            warnings.warn(f"near-tie, gap {gap:.4f}: {shown}", stacklevel=2)


@pytest.fixture(params=list(LAYOUTS))
def company(request: pytest.FixtureRequest, real_model: Model) -> Company:
    return Company(real_model, LAYOUTS[request.param])


@pytest.mark.gguf
def test_eight_at_once_answer_as_alone(company: Company) -> None:
    ids = [company.driver.submit(prompt, 12) for prompt in company.prompts()]
    company.driver.run()
    assert all(len(company.driver.courses[id].tokens) > 3 for id in ids)
    company.check(ids)


@pytest.mark.gguf
def test_coming_and_going_neighbours_change_nothing(company: Company) -> None:
    driver, prompts = company.driver, company.prompts()
    ids = []
    for place, prompt in enumerate(reversed(prompts)):
        passer_by = driver.submit([*prompts[place][:40], *prompts[0]], 30) if driver.free_lanes > 1 else None
        ids.append(driver.submit(prompt, 12, ignore_eos=True))
        for _ in range(place % 3 + 1):
            driver.step()
        if passer_by is not None:
            driver.cancel(passer_by)
    driver.run()
    company.check(ids)


@pytest.mark.gguf
def test_a_second_identical_prompt_reuses_all_but_one_token_and_answers_the_same(company: Company) -> None:
    driver = company.driver
    prompt = company.prompts()[4]
    driver.submit(prompt, 12)
    driver.run()
    again = driver.submit(prompt, 12)
    driver.run()
    assert driver.courses[again].cached_tokens == len(prompt) - 1
    company.check([again])


@pytest.mark.gguf
def test_the_next_turn_and_a_changed_turn_answer_as_cold(company: Company) -> None:
    driver = company.driver
    prompt = company.prompts()[4]
    first = driver.submit(prompt, 12, ignore_eos=True)
    driver.run()
    next_turn = driver.submit([*prompt, *driver.courses[first].tokens, *company.tokens(" And then?")], 12)
    driver.run()
    assert driver.courses[next_turn].cached_tokens == len(prompt) + 11
    changed = driver.submit([*prompt[:50], *company.tokens(" No: of fire and ice.")], 12)
    driver.run()
    assert driver.courses[changed].cached_tokens == 50
    company.check([next_turn, changed])


@pytest.mark.gguf
def test_a_prefix_copied_from_a_busy_lane_answers_as_cold(company: Company) -> None:
    driver = company.driver
    shared = company.tokens("A long story of a river and its stones. " * 17)
    assert len(shared) > CHUNK + 20
    busy = driver.submit([*shared, *company.tokens(" It begins in the hills")], 24, ignore_eos=True)
    while len(driver.courses[busy].tokens) < 5:
        driver.step()
    copies = [driver.submit([*shared, *company.tokens(f" It ends in {end}")], 10) for end in ("the sea", "a lake")]
    driver.step()
    assert busy in driver.running, "the source was to be busy while it was copied"
    driver.run()
    assert [driver.courses[id].cached_tokens for id in copies] == [len(shared) + 1] * 2
    company.check([busy, *copies])


# The context's own bounds


@pytest.fixture
def tiny_context(tiny_llama: Path) -> Context:
    return Context(
        Model(ModelOptions(str(tiny_llama))), ContextOptions(2, 256, batch_tokens=16, threads=1, threads_batch=1)
    )


def test_a_batch_takes_no_more_than_llama_would(tiny_context: Context) -> None:
    batch = tiny_context.batch
    batch.extend(range(16), 0, 0, want_last=True)
    with pytest.raises(LlamaError, match="full"):
        batch.add(1, 16, 0)
    with pytest.raises(LlamaError, match="full"):
        batch.extend([1, 2], 16, 0, want_last=True)
    tiny_context.decode()
    assert tiny_context.end_position(0) == 16


def test_logits_that_were_not_asked_for_are_an_error(tiny_context: Context) -> None:
    tiny_context.batch.extend([1, 2, 3], 0, 0, want_last=True)
    tiny_context.decode()
    assert tiny_context.logits(2).shape == (320,)
    for index in (0, 1, 3, 400, -7):
        with pytest.raises(LlamaError):
            tiny_context.logits(index)


@pytest.mark.parametrize("entry", [(1, 5, 0), (320, 0, 0), (-1, 0, 0), (1, 0, 2), (1, 0, -1)])
def test_what_llama_refuses_is_an_error_and_not_the_end(tiny_context: Context, entry: tuple[int, int, int]) -> None:
    tiny_context.batch.add(1, 0, 1)
    tiny_context.decode()
    tiny_context.batch.clear()
    token, position, sequence = entry
    tiny_context.batch.add(token, position + (1 if sequence == 1 else 0), sequence)
    if (token, position, sequence) == (1, 5, 0):
        tiny_context.batch.clear()
        tiny_context.batch.add(1, 5, 1)  # a gap
    with pytest.raises(LlamaError):
        tiny_context.decode()
    assert tiny_context.end_position(1) == 1


def test_an_empty_batch_is_nothing(tiny_context: Context) -> None:
    tiny_context.decode()
    assert tiny_context.end_position(0) == 0


def test_the_abort_cell_ends_this_and_every_later_decode(tiny_context: Context) -> None:
    tiny_context.abort()
    tiny_context.batch.add(1, 0, 0)
    with pytest.raises(LlamaError, match="aborted"):
        tiny_context.decode()


@pytest.mark.parametrize("sequences", [257, 100_000])
def test_an_impossible_shape_is_an_error(tiny_llama: Path, sequences: int) -> None:
    model = Model(ModelOptions(str(tiny_llama)))
    with pytest.raises(LlamaError, match="shape"):
        Context(model, ContextOptions(sequences, 256, batch_tokens=16, threads=1, threads_batch=1))
    model.close()
