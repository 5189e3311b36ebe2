"""Every row of the two policy tables, and the way out for templates that take no later system block."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from trio_server.engines.text.policies import PolicyRefused, apply_policies, render_with_fallback
from trio_server.engines.text.templates import ChatTemplate, RenderFailed

KINDS = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}


def conversation(short: str) -> list[dict[str, Any]]:
    """`"s:S u:U"`: a system message `S` and a user message `U`; `+` stands for a blank line."""
    return [
        {"role": KINDS[kind], "content": text.replace("+", "\n\n")}
        for kind, _, text in (word.partition(":") for word in short.split())
    ]


@pytest.mark.parametrize(
    ("system", "developer", "given", "expected"),
    [
        # Nothing to do.
        ("merge", "inplace", "u:U", "u:U"),
        ("merge", "inplace", "", ""),
        ("merge", "inplace", "u:U a:A t:T u:V a:B", "u:U a:A t:T u:V a:B"),
        # merge
        ("merge", "inplace", "s:S u:U", "s:S u:U"),
        ("merge", "inplace", "s:S s:T s:V u:U", "s:S+T+V u:U"),
        ("merge", "inplace", "s:S u:U s:T u:V", "s:S u:U s:T u:V"),
        ("merge", "inplace", "u:U s:T u:V", "u:U s:T u:V"),
        ("merge", "inplace", "s:S s:T u:U s:V s:W", "s:S+T u:U s:V s:W"),
        ("merge", "inplace", "s: s:T u:U", "s:T u:U"),
        ("merge", "inplace", "s: u:U", "s: u:U"),
        # strict
        ("strict", "inplace", "s:S u:U", "s:S u:U"),
        ("strict", "inplace", "u:U", "u:U"),
        ("strict", "inplace", "s:S u:U s:T", 2),
        ("strict", "inplace", "s:S s:T u:U", 1),
        ("strict", "inplace", "u:U s:T", 1),
        ("strict", "inplace", "d:D s:S u:U", 1),
        ("strict", "inplace", "s:S u:U d:D", "s:S u:U s:D"),
        # A leading developer message is the system prompt.
        ("merge", "inplace", "d:D u:U", "s:D u:U"),
        ("merge", "into-system", "d:D u:U", "s:D u:U"),
        ("merge", "after-system", "d:D u:U", "s:D u:U"),
        ("merge", "one-after-system", "d:D u:U", "s:D u:U"),
        ("strict", "inplace", "d:D u:U", "s:D u:U"),
        ("merge", "inplace", "d:D s:S u:U", "s:D+S u:U"),
        ("merge", "after-system", "d:D s:S d:E u:U", "s:D+S s:E u:U"),
        ("merge", "reject", "d:D u:U", 0),
        # inplace
        ("merge", "inplace", "s:S d:D u:U", "s:S s:D u:U"),
        ("merge", "inplace", "d:D d:E u:U", "s:D s:E u:U"),
        ("merge", "inplace", "s:S u:U d:D u:V d:E", "s:S u:U s:D u:V s:E"),
        ("merge", "inplace", "u:U d:D u:V", "u:U s:D u:V"),
        # into-system
        ("merge", "into-system", "s:S d:D u:U", "s:S+D u:U"),
        ("merge", "into-system", "s:S u:U d:D u:V d:E", "s:S+D+E u:U u:V"),
        ("merge", "into-system", "u:U d:D u:V", "s:D u:U u:V"),
        ("merge", "into-system", "s:S u:U s:T d:D", "s:S+D u:U s:T"),
        # after-system
        ("merge", "after-system", "s:S d:D u:U", "s:S s:D u:U"),
        ("merge", "after-system", "s:S s:T u:U d:D u:V d:E", "s:S+T s:D s:E u:U u:V"),
        ("merge", "after-system", "u:U d:D d:E u:V", "s:D s:E u:U u:V"),
        ("merge", "after-system", "s:S u:U s:T d:D", "s:S s:D u:U s:T"),
        # one-after-system
        ("merge", "one-after-system", "s:S d:D u:U", "s:S s:D u:U"),
        ("merge", "one-after-system", "s:S u:U d:D u:V d:E", "s:S s:D+E u:U u:V"),
        ("merge", "one-after-system", "d:D u:U d:E d:F", "s:D s:E+F u:U"),
        ("merge", "one-after-system", "u:U d:D d:E u:V", "s:D+E u:U u:V"),
        # reject
        ("merge", "reject", "s:S u:U d:D", 2),
        ("merge", "reject", "s:S u:U", "s:S u:U"),
        ("strict", "reject", "s:S u:U s:T d:D", 2),
        ("strict", "reject", "s:S u:U d:D s:T", 2),
    ],
)
def test_the_policies(system: str, developer: str, given: str, expected: str | int) -> None:
    messages = conversation(given)
    before = [dict(message) for message in messages]
    if isinstance(expected, int):
        with pytest.raises(PolicyRefused, match=rf"messages\[{expected}\]") as refused:
            apply_policies(messages, system, developer)
        assert refused.value.index == expected
    else:
        assert apply_policies(messages, system, developer) == conversation(expected)
    assert messages == before


def test_other_fields_are_kept() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1"}], "reasoning_content": "hm"}
    result = {"role": "tool", "content": "4", "tool_call_id": "call_1"}
    given: list[dict[str, Any]] = [
        {"role": "developer", "content": "D", "name": "boss"},
        {"role": "user", "content": "U"},
        call,
        result,
    ]
    arranged = apply_policies(given, "merge", "inplace")
    assert arranged == [{"role": "system", "content": "D"}, {"role": "user", "content": "U"}, call, result]
    assert arranged[2] is not call


@pytest.mark.parametrize(("system", "developer"), [("loose", "inplace"), ("merge", "nowhere")])
def test_a_policy_that_does_not_exist(system: str, developer: str) -> None:
    with pytest.raises(ValueError, match="policy"):
        apply_policies([], system, developer)


# The fallback

ONE_SYSTEM = ChatTemplate(
    "{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('the system message comes first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s:S u:U", "[system]S[user]U"),
        ("s:S u:U s:T u:V", "[system]S[user]U[user]V+T"),
        ("s:S s:T u:U", "[system]S[user]U+T"),
        ("u:U s:T s:W u:V a:A u:X", "[user]U[user]V+T+W[assistant]A[user]X"),
        ("u:U s:T a:A u:V", "[user]U[assistant]A[user]V+T"),
        ("u:U s:T u:V s:W u:X", "[user]U[user]V+T[user]X+W"),
        ("u:U s:T u:", "[user]U[user]T"),
    ],
)
def test_a_later_block_goes_to_the_next_user_message(given: str, expected: str) -> None:
    messages = conversation(given)
    before = [dict(message) for message in messages]
    assert render_with_fallback(ONE_SYSTEM, messages) == expected.replace("+", "\n\n")
    assert messages == before


@pytest.mark.parametrize("given", ["s:S u:U s:T", "s:S u:U s:T a:A", "u:U s:T u:V s:W"])
def test_without_a_user_message_to_take_it(given: str) -> None:
    with pytest.raises(RenderFailed, match="the system message comes first"):
        render_with_fallback(ONE_SYSTEM, conversation(given))


def test_a_template_that_takes_later_blocks_gets_them() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    assert render_with_fallback(template, conversation("s:S u:U s:T u:V")) == "[system]S[user]U[system]T[user]V"


def test_a_refusal_of_something_else_stays_one() -> None:
    template = ChatTemplate("{% if messages[-1].role != 'user' %}{{ raise_exception('ask something') }}{% endif %}x")
    with pytest.raises(RenderFailed, match="ask something"):
        render_with_fallback(template, conversation("s:S u:U s:T u:V a:A"))


class Recorder:
    """A template that refuses or fails, and says what it was asked."""

    def __init__(self, failure: RenderFailed) -> None:
        self.failure = failure
        self.calls: list[dict[str, Any]] = []

    def render(self, messages: Sequence[Mapping[str, Any]], *, limit_s: float, **options: Any) -> str:
        self.calls.append({"messages": messages, "limit_s": limit_s, **options})
        if len(self.calls) == 1:
            began = time.monotonic()
            while time.monotonic() - began < 0.01:
                pass
            raise self.failure
        return "rendered"


def test_both_renders_share_one_limit_and_the_options() -> None:
    recorder = Recorder(RenderFailed("no", refused=True))
    assert render_with_fallback(recorder, conversation("u:U s:S u:V"), limit_s=2.0, enable_thinking=True) == "rendered"
    first, second = recorder.calls
    assert first["limit_s"] == 2.0
    assert second["limit_s"] <= 1.99
    assert first["enable_thinking"] is second["enable_thinking"] is True


def test_only_the_templates_own_refusal_is_tried_again() -> None:
    recorder = Recorder(RenderFailed("it ran for more than 5 s"))
    with pytest.raises(RenderFailed):
        render_with_fallback(recorder, conversation("u:U s:S u:V"))
    assert len(recorder.calls) == 1
