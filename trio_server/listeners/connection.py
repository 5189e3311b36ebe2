"""One connection: its socket, its clock, its tasks. Takes the place of Hypercorn's trio `TCPServer`.

Theory of operation. One task reads; each request runs in a task of its own (`tasks.py`); all of them live in one nursery,
so that whatever ends the connection ends its requests. A connection is in one of four phases, and the phase sets the one
deadline that the reading task waits under:

    IDLE      no byte of a request yet         closed after keep_alive_timeout_s, on a stop, or to make room
    HEAD      part of a request head           408 after head_timeout_s, 503 on a stop
    REQUEST   an app works                     no deadline: the app has its own, and every write is bounded
    ENDING    our last word is said            what still comes is read and dropped for a moment, so that the peer can read
                                               it (closing with unread bytes makes the kernel send a reset), then closed

A write hands its bytes to the kernel only while the kernel wants more (TCP_NOTSENT_LOWAT, which trio sets), so that a peer
that does not read is noticed after some ten kilobytes, not megabytes. Either all bytes of a write are handed over or the
connection is reset: half a chunk is never followed by another.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import logging
import math
import os
import select
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper
from hypercorn.utils import parse_socket_addr

from trio_server.listeners import refusals
from trio_server.listeners.options import ListenerOptions
from trio_server.listeners.protocol import GuardedProtocol
from trio_server.listeners.tasks import LAST_WORDS_S, AppTasks

LOG = logging.getLogger("trio_server.listeners")

READ_BYTES = 64 * 1024
WRITE_BYTES = 64 * 1024
# How far a peer may run ahead of our answer; beyond it we stop reading, and see it go with this delay.
READ_AHEAD_BYTES = 64 * 1024
HANG_UP_CHECK_S = 1.0
LINGER_S = 2.0
LINGER_BYTES = 8 * 1024 * 1024


class Phase(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    REQUEST = enum.auto()
    ENDING = enum.auto()


@dataclass(eq=False, slots=True)
class Shared:
    """What the connections of one `serve` call have in common."""

    app: AppWrapper
    config: Config
    options: ListenerOptions
    context: WorkerContext
    connections: set[Connection] = field(default_factory=set)
    # In the order in which they fell silent.
    idle: dict[Connection, None] = field(default_factory=dict)
    # Told to make room, and not gone yet.
    leaving: set[Connection] = field(default_factory=set)
    sockets: int = 0
    # Where accepting waits for a connection to end or to fall silent.
    room: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    @property
    def stopping(self) -> bool:
        return self.context.terminated.is_set()

    def close_longest_idle(self) -> bool:
        """Make room for one; False if no connection is silent. One at a time: whoever waits is woken for other reasons too."""
        if self.leaving:
            return True
        connection = next(iter(self.idle), None)
        if connection is None:
            return False
        del self.idle[connection]
        self.leaving.add(connection)
        connection.close_if_idle()
        return True

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.idle.pop(connection, None)
        self.leaving.discard(connection)
        self.room.unpark_all()


class Connection:
    """Serves one accepted socket; `run` returns when it is closed, and raises nothing that the peer or an app caused."""

    def __init__(self, shared: Shared, stream: trio.SocketStream) -> None:
        self._shared = shared
        self._options = shared.options
        self._stream = stream
        self._phase = Phase.IDLE
        self._deadline = math.inf
        self._receiving = trio.CancelScope()
        self._peer_gone = False
        self._has_socket_place = False
        self._write_lock = trio.Lock()
        self._unsent = memoryview(b"")
        self._poll = select.poll()
        shared.connections.add(self)

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                sock = self._stream.socket
                # Finds peers that vanished without a word (a laptop asleep) while a socket or a long answer is silent.
                self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                self._poll.register(sock.fileno(), select.POLLOUT)
                self._protocol = GuardedProtocol(
                    self._shared.app,
                    self._shared.config,
                    self._shared.context,
                    AppTasks(nursery, self.attend),
                    self._options,
                    self,
                    self._send,
                    parse_socket_addr(sock.family, sock.getpeername()),
                    parse_socket_addr(sock.family, sock.getsockname()),
                )
                self._enter(Phase.IDLE)
                await self._read()
                self._close()
                await self._protocol.handle(Closed())
                nursery.cancel_scope.cancel()
        except* OSError as group:
            LOG.debug("a connection broke: %s", group.exceptions[0])
        except* Exception as group:
            LOG.warning("a fault in one connection; it was closed", exc_info=group)
        finally:
            self._close()
            self._shared.sockets -= self._has_socket_place
            self._shared.forget(self)

    def close_if_idle(self) -> None:
        """Close, unless a request has begun to arrive; the reading task does it in its next step."""
        if self._phase is Phase.IDLE:
            self._receiving.cancel()

    def stop(self) -> None:
        """The server is stopping: end now what has not become a request. Requests go on; `run` ends after them."""
        if self._phase in {Phase.IDLE, Phase.HEAD}:
            self._receiving.cancel()

    # What the protocol asks of its link.

    @property
    def ending(self) -> bool:
        return self._phase is Phase.ENDING or self._peer_gone

    def head_begun(self) -> None:
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEAD)

    def claim_socket(self) -> bool:
        if self._shared.sockets >= self._options.max_sockets:
            return False
        self._shared.sockets += 1
        self._has_socket_place = True
        return True

    async def attend(self, wait: Callable[[], Awaitable[None]], take: Callable[[bytes], None] | None = None) -> None:
        async def watch(scope: trio.CancelScope) -> None:
            room = READ_AHEAD_BYTES
            while take is not None and room > 0:
                data = await self._receive(room)
                if not data:
                    break
                room -= len(data)
                take(data)
            else:
                await self._hang_up()
            self._peer_gone = True
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            await wait()
            nursery.cancel_scope.cancel()

    # Reading.

    def _enter(self, phase: Phase, limit_s: float | None = None) -> None:
        if self._phase is Phase.ENDING:
            return
        self._phase = phase
        if phase is Phase.IDLE:
            limit_s = self._options.keep_alive_timeout_s
            self._shared.idle[self] = None
            self._shared.room.unpark_all()
        else:
            self._shared.idle.pop(self, None)
            if self in self._shared.leaving:
                # A request came in the same moment, so it stays; somebody else must make room.
                self._shared.leaving.discard(self)
                self._shared.room.unpark_all()
        if phase is Phase.HEAD:
            limit_s = self._options.head_timeout_s
        self._deadline = math.inf if limit_s is None else trio.current_time() + limit_s
        self._receiving.deadline = self._deadline

    async def _read(self) -> None:
        """Until the peer is gone, or has nothing more to say that we want to hear."""
        dropped = 0
        while not self._peer_gone:
            if self._shared.stopping and self._phase is Phase.IDLE:
                return
            if self._shared.stopping and self._phase is Phase.HEAD:
                await self._protocol.refuse(refusals.STOPPING)
                continue
            # Only the wait is under the deadline: bytes that have come are handled whole.
            with trio.CancelScope(deadline=self._deadline) as self._receiving:
                data = await self._receive(READ_BYTES)
            if self._receiving.cancelled_caught:
                if self._phase is not Phase.HEAD:
                    return
                if not self._shared.stopping:
                    await self._protocol.refuse(refusals.HEAD_TIMEOUT)
            elif self._phase is Phase.ENDING:
                dropped += len(data)
                if not data or dropped > LINGER_BYTES:
                    return
            else:
                await self._protocol.handle(RawData(data))
                if not data:
                    return

    async def _receive(self, limit: int) -> bytes:
        """Bytes; none if the peer is gone or has shut its side, which counts as gone."""
        try:
            return bytes(await self._stream.receive_some(limit))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def _hang_up(self) -> None:
        """Wait until the peer is gone, without reading: trio has no such wait, so the kernel is asked once a second. Few
        connections are ever in this state. A peer that has also filled the kernel's buffers is not seen to go."""
        sock = self._stream.socket
        # Besides this, a reset is always told.
        half_closed = select.poll()
        half_closed.register(sock.fileno(), getattr(select, "POLLRDHUP", 0))
        while sock.fileno() != -1 and not half_closed.poll(0):  # noqa: ASYNC110
            await trio.sleep(HANG_UP_CHECK_S)

    # Writing and ending.

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            self._end()
            await self._protocol.handle(Closed())
        elif isinstance(event, Updated):
            self._enter(Phase.IDLE if event.idle else Phase.REQUEST)

    def _end(self) -> None:
        self._enter(Phase.ENDING, LINGER_S if self._protocol.unread else 0.0)
        with contextlib.suppress(OSError):  # gone already
            self._stream.socket.shutdown(socket.SHUT_WR)

    def _close(self, *, reset: bool = False) -> None:
        """Close the socket; with `reset`, so that the kernel keeps nothing for a peer that does not take it."""
        sock = self._stream.socket
        if sock.fileno() == -1:
            return
        if reset:
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    def _abort(self) -> None:
        """The peer does not read, or is gone: drop it, and whatever works for it."""
        self._close(reset=True)
        self._nursery.cancel_scope.cancel()

    async def _write(self, data: bytes) -> None:
        """All of it, or the connection is reset. Cancellation is seen before and after the bytes; in between it leaves them
        LAST_WORDS_S to go. A peer that is gone is no error: the task that writes is cancelled for it."""
        # Shielded, as h11 counts these bytes as sent; whoever holds the lock is bounded.
        with trio.CancelScope(shield=True):
            await self._write_lock.acquire()
        try:
            self._unsent = memoryview(data)
            await self._hand_over()
        except trio.Cancelled:
            with trio.move_on_after(LAST_WORDS_S, shield=True) as last_words:
                await self._hand_over()
            if last_words.cancelled_caught:
                self._abort()
            raise
        finally:
            self._unsent = memoryview(b"")
            self._write_lock.release()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _hand_over(self) -> None:
        sock = self._stream.socket
        while self._unsent and sock.fileno() != -1:
            if not self._poll.poll(0) and not await self._wait_until_writable():
                return
            try:
                sent = os.write(sock.fileno(), self._unsent[:WRITE_BYTES])
            except BlockingIOError:
                sent = 0
            except OSError:
                self._abort()
                return
            self._unsent = self._unsent[sent:]
            if self._unsent:
                await trio.lowlevel.cancel_shielded_checkpoint()

    async def _wait_until_writable(self) -> bool:
        """False if the connection is closed meanwhile, also for want of progress."""
        sock = self._stream.socket
        pending = _unacknowledged(sock)
        while True:
            try:
                with trio.move_on_after(self._options.write_timeout_s) as patience:
                    await trio.lowlevel.wait_writable(sock)
            except trio.ClosedResourceError:
                return False
            if not patience.cancelled_caught:
                return True
            # The kernel wakes us when a good part of its buffer is free. A very slow reader may not get so far in this
            # time, yet has taken something.
            still_pending = _unacknowledged(sock)
            if still_pending >= pending:
                LOG.info("a client took no byte for %g s; its connection was reset", self._options.write_timeout_s)
                self._abort()
                return False
            pending = still_pending


def _unacknowledged(sock: trio.socket.SocketType) -> int:
    """Bytes that the peer's kernel has not taken yet; 0 where the system does not tell."""
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return 0
