"""Group `log`: what is written about the server's life, how and where."""

from __future__ import annotations

from dataclasses import dataclass

from trio_server.config.declaration import Group, declare
from trio_server.config.kinds import BOOL, CHOICE, LEVEL, PATH_WRITABLE
from trio_server.config.rules import OneOf


@dataclass(frozen=True, slots=True, repr=False)
class Log(Group):
    level: str = declare(
        kind=LEVEL,
        default="info",
        rule=OneOf("error", "warn", "info", "debug", "trace"),
        visible=True,
        patchable=True,
        description="The least severe line written.",
    )
    format: str = declare(
        kind=CHOICE,
        default="auto",
        rule=OneOf("auto", "pretty", "json"),
        visible=True,
        description="`json`: one object a line.",
        detail="`auto`: pretty on a terminal, JSON otherwise.",
    )
    path: str | None = declare(
        kind=PATH_WRITABLE,
        default=None,
        visible=True,
        description="Where lines go.",
        detail="Unset: standard output.",
    )
    requests: bool = declare(
        kind=BOOL,
        default=True,
        visible=True,
        patchable=True,
        description="One line per finished request: id, route, status, model, tokens, times.",
        detail="Never a prompt, an answer, a header or a key.",
    )
