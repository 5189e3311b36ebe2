"""Refusals at start: the configuration page's section 7, word for word, by flag and by environment variable."""

from __future__ import annotations

import pytest

from tests.config.disk import Names, refused, settings
from trio_server.config import FIELDS

DISK = Names(files=("a.gguf",), folders=(".", "folder"))

KV = "f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0"
BOOL = "is not true or false (on/off and 1/0 are read too)"
ORIGINS = "is not `*`, `none` or a comma list of origins such as https://app.example"

# field, value, and the reason that follows the spelling, whichever it is
BAD: list[tuple[str, str, str]] = [
    ("server.bind", "8000", "`8000` is not host:port"),
    ("server.bind", "localhost:70000", "`localhost:70000` is not host:port with a port in 0..65535"),
    (
        "server.api_key",
        "two words",
        "a key is 1 to 512 visible ASCII characters without blanks (the value is not shown)",
    ),
    ("server.request_timeout", "3601", "3601 is not in 1..3600"),
    ("server.request_timeout", "0", "0 is not in 1..3600"),
    ("server.request_timeout", "30s", "`30s` is not a whole number of seconds"),
    ("server.shutdown_grace", "-1", "-1 is not in 0..3600"),
    ("server.system_message_policy", "join", "`join` is none of merge, strict"),
    (
        "server.developer_message_policy",
        "Drop",
        "`Drop` is none of inplace, into-system, after-system, one-after-system, reject",
    ),
    ("server.cors_origins", "app.example", f"`app.example` {ORIGINS}"),
    ("server.allowed_hosts", "a:80", "`a:80` is not `*` or a comma list of host names"),
    ("server.max_connections", "0", "0 is not in 1..65536"),
    ("server.max_sockets", "65537", "65537 is not in 1..65536"),
    ("server.write_timeout", "0", "0 is not in 1..3600"),
    ("server.body_timeout", "3601", "3601 is not in 1..3600"),
    ("model.id", "my model", "`my model` is not one word without blanks"),
    ("model.artifact", "gone.gguf", "gone.gguf does not exist"),
    ("model.chat_template", "gone.jinja", "gone.jinja does not exist"),
    ("model.chat_template", "folder", "folder is a folder, not a file"),
    ("model.max_context", "lots", "`lots` is not a token count"),
    ("model.max_context", "1.5", "`1.5` is not a token count"),
    ("model.max_context", "0", "0 is below 1"),
    ("model.default_max_tokens", "-1", "-1 is below 0"),
    ("model.kv_format", "fp8", f"`fp8` is none of {KV}"),
    ("model.flash_attention", "true", "`true` is none of auto, on, off"),
    ("model.prefill_chunk", "1000", "1000 is not a nonzero multiple of 128"),
    ("model.prefill_chunk", "0", "0 is not a nonzero multiple of 128"),
    ("model.prefill_chunk", "-128", "-128 is not a nonzero multiple of 128"),
    ("model.decode_share", "100", "100 is not in 0..99"),
    ("model.decode_share", "50%", "`50%` is not a whole percentage"),
    ("model.threads", "0", "0 is not in 1..512"),
    ("model.threads_batch", "many", "`many` is not a whole number"),
    ("model.mmap", "maybe", f"`maybe` {BOOL}"),
    ("model.mlock", "yes", f"`yes` {BOOL}"),
    ("vram.gpu_layers", "some", "`some` is not auto, all or a whole number"),
    ("vram.gpu_layers", "1025", "1025 is not in 0..1024"),
    ("reuse.prompt", "2", f"`2` {BOOL}"),
    ("spec.decode_lanes", "65", "65 is not in 1..64"),
    ("spec.decode_lanes", "a few", "`a few` is not a lane count"),
    ("log.level", "loud", "`loud` is none of error, warn, info, debug, trace"),
    ("log.format", "text", "`text` is none of auto, pretty, json"),
    ("log.path", "gone/a.log", "gone/a.log cannot be written: there is no folder gone"),
    ("log.path", "folder", "folder is a folder, not a file"),
    ("log.requests", "never", f"`never` {BOOL}"),
]

BY_NAME = {declaration.dotted: declaration for declaration in FIELDS}


def test_every_field_has_a_bad_value_here() -> None:
    assert {dotted for dotted, _, _ in BAD} == set(BY_NAME)


@pytest.mark.parametrize(("dotted", "value", "reason"), BAD)
def test_a_bad_value_is_refused_under_the_spelling_it_came_under(dotted: str, value: str, reason: str) -> None:
    declaration = BY_NAME[dotted]
    flag, env = declaration.flag, declaration.env
    assert refused(flag, value, disk=DISK) == f"`{flag}`: {reason}"
    assert refused(f"{flag}={value}", disk=DISK) == f"`{flag}`: {reason}"
    assert refused(flag, f"  {value} ", disk=DISK) == f"`{flag}`: {reason}"
    assert refused(env={env: value}, disk=DISK) == f"`{env}`: {reason}"


