"""`help`, `version` and `health` as outcomes, and the documentation's tables against the declarations."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.config.disk import EMPTY, printed
from trio_server import __version__
from trio_server.config import FIELDS, Declaration, Health, resolve

ROOT = Path(__file__).resolve().parents[2]

SECRET = {"TRIO_SERVER_SERVER_API_KEY": "hunter2hunter2hunter2"}


@pytest.mark.parametrize(
    "argv",
    [
        ["help"],
        ["--help"],
        ["-h"],
        ["--nope", "--help"],
        ["--server-bind", "8000", "-h"],
        ["serve", "--help"],
        ["--model-id", "--help"],
        ["--version", "--help"],
        ["help", "--fields", "--help"],
        ["health", "--help"],
    ],
)
def test_help_wins_anywhere(argv: list[str]) -> None:
    assert printed(*argv, env={"TRIO_SERVER_SERVER_BIND": "nonsense"}) == printed("help")


@pytest.mark.parametrize("argv", [["version"], ["--version"], ["-V"], ["--nope", "-V"], ["serve", "--version"]])
def test_version_wins_anywhere(argv: list[str]) -> None:
    assert printed(*argv) == f"trio-server {__version__}\n"


@pytest.mark.parametrize("declaration", FIELDS, ids=lambda d: d.dotted)
def test_help_has_each_field_once(declaration: Declaration) -> None:
    text = printed("help")
    for spelling in (declaration.flag, declaration.env):
        assert len(re.findall(rf"(?<![\w-]){spelling}(?![\w-])", text)) == 1
    entry = " ".join(text.partition(f"  {declaration.flag} <")[2].partition("\n\n")[0].split())
    assert entry.startswith(f"{declaration.kind.name}> env {declaration.env}; default {declaration.default_text}")
    assert declaration.rule_text in entry
    assert entry.endswith(declaration.description)


def test_help_is_readable_in_a_terminal() -> None:
    text = printed("help")
    assert max(map(len, text.splitlines())) <= 120
    assert text.isascii()
    assert text.endswith("\n")


def test_help_shows_the_words_and_bounds() -> None:
    assert "default auto; `auto`, `all` or 0..1024" in printed("help")


def test_fields_as_json_are_the_page_s_objects_with_visible() -> None:
    fields = json.loads(printed("help", "--fields", "--format", "json"))
    assert fields == [{**declaration.document(), "visible": declaration.visible} for declaration in FIELDS]
    assert [field["name"] for field in fields if not field["visible"]] == ["server.api_key"]


def test_fields_as_text_have_every_attribute() -> None:
    text = printed("help", "--fields")
    assert text == printed("help", "--fields", "--format", "text") == printed("help", "--format=text", "--fields")
    entries = text.split("\n\n")
    assert len(entries) == len(FIELDS)
    for declaration, entry in zip(FIELDS, entries, strict=True):
        assert entry.startswith(declaration.dotted + "\n")
        for label in (
            "flag",
            "env",
            "kind",
            "default",
            "rule",
            "families",
            "family flags",
            "change",
            "shown",
            "secret",
        ):
            assert entry.count(f"\n      {label}: ") == 1


@pytest.mark.parametrize("argv", [["help"], ["help", "--fields"], ["help", "--fields", "--format", "json"]])
def test_no_help_shows_a_value_in_force(argv: list[str]) -> None:
    assert printed(*argv, env=SECRET) == printed(*argv)


@pytest.mark.parametrize(
    ("argv", "url"),
    [
        ([], "http://127.0.0.1:8000/readyz"),
        (["--server-bind", "0.0.0.0:9000"], "http://127.0.0.1:9000/readyz"),
        (["--server-bind", "[::]:9000"], "http://[::1]:9000/readyz"),
        (["--server-bind", "[fd00::7]:9000"], "http://[fd00::7]:9000/readyz"),
        (["--server-bind", "example.net:9000"], "http://example.net:9000/readyz"),
        (["--url", "http://example.net:1"], "http://example.net:1/readyz"),
        (["--url=https://example.net/"], "https://example.net/readyz"),
        (["--url", "http://example.net/healthz"], "http://example.net/healthz"),
        (["--url", ""], "http://127.0.0.1:8000/readyz"),
    ],
)
def test_health_asks_where_the_server_listens(argv: list[str], url: str) -> None:
    assert resolve(["health", *argv], {}, EMPTY) == Health(url)


def test_health_reads_the_environment_unless_a_url_is_given() -> None:
    env = {"TRIO_SERVER_SERVER_BIND": "127.0.0.1:7"}
    assert resolve(["health"], env, EMPTY) == Health("http://127.0.0.1:7/readyz")
    env = {"TRIO_SERVER_SERVER_BIND": "nonsense"}
    assert resolve(["health", "--url", "http://a"], env, EMPTY) == Health("http://a/readyz")


@pytest.fixture(scope="module")
def make_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_docs"] = module
    spec.loader.exec_module(module)
    return module


def test_the_documentation_is_not_stale(make_docs: ModuleType) -> None:
    stale = [path.name for path, (old, new) in make_docs.pages(ROOT / "docs").items() if old != new]
    assert stale == [], "run scripts/make_docs.py"


@pytest.mark.parametrize("text", ["", "<!-- generated: fields -->", "<!-- end of generated: fields -->\n" * 2])
def test_a_page_without_its_markers_is_an_error(make_docs: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match=r"docs/configuration\.md needs one"):
        make_docs.with_section(text, make_docs.SECTIONS[0])


def test_a_section_is_replaced_and_the_rest_kept(make_docs: ModuleType) -> None:
    section = make_docs.Section("page.md", "x", lambda: "new\n")
    page = "before\n<!-- generated: x -->\nold\n<!-- end of generated: x -->\nafter\n"
    made = make_docs.with_section(page, section)
    assert made == "before\n<!-- generated: x -->\n\nnew\n\n<!-- end of generated: x -->\nafter\n"
    assert make_docs.with_section(made, section) == made
