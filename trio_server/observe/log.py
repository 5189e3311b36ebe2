"""The log: one structured stream, written by one thread behind a bounded queue.

`emit` may be called from any thread and never waits for I/O. `running` starts and ends the writing; without it events go
nowhere, which is what tests of other rooms want. The lines of libraries (hypercorn, quart, trio, llama.cpp) arrive in the
same stream. Section 6 of the observability page.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, TextIO

from trio_server.observe import events
from trio_server.observe.events import DEBUG, ERROR, INFO, TRACE, WARN, Event
from trio_server.observe.exceptions import LONGEST_MESSAGE, message_of, stacktrace_of
from trio_server.observe.formatters import Record, format_json, format_pretty
from trio_server.observe.redaction import RateLimitedByKey

__all__ = [
    "LogOptions",
    "RateLimitedByKey",
    "announce",
    "dependency",
    "emit",
    "emit_exception",
    "new_request_id",
    "request_id",
    "running",
    "set_level",
]

LEVELS: Final = {"trace": TRACE, "debug": DEBUG, "info": INFO, "warn": WARN, "warning": WARN, "error": ERROR}
QUEUE_RECORDS: Final = 8192
FLUSH_LIMIT_S: Final = 2.0

request_id: ContextVar[str | None] = ContextVar("trio_server_request_id", default=None)
"""The id of the request that this task serves: 32 hex digits, not all zero; also the trace id."""


def new_request_id() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """`format`: `json`, `pretty`, or `auto` (pretty on a terminal). `path`: a file instead of standard output."""

    level: str = "info"
    format: str = "auto"
    path: str | None = None
    requests: bool = True


class _Backlog:
    """The bounded queue: drops TRACE and DEBUG first, oldest first, then INFO; never WARN or ERROR.

    Invariant: without WARN and ERROR records it holds at most `limit`. A queue for each worth, so that a full backlog
    costs the caller no search; the numbers that records come in with give them their order back.
    """

    def __init__(self, limit: int = QUEUE_RECORDS) -> None:
        self._limit = limit
        self._queues: tuple[deque[tuple[int, Record]], ...] = (deque(), deque(), deque())
        self._number = 0
        self._changed = threading.Condition()
        self._closed = False
        self._dropped: dict[int, int] = {}

    def put(self, record: Record) -> None:
        worth = 0 if record.level <= DEBUG else 1 if record.level <= INFO else 2
        with self._changed:
            if sum(map(len, self._queues)) >= self._limit and not self._make_room(worth):
                self._count_dropped(record)
                return
            self._queues[worth].append((self._number, record))
            self._number += 1
            self._changed.notify()

    def _make_room(self, worth: int) -> bool:
        """Drop the oldest record of the least worth, unless that is worth more than the new one."""
        for droppable in self._queues[: min(worth, 1) + 1]:
            if droppable:
                self._count_dropped(droppable.popleft()[1])
                return True
        return worth == 2  # nothing but warnings and errors: those are kept beyond the limit

    def _count_dropped(self, record: Record) -> None:
        self._dropped[record.level] = self._dropped.get(record.level, 0) + 1

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self) -> tuple[list[Record], dict[int, int], bool]:
        """Everything queued, what was dropped since the last call, and whether this is the end. Waits without a timer."""
        with self._changed:
            while not any(self._queues) and not self._closed:
                self._changed.wait()
            records, dropped = [record for _, record in sorted(chain(*self._queues))], self._dropped
            for kept in self._queues:
                kept.clear()
            self._dropped = {}
            return records, dropped, self._closed


class _Writer:
    """The logging thread and its stream; none when standard output was closed before the start."""

    def __init__(self, options: LogOptions, stream: TextIO | None) -> None:
        self._stream = stream
        terminal = options.path is None and _is_terminal(stream)
        self.pretty = options.format == "pretty" or (options.format == "auto" and terminal)
        self._colour = terminal and "NO_COLOR" not in os.environ
        self._resource = {
            "service.name": "trio_server",
            "service.version": _version(),
            "service.instance.id": secrets.token_hex(8),
        }
        self.backlog = _Backlog()
        self._thread = threading.Thread(target=self._main, name="log", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        ended = False
        while not ended:
            records, dropped, ended = self.backlog.take()
            for level, count in dropped.items():
                severity = next(name for name, value in LEVELS.items() if value == level)
                records.append(
                    Record(
                        events.LOG_DROPPED.name,
                        events.LOG_DROPPED.level,
                        events.LOG_DROPPED.body,
                        {"count": count, "severity": severity},
                    )
                )
            self._write("".join(f"{self._format(record)}\n" for record in records))

    def _format(self, record: Record) -> str:
        try:
            return self._line(record)
        except Exception as error:  # noqa: BLE001 - one odd value must not end the log
            return self._line(replace(record, attributes={"exception.type": type(error).__qualname__}))

    def _line(self, record: Record) -> str:
        if self.pretty:
            return format_pretty(record, colour=self._colour)
        return format_json(record, self._resource)

    def _write(self, text: str) -> None:
        if self._stream is None or not text:
            return
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError as error:  # a terminal that is not UTF-8
                self._stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            self._stream.flush()
        except (OSError, ValueError):  # a closed standard output ends the log, not the server
            self._stream = None

    def close(self) -> None:
        self.backlog.close()
        self._thread.join(FLUSH_LIMIT_S)


_writer: _Writer | None = None
_threshold: int = ERROR + 1  # with no writer every level is disabled
_requests = True


def emit(event: Event, /, **attributes: Any) -> None:
    """Something happened. Only the attributes that `event` declares are taken; `TypeError` for another."""
    if event.level < _threshold or (event.about_requests and not _requests):
        return
    _put(event, attributes)


def _put(event: Event, attributes: dict[str, Any], *, level: int | None = None, body: str | None = None) -> None:
    names = event.attributes
    try:
        named = {names[key]: value for key, value in attributes.items()}
    except KeyError as error:
        raise TypeError(f"{event.name} has no attribute {error}") from None
    writer = _writer
    if writer is not None:
        writer.backlog.put(
            Record(event.name, level or event.level, event.body if body is None else body, named, request_id.get())
        )


def emit_exception(event: Event, error: BaseException, /, **attributes: Any) -> None:
    """An event with an exception: its type, its message (cut), its traceback without any local's value."""
    emit(
        event,
        exception_type=type(error).__qualname__,
        exception_message=message_of(error),
        exception_stacktrace=stacktrace_of(error),
        **attributes,
    )


