"""How many tokens a request may generate: section 10 of the chat page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_server.models.caps import ContextLengthExceeded, token_cap


@pytest.mark.parametrize(
    ("prompt", "asked", "default", "context", "cap"),
    [
        (10, 5, 0, 100, 5),
        (10, 1, 0, 100, 1),
        (10, 90, 0, 100, 90),  # to the last token
        (10, 90, 7, 100, 90),  # an explicit cap, not the default
        (10, None, 0, 100, 90),  # no default: what the context leaves
        (10, None, 7, 100, 7),
        (10, None, 500, 100, 90),  # the default never past the context
        (99, None, 500, 100, 1),
        (99, 1, 0, 100, 1),
        (0, None, 0, 1, 1),
    ],
)
def test_the_cap_in_force(prompt: int, asked: int | None, default: int, context: int, cap: int) -> None:
    assert token_cap(prompt, asked, default, context, "max_tokens") == cap


@pytest.mark.parametrize("asked", [None, 1, 1000])
@pytest.mark.parametrize("prompt", [100, 101, 5000])
def test_a_prompt_that_leaves_no_token_is_its_own_fault(prompt: int, asked: int | None) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        token_cap(prompt, asked, 0, 100, "max_tokens")
    assert not caught.value.by_cap
    assert str(prompt) in str(caught.value)
    assert "100" in str(caught.value)
    assert "shorten the prompt" in str(caught.value)


def test_an_explicit_cap_that_does_not_fit_says_the_numbers_and_what_to_do() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        token_cap(5120, 4096, 0, 8192, "max_tokens")
    assert caught.value.by_cap
    assert str(caught.value) == (
        "prompt (5120 tokens) plus max_tokens (4096) is 9216, over the model's 8192-token context;"
        " lower max_tokens or shorten the prompt"
    )
    with pytest.raises(ContextLengthExceeded, match="max_completion_tokens"):
        token_cap(10, 91, 0, 100, "max_completion_tokens")


@given(st.integers(0, 300), st.none() | st.integers(1, 300), st.integers(0, 300), st.integers(1, 200))
def test_what_fits_is_granted_and_nothing_else(prompt: int, asked: int | None, default: int, context: int) -> None:
    if prompt >= context or (asked is not None and prompt + asked > context):
        with pytest.raises(ContextLengthExceeded) as caught:
            token_cap(prompt, asked, default, context, "max_tokens")
        assert caught.value.by_cap == (prompt < context)
    else:
        cap = token_cap(prompt, asked, default, context, "max_tokens")
        assert 1 <= cap <= context - prompt
        assert asked in (None, cap)
