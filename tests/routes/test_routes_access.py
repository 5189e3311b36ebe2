"""Who may use the API: the key, CORS, and the check against rebinding. Sections 4 and 5 of the chat page."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_server.routes import access
from trio_server.wire.errors import ApiError

KEY = "sk-trio-" + "0123456789abcdef" * 4


def refusal(headers: list[str], expected: str = KEY) -> ApiError:
    with pytest.raises(ApiError) as caught:
        access.check_key(expected, headers)
    return caught.value


# The key


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
@pytest.mark.parametrize("layout", ["{} {}", "  {}   {}  ", "{} \t{}\t"])
def test_the_key_is_taken(scheme: str, layout: str) -> None:
    access.check_key(KEY, [layout.format(scheme, KEY)])


@pytest.mark.parametrize(
    ("headers", "missing"),
    [
        ([], True),
        ([""], True),
        ([" "], True),
        ([KEY], True),  # the bare key
        (["Bearer"], True),
        (["Bearer "], True),
        (["Bearer   \t"], True),
        ([f"Bearer\t{KEY}"], True),
        (["Basic dXNlcjpwYXNz"], True),
        ([f"Basic {KEY}"], True),
        ([f"Token {KEY}"], True),
        ([f"Bearer: {KEY}"], True),
        ([f'Bearer "{KEY}"'], False),
        (["Bearer wrong"], False),
        ([f"Bearer {KEY}x"], False),
        ([f"Bearer {KEY[:-1]}"], False),
        ([f"Bearer {KEY.upper()}"], False),
        ([f"Bearer {KEY} {KEY}"], False),
        ([f"Bearer {KEY}, Bearer {KEY}"], False),
        ([f"Bearer Bearer {KEY}"], False),
        (["Bearer \xe9\xff\u20ac"], False),
        (["Bearer \udc80 \ud800"], False),
    ],
)
def test_each_refused_form(headers: list[str], missing: bool) -> None:
    error = refusal(headers)
    assert (error.status, error.code.code, error.code.type, error.param) == (
        401,
        "invalid_api_key",
        "invalid_request_error",
        None,
    )
    assert ("WWW-Authenticate", "Bearer") in error.headers()
    if missing:
        assert "Authorization: Bearer" in error.message
    else:
        assert error.message == "incorrect API key provided"
    assert KEY not in error.message


@pytest.mark.parametrize("second", [f"Bearer {KEY}", "Bearer wrong", ""])
def test_two_headers_are_refused_whatever_they_say(second: str) -> None:
    for headers in ([f"Bearer {KEY}", second], [second, f"Bearer {KEY}"]):
        assert "more than one" in refusal(headers).message


@given(st.text(), st.text(min_size=1))
def test_no_header_raises_anything_but_the_refusal(header: str, expected: str) -> None:
    try:
        access.check_key(expected, [header])
    except ApiError as error:
        refused = error.code.code
    else:
        refused = ""
    scheme, _, credential = header.strip().partition(" ")
    same = scheme.lower() == "bearer" and bool(credential.strip()) and credential.strip() == expected
    assert refused == ("" if same else "invalid_api_key")


def test_the_comparison_is_of_digests_in_constant_time() -> None:
    source = inspect.getsource(access.check_key)
    assert "hmac.compare_digest(_digest(" in source
    assert len(access._digest("a")) == len(access._digest("é" * 1000)) == 32


# CORS


def headers_of(pairs: list[tuple[str, str]]) -> dict[str, str]:
    made = dict(pairs)
    assert len(made) == len(pairs)
    return made


@pytest.mark.parametrize("origin", [None, "https://a.example", "null"])
def test_every_origin_by_default(origin: str | None) -> None:
    assert headers_of(access.cors_headers("*", origin)) == {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Expose-Headers": "Retry-After, X-Request-Id",
    }


@pytest.mark.parametrize(
    ("setting", "origin", "allowed"),
    [
        ("https://a.example", "https://a.example", "https://a.example"),
        ("https://a.example,https://b.example:8443", "https://b.example:8443", "https://b.example:8443"),
        ("https://A.example", "https://a.EXAMPLE", "https://a.EXAMPLE"),
        ("https://a.example", "http://a.example", None),
        ("https://a.example", "https://a.example.evil", None),
        ("https://a.example", "https://evil/https://a.example", None),
        ("https://a.example", "null", None),
        ("https://a.example", None, None),
        ("none", "https://a.example", None),
        (" None ", "none", None),
    ],
)
def test_a_list_of_origins(setting: str, origin: str | None, allowed: str | None) -> None:
    headers = headers_of(access.cors_headers(setting, origin))
    assert headers.get("Access-Control-Allow-Origin") == allowed
    assert ("Access-Control-Expose-Headers" in headers) == (allowed is not None)
    assert headers["Vary"] == "Origin"
    assert "Access-Control-Allow-Credentials" not in headers


def allowed_headers(*requested: str) -> list[str]:
    return headers_of(access.preflight_headers(requested, private_network=False))["Access-Control-Allow-Headers"].split(
        ", "
    )


def test_a_preflight() -> None:
    assert headers_of(access.preflight_headers([], private_network=False)) == {
        "Access-Control-Allow-Methods": "GET, POST, PATCH, OPTIONS",
        "Access-Control-Allow-Headers": "Content-Type, Authorization",
        "Access-Control-Max-Age": "600",
        "Vary": "Access-Control-Request-Headers",
    }
    private = headers_of(access.preflight_headers([], private_network=True))
    assert private["Access-Control-Allow-Private-Network"] == "true"


def test_the_headers_of_browser_sdks_are_allowed() -> None:
    asked = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,openai-beta"
    assert allowed_headers(asked) == [
        "Content-Type",
        "Authorization",
        "x-stainless-arch",
        "x-stainless-lang",
        "x-stainless-os",
        "openai-beta",
    ]
    assert allowed_headers("a, b", "B ,\tc") == ["Content-Type", "Authorization", "a", "b", "c"]


@given(st.lists(st.text(alphabet=st.characters(max_codepoint=255)), max_size=4))
def test_only_valid_names_are_echoed(requested: list[str]) -> None:
    for name in allowed_headers(*requested):
        assert access._TOKEN.fullmatch(name)
        assert name.isascii()
    assert len({name.lower() for name in allowed_headers(*requested)}) == len(allowed_headers(*requested))


@pytest.mark.parametrize("name", ["a b", "a:b", "a\r\nX-Evil", "", "é", "(x)", "x" * 129, "a\x00"])
def test_an_invalid_name_is_left_out(name: str) -> None:
    assert allowed_headers(name, "fine") == ["Content-Type", "Authorization", "fine"]


# The Host header


@pytest.mark.parametrize(
    "host",
    [
        "",
        ":8000",
        "localhost",
        "localhost:8000",
        "LOCALHOST:1",
        "localhost.",
        "app.localhost:8000",
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.1.2.3:99",
        "[::1]",
        "[::1]:8000",
        " localhost:8000 ",
    ],
)
def test_a_loopback_server_answers_to_loopback_names(host: str) -> None:
    access.check_host(host, "127.0.0.1:8000", None)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "notlocalhost",
        "192.168.1.5:8000",
        "0.0.0.0:8000",
        "[2001:db8::1]:8000",
        "2130706433",
        "0x7f000001",
        "a@localhost",
        "evil.example, localhost",
        "\xe9vil",
    ],
)
def test_and_to_no_other(host: str) -> None:
    with pytest.raises(ApiError) as caught:
        access.check_host(host, "127.0.0.1:8000", None)
    assert (caught.value.status, caught.value.code.code) == (403, "host_refused")
    assert host.removesuffix(":8000") not in caught.value.message


def test_names_can_be_added() -> None:
    access.check_host("MyBox.lan:8000", "127.0.0.1:8000", "mybox.lan,other")
    access.check_host("other", "127.0.0.1:8000", "mybox.lan, other")
    access.check_host("anything.example", "127.0.0.1:8000", "*")
    access.check_host("my.name:8000", "my.name:8000", None)
    with pytest.raises(ApiError):
        access.check_host("mybox.lan.evil", "127.0.0.1:8000", "mybox.lan")


@given(st.text(max_size=30))
def test_no_host_raises_anything_but_the_refusal(host: str) -> None:
    try:
        access.check_host(host, "127.0.0.1:8000", "a,b")
    except ApiError as error:
        code = error.code.code
    else:
        code = "host_refused"
    assert code == "host_refused"
