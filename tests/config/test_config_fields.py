"""The table of declarations against the configuration page, and what a declaration may not be."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from trio_server.config import FAMILIES, FIELDS, GROUPS, Server, Settings, Spec
from trio_server.config.declaration import TEXT, Declaration, Group, declaration_of, declare
from trio_server.config.kinds import KEY, TOKENS
from trio_server.config.rules import Range

ALL = FAMILIES

# name: default, kind, rule, families, change (live, model or restart), scoped, shown
PAGE: dict[str, tuple[Any, str, str, tuple[str, ...], str, bool, bool]] = {
    "server.bind": ("127.0.0.1:8000", "address", "", ALL, "restart", False, True),
    "server.api_key": (None, "key|auto", "", ALL, "restart", False, False),
    "server.request_timeout": (30, "seconds", "1..3600", ALL, "live", False, True),
    "server.shutdown_grace": (10, "seconds", "0..3600", ALL, "live", False, True),
    "server.system_message_policy": ("merge", "policy", "one of merge, strict", ALL, "live", False, True),
    "server.developer_message_policy": (
        "inplace",
        "policy",
        "one of inplace, into-system, after-system, one-after-system, reject",
        ALL,
        "live",
        False,
        True,
    ),
    "server.cors_origins": ("*", "text", "", ALL, "live", False, True),
    "server.allowed_hosts": (None, "text", "", ALL, "restart", False, True),
    "server.max_connections": (1024, "count", "1..65536", ALL, "restart", False, True),
    "server.max_sockets": (256, "count", "1..65536", ALL, "restart", False, True),
    "server.write_timeout": (60, "seconds", "1..3600", ALL, "restart", False, True),
    "server.body_timeout": (60, "seconds", "1..3600", ALL, "restart", False, True),
    "model.id": (None, "text", "", ALL, "restart", False, True),
    "model.artifact": (None, "path", "", ALL, "restart", False, True),
    "model.chat_template": (None, "path", "", TEXT, "model", True, True),
    "model.max_context": (40960, "tokens", ">= 1", TEXT, "model", True, True),
    "model.default_max_tokens": (38912, "tokens", ">= 0", TEXT, "live", True, True),
    "model.kv_format": (
        "f16",
        "kv format",
        "one of f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0",
        TEXT,
        "model",
        True,
        True,
    ),
    "model.flash_attention": ("auto", "choice", "one of auto, on, off", TEXT, "model", True, True),
    "model.prefill_chunk": (1024, "tokens", "nonzero multiple of 128", TEXT, "model", True, True),
    "model.decode_share": (None, "percent", "0..99", TEXT, "live", True, True),
    "model.threads": (None, "count", "1..512", TEXT, "model", True, True),
    "model.threads_batch": (None, "count", "1..512", TEXT, "model", True, True),
    "model.mmap": (True, "bool", "", TEXT, "model", True, True),
    "model.mlock": (False, "bool", "", TEXT, "model", True, True),
    "vram.gpu_layers": ("auto", "layers", "0..1024", TEXT, "model", True, True),
    "reuse.prompt": (True, "bool", "", TEXT, "model", True, True),
    "spec.decode_lanes": (None, "lanes", "1..64", TEXT, "model", True, True),
    "log.level": ("info", "choice", "one of error, warn, info, debug, trace", ALL, "live", False, True),
    "log.format": ("auto", "choice", "one of auto, pretty, json", ALL, "restart", False, True),
    "log.path": (None, "path", "", ALL, "restart", False, True),
    "log.requests": (True, "bool", "", ALL, "live", False, True),
}


def test_the_table_has_the_page_s_fields_in_its_order() -> None:
    assert [declaration.dotted for declaration in FIELDS] == list(PAGE)


@pytest.mark.parametrize("declaration", FIELDS, ids=lambda d: d.dotted)
def test_a_declaration_says_what_the_page_says(declaration: Declaration) -> None:
    default, kind, rule, families, change, scoped, shown = PAGE[declaration.dotted]
    assert declaration.default == default
    assert type(declaration.default) is type(default)
    assert declaration.kind.name == kind
    assert declaration.rule_text == rule
    assert declaration.families == families
    assert declaration.patchable == (change != "restart")
    assert declaration.reloads == ("model" if change == "model" else None)
    assert declaration.reload_required == (change == "model")
    assert declaration.scoped == scoped
    assert declaration.visible == shown
    assert declaration.secret == (declaration.dotted == "server.api_key")


@pytest.mark.parametrize("declaration", FIELDS, ids=lambda d: d.dotted)
def test_a_description_is_one_sentence(declaration: Declaration) -> None:
    assert re.fullmatch(r"\S.*[^.]\.", declaration.description)
    assert ". " not in declaration.description


def test_spellings_follow_from_the_name() -> None:
    [declaration] = [d for d in FIELDS if d.dotted == "model.max_context"]
    assert declaration.flag == "--model-max-context"
    assert declaration.env == "TRIO_SERVER_MODEL_MAX_CONTEXT"
    assert declaration.scoped_flags == ("--dense-model-max-context", "--moe-model-max-context")


def test_the_document_of_a_field_is_the_page_s_sample() -> None:
    samples = {declaration.dotted: declaration.document() for declaration in FIELDS}
    assert samples["model.max_context"] == {
        "name": "model.max_context",
        "group": "model",
        "field": "max_context",
        "flag": "--model-max-context",
        "env": "TRIO_SERVER_MODEL_MAX_CONTEXT",
        "file_key": "model.max_context",
        "kind": "tokens",
        "default": 40960,
        "rule": ">= 1",
        "constraint": {"type": "range", "min": 1, "max": None},
        "families": ["dense", "moe"],
        "scoped": True,
        "scoped_flags": ["--dense-model-max-context", "--moe-model-max-context"],
        "patchable": True,
        "reload_required": True,
        "reloads": "model",
        "description": "The most prompt and generation tokens one request may hold.",
    }
    assert samples["server.bind"] == {
        "name": "server.bind",
        "group": "server",
        "field": "bind",
        "flag": "--server-bind",
        "env": "TRIO_SERVER_SERVER_BIND",
        "file_key": "server.bind",
        "kind": "address",
        "default": "127.0.0.1:8000",
        "rule": "",
        "constraint": None,
        "families": ["dense", "moe", "diffusion", "whisper"],
        "scoped": False,
        "scoped_flags": [],
        "patchable": False,
        "reload_required": False,
        "reloads": None,
        "description": "The API's listener.",
    }
    assert samples["model.prefill_chunk"]["description"] == "Prompt tokens fed to one decode call."
    assert samples["model.prefill_chunk"]["constraint"] == {"type": "multiple_of", "step": 128}


def test_no_group_is_named_like_a_family() -> None:
    assert not {group.name for group in GROUPS} & set(FAMILIES)


def test_spellings_are_unique() -> None:
    flags = [flag for d in FIELDS for flag in (d.flag, *d.scoped_flags)]
    assert len(set(flags)) == len(flags)
    assert len({d.env for d in FIELDS}) == len(FIELDS)


def test_defaults_are_the_settings_without_arguments() -> None:
    settings = Settings()
    for declaration in FIELDS:
        assert getattr(getattr(settings, declaration.group), declaration.name) == declaration.default
    assert settings.explicit == frozenset()
    assert settings.spelling("server.bind") == "--server-bind"


def test_settings_are_frozen_and_replaced_whole() -> None:
    settings = Settings(spec=Spec(decode_lanes=4))
    assert settings.spec.decode_lanes == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.server.bind = "x"  # type: ignore[misc]
    changed = dataclasses.replace(settings, server=dataclasses.replace(settings.server, request_timeout=5))
    assert (changed.server.request_timeout, settings.server.request_timeout) == (5, 30)
    assert Settings() == Settings()
    assert hash(Settings()) == hash(Settings())


def test_a_repr_names_every_field_and_no_secret() -> None:
    settings = Settings(server=Server(api_key="hunter2hunter2hunter2"))
    shown = repr(settings)
    assert "hunter2" not in shown
    assert "hunter2" not in str(settings.server)
    assert "api_key=(set, not shown)" in shown
    assert "api_key=None" in repr(Settings())
    for declaration in FIELDS:
        assert f"{declaration.name}=" in shown


def test_a_group_without_our_repr_still_hides_its_secret() -> None:
    @dataclasses.dataclass(frozen=True)
    class Careless(Group):
        key: str | None = declare(kind=KEY, default=None, secret=True, description="A key.")

    assert "hunter2" not in repr(Careless("hunter2"))


def test_a_visible_secret_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match="secret field cannot be visible"):
        declare(kind=KEY, default=None, secret=True, visible=True, description="A key.")


def test_a_default_that_breaks_its_rule_is_refused_when_it_is_declared() -> None:
    with pytest.raises(TypeError, match="0 is below 1"):
        declare(kind=TOKENS, default=0, rule=Range(1), description="Tokens.")


def test_what_is_left_out_makes_a_field_less_exposed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Bare(Group):
        tokens: int = declare(kind=TOKENS, default=1, description="Tokens.")

    bare = declaration_of(dataclasses.fields(Bare)[0])
    assert not bare.visible
    assert not bare.patchable
    assert not bare.scoped
    assert bare.reloads is None
    assert bare.families == FAMILIES


def test_a_group_holds_declared_fields_only() -> None:
    @dataclasses.dataclass(frozen=True)
    class Odd(Group):
        tokens: int = 1

    with pytest.raises(TypeError, match="tokens was not made by declare"):
        declaration_of(dataclasses.fields(Odd)[0])