def dependency(name: str, level: str, text: str) -> None:
    """A line of a library: its warnings and errors as such, the rest at debug or trace."""
    number = LEVELS.get(level, DEBUG)
    number = number if number >= WARN or number == TRACE else DEBUG
    if number >= _threshold:
        _put(events.DEPENDENCY_LOG, {"dependency_name": name}, level=number, body=text[: 4 * LONGEST_MESSAGE])


def set_level(level: str) -> None:
    """Change the least severe level written, while the log runs."""
    if _writer is not None:
        _apply_level(level)


def _apply_level(level: str) -> None:
    global _threshold
    _threshold = LEVELS[level.lower()]
    # What libraries say below a warning is debug here, and so not even made at other levels.
    logging.getLogger().setLevel(logging.DEBUG if _threshold <= DEBUG else logging.WARNING)


def announce(text: str) -> None:
    """A plain line outside the log: on standard output beside pretty logs, on standard error beside JSON."""
    stream: TextIO | None = sys.stdout if _writer is not None and _writer.pretty else sys.stderr
    if stream is None:
        return
    try:
        stream.write(text + "\n")
        stream.flush()
    except (OSError, ValueError):
        pass


class _Bridge(logging.Handler):
    """The standard library's records in our stream."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warn" if record.levelno >= logging.WARNING else "debug"
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a library's broken logging call must not end what it was doing
            text = f"a log line that cannot be formatted: {record.pathname}:{record.lineno}"
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__qualname__}: {message_of(record.exc_info[1])}"
        dependency(record.name, level, text)


@contextmanager
def running(options: LogOptions) -> Iterator[None]:
    """Write the log while the block runs, and flush it for at most two seconds at its end. Once at a time."""
    global _writer, _threshold, _requests
    stream: TextIO | None = sys.stdout
    if options.path is not None:
        stream = open(options.path, "a", encoding="utf-8")  # noqa: SIM115
    bridge, root = _Bridge(), logging.getLogger()
    before = root.level, root.handlers[:]
    _writer, _requests = _Writer(options, stream), options.requests
    root.handlers[:] = [bridge]
    _apply_level(options.level)
    try:
        yield
    finally:
        writer, _writer = _writer, None
        _threshold = ERROR + 1
        root.setLevel(before[0])
        root.handlers[:] = before[1]
        if writer is not None:
            writer.close()
        if options.path is not None and stream is not None:
            with suppress(OSError):  # a full disk ended the log long ago
                stream.close()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _version() -> str:
    from trio_server import __version__

    return __version__
