"""Write the tables that the documentation takes from the code's own declarations.

    python scripts/make_docs.py            rewrite what is stale
    python scripts/make_docs.py --check    write nothing; exit 1 and name the pages when something is stale

A page has a pair of marker comments per section, and what stands between them belongs to this script. A further section
is one more line in `SECTIONS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the documentation of this tree, whatever version is installed

from trio_server.config.help import fields_markdown  # noqa: E402
from trio_server.observe.events import EVENTS  # noqa: E402
from trio_server.observe.formatters import SEVERITIES  # noqa: E402
from trio_server.wire.errors import CATALOGUE  # noqa: E402


def errors_markdown() -> str:
    """The error catalogue as a table, in its own order."""
    retry = {True: "yes", False: "no", None: "the client's own rule"}
    lines = ["| Code | Status | Type | Retry |", "|---|---|---|---|"]
    lines += [f"| `{row.code}` | {row.status} | `{row.type}` | {retry[row.retry]} |" for row in CATALOGUE.values()]
    return "\n".join(lines) + "\n"


def events_markdown() -> str:
    """Every log event as a table, in the order of its declaration."""
    lines = ["| Event | Level | Sentence | Attributes |", "|---|---|---|---|"]
    for event in EVENTS.values():
        attributes = " ".join(f"`{name}`" for name in event.attributes.values())
        lines.append(f"| `{event.name}` | {SEVERITIES[event.level][0]} | {event.body} | {attributes} |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Section:
    """A generated part of a page under `docs/`."""

    page: str
    name: str
    render: Callable[[], str]


SECTIONS = (
    Section("configuration.md", "fields", fields_markdown),
    Section("errors.md", "errors", errors_markdown),
    Section("logging.md", "events", events_markdown),
)


def with_section(text: str, section: Section) -> str:
    """The page's text with the section as it should be; `ValueError` when its markers are not there once, in order."""
    start, end = f"<!-- generated: {section.name} -->", f"<!-- end of generated: {section.name} -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"docs/{section.page} needs one `{start}` and one `{end}`")
    before, rest = text.split(start)
    _, marker, after = rest.partition(end)
    if not marker:
        raise ValueError(f"docs/{section.page}: `{end}` stands before `{start}`")
    return f"{before}{start}\n\n{section.render().strip()}\n\n{end}{after}"


def pages(docs: Path) -> dict[Path, tuple[str, str]]:
    """For each page: its text now, and its text as it should be."""
    found: dict[Path, tuple[str, str]] = {}
    for section in SECTIONS:
        path = docs / section.page
        old, new = found.get(path) or (path.read_text(encoding="utf-8"),) * 2
        found[path] = (old, with_section(new, section))
    return found


def main(words: list[str]) -> int:
    if words not in ([], ["--check"]):
        print("usage: make_docs.py [--check]", file=sys.stderr)
        return 2
    stale = {path: new for path, (old, new) in pages(ROOT / "docs").items() if old != new}
    for path, new in stale.items():
        print(f"{path.relative_to(ROOT)} {'is stale' if words else 'written'}")
        if not words:
            path.write_text(new, encoding="utf-8")
    return 1 if stale and words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