# The rows of section 7 about the command line itself.
LINES: list[tuple[list[str], str]] = [
    (["--nope"], "`--nope` is no flag (`trio-server help --fields` lists them)"),
    (["--nope=1"], "`--nope` is no flag (`trio-server help --fields` lists them)"),
    (["-x"], "`-x` is no flag (`trio-server help --fields` lists them)"),
    (["--"], "`--` is no flag (`trio-server help --fields` lists them)"),
    (["--max-context", "1"], "`--max-context` is no flag; perhaps `--model-max-context`?"),
    (["--model-max-contxt", "1"], "`--model-max-contxt` is no flag; perhaps `--model-max-context`?"),
    (["--moe-model-max-context", "1"], "`--moe-model-max-context` is no flag; perhaps `--model-max-context`?"),
    (["--timeout", "1"], "`--timeout` is no flag; perhaps `--server-request-timeout` or `--server-write-timeout` or"),
    (["serve"], "`serve` is no command; the commands are help, version and health"),
    (["config", "print"], "`config` is no command; the commands are help, version and health"),
    (["model"], "`model` is no command; the commands are help, version and health"),
    ([""], "`` is no command; the commands are help, version and health"),
    (["--server-bind"], "`--server-bind` needs a value"),
    (["--server-bind", "--model-mlock"], "`--server-bind` needs a value"),
    (["--model-id", "a", "b"], "`b` is no flag and no flag's value; a command stands first"),
    (["version", "now"], "`now`: `version` takes nothing behind it"),
    (["help", "me"], "`me` is nothing `help` takes; it takes --fields and --format"),
    (["help", "--format", "json"], "`--format` needs `--fields`"),
    (["help", "--fields", "--format", "yaml"], "`--format`: `yaml` is none of text, json"),
    (["help", "--fields", "--format"], "`--format` needs a value"),
    (["health", "--url"], "`--url` needs a value"),
    (["health", "--url", "localhost:8000"], "`--url`: `localhost:8000` is not an http(s) URL"),
    (["health", "--url", "file:///etc/passwd"], "`--url`: `file:///etc/passwd` is not an http(s) URL"),
    (["health", "--url", "http://"], "`--url`: `http://` is not an http(s) URL"),
    (["health", "--nope"], "`--nope` is no flag (`trio-server help --fields` lists them)"),
    (["health", "--url", "http://a", "b"], "`b` is no flag and no flag's value; a command stands first"),
    (
        ["health", "--server-bind", "127.0.0.1:0"],
        "`--server-bind`: port 0 does not say where to ask; `--url` does",
    ),
]


@pytest.mark.parametrize(("argv", "message"), LINES, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_a_command_line_that_cannot_be_read(argv: list[str], message: str) -> None:
    given = refused(*argv)
    assert given.startswith(message) if message.endswith(" or") else given == message


def test_the_winner_alone_is_looked_at() -> None:
    env = {"TRIO_SERVER_MODEL_PREFILL_CHUNK": "1000"}
    assert refused(env=env) == "`TRIO_SERVER_MODEL_PREFILL_CHUNK`: 1000 is not a nonzero multiple of 128"
    assert refused("--model-prefill-chunk", "1", env=env).startswith("`--model-prefill-chunk`: 1 ")
    assert settings("--model-prefill-chunk", "128", env=env).model.prefill_chunk == 128


def test_a_quantised_cache_needs_flash_attention() -> None:
    argv, env = ["--model-kv-format", "Q8_0"], {"TRIO_SERVER_MODEL_FLASH_ATTENTION": "off"}
    assert refused(*argv, env=env) == (
        "`--model-kv-format`: `q8_0` needs flash attention, which `TRIO_SERVER_MODEL_FLASH_ATTENTION` turns off"
    )
    assert settings(*argv).model.kv_format == "q8_0"
    assert settings(*argv, "--model-flash-attention", "on", env=env).model.flash_attention == "on"
    assert settings("--model-kv-format", "bf16", env=env).model.flash_attention == "off"


def test_a_secret_is_in_no_refusal() -> None:
    for key in ("hunter2 hunter2", "hunter2\N{SNOWMAN}", "hunter2" * 100):
        assert "hunter2" not in refused("--server-api-key", key)
        assert "hunter2" not in refused(env={"TRIO_SERVER_SERVER_API_KEY": key})
    assert "hunter2" not in refused("--server-apikey=hunter2")


def test_a_refusal_is_one_line_whatever_the_value() -> None:
    assert refused("--server-bind", "a\nb\x1b[31m") == r"`--server-bind`: `a\nb\x1b[31m` is not host:port"
    assert len(refused("--server-bind", "x" * 10_000)) < 300


def test_a_warning_level_is_read_as_warn() -> None:
    assert settings("--log-level", "WARNING").log.level == "warn"
