"""Section 6 of the chat page, row by row, out of the table itself; and the table against OpenAI's own types."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import completion_create_params as openai_params

from tests.wire.refusals import HELLO, parsed, refused_chat
from trio_server.wire.chat_fields import BY_VALUE, FIELDS, Column, Field

SAMPLING = {
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "top_k",
    "min_p",
    "repetition_penalty",
    "repeat_penalty",
}
OTHERS = {"invalid_request_error", "unsupported_value", "thinking_unsupported", "reasoning_effort_unsupported"}

PAGE = {
    Column.HONOURED: """
        messages model stream stream_options max_tokens max_completion_tokens temperature top_p presence_penalty
        frequency_penalty seed stop tools tool_choice parallel_tool_calls response_format logprobs top_logprobs logit_bias
        reasoning_effort
    """,
    Column.EXTENSION: """
        top_k min_p repetition_penalty repeat_penalty enable_thinking preserve_thinking chat_template_kwargs
        thinking_budget class ignore_eos
    """,
    Column.BY_VALUE: """
        n store service_tier modalities metadata user safety_identifier verbosity prompt_cache_key prompt_cache_retention
        prompt_cache_options audio prediction moderation web_search_options functions function_call prompt suffix echo
        best_of guided_json guided_regex guided_choice guided_grammar structured_outputs grammar json_schema chat_template
        continue_final_message add_generation_prompt prompt_logprobs use_beam_search n_predict min_tokens stop_token_ids
        truncate_prompt_tokens cache_prompt id_slot
    """,
}


def examples(of: str) -> list[Any]:
    return [
        pytest.param(field, value, id=f"{field.name}-{value!r}"[:60])
        for field in FIELDS.values()
        for value in getattr(field, of)
    ]


@pytest.mark.parametrize("column", Column)
def test_the_table_has_the_rows_of_the_page(column: Column) -> None:
    assert {field.name for field in FIELDS.values() if field.column is column} == set(PAGE[column].split())


def test_every_field_of_openai_is_in_the_table_and_the_extensions_are_not_openais() -> None:
    theirs = {
        name
        for params in (
            openai_params.CompletionCreateParamsBase,
            openai_params.CompletionCreateParamsNonStreaming,
            openai_params.CompletionCreateParamsStreaming,
        )
        for name in params.__annotations__
    }
    assert theirs <= FIELDS.keys()
    assert {name for name, field in FIELDS.items() if field.column is Column.HONOURED} <= theirs
    assert not {name for name, field in FIELDS.items() if field.column is Column.EXTENSION} & theirs


def test_every_row_has_examples_and_a_description() -> None:
    for field in FIELDS.values():
        assert field.accepted or field.refused
        assert field.about.endswith(".")
        if field.kind.schema and field.column is not Column.BY_VALUE:
            assert field.accepted or field.name == "top_logprobs"
            assert field.refused


@pytest.mark.parametrize(("field", "value"), examples("accepted"))
def test_accepted(field: Field[Any], value: Any) -> None:
    request = parsed(**{field.name: value})
    if field.column is Column.BY_VALUE:
        assert request == parsed()


@pytest.mark.parametrize(("field", "value"), examples("refused"))
def test_refused(field: Field[Any], value: Any) -> None:
    code, param = refused_chat(**{field.name: value})
    if field.column is Column.BY_VALUE:
        assert (code, param) == ("unsupported_value", field.name)
    elif field.name in SAMPLING:
        assert (code, param) == ("invalid_sampling_parameter", field.name)
    else:
        assert code in OTHERS
        assert param is not None
        assert param.startswith(field.name)


@pytest.mark.parametrize("name", FIELDS.keys() - {"messages"})
def test_null_is_as_absent(name: str) -> None:
    assert parsed(**{name: None}) == parsed()


@pytest.mark.parametrize("field", BY_VALUE, ids=lambda field: field.name)
def test_what_is_refused_says_what_to_do(field: Field[Any]) -> None:
    for value in field.refused:
        with pytest.raises(Exception, match="^" + field.name + ": .{8,}"):
            field.of({field.name: value})


def test_what_sdks_fill_in_changes_nothing() -> None:
    assert parsed(
        n=1,
        store=False,
        parallel_tool_calls=True,
        logprobs=False,
        response_format={"type": "text"},
        service_tier="auto",
        metadata={"a": "b"},
        user="someone",
        tools=[],
        tool_choice="auto",
        stream_options={"include_usage": True},
    ) == parsed(messages=HELLO)


def test_unknown_fields_are_ignored() -> None:
    assert parsed(frobnicate=[{"a": 1}], **{"": 0, "Messages": None}) == parsed()


def test_the_first_fault_in_the_tables_order_is_the_one_reported() -> None:
    wrong = {field.name: field.refused[0] for field in reversed(BY_VALUE) if field.refused}
    assert refused_chat(**wrong) == ("unsupported_value", "n")
