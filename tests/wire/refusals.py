"""How these tests look at a refusal, and the smallest body that is not one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trio_server.wire.chat import ChatRequest, parse_chat_request
from trio_server.wire.errors import ApiError

HELLO: list[Any] = [{"role": "user", "content": "hello"}]


def refused(call: Callable[..., object], *args: object) -> ApiError:
    """The error of a call that must be refused, with what is true of every refusal checked."""
    with pytest.raises(ApiError) as caught:
        call(*args)
    error = caught.value
    assert set(error.body()["error"]) == {"message", "type", "param", "code"}
    assert len(error.message) < 500
    return error


def parsed(**fields: Any) -> ChatRequest:
    return parse_chat_request({"messages": HELLO, **fields})


def refused_chat(**fields: Any) -> tuple[str, str | None]:
    """Code and param of the refusal of a body with these fields."""
    error = refused(parse_chat_request, {"messages": HELLO, **fields})
    return error.code.code, error.param
