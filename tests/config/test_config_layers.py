"""Layers: which value wins, how the command line is split, and that resolution is pure."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.disk import EMPTY, Names, printed, refused, serve, settings
from trio_server.config import FIELDS, Declaration, Refusal, Source, resolve
from trio_server.config.layers import Given, Layer, env_layer, flag_layer, settle

DISK = Names(files=("one.gguf", "two.gguf"), folders=(".",))

# Two good values for each field, neither of them its default, and what they are read as.
VALUES: dict[str, tuple[tuple[str, Any], tuple[str, Any]]] = {
    "server.bind": (("127.0.0.1:1", "127.0.0.1:1"), ("[::1]:2", "[::1]:2")),
    "server.api_key": (("auto", "auto"), ("a-long-enough-key", "a-long-enough-key")),
    "server.request_timeout": (("1", 1), ("3600", 3600)),
    "server.shutdown_grace": (("0", 0), ("3600", 3600)),
    "server.system_message_policy": (("strict", "strict"), ("STRICT", "strict")),
    "server.developer_message_policy": (("into-system", "into-system"), ("reject", "reject")),
    "server.cors_origins": (("none", "none"), ("https://a.example", "https://a.example")),
    "server.allowed_hosts": (("*", "*"), ("a.example,b.example", "a.example,b.example")),
    "server.max_connections": (("1", 1), ("65536", 65536)),
    "server.max_sockets": (("1", 1), ("65536", 65536)),
    "server.write_timeout": (("1", 1), ("3600", 3600)),
    "server.body_timeout": (("1", 1), ("3600", 3600)),
    "model.id": (("tiny", "tiny"), ("org/tiny", "org/tiny")),
    "model.artifact": (("one.gguf", "one.gguf"), ("two.gguf", "two.gguf")),
    "model.chat_template": (("one.gguf", "one.gguf"), ("two.gguf", "two.gguf")),
    "model.max_context": (("1", 1), ("1000000", 1000000)),
    "model.default_max_tokens": (("0", 0), ("7", 7)),
    "model.kv_format": (("Q8_0", "q8_0"), ("bf16", "bf16")),
    "model.flash_attention": (("on", "on"), ("off", "off")),
    "model.prefill_chunk": (("128", 128), ("2048", 2048)),
    "model.decode_share": (("0", 0), ("99", 99)),
    "model.threads": (("1", 1), ("512", 512)),
    "model.threads_batch": (("1", 1), ("512", 512)),
    "model.mmap": (("false", False), ("off", False)),
    "model.mlock": (("true", True), ("1", True)),
    "vram.gpu_layers": (("all", "all"), ("0", 0)),
    "reuse.prompt": (("0", False), ("FALSE", False)),
    "spec.decode_lanes": (("1", 1), ("64", 64)),
    "log.level": (("warning", "warn"), ("trace", "trace")),
    "log.format": (("json", "json"), ("pretty", "pretty")),
    "log.path": (("a.log", "a.log"), ("b.log", "b.log")),
    "log.requests": (("false", False), ("0", False)),
}


def value_of(made: object, declaration: Declaration) -> Any:
    return getattr(getattr(made, declaration.group), declaration.name)


def test_every_field_has_values_here() -> None:
    assert list(VALUES) == [declaration.dotted for declaration in FIELDS]


@pytest.mark.parametrize("declaration", FIELDS, ids=lambda d: d.dotted)
def test_flag_over_env_over_default(declaration: Declaration) -> None:
    (low, low_value), (high, high_value) = VALUES[declaration.dotted]
    env = {declaration.env: f" {low} "}
    assert value_of(settings(disk=DISK), declaration) == declaration.default

    by_env = settings(env=env, disk=DISK)
    assert value_of(by_env, declaration) == low_value
    assert by_env.explicit == {declaration.dotted}
    assert by_env.sources[declaration.dotted] == Source("env", declaration.env)
    assert by_env.spelling(declaration.dotted) == declaration.env

    by_flag = settings(declaration.flag, f" {high}\t", env=env, disk=DISK)
    assert value_of(by_flag, declaration) == high_value
    assert by_flag.explicit == {declaration.dotted}
    assert by_flag.sources[declaration.dotted] == Source("flag", declaration.flag)
    assert by_flag.spelling(declaration.dotted) == declaration.flag

    assert settings(f"{declaration.flag}={high}", env=env, disk=DISK) == by_flag
    assert settings(declaration.flag, low, declaration.flag, high, disk=DISK) == by_flag


@pytest.mark.parametrize("declaration", FIELDS, ids=lambda d: d.dotted)
def test_an_empty_value_is_an_unset_one(declaration: Declaration) -> None:
    (good, value), _ = VALUES[declaration.dotted]
    env = {declaration.env: good}
    for empty in ([declaration.flag, ""], [f"{declaration.flag}="], [declaration.flag, " \t"]):
        assert value_of(settings(*empty, env=env, disk=DISK), declaration) == value
        assert value_of(settings(*empty, disk=DISK), declaration) == declaration.default
    assert value_of(settings(env={declaration.env: "  "}, disk=DISK), declaration) == declaration.default


def test_a_good_flag_makes_up_for_a_broken_variable() -> None:
    env = {"TRIO_SERVER_MODEL_MAX_CONTEXT": "lots", "TRIO_SERVER_MODEL_ARTIFACT": "gone.gguf"}
    made = settings("--model-max-context", "8192", "--model-artifact", "one.gguf", env=env, disk=DISK)
    assert (made.model.max_context, made.model.artifact) == (8192, "one.gguf")


def test_an_empty_last_flag_gives_way_to_the_variable() -> None:
    made = settings(
        "--model-max-context", "1", "--model-max-context", "", env={"TRIO_SERVER_MODEL_MAX_CONTEXT": "2"}, disk=DISK
    )
    assert made.model.max_context == 2


def test_a_default_that_is_named_is_not_explicit() -> None:
    made = settings("--model-max-context", "40960", "--server-bind", "127.0.0.1:8000")
    assert made.explicit == frozenset()
    assert made.sources["model.max_context"].layer == "flag"


def test_a_bool_flag_may_stand_bare() -> None:
    assert settings("--model-mlock").model.mlock is True
    assert settings("--model-mlock", "--reuse-prompt").model.mlock is True
    assert settings("--model-mlock", "--model-threads", "3").model.threads == 3
    assert settings("--model-mlock", "true", "--log-requests=off").log.requests is False
    assert settings("--model-mlock", env={"TRIO_SERVER_MODEL_MLOCK": "0"}).model.mlock is True
    assert refused("--model-mlock", "help").startswith("`--model-mlock`: `help` is not true or false")


def test_a_value_may_hold_an_equals_sign_or_begin_with_a_dash() -> None:
    assert settings("--server-api-key=--a=b=c-0123456789").server.api_key == "--a=b=c-0123456789"
    assert settings("--server-api-key", "a=b-0123456789abc").server.api_key == "a=b-0123456789abc"
    assert settings("--model-id", "-x").model.id == "-x"


def test_a_layer_s_repr_has_no_value() -> None:
    layer = flag_layer(["--server-api-key", "hunter2"])
    assert "--server-api-key" in repr(layer)
    assert "hunter2" not in repr(layer)
    assert "hunter2" not in repr(env_layer({"TRIO_SERVER_SERVER_API_KEY": "hunter2"}))


def test_resolution_reads_no_environment_but_the_one_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidden(dict[str, str]):
        def _fail(self, *_: object) -> Any:
            raise AssertionError("the process's environment was read")

        __getitem__ = __contains__ = __iter__ = get = keys = items = _fail

    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", Forbidden())
        patch.setattr(os, "getenv", Forbidden()._fail)
        patch.setattr(os.path, "exists", Forbidden()._fail)
        patch.setattr(os.path, "isdir", Forbidden()._fail)
        made = settings("--model-artifact", "one.gguf", env={"TRIO_SERVER_MODEL_ID": "tiny"}, disk=DISK)
        help_text = printed("help", "--fields")
        message = refused("--model-artifact", "gone.gguf")
    assert (made.model.id, made.model.artifact) == ("tiny", "one.gguf")
    assert "model.id" in help_text
    assert message


def test_resolution_changes_nothing_it_is_given() -> None:
    argv, env = ["--model-id", "a"], {"TRIO_SERVER_LOG_LEVEL": "debug", "PATH": "/bin"}
    resolve(argv, env, EMPTY)
    assert argv == ["--model-id", "a"]
    assert env == {"TRIO_SERVER_LOG_LEVEL": "debug", "PATH": "/bin"}


def test_a_further_layer_needs_no_change_of_the_declarations() -> None:
    lower = Layer("env", {"model.max_context": Given("model.max_context (a.yaml)", "x")})
    with pytest.raises(Refusal) as caught:
        settle([flag_layer([]), env_layer({}), lower], EMPTY)
    assert caught.value.message == "`model.max_context (a.yaml)`: `x` is not a token count"


WORDS = st.one_of(
    st.sampled_from([d.flag for d in FIELDS]),
    st.sampled_from([f"{d.flag}=1" for d in FIELDS]),
    st.sampled_from(
        ["help", "version", "health", "--fields", "--format", "json", "--url", "true", "-1", "1", "--", "="]
    ),
    st.text(max_size=6),
)


@given(st.lists(WORDS, max_size=6), st.dictionaries(st.sampled_from([d.env for d in FIELDS]), st.text(), max_size=3))
def test_any_command_line_has_an_outcome_or_one_line_of_refusal(argv: list[str], env: dict[str, str]) -> None:
    message = ""
    try:
        resolve(argv, env, EMPTY)
    except Refusal as refusal:
        message = refusal.message
    assert message.isprintable()


def test_unknown_variables_are_named_with_the_nearest_field() -> None:
    made = serve(
        env={
            "TRIO_SERVER_MODEL_MAX_CONTXT": "hunter2",
            "TRIO_SERVER_BIND": "hunter2",
            "TRIO_SERVER_EMPTY": " ",
            "TRIO_SERVERS": "x",
            "HOME": "/root",
        }
    )
    assert made.warnings == (
        "`TRIO_SERVER_BIND` names no field and is ignored; the nearest is `TRIO_SERVER_SERVER_BIND`",
        "`TRIO_SERVER_MODEL_MAX_CONTXT` names no field and is ignored; the nearest is `TRIO_SERVER_MODEL_MAX_CONTEXT`",
    )
    assert made.settings.explicit == frozenset()


def test_an_open_address_without_a_key_is_warned_of() -> None:
    [warning] = serve("--server-bind", "0.0.0.0:8000").warnings
    assert warning.startswith("`--server-bind`: anyone who can reach 0.0.0.0:8000 can use")
    [warning] = serve(env={"TRIO_SERVER_SERVER_BIND": "[::]:8000"}).warnings
    assert warning.startswith("`TRIO_SERVER_SERVER_BIND`: anyone who can reach [::]:8000")
    assert serve("--server-bind", "0.0.0.0:8000", "--server-api-key", "auto").warnings == ()
    assert serve("--server-bind", "localhost:8000").warnings == ()


def test_a_short_key_is_warned_of_and_not_repeated() -> None:
    [warning] = serve("--server-api-key", "hunter2").warnings
    assert warning == "`--server-api-key`: a key under 16 characters is easily guessed"
    assert serve("--server-api-key", "0123456789abcdef").warnings == ()
