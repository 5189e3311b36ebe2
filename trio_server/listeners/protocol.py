"""Hypercorn's HTTP/1.1 protocol with our rules for what is read: bytes in, requests to apps, answers out.

Reads no socket and writes none: it is driven by `connection.py`, whose side it sees as `Link`. Of Hypercorn's `H11Protocol`
the recycling, the answering and the WebSocket hand-over stay; reading (`_handle_events`) and choosing a stream are ours,
because each known fault sits there: see docs/adr/0002-guarded-listener.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import h11
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, Data, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup, WorkerContext

from trio_server.listeners import framing, refusals
from trio_server.listeners.options import ListenerOptions
from trio_server.listeners.refusals import Refusal
from trio_server.listeners.streams import GuardedHTTPStream, GuardedWSStream

Address = tuple[str, int] | None


class Link(Protocol):
    """What the protocol needs of its connection besides sending."""

    @property
    def ending(self) -> bool:
        """Nothing more is to be parsed or answered: the peer is gone, or we have said our last word."""

    def head_begun(self) -> None:
        """Part of a request head has come: its time runs."""

    def claim_socket(self) -> bool:
        """Take one of the places for WebSockets, until the connection ends."""

    async def attend(self, wait: Callable[[], Awaitable[None]], take: Callable[[bytes], None] | None = None) -> None:
        """Run `wait`, and see the peer go meanwhile: then return early. `take` gets the bytes that come, up to a limit."""


class GuardedProtocol(H11Protocol):
    """One connection's HTTP/1.1."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        tasks: TaskGroup,
        options: ListenerOptions,
        link: Link,
        send: Callable[[Event], Awaitable[None]],
        client: Address,
        server: Address,
    ) -> None:
        super().__init__(app, config, context, tasks, ConnectionState({}), False, client, server, send)
        assert isinstance(self.connection, h11.Connection)
        # `self.connection` is replaced when a WebSocket takes over; the HTTP state stays here.
        self._http = self.connection
        self._options = options
        self._link = link
        self._head_only = False

    @property
    def unread(self) -> bool:
        """Whether the peer may still be sending something that was not read."""
        finished = {h11.DONE, h11.MUST_CLOSE, h11.CLOSED}
        return self._http.their_state not in finished or self._http.trailing_data[0] != b""

    async def handle(self, event: Event) -> None:
        # Bytes after a request that said "Connection: close" are no request. h11 would refuse that very request for them,
        # and hold them all.
        if isinstance(event, RawData) and event.data and self.connection.their_state is h11.MUST_CLOSE:
            return
        await super().handle(event)

    async def refuse(self, refusal: Refusal) -> None:
        """Answer in place of the app, if no answer has begun, and end the connection."""
        await self._close_stream()
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            await self.send(RawData(self._refusal(refusal)))
        await self.send(Closed())

    def _refusal(self, refusal: Refusal) -> bytes:
        # In one piece: a task of the app may run between two sends.
        headers, body = self._options.answer(refusal)
        head = h11.Response(status_code=refusal.status, headers=headers + self.config.response_headers("h11"))
        content = [] if self._head_only else [h11.Data(data=body)]
        return b"".join(self._http.send(event) or b"" for event in (head, *content, h11.EndOfMessage()))

    async def _handle_events(self) -> None:
        while not self._link.ending and self.connection.their_state is not h11.MUST_CLOSE:
            if self.connection.they_are_waiting_for_100_continue:
                await self._send_h11_event(
                    h11.InformationalResponse(status_code=100, headers=self.config.response_headers("h11"))
                )
            awaiting_head = self.connection.their_state is h11.IDLE
            before = self.connection.trailing_data[0] if awaiting_head else b""
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self.refuse(framing.fault_behind(error))
                return
            if isinstance(event, h11.Request):
                await self._begin(event, before[: len(before) - len(self.connection.trailing_data[0])])
            elif event is h11.PAUSED:
                # The next request is here before this one is answered, or an Upgrade stands open that we pass over.
                # Hypercorn stops reading now and would not see the client go.
                await self.can_read.clear()
                await self._link.attend(self.can_read.wait, self.connection.receive_data)
            elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                if awaiting_head and before:
                    self._link.head_begun()
                return
            elif self.stream is None:
                return
            elif isinstance(event, h11.Data):
                await self.stream.handle(Body(stream_id=STREAM_ID, data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(EndBody(stream_id=STREAM_ID))
            elif isinstance(event, Data):
                # Before the handshake was answered there is nothing that could read this (Hypercorn issue 225).
                if isinstance(self.stream, WSStream) and not self.stream.handshake.accepted:
                    await self.refuse(refusals.EARLY_SOCKET_DATA)
                    return
                await self.stream.handle(event)

    async def _begin(self, request: h11.Request, head: bytes) -> None:
        await self.send(Updated(idle=False))
        self._head_only = request.method == b"HEAD"
        fault = framing.fault_in(head, request)
        if fault is None and framing.is_websocket(request):
            if self.connection.trailing_data[0]:
                fault = refusals.EARLY_SOCKET_DATA
            elif not self._link.claim_socket():
                fault = refusals.SOCKETS_IN_USE
        if fault is None:
            await self._create_stream(request)
        else:
            await self.refuse(fault)

    async def _create_stream(self, request: h11.Request) -> None:
        headers = list(request.headers)
        arguments = (
            self._options,
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        if framing.is_websocket(request):
            # Hypercorn accepts compression whenever it is offered, so the offer is withheld.
            headers = [field for field in headers if field[0] != b"sec-websocket-extensions"]
            self.stream = GuardedWSStream(*arguments)
            self.connection = H11WSConnection(self._http)
        else:
            self.stream = GuardedHTTPStream(*arguments)
        target = framing.origin_form(request.target)
        assert target is not None
        stream = self.stream
        await stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii").upper(),
                raw_path=target,
                state=self.connection_state,
            )
        )
        # A handshake that is not valid was answered just now: there is no app that could end the connection.
        if stream.closed and stream is self.stream:
            await self.send(Closed())

    async def stream_send(self, event: StreamEvent) -> None:
        if self._link.ending and not isinstance(event, StreamClosed):
            return
        if isinstance(event, Response) and event.status_code >= 200 and self._is_last():
            fields = [field for field in event.headers if field[0].lower() != b"connection"]
            event = Response(event.stream_id, [*fields, (b"connection", b"close")], event.status_code)
        await super().stream_send(event)

    def _is_last(self) -> bool:
        """Whether the connection closes after this answer: on a stop, and when the app answers a body it has not read."""
        return self.context.terminated.is_set() or self._http.their_state is h11.SEND_BODY
