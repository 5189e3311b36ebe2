"""Hypercorn's two kinds of stream, mended: one request each, between `protocol.py` and the app.

What is changed: errors that Hypercorn answers with an empty body get ours; WebSocket messages over the limit end the socket
(Hypercorn goes on collecting them in memory); a broken WebSocket frame is answered with its close code; a stop says 1001.
"""

from __future__ import annotations

from typing import Any

from hypercorn.protocol.events import Body, EndBody, Response, StreamClosed
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.protocol.ws_stream import ASGIWebsocketState, FrameTooLargeError, WSStream
from hypercorn.typing import ASGISendEvent
from wsproto.connection import ConnectionState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from trio_server.listeners import refusals
from trio_server.listeners.options import ListenerOptions


class GuardedHTTPStream(HTTPStream):
    def __init__(self, options: ListenerOptions, *args: Any) -> None:
        super().__init__(*args)
        self.options = options

    async def _send_error_response(self, status_code: int) -> None:
        await _answer(self, status_code, with_body=self.scope["method"] != "HEAD")
        self.state = ASGIHTTPState.CLOSED


class GuardedWSStream(WSStream):
    def __init__(self, options: ListenerOptions, *args: Any) -> None:
        super().__init__(*args)
        self.options = options

    async def app_send(self, message: ASGISendEvent | None) -> None:
        if message is None and self.context.terminated.is_set() and self.state is ASGIWebsocketState.CONNECTED:
            await self._send_wsproto_event(CloseConnection(code=CloseReason.GOING_AWAY))
        await super().app_send(message)

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if isinstance(event, Message):
                try:
                    self.buffer.extend(event)
                except FrameTooLargeError:
                    await self._close(CloseReason.MESSAGE_TOO_BIG)
                    return
                if event.message_finished:
                    assert self.app_put is not None
                    await self.app_put(self.buffer.to_message())
                    self.buffer.clear()
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                # A close frame is answered in kind; a fault that wsproto found is told with the code it gave.
                if self.connection.state is ConnectionState.REMOTE_CLOSING:
                    await self._send_wsproto_event(event.response())
                    await self.send(StreamClosed(stream_id=self.stream_id))
                else:
                    await self._close(event.code)
                return

    async def _close(self, code: int) -> None:
        await self._send_wsproto_event(CloseConnection(code=code))
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _send_error_response(self, status_code: int) -> None:
        await _answer(self, status_code, with_body=True)


async def _answer(stream: GuardedHTTPStream | GuardedWSStream, status: int, *, with_body: bool) -> None:
    refusal = refusals.plain(status)
    # An app that was cut by the stop has not failed.
    if status == 500 and stream.context.terminated.is_set():
        refusal = refusals.STOPPING
    headers, body = stream.options.answer(refusal)
    await stream.send(Response(stream_id=stream.stream_id, headers=headers, status_code=refusal.status))
    if with_body:
        await stream.send(Body(stream_id=stream.stream_id, data=body))
    await stream.send(EndBody(stream_id=stream.stream_id))
