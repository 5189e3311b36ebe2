"""Kinds and rules: what is read, what is shown, and what is refused in which words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.disk import EMPTY, Names
from trio_server.config import FIELDS, BadValue, Declaration, comma_list, is_loopback, split_address
from trio_server.config.kinds import (
    ADDRESS,
    BOOL,
    COUNT,
    HOSTS,
    KEY,
    LAYERS,
    LEVEL,
    NAME,
    ORIGINS,
    PATH_FILE,
    PATH_THERE,
    PATH_WRITABLE,
    TOKENS,
    escaped,
)
from trio_server.config.rules import MultipleOf, OneOf, Range

EVERY_KIND = {declaration.kind.name: declaration.kind for declaration in FIELDS}


@given(st.integers(-(10**39), 10**39))
def test_whole_numbers_read_what_they_show(number: int) -> None:
    for kind in (TOKENS, COUNT):
        assert kind.parse(kind.show_text(number)) == number
        assert kind.show(number) == number
    assert LAYERS.parse(LAYERS.show_text(number)) == number


@given(st.text())
def test_whole_numbers_read_digits_and_nothing_else(text: str) -> None:
    text = text.strip()
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 40:
        assert COUNT.parse(text) == int(text)
    else:
        with pytest.raises(BadValue):
            COUNT.parse(text)


@pytest.mark.parametrize("text", ["1_000", "1.0", "1e3", "0x10", "٣", "+1", "- 1", "9" * 41, "--1", ""])
def test_whole_numbers_refuse(text: str) -> None:
    with pytest.raises(BadValue, match="is not a whole number"):
        COUNT.parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("ON", True), ("1", True), ("True", True), ("false", False), ("Off", False), ("0", False)],
)
def test_bool_reads(text: str, value: bool) -> None:
    assert BOOL.parse(text) is value
    assert BOOL.parse(BOOL.show_text(value)) is value
    assert BOOL.show(value) is value


@pytest.mark.parametrize("text", ["yes", "no", "maybe", "2", "t"])
def test_bool_refuses(text: str) -> None:
    with pytest.raises(BadValue, match="is not true or false"):
        BOOL.parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("127.0.0.1:8000", "127.0.0.1:8000"),
        ("localhost:0", "localhost:0"),
        ("[::1]:8000", "[::1]:8000"),
        ("[fe80::1%eth0]:65535", "[fe80::1%eth0]:65535"),
        ("0.0.0.0:08000", "0.0.0.0:8000"),
    ],
)
def test_address_reads(text: str, value: str) -> None:
    assert ADDRESS.parse(text) == value
    assert ADDRESS.parse(ADDRESS.show_text(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "8000",
        "localhost",
        ":8000",
        "::1:8000",
        "[::1]",
        "[nonsense]:1",
        "[]:1",
        "host:port",
        "host:-1",
        "a b:1",
        "http://host:1",
        "host:٣",
        "host:1/",
        "*:1",
    ],
)
def test_address_refuses(text: str) -> None:
    with pytest.raises(BadValue, match=r"is not host:port$"):
        ADDRESS.parse(text)


def test_address_bounds_the_port() -> None:
    with pytest.raises(BadValue, match=r"is not host:port with a port in 0\.\.65535"):
        ADDRESS.parse("host:65536")


@given(st.ip_addresses(), st.integers(0, 65535))
def test_address_splits_into_what_it_was_made_of(host: Any, port: int) -> None:
    spelled = f"[{host}]" if host.version == 6 else f"{host}"
    assert split_address(ADDRESS.parse(f"{spelled}:{port}")) == (str(host), port)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("LocalHost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("example.net:1", False),
    ],
)
def test_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def test_layers_read_words_and_numbers() -> None:
    assert [LAYERS.parse(text) for text in ("auto", "ALL", "0", "12")] == ["auto", "all", 0, 12]
    with pytest.raises(BadValue, match="`some` is not auto, all or a whole number"):
        LAYERS.parse("some")


def test_level_reads_any_case_and_the_long_word() -> None:
    assert [LEVEL.parse(text) for text in ("WARNING", "warn", "Info")] == ["warn", "warn", "info"]


@pytest.mark.parametrize("key", ["k", "sk-trio-0123456789abcdef", "~!@#$%^&*()=,;:'\"", "x" * 512])
def test_key_reads_and_never_shows(key: str) -> None:
    assert KEY.parse(key) == key
    assert key not in KEY.show_text(key) or key == "k"
    assert KEY.show(key) == "(set, not shown)"


@pytest.mark.parametrize("key", ["hun ter2", "hunter2\t", "hünter2", "hunter2\x7f", "hunter2" * 80])
def test_key_refuses_without_repeating(key: str) -> None:
    with pytest.raises(BadValue) as caught:
        KEY.parse(key)
    assert "ter2" not in str(caught.value)


def test_key_auto_in_any_case_is_the_word() -> None:
    assert [KEY.parse(text) for text in ("auto", "AUTO", "automatic")] == ["auto", "auto", "automatic"]


@pytest.mark.parametrize(
    "text", ["*", "none", "https://a.example", "http://localhost:3000, app://local,http://[::1]:1"]
)
def test_origins_read(text: str) -> None:
    assert ORIGINS.parse(text) == text


@pytest.mark.parametrize(
    "text", ["a.example", "https://a.example/", "https://*.example", "https://a.example,", "*,none"]
)
def test_origins_refuse(text: str) -> None:
    with pytest.raises(BadValue, match="is not `\\*`, `none` or a comma list of origins"):
        ORIGINS.parse(text)


@pytest.mark.parametrize("text", ["*", "a.example", "a.example, localhost", "[::1]", "::1"])
def test_hosts_read(text: str) -> None:
    assert HOSTS.parse(text) == text


@pytest.mark.parametrize("text", ["a.example:80", "http://a", "a,,b", "*.example", "a b"])
def test_hosts_refuse(text: str) -> None:
    with pytest.raises(BadValue, match="is not `\\*` or a comma list of host names"):
        HOSTS.parse(text)


def test_comma_list_trims() -> None:
    assert comma_list("a, b ,c") == ("a", "b", "c")


def test_name_has_no_blanks() -> None:
    assert NAME.parse("org/model:latest") == "org/model:latest"
    for text in ("a b", "a\tb", "a\u00a0b"):
        with pytest.raises(BadValue, match="is not one word without blanks"):
            NAME.parse(text)


def test_paths_ask_the_disk() -> None:
    disk = Names(files=("a.gguf", "logs/old.log"), folders=("logs", "folder", "."))
    for kind, good, bad in [
        (PATH_THERE, ("a.gguf", "folder"), {"gone": "gone does not exist"}),
        (PATH_FILE, ("a.gguf",), {"gone": "gone does not exist", "folder": "folder is a folder, not a file"}),
        (
            PATH_WRITABLE,
            ("new.log", "logs/new.log", "logs/old.log"),
            {
                "folder": "folder is a folder, not a file",
                "gone/x.log": "gone/x.log cannot be written: there is no folder gone",
            },
        ),
    ]:
        for path in good:
            kind.check_disk(kind.parse(path), disk)
        for path, reason in bad.items():
            with pytest.raises(BadValue) as caught:
                kind.check_disk(kind.parse(path), disk)
            assert str(caught.value) == reason


@given(st.text(max_size=400))
def test_a_quoted_value_is_one_printable_line(text: str) -> None:
    assert escaped(text).isprintable()
    assert len(escaped(text)) <= 10 * 200 + 3


def test_a_byte_that_is_no_text_is_escaped() -> None:
    assert escaped("a\udcff\nb") == "a\\udcff\\nb"


@pytest.mark.parametrize(
    ("rule", "text", "constraint"),
    [
        (Range(1, 3), "1..3", {"type": "range", "min": 1, "max": 3}),
        (Range(1), ">= 1", {"type": "range", "min": 1, "max": None}),
        (Range(max=3), "<= 3", {"type": "range", "min": None, "max": 3}),
        (MultipleOf(128), "nonzero multiple of 128", {"type": "multiple_of", "step": 128}),
        (OneOf("a", "b"), "one of a, b", {"type": "one_of", "values": ["a", "b"]}),
    ],
)
def test_rules_say_what_they_are(rule: Any, text: str, constraint: dict[str, Any]) -> None:
    assert rule.text == text
    assert rule.constraint == constraint


@given(st.integers(), st.integers(), st.integers())
def test_range_refuses_what_is_outside(low: int, high: int, value: int) -> None:
    assert (Range(low, high).fault(value, "") is None) == (low <= value <= high)
    assert (Range(low).fault(value, "") is None) == (low <= value)
    assert (Range(max=high).fault(value, "") is None) == (value <= high)


def test_range_names_the_end_that_is_broken() -> None:
    assert Range(1).fault(0, "0") == "0 is below 1"
    assert Range(max=3).fault(4, "4") == "4 is above 3"
    assert Range(1, 3).fault(4, "4") == "4 is not in 1..3"
    assert Range(0, 3).fault("auto", "auto") is None


@given(st.integers(), st.integers(1, 10_000))
def test_multiple_refuses_zero_and_below(value: int, step: int) -> None:
    assert (MultipleOf(step).fault(value, "") is None) == (value > 0 and value % step == 0)


@pytest.mark.parametrize("declaration", FIELDS, ids=lambda d: d.dotted)
def test_every_default_reads_back(declaration: Declaration) -> None:
    if declaration.default is not None:
        assert declaration.read(declaration.default_text, EMPTY) == declaration.default


def test_unset_is_shown_as_unset() -> None:
    assert {kind.show_text(None) for kind in EVERY_KIND.values()} == {"unset"}
