"""No bytes of a client end the server, or anything but their own connection (Hypercorn issue 225)."""

from __future__ import annotations

import logging
import random

import pytest
import trio

from tests.listeners.support import CLOSE_GET, GET, UPGRADE, frame, parse, read_to_end, served

_UPGRADE = UPGRADE % b"/echo"
_HEAD = b"GET /hello HTTP/1.1\r\nHost: x\r\n"
_POST = b"POST /length HTTP/1.1\r\nHost: x\r\n"

# name -> (first bytes, later bytes, the statuses that come back; 0 for no answer)
CASES: dict[str, tuple[bytes, list[bytes], list[int]]] = {
    "TLS bytes on a plain port": (b"\x16\x03\x01garbage\r\n\r\n", [], [400]),
    "header without colon": (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", [], [400]),
    "200 kB header": (_HEAD + b"A: " + b"a" * 200_000 + b"\r\n\r\n", [], [431]),
    "data after Connection: close": (_HEAD + b"Connection: close\r\n\r\nxxxxx", [b"more"], [200]),
    "pipelined": (GET + CLOSE_GET, [], [200, 200]),
    "short body, then close": (_POST + b"Content-Length: 10\r\n\r\nabc", [], [400]),
    "bad chunk size": (_POST + b"Transfer-Encoding: chunked\r\n\r\nZZZ\r\n", [], [400]),
    "bad WebSocket frame": (_UPGRADE, [b"\xff\xff\xff\xff\xff"], [101]),
    "unmasked WebSocket frame": (_UPGRADE, [b"\x81\x05hello"], [101]),
    "WebSocket text that is not UTF-8": (_UPGRADE, [b"\x81\x82\x00\x00\x00\x00\xff\xfe"], [101]),
    "h2c preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 30, [], [400]),
    "upgrade of an unknown path": (UPGRADE % b"/nope", [], [404]),
    "upgrade with a trailing byte": (_UPGRADE + b"x", [], [400]),
    "path that is not ASCII": (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", [], [400]),
    # Ours: what else was found to break something further up.
    "target without a path": (b"GET ?x HTTP/1.1\r\nHost: x\r\n\r\n", [], [400]),
    "CONNECT": (b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n", [], [400]),
    "absolute target with a broken host": (
        b"GET http://[bad/hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        [],
        [200],
    ),
    "upgrade without a key": (_UPGRADE.replace(b"Sec-WebSocket-Key", b"X-Key"), [], [400]),
    "upgrade of an old version": (_UPGRADE.replace(b"Version: 13", b"Version: 8"), [], [400]),
    "upgrade with a whole frame behind": (_UPGRADE + frame(1, b"early"), [], [400]),
    "many tiny chunks to an unknown path": (
        b"POST /nope HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 5000,
        [],
        [404],
    ),
    "HTTP/2 without a preface": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", [], [400]),
    "HTTP/0.9": (b"GET /\r\n\r\n", [], [400]),
    "only a blank line": (b"\r\n", [], [400]),
}


async def _answers(server: object, first: bytes, later: list[bytes]) -> list[int]:
    stream = await server.connect()  # type: ignore[attr-defined]
    received = b""
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            nonlocal received
            received = await read_to_end(stream)

        nursery.start_soon(read)
        try:
            await stream.send_all(first)
            for piece in later:
                await trio.testing.wait_all_tasks_blocked(0.01)
                await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the server has closed: it was told enough
    return [answer.status for answer in parse(received)]


async def test_each_malformed_request_leaves_the_server_serving(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as server:
        for name, (first, later, statuses) in CASES.items():
            with trio.fail_after(5):
                assert await _answers(server, first, later) == statuses, name
            await server.assert_serves()
        assert server.watch.active == 0
    faults = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert faults == []


async def test_a_broken_frame_is_told_its_close_code() -> None:
    async with served() as server:
        for broken, code in ((b"\x81\x05hello", 1002), (b"\x81\x82\x00\x00\x00\x00\xff\xfe", 1007)):
            stream = await server.send(UPGRADE % b"/echo")
            await server.watch.until_entered()
            await stream.send_all(broken)
            (answer,) = parse(await read_to_end(stream))
            assert answer.body[0] == 0x88
            assert int.from_bytes(answer.body[2:4], "big") == code
            assert await server.watch.until_left() == "echo cancelled"


async def test_a_thousand_random_blobs(caplog: pytest.LogCaptureFixture) -> None:
    """Half noise, half valid requests with a few bytes changed, which get further in."""
    chance = random.Random(20240508)
    seeds = [GET, _UPGRADE + frame(1, b"x" * 20), _POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"]
    seeds += [_POST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\nabc" + GET]

    def blob() -> bytes:
        if chance.random() < 0.5:
            return chance.randbytes(chance.randrange(1, 300))
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.choice([b"\r\n", b"\0", b" ", b":", chance.randbytes(1), b""])
        return bytes(data)

    async with served() as server:
        limiter = trio.CapacityLimiter(20)

        async def one(data: bytes) -> None:
            async with limiter:
                stream = await server.connect()
                try:
                    await stream.send_all(data)
                    await stream.send_eof()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
                received = await read_to_end(stream)
                assert b" 500 " not in received[:20], data

        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(one, blob())
        await server.assert_serves()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
