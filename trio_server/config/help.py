"""The texts made from the declarations: `help`, `help --fields` and the table in `docs/configuration.md`.

Everything here returns a string. No value that an operator set is in any of them, only defaults.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from trio_server import __version__
from trio_server.config.declaration import FAMILIES, TEXT, Declaration
from trio_server.config.fields import FIELDS, GROUPS

_WIDTH = 100

_USAGE = """\
trio-server {version}: an OpenAI-compatible inference server

usage: trio-server [field flags]                              serve
       trio-server help [--fields [--format text|json]]       this text, or every field with every attribute
       trio-server version                                    the version
       trio-server health [--url URL] [field flags]           ask a running server; exit status 0 when it is ready

A flag beats its environment variable, which beats the default. An empty value is an unset one.
`--flag value` and `--flag=value` are the same; a bool's flag may stand bare. Given twice, the last counts.
"""


def usage() -> str:
    return "\n".join([_USAGE.format(version=__version__), *_usage_of_groups()])


def _usage_of_groups() -> Iterator[str]:
    for group in GROUPS:
        yield f"{group.name}: {group.description}"
        yield ""
        for declaration in group.fields:
            facts = [f"env {declaration.env}", f"default {declaration.default_text}", declaration.rule_note]
            yield f"  {declaration.flag} <{declaration.kind.name}>"
            yield from _indented("; ".join(filter(None, facts)))
            yield from _indented(declaration.description)
            yield ""


def _indented(text: str) -> list[str]:
    indent = " " * 6
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def fields_json() -> str:
    import json

    return json.dumps([{**d.document(), "visible": d.visible} for d in FIELDS], indent=2) + "\n"


def fields_text() -> str:
    return "\n".join(_fields_text_of(d) for d in FIELDS)


def _fields_text_of(declaration: Declaration) -> str:
    facts = {
        "flag": declaration.flag,
        "env": declaration.env,
        "kind": declaration.kind.name,
        "default": declaration.default_text,
        "rule": declaration.rule_note or "none",
        "families": ", ".join(declaration.families),
        "family flags": ", ".join(declaration.scoped_flags) or "none",
        "change": change(declaration),
        "shown": _yes(declaration.visible),
        "secret": _yes(declaration.secret),
    }
    lines = [declaration.dotted, *_indented(" ".join(filter(None, [declaration.description, declaration.detail])))]
    lines += [f"      {name}: {text}" for name, text in facts.items()]
    return "\n".join(lines) + "\n"


def change(declaration: Declaration) -> str:
    """How a field changes while the server runs, in the page's words."""
    if not declaration.patchable:
        return "restart"
    if declaration.reloads is None:
        return "live"
    return "reload" if declaration.reloads == "model" else f"reload ({declaration.reloads})"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _families(declaration: Declaration) -> str:
    if declaration.families == FAMILIES:
        return "all"
    return "text" if declaration.families == TEXT else ", ".join(declaration.families)


def fields_markdown() -> str:
    """A table per group, for the documentation."""
    lines: list[str] = []
    for group in GROUPS:
        lines += [
            f"### `{group.name}`",
            "",
            group.description,
            "",
            "| Flag | Environment | Default | Kind; rule | Families | Change | Shown | Meaning |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [_markdown_row(declaration) for declaration in group.fields]
        lines.append("")
    return "\n".join(lines)


def _markdown_row(declaration: Declaration) -> str:
    default = declaration.default_text
    cells = [
        f"`{declaration.flag}`",
        f"`{declaration.env}`",
        default if declaration.default is None else f"`{default}`",
        "; ".join(filter(None, [declaration.kind.name, declaration.rule_note])),
        _families(declaration),
        change(declaration),
        _yes(declaration.visible),
        " ".join(filter(None, [declaration.description, declaration.detail])),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
