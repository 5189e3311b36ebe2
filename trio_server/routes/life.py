"""The life of the request being served: its id, its nursery and its place among the running ones.

`app.py` puts it into the ASGI scope at ingress; the routes of this package read it from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import trio
from quart import request

from trio_server.admission import Work

KEY = "trio_server.life"


@dataclass(frozen=True, slots=True)
class RequestLife:
    """`id` is 32 hex digits. A disconnect of the client cancels `nursery`, and so does the end of the answer."""

    id: str
    nursery: trio.Nursery
    work: Work
    started_s: float


def current() -> RequestLife:
    """The life of the request that this task serves."""
    life: RequestLife = cast(dict[str, Any], request.scope)[KEY]
    return life
