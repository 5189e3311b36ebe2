"""The model's own chat template, rendered in a sandbox with limits (chat page, section 7.4). Pure; any thread may render.

The environment is the one that templates are written for: Jinja with trimmed blocks, loop controls, `raise_exception`,
`strftime_now` and a `tojson` without HTML escapes. What the limits cannot interrupt is in docs/adr/0004-jinja-sandbox.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDER_LIMIT_S = 5.0
OUTPUT_LIMIT_CHARACTERS = 64 * 1024 * 1024
_LARGEST_STRING = OUTPUT_LIMIT_CHARACTERS

_deadline_s: ContextVar[float] = ContextVar("render_deadline_s")


class RenderFailed(Exception):
    """The template refused the conversation, or ran into a limit; the message is fit for the client."""


class TemplateInvalid(Exception):
    """The template is not valid Jinja."""


class _Refusal(Exception):
    """The template called `raise_exception`."""


class _Limit(Exception):
    """The render ran into a limit."""


def _check_deadline() -> None:
    if time.monotonic() > _deadline_s.get():
        raise _Limit(f"it ran for more than {RENDER_LIMIT_S:g} s")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Every call, lookup and arithmetic step passes here, so the deadline is looked at wherever a template can loop."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def call(self, context: Any, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        _check_deadline()
        return super().call(context, target, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_deadline()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_deadline()
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check_deadline()
        if operator == "**":
            raise _Limit("it raises numbers to powers")
        if operator == "*":
            for text, times in ((left, right), (right, left)):
                if (
                    isinstance(text, str | list | tuple)
                    and isinstance(times, int)
                    and len(text) * times > _LARGEST_STRING
                ):
                    raise _Limit("it builds a value that is too large")
        if (
            operator == "+"
            and isinstance(left, str)
            and isinstance(right, str)
            and len(left) + len(right) > _LARGEST_STRING
        ):
            raise _Limit("it builds a value that is too large")
        return super().call_binop(context, operator, left, right)


class _GenerationBlocks(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks trainable text and means nothing when serving."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own spelling

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: Any = "") -> NoReturn:
    raise _Refusal(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises `TemplateInvalid` for a syntax error."""
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlocks], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateInvalid(str(error)) from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        limit_s: float = RENDER_LIMIT_S,
        **template_kwargs: Any,
    ) -> str:
        """The conversation as the model reads it. Raises `RenderFailed`."""
        reset = _deadline_s.set(time.monotonic() + limit_s)
        try:
            return self._render(
                {
                    **template_kwargs,
                    **self._tokens,
                    "messages": list(messages),
                    "tools": tools,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _Refusal as refusal:
            raise RenderFailed(str(refusal)) from None
        except _Limit as limit:
            raise RenderFailed(f"the template was stopped: {limit}") from None
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise RenderFailed(f"{type(error).__name__}: {error}"[:500]) from error
        except (RecursionError, MemoryError, OverflowError) as error:
            raise RenderFailed(f"the template was stopped: {type(error).__name__}") from error
        finally:
            _deadline_s.reset(reset)

    def _render(self, values: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(values):
            size += len(piece)
            if size > OUTPUT_LIMIT_CHARACTERS:
                raise _Limit("its output is too long")
            _check_deadline()
            pieces.append(piece)
        text = "".join(pieces)
        if not text.strip():
            raise RenderFailed("the template made nothing of the messages")
        return text
