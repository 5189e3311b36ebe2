"""The model's own chat template, rendered in a sandbox with limits (chat page, section 7.4). Pure; any thread may render.

The environment is the one that templates are written for (Hugging Face's `apply_chat_template`): Jinja with trimmed blocks,
loop controls, `{% generation %}`, `raise_exception`, `strftime_now` and a `tojson` without HTML escapes. A template comes with
a model file, so it may be slow or greedy, by mistake or not: every loop turn, call, lookup, operator and filter looks at the
deadline, and whatever makes a large value out of small ones is measured before it is made. docs/adr/0004-jinja-sandbox.md
says what that leaves. Which messages go in is `policies.py`'s business; `models/load.py` and the probes at load call this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import BuiltinMethodType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trio_server.engines.text.template_limits import (
    JINJA_NAMED,
    LARGEST_LIST,
    LARGEST_NUMBER_BITS,
    LARGEST_TEXT,
    METHODS,
    OUTPUT_LIMIT_BYTES,
    RENDER_LIMIT_S,
    Limit,
    check_size,
    check_time,
    guarded,
    measured_call,
    percent,
    printed,
    within,
)

LONGEST_MESSAGE = 1000
_WIDEST_INDENT = 16


class RenderFailed(Exception):
    """The template cannot render these messages, or ran into a limit; the message is fit for the client.

    `refused`: the template itself said so, with `raise_exception`.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message[:LONGEST_MESSAGE])
        self.refused = refused


class TemplateInvalid(Exception):
    """The template is not valid Jinja."""


class _Refusal(Exception):
    """The template called `raise_exception`."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Every call, lookup and operator of a template comes through here, and every turn of its loops (`_instrument`)."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationBlocks],
            autoescape=False,
            finalize=_measured,
        )
        self.filters["tojson"] = _to_json
        self.filters = {name: guarded(name, function) for name, function in self.filters.items()}
        del self.globals["lipsum"]
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    @staticmethod
    def turn() -> None:
        """Called on each turn of a loop; `call` has looked at the clock already."""

    @staticmethod
    def tilde(*values: Any) -> str:
        """The `~` operator."""
        check_size(sum(map(printed, values)))
        return "".join(map(str, values))

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """What the bodies of macros, blocks and `{% set %}…{% endset %}` are put together with."""
        pieces = pieces if isinstance(pieces, list) else list(pieces)
        check_size(sum(map(len, pieces)))
        return "".join(pieces)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr in ("translate", "to_bytes") and isinstance(value, BuiltinMethodType):
            return False  # large values out of small ones, and no template needs them
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        check_time()
        # Jinja puts a function of its own in the place of str.format.
        method = getattr(function, "__wrapped__", function)
        if isinstance(method, BuiltinMethodType) and isinstance(method.__self__, str | bytes):
            size = METHODS.get(method.__name__)
            plain = {name: value for name, value in named.items() if name not in JINJA_NAMED}
            arguments = measured_call(size, (method.__self__, *arguments), plain)[1:]
        result = super().call(context, function, *arguments, **named)
        if isinstance(result, str):
            check_size(len(result))
        return result

    def getattr(self, obj: Any, attribute: str) -> Any:
        check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        check_time()
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_time()
        if operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            check_size(left.bit_length() * right, LARGEST_NUMBER_BITS)
        elif operator == "%" and isinstance(left, str | bytes):
            check_size(percent(left, *(right if isinstance(right, tuple) else (right,))))
        elif operator == "+" and isinstance(left, str | bytes | list | tuple):
            check_size(len(left) + len(right), _limit_of(left))
        return super().call_binop(context, operator, left, right)


def _limit_of(sequence: Any) -> int:
    return LARGEST_TEXT if isinstance(sequence, str | bytes) else LARGEST_LIST


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        check_size(left.bit_length() + right.bit_length(), LARGEST_NUMBER_BITS)
    for sequence, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(sequence, str | bytes | list | tuple):
            check_size(len(sequence) * times, _limit_of(sequence))


def _measured(value: Any) -> Any:
    """What `{{ … }}` is about to print."""
    if not isinstance(value, str):
        printed(value)
    return value


def _instrument(tree: nodes.Template) -> None:
    """Put a call at the head of each loop body, and one into each `~`: the sandbox has no hook for either."""

    def call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)

    for loop in list(tree.find_all(nodes.For)):
        loop.body.insert(0, nodes.ExprStmt(call("turn", []), lineno=loop.lineno))
    for tilde in list(tree.find_all(nodes.Concat)):
        tilde.nodes = [call("tilde", tilde.nodes)]


class _GenerationBlocks(Extension):
    """`{% generation %}…{% endgeneration %}` marks the text to train on. It means nothing here but, as in Hugging Face's
    own extension, a scope: what is set inside is not seen outside.
    """

    tags = {"generation"}  # noqa: RUF012 - Jinja's own spelling

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


def _raise_exception(message: Any = "") -> NoReturn:
    raise _Refusal(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now(UTC).astimezone().strftime(layout)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    widths = [len(text) for text in separators or ()]
    if indent is not None:
        widths.append(indent if isinstance(indent, int) else len(indent))
    check_size(max(widths, default=0), _WIDEST_INDENT)
    printed(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """A compiled chat template. Any number of threads may render it at once."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """`bos_token` and `eos_token` are the texts of the vocabulary's tokens. Raises `TemplateInvalid`."""
        environment = _Sandbox()
        try:
            with within(RENDER_LIMIT_S):
                tree = environment.parse(source)
                _instrument(tree)
                tree.set_environment(environment)
                code = environment.compile(tree, filename="<chat template>")
            self._template = jinja2.Template.from_code(environment, code, environment.make_globals(None))
        except jinja2.TemplateSyntaxError as error:
            raise TemplateInvalid(f"{error.message} (line {error.lineno})") from error
        except Exception as error:  # Python's compiler refuses some trees that Jinja's parser takes
            raise TemplateInvalid(_described(error)) from error
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
        """The conversation as the model reads it. Raises `RenderFailed`, for running longer than `limit_s` among others.

        Blocks for up to `limit_s`, so it belongs in a worker thread. `template_kwargs` are the template's own switches
        (`enable_thinking` and the like); one that it does not know changes nothing.
        """
        values = {
            **template_kwargs,
            **self._tokens,
            "messages": [dict(message) for message in messages],
            "tools": None if tools is None else list(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            with within(limit_s):
                text = self._output(values)
        except _Refusal as refusal:
            raise RenderFailed(str(refusal), refused=True) from None
        except Limit as limit:
            raise RenderFailed(f"the template was stopped: {limit}") from None
        except Exception as error:  # a template can raise whatever an expression of it can
            raise RenderFailed(_described(error)) from error
        if not text.strip():
            raise RenderFailed("the template made nothing of the messages")
        return text

    def _output(self, values: dict[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(values):
            check_time()
            size += len(piece)
            _check_output(size)
            pieces.append(piece)
        text = "".join(pieces)
        if not text.isascii():
            try:
                _check_output(len(text.encode()))
            except UnicodeEncodeError:
                # A template may spell a character as two halves, which a tokenizer would not take.
                text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text


def _check_output(size: int) -> None:
    if size > OUTPUT_LIMIT_BYTES:
        raise Limit(f"its output is over {OUTPUT_LIMIT_BYTES // 1024**2} MiB")


def _described(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the template nests too deep"
    return f"{type(error).__name__}: {error}"
