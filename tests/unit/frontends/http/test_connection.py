"""Limits of one client at a listener, and the answers beyond them."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import httptools
import pytest
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from isthmus.frontends.http.connection import AT_ONCE_BYTES, LINGER_SECONDS, MAX_PIPELINED, MAX_WAITING, refusal_for
from isthmus.frontends.http.listener import HttpListenerSettings
from isthmus.frontends.http.request_cycle import IncomingRequest, Message, Receive, Send
from tests.unit.frontends.http.raw_client import (
    LONG,
    PATIENCE_SECONDS,
    Bell,
    Echo,
    Held,
    connect_raw,
    inside,
    look_later,
    opened,
    read_body,
    reply,
    request,
)

SOON = 0.15
"""A limit that passes in a test. Only where nothing must be done before it has: a busy machine is slower."""


# Order and reuse


async def test_a_connection_is_reused_for_request_after_request() -> None:
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        for number in range(3):
            raw_client.say(request(f"/{number}", b"body"))
            answer = await raw_client.receive()
            assert (answer.status, answer.body) == (200, b"/%d body" % number)
            assert answer.header(b"connection") is None


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(b"".join(request(f"/{number}", b"x" * number) for number in range(3)))
        assert [(await raw_client.receive()).body for _ in range(3)] == [b"/0 ", b"/1 x", b"/2 xx"]


async def test_a_request_may_arrive_byte_by_byte() -> None:
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        for byte in request("/a%20b?q=1", b"body"):
            raw_client.say(bytes([byte]))
            await asyncio.sleep(0)
        assert (await raw_client.receive()).body == b"/a b body"


async def test_too_many_pipelined_requests_are_refused_after_those_before_them() -> None:
    app = Held()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(b"".join(request(f"/{number}") for number in range(MAX_PIPELINED + 10)))
        for number in range(MAX_PIPELINED + 1):
            await (await app.next_request()).answer(b"%d" % number)
            assert (await raw_client.receive()).body == b"%d" % number
        assert (await raw_client.receive()).status == 503
        assert await raw_client.hear_rest() == b""


async def test_reading_goes_on_when_the_pipeline_has_emptied() -> None:
    app = Held()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request() * 20)
        for _ in range(20):
            await (await app.next_request()).answer(b"")
        raw_client.say(request("/last"))
        assert (await app.next_request()).scope["path"] == "/last"


async def test_an_unknown_upgrade_is_ignored_and_the_next_request_is_read() -> None:
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        upgrade = request("/1", b"body", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")
        raw_client.say(upgrade[:-2])
        await asyncio.sleep(0)
        raw_client.say(upgrade[-2:] + request("/2"))
        assert (await raw_client.receive()).body == b"/1 body"
        assert (await raw_client.receive()).body == b"/2 "


async def test_an_answer_before_the_body_has_ended_leaves_the_connection_usable() -> None:
    app = Held()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        whole = request("/1", b"body")
        raw_client.say(whole[:-2])
        await (await app.next_request()).answer(b"early")
        assert (await raw_client.receive()).body == b"early"
        raw_client.say(whole[-2:] + request("/2"))
        assert (await app.next_request()).scope["path"] == "/2"


# Time


async def test_fifty_slow_heads_are_all_cut_and_others_are_served() -> None:
    async with opened(Echo()) as (http_listener, port), AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(connect_raw(port)) for _ in range(50)]
        for raw_client in slow:
            raw_client.say(b"POST / HTTP/1.1\r\nHost: loc")
        quick = await stack.enter_async_context(connect_raw(port))
        for path in ("/before", "/after"):
            quick.say(request(path))
            assert (await quick.receive()).status == 200
            look_later(http_listener, LONG + 1)
        assert {(await raw_client.receive()).status for raw_client in slow} == {408}
        assert {await raw_client.hear_rest() for raw_client in slow} == {b""}


async def test_fifty_silent_sockets_are_all_closed_without_a_word() -> None:
    async with opened(Echo(), header_seconds=SOON) as (_, port), AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(connect_raw(port)) for _ in range(50)]
        assert {await raw_client.hear_rest() for raw_client in silent} == {b""}


async def test_empty_lines_do_not_stretch_the_head_deadline() -> None:
    async with opened(Echo()) as (http_listener, port), connect_raw(port) as raw_client, connect_raw(port) as other:
        raw_client.say(b"\r\n\r\n")
        other.say(request())
        await other.receive()  # What came before it has been read.
        look_later(http_listener, LONG + 1)
        assert (await raw_client.receive()).status == 408


async def test_a_slow_second_head_is_cut_too() -> None:
    async with opened(Echo()) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1") + b"POST /2 HT")
        assert (await raw_client.receive()).body == b"/1 "
        look_later(http_listener, LONG + 1)
        assert (await raw_client.receive()).status == 408


async def test_a_slow_head_behind_a_running_request_waits_for_its_answer() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1") + b"POST /2 HT")
        asgi_request = await app.next_request()
        look_later(http_listener, LONG + 1)
        await asgi_request.answer(b"first")
        assert (await raw_client.receive()).body == b"first"
        assert (await raw_client.receive()).status == 408


async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with opened(Echo(), keep_alive_seconds=SOON) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        assert (await raw_client.receive()).status == 200
        assert await raw_client.hear_rest() == b""


async def test_a_running_request_is_not_idle() -> None:
    app = Held()
    async with opened(app, keep_alive_seconds=LONG) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        asgi_request = await app.next_request()
        look_later(http_listener, LONG + 1)
        await asgi_request.answer(b"at last")
        assert (await raw_client.receive()).body == b"at last"


async def test_a_slow_body_is_refused_and_the_application_learns_of_it() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"x" * 100)[:-50])
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        assert asgi_request.peer.take_body() is None
        assert await asgi_request.receive() == {"type": "http.request", "body": b"x" * 50, "more_body": True}
        look_later(http_listener, LONG + 1)
        assert (await raw_client.receive()).status == 408
        assert await asgi_request.receive() == {"type": "http.disconnect"}
        await asgi_request.answer(b"too late")
        assert bell.rings == 1
        raw_client.leave()


async def test_a_slow_body_behind_a_started_answer_is_cut() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"x" * 100)[:-50])
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        await asgi_request.start_stream()
        look_later(http_listener, LONG + 1)
        await bell.wait()
        assert b"408" not in await raw_client.hear_rest()
        asgi_request.released.set()


async def test_a_slow_pipelined_body_is_refused_after_the_answer_before_it() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1") + request("/2", b"body")[:-1])
        asgi_request = await app.next_request()
        look_later(http_listener, LONG + 1)
        await asgi_request.answer(b"first")
        assert [(await raw_client.receive()).status for _ in range(2)] == [200, 408]


async def test_a_long_body_that_keeps_its_rate_is_taken() -> None:
    pieces: asyncio.Queue[int] = asyncio.Queue()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        pieces.put_nowait(0)
        while (message := await receive()).get("more_body"):
            pieces.put_nowait(len(message["body"]))
        await reply(send, b"taken")

    async with opened(app, body_bytes_per_second=100) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        await pieces.get()  # What is read together with the head is not counted.
        for window in range(1, 5):
            raw_client.say(b"2000\r\n" + b"x" * 0x2000 + b"\r\n")
            arrived_bytes = 0
            async with asyncio.timeout(PATIENCE_SECONDS):
                while arrived_bytes < 0x2000:
                    arrived_bytes += await pieces.get()
            look_later(http_listener, window * (LONG + 1))
        raw_client.say(b"0\r\n\r\n")
        assert (await raw_client.receive()).status == 200


async def test_time_stands_still_while_the_application_does_not_read() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"x" * 1_000_000))
        asgi_request = await app.next_request()
        [connection] = inside(http_listener)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not connection.flow.read_paused:  # noqa: ASYNC110 (stopping to read sends no notification)
                await asyncio.sleep(0)
        for window in range(1, 4):
            look_later(http_listener, window * (LONG + 1))
        assert len(await read_body(asgi_request.receive)) == 1_000_000
        await asgi_request.answer(b"taken")
        assert (await raw_client.receive()).body == b"taken"


# Size


@pytest.mark.parametrize("size", [1025, 5 * 2**30, 2**63])
async def test_a_declared_body_over_the_limit_is_refused_before_it_comes(size: int) -> None:
    app = Echo()
    async with opened(app, max_body_bytes=1024) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())
        answer = await raw_client.receive()
        assert (answer.status, answer.header(b"connection")) == (413, b"close")
        assert await raw_client.hear_rest() == b""
        assert app.paths == []


async def test_a_body_of_exactly_the_limit_is_taken() -> None:
    async with opened(Echo(), max_body_bytes=1024) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"x" * 1024))
        assert len((await raw_client.receive()).body) == 1024 + 2


@pytest.mark.parametrize(
    "endless",
    [
        b"400\r\n" + b"x" * 1024 + b"\r\n1\r\ny\r\n0\r\n\r\n",
        b"1;" + b"x" * 5000,
        b"1\r\nx\r\n0\r\nTrailer: " + b"x" * 5000,
        b"1\r\nx\r\n" * 1000,
    ],
    ids=["body", "chunk extension", "trailer", "crumbs"],
)
async def test_a_chunked_body_that_grows_over_the_limit_is_refused(endless: bytes) -> None:
    app = Held()
    async with opened(app, max_body_bytes=1024, max_head_bytes=1024) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        asgi_request = await app.next_request()
        raw_client.say(endless)
        assert (await raw_client.receive()).status == 413
        assert await read_body(asgi_request.receive) == b""
        asgi_request.released.set()
        raw_client.leave()


async def test_a_refused_client_gets_the_refusal_although_it_sends_its_whole_body_first() -> None:
    async with opened(Echo(), max_body_bytes=1024) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"x" * 3_000_000))
        assert (await raw_client.receive()).status == 413
        assert await raw_client.hear_rest() == b""


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 2000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 2000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 2000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 300 + b"\r\n",
    ],
    ids=["endless path", "endless header", "one long header", "many headers"],
)
async def test_a_head_over_the_limit_is_refused(head: bytes) -> None:
    app = Echo()
    async with opened(app, max_head_bytes=1024) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(head)
        assert (await raw_client.receive()).status == 431
        assert app.paths == []


async def test_a_short_head_with_a_long_body_in_one_read_is_no_long_head() -> None:
    async with opened(Echo(), max_head_bytes=1024) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"x" * 4096))
        assert (await raw_client.receive()).status == 200


async def test_a_connection_over_the_limit_gets_an_error() -> None:
    async with opened(Echo(), max_connections=1) as (_, port), connect_raw(port) as first:
        first.say(request("/1"))
        assert (await first.receive()).status == 200
        async with connect_raw(port) as second:
            assert (await second.receive()).status == 503
            assert await second.hear_rest() == b""
        first.say(request("/2"))
        assert (await first.receive()).status == 200


async def test_one_address_does_not_take_all_the_room() -> None:
    async with opened(Echo(), max_connections_per_address=1) as (_, port), connect_raw(port) as first:
        first.say(request("/1"))
        assert (await first.receive()).status == 200
        async with connect_raw(port) as second:
            assert (await second.receive()).status == 503
            assert await second.hear_rest() == b""
        first.say(request("/2"))
        assert (await first.receive()).status == 200
        first.say(request("/3", b"", "Connection: close"))
        assert (await first.receive()).status == 200
        assert await first.hear_rest() == b""
        async with connect_raw(port) as third:
            third.say(request("/4"))
            assert (await third.receive()).status == 200


# Shape

BEHIND = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"

MALFORMED = {
    "length and chunked": POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
    "two equal lengths": POST + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a list of lengths": POST + b"Content-Length: 0, 44\r\n\r\n",
    "negative length": POST + b"Content-Length: -1\r\n\r\n",
    "signed length": POST + b"Content-Length: +1\r\n\r\nx",
    "hexadecimal length": POST + b"Content-Length: 0x10\r\n\r\n",
    "empty length": POST + b"Content-Length: \r\n\r\n",
    "overflowing length": POST + b"Content-Length: 18446744073709551616\r\n\r\n",
    "space before colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "chunked is not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "twice chunked": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in 1.0": b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare LF": b"POST / HTTP/1.1\nHost: a\nContent-Length: 0\n\n",
    "bare LF in head": b"POST / HTTP/1.1\r\nHost: a\nContent-Length: 0\r\n\r\n",
    "bare CR in head": b"POST / HTTP/1.1\r\nHost: a\rContent-Length: 0\r\n\r\n",
    "folded header": POST + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "NUL in header": POST + b"X: a\x00b\r\n\r\n",
    "no colon": POST + b"nonsense\r\n\r\n",
    "bad method": b"NONSENSE / HTTP/1.1\r\nHost: a\r\n\r\n",
    "bad version": b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n",
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "CONNECT": b"CONNECT evil.test:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    "target is not a path": b"GET evil HTTP/1.1\r\nHost: a\r\n\r\n",
    "target has an impossible port": b"GET http://a:999999/ HTTP/1.1\r\nHost: a\r\n\r\n",
    "target is not ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
}

MALFORMED_BODIES = {
    "chunk size overflows": b"FFFFFFFFFFFFFFFFF\r\nx\r\n0\r\n\r\n",
    "chunk size is no number": b"xyz\r\n0\r\n\r\n",
    "chunk size is negative": b"-1\r\n0\r\n\r\n",
    "chunk is longer than it says": b"1\r\nxyz\r\n0\r\n\r\n",
    "chunk ends in bare LF": b"1\nx\n0\n\n",
    "space after chunk size": b"1 \r\nx\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_is_refused_and_nothing_behind_it_is_read(name: str) -> None:
    app = Echo()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/before") + MALFORMED[name] + BEHIND)
        assert (await raw_client.receive()).body == b"/before "
        answer = await raw_client.receive()
        assert (answer.status, answer.header(b"connection")) == (400, b"close")
        raw_client.say(BEHIND)
        assert await raw_client.hear_rest() == b""
        assert app.paths == ["/before"]


@pytest.mark.parametrize("name", MALFORMED_BODIES)
async def test_a_malformed_body_is_refused_and_nothing_behind_it_is_read(name: str) -> None:
    app = Held()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        asgi_request = await app.next_request()
        raw_client.say(MALFORMED_BODIES[name] + BEHIND)
        assert (await raw_client.receive()).status == 400
        assert await raw_client.hear_rest() == b""
        asgi_request.released.set()
        assert app.arrived.empty()


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Content-Encoding: gzip", 415),
        ("Content-Encoding: identity, br", 415),
        ("Content-Encoding: IDENTITY", 200),
        ("Content-Encoding: identity\r\nContent-Encoding: gzip", 400),
    ],
)
async def test_a_compressed_body_is_refused(line: str, status: int) -> None:
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"\x1f\x8b", line))
        assert (await raw_client.receive()).status == status


async def test_blanks_around_a_headers_value_are_no_part_of_it() -> None:
    app = Held()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(b"GET / HTTP/1.1\r\nHost: a\r\nX-One: \t a b\t \r\nX-Two:\t\r\nX-Three:c\r\n\r\n")
        headers = dict((await app.next_request()).scope["headers"])
        assert (headers[b"x-one"], headers[b"x-two"], headers[b"x-three"]) == (b"a b", b"", b"c")


async def test_blanks_behind_framing_headers_change_nothing() -> None:
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(POST + b"Content-Length: 4 \t\r\n\r\nbody" + request("/next"))
        assert (await raw_client.receive()).body == b"/ body"
        assert (await raw_client.receive()).body == b"/next "
        raw_client.say(POST + b"Transfer-Encoding: chunked \r\n\r\n4\r\nbody\r\n0\r\n\r\n" + request("/last"))
        assert (await raw_client.receive()).body == b"/ body"
        assert (await raw_client.receive()).body == b"/last "


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"xchunked", b"identity"])
async def test_a_transfer_coding_but_chunked_is_refused_and_nothing_behind_it_is_read(coding: bytes) -> None:
    app = Echo()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: " + coding + b"\r\n\r\n"
        raw_client.say(head + b"0\r\n\r\n" + BEHIND)
        assert (await raw_client.receive()).status == 501
        assert await raw_client.hear_rest() == b""
        assert app.paths == []


async def test_http_2_without_its_preface_is_refused() -> None:
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n")
        assert (await raw_client.receive()).status == 505


async def test_a_trailer_is_not_a_header() -> None:
    app = Echo()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        raw_client.say(b"0\r\nAuthorization: Bearer stolen\r\n\r\n")
        assert (await raw_client.receive()).status == 200
        assert [name for name, _ in app.headers[0]] == [b"host", b"transfer-encoding"]


async def test_a_request_after_one_that_asked_to_close_is_not_run() -> None:
    app = Echo()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/last", b"", "Connection: close") + BEHIND)
        answer = await raw_client.receive()
        assert (answer.body, answer.header(b"connection")) == (b"/last ", b"close")
        assert await raw_client.hear_rest() == b""
        assert app.paths == ["/last"]


async def test_bytes_after_a_malformed_request_cannot_hold_the_connection() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1", b"", "Connection: close") + b"nonsense\r\n\r\n")
        await (await app.next_request()).answer(b"one")
        assert (await raw_client.receive()).body == b"one"
        assert await raw_client.hear_rest() == b""
        assert await http_listener.drain(within=PATIENCE_SECONDS)


async def test_a_malformed_request_behind_a_running_one_is_refused_once_however_long_that_runs() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1") + b"nonsense\r\n\r\n")
        asgi_request = await app.next_request()
        look_later(http_listener, LONG + 1)
        await asgi_request.answer(b"first")
        assert [(await raw_client.receive()).status for _ in range(2)] == [200, 400]
        assert await raw_client.hear_rest() == b""


async def test_a_refused_client_that_stays_is_thrown_out() -> None:
    async with opened(Echo()) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(b"nonsense\r\n\r\n")
        assert (await raw_client.receive()).status == 400
        look_later(http_listener, LINGER_SECONDS + 1)
        assert await http_listener.drain(within=PATIENCE_SECONDS)


def test_an_error_of_our_own_while_reading_is_no_secret_to_the_client_and_none_to_us() -> None:
    error = httptools.HttpParserCallbackError()
    error.__context__ = LookupError("our bug")
    refused = refusal_for(error)
    assert (refused.status, "our bug" in refused.sentence) == (400, False)


# 100-continue


async def test_a_client_that_expects_continue_gets_it_when_its_body_is_wanted() -> None:
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"body", "Expect: 100-continue")[:-4])
        assert (await raw_client.receive()).status == 100
        raw_client.say(b"body")
        assert (await raw_client.receive()).body == b"/ body"


async def test_a_client_that_expects_continue_for_too_much_is_refused_without_it() -> None:
    async with opened(Echo(), max_body_bytes=3) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"body", "Expect: 100-continue")[:-4])
        assert (await raw_client.receive()).status == 413


async def test_a_client_answered_while_it_waits_loses_the_connection() -> None:
    app = Held()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"body", "Expect: 100-continue")[:-4])
        await (await app.next_request()).answer(b"no need")
        answer = await raw_client.receive()
        assert (answer.body, answer.header(b"connection")) == (b"no need", b"close")
        raw_client.say(BEHIND)
        assert await raw_client.hear_rest() == b""
        assert app.arrived.empty()


async def test_a_client_that_waits_for_us_is_not_late() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/", b"body", "Expect: 100-continue")[:-4])
        asgi_request = await app.next_request()
        for window in range(1, 4):
            look_later(http_listener, window * (LONG + 1))
        await asgi_request.answer(b"later")
        assert (await raw_client.receive()).body == b"later"


# Going


async def test_the_callback_of_the_client_that_goes_is_called_once_and_no_other() -> None:
    app, bells = Held(), [Bell(), Bell()]
    async with opened(app) as (_, port), connect_raw(port) as leaver, connect_raw(port) as stayer:
        asgi_requests = []
        for raw_client, bell in zip((leaver, stayer), bells, strict=True):
            raw_client.say(request())
            asgi_requests.append(await app.next_request())
            asgi_requests[-1].peer.on_disconnect(bell)
        leaver.leave()
        await bells[0].wait()
        assert await asgi_requests[0].receive() == {"type": "http.disconnect"}
        await asgi_requests[0].answer(b"nobody hears this")
        asgi_requests[0].peer.push(b"nor this")
        await asgi_requests[1].answer(b"still here")
        assert (await stayer.receive()).body == b"still here"
        assert [bell.rings for bell in bells] == [1, 0]


async def test_a_client_that_stops_sending_has_gone() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        raw_client.stop_sending()
        await bell.wait()
        asgi_request.released.set()


async def test_when_a_pipelining_client_leaves_the_running_request_learns_of_it_and_the_waiting_never_run() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1") + request("/2") + request("/3", b"body")[:-1])
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        raw_client.leave()
        await bell.wait()
        asgi_request.released.set()
        assert await http_listener.drain(within=PATIENCE_SECONDS)
        assert app.arrived.empty()


async def test_a_body_that_is_awaited_before_its_request_starts_is_read_to_its_end() -> None:
    arrived: list[bytes] = []

    def take(arrival: IncomingRequest) -> bool:
        arrived.append(arrival.body)
        arrival.answer(200, b"", b"long " * AT_ONCE_BYTES)
        return True

    body = b"x" * AT_ONCE_BYTES
    async with opened(Echo()) as (http_listener, port), connect_raw(port) as raw_client:
        http_listener.offer(take)
        for _ in range(2):
            raw_client.say(request("/", body))
            assert (await raw_client.receive()).body == b"long " * AT_ONCE_BYTES
    assert arrived == [body] * 2


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_client_that_goes_is_noticed_however_long_its_body_was(pieces: int) -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request("/first"))
        await (await app.next_request()).answer(b"")
        await raw_client.receive()
        whole = request("/long", b"x" * 3 * HIGH_WATER_LIMIT)
        cut = 2 * HIGH_WATER_LIMIT if pieces == 2 else len(whole)
        (connection,) = inside(http_listener)
        connection.data_received(whole[:cut])
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        if pieces == 1:
            assert asgi_request.peer.take_body() == b"x" * 3 * HIGH_WATER_LIMIT
        else:
            assert (await asgi_request.receive())["more_body"]
            rest = asyncio.ensure_future(asgi_request.receive())
            await asyncio.sleep(0)  # it waits, and asks for no more once it has all
            connection.data_received(whole[cut:])
            assert not (await rest)["more_body"]
        look_later(http_listener, 0)  # from now on nobody patrols
        raw_client.leave()
        await bell.wait()
        asgi_request.released.set()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
async def test_a_client_that_goes_is_noticed_although_it_is_not_read_from() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request() * (MAX_WAITING + 1))
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        (connection,) = inside(http_listener)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not connection.flow.read_paused:  # noqa: ASYNC110 - it arrives over a socket
                await asyncio.sleep(0)
        look_later(http_listener, 0)
        assert not bell.rung.is_set()
        raw_client.leave()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not bell.rung.is_set():
                await asyncio.sleep(0)
                connection.inspect(0)
        asgi_request.released.set()
        assert await http_listener.drain(within=PATIENCE_SECONDS)
        assert app.arrived.empty()


async def test_a_client_that_leaves_after_its_answer_triggers_no_callback() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        await asgi_request.answer(b"")
        asgi_request.peer.on_disconnect(bell)
        await raw_client.receive()
        raw_client.leave()
        assert await http_listener.drain(within=PATIENCE_SECONDS)
        assert bell.rings == 0


async def test_a_late_callback_still_learns_that_the_client_left() -> None:
    app, early, late = Held(), Bell(), Bell()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(early)
        raw_client.leave()
        await early.wait()
        asgi_request.peer.on_disconnect(late)
        await late.wait()
        asgi_request.released.set()


# Reading too slowly


async def test_a_stalled_reader_of_a_stream_is_cut_and_others_are_not() -> None:
    app, bell = Held(), Bell()
    async with opened(app, stall_seconds=SOON) as (_, port), AsyncExitStack() as stack:
        stalled = await stack.enter_async_context(connect_raw(port, receive_bytes=4096))
        reader = await stack.enter_async_context(connect_raw(port))
        asgi_requests = []
        for raw_client in (stalled, reader):
            raw_client.say(request())
            asgi_requests.append(await app.next_request())
            await asgi_requests[-1].start_stream()
        asgi_requests[0].peer.on_disconnect(bell)
        while not bell.rings:
            await asgi_requests[0].send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        asgi_requests[1].peer.push(b"event")
        await reader.receive_head()
        assert await reader.hear_chunk() == b"event"
        assert asgi_requests[0].peer.buffered_bytes() <= 1024 * 1024
        for asgi_request in asgi_requests:
            asgi_request.released.set()


async def test_a_reader_that_lets_pushed_events_pile_up_is_cut_at_once() -> None:
    app, bell = Held(), Bell()
    async with (
        opened(app, stall_bytes=256 * 1024) as (_, port),
        connect_raw(port, receive_bytes=4096) as stalled,
    ):
        stalled.say(request())
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        await asgi_request.start_stream()
        highest_bytes = 0
        while not bell.rings:
            asgi_request.peer.push(b"x" * 4096)
            highest_bytes = max(highest_bytes, asgi_request.peer.buffered_bytes())
            await asyncio.sleep(0)
        assert 256 * 1024 < highest_bytes < 512 * 1024
        asgi_request.released.set()


@pytest.mark.parametrize("line", ["Connection: keep-alive", "Connection: close"])
@pytest.mark.parametrize("size", [10, 8_000_000])
async def test_an_answer_is_taken_when_all_of_it_is(line: str, size: int) -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (_, port), connect_raw(port, receive_bytes=4096) as raw_client:
        raw_client.say(request("/", b"", line))
        asgi_request = await app.next_request()
        asgi_request.peer.answer(200, b"", b"x" * size)
        asgi_request.peer.on_taken(bell)
        asgi_request.released.set()
        await raw_client.receive_head()
        assert bell.rings == 0 or size == 10
        await raw_client.receive_exactly(size)
        await bell.wait()
        assert bell.rings == 1


async def test_an_answer_is_never_accepted_by_a_client_that_leaves_before_its_end() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (http_listener, port):
        async with connect_raw(port, receive_bytes=4096) as raw_client:
            raw_client.say(request())
            asgi_request = await app.next_request()
            asgi_request.peer.answer(200, b"", b"x" * 8_000_000)
            asgi_request.peer.on_taken(bell)
            asgi_request.released.set()
            await raw_client.receive_head()
        assert await http_listener.drain(within=PATIENCE_SECONDS)
        asgi_request.peer.on_taken(bell)
        assert bell.rings == 0


async def test_a_stalled_reader_of_one_long_answer_is_cut() -> None:
    app = Held()
    async with (
        opened(app, stall_seconds=SOON) as (http_listener, port),
        connect_raw(port, receive_bytes=4096) as stalled,
    ):
        stalled.say(request())
        await (await app.next_request()).answer(b"x" * 8_000_000)
        assert await http_listener.drain(within=PATIENCE_SECONDS)


async def test_a_malformed_request_of_a_client_that_does_not_read_is_its_end() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port, receive_bytes=4096) as stalled:
        stalled.say(request())
        await (await app.next_request()).answer(b"x" * 8_000_000)
        stalled.say(b"nonsense\r\n\r\n")
        assert await http_listener.drain(within=PATIENCE_SECONDS)


async def test_a_long_answer_reaches_every_reader() -> None:
    app = Held()
    async with opened(app) as (http_listener, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        await (await app.next_request()).answer(b"x" * 16_000_000)
        look_later(http_listener, 0)
        await raw_client.receive_head()
        # Far more than the sockets of both sides hold, and far less than all.
        await raw_client.receive_exactly(15_000_000)
        look_later(http_listener, LONG + 1)
        assert await raw_client.receive_exactly(1_000_000) == b"x" * 1_000_000


async def test_an_answer_after_an_abort_is_dropped_and_triggers_no_callback() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        asgi_request.peer.abort()
        await asgi_request.answer(b"into the void")
        assert await raw_client.hear_rest() == b""
        assert bell.rings == 0


async def test_abort_cuts_the_client_it_belongs_to() -> None:
    app, bell = Held(), Bell()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request())
        asgi_request = await app.next_request()
        asgi_request.peer.on_disconnect(bell)
        asgi_request.peer.abort()
        assert await raw_client.hear_rest() == b""
        await bell.wait()
        asgi_request.released.set()


async def test_abort_after_the_answer_leaves_the_next_request_alone() -> None:
    app = Held()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1") + request("/2"))
        first = await app.next_request()
        await first.answer(b"1")
        second = await app.next_request()
        first.peer.abort()
        await second.answer(b"2")
        assert [(await raw_client.receive()).body for _ in range(2)] == [b"1", b"2"]


# WebSocket

HANDSHAKE = request(
    "/ws",
    b"",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    method="GET",
)


async def test_a_websocket_cannot_be_pipelined() -> None:
    app = Held()
    async with opened(app) as (_, port), connect_raw(port) as raw_client:
        raw_client.say(request("/1") + HANDSHAKE)
        await (await app.next_request()).answer(b"1")
        assert [(await raw_client.receive()).status for _ in range(2)] == [200, 503]


# Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", -1), ("port", 65536), ("header_seconds", 0), ("max_body_bytes", 0), ("stall_seconds", -1.0)],
)
def test_a_senseless_limit_is_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be .*, not {value}"):
        HttpListenerSettings(**{name: value})  # type: ignore[arg-type]


async def test_no_connection_is_counted_when_all_have_gone() -> None:
    app = Echo()
    async with opened(app) as (http_listener, port):
        async with AsyncExitStack() as stack:
            for number in range(20):
                raw_client = await stack.enter_async_context(connect_raw(port))
                raw_client.say(request(f"/{number}"))
                assert (await raw_client.receive()).status == 200
        assert len(app.paths) == 20
        assert await http_listener.drain(within=PATIENCE_SECONDS)
