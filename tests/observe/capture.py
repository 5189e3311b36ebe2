"""The log, captured: run it into a file, then read what was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trio_server.observe import log
from trio_server.observe.log import LogOptions

Lines = list[dict[str, Any]]


@contextmanager
def written(folder: Path, **options: Any) -> Iterator[Lines]:
    """Run the log as JSON into a file; the list is filled when the block has been left."""
    path = folder / "captured.log"
    path.unlink(missing_ok=True)
    lines: Lines = []
    with log.running(LogOptions(format="json", path=str(path), **options)):
        yield lines
    lines += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
