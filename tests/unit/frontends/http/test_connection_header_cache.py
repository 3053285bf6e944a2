"""A cached request head means exactly what the parser read, and no other head matches it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from isthmus.frontends.http import connection as connection_module
from isthmus.frontends.http.connection import (
    HEAD_BYTES_MAX,
    HEADS_MAX,
    MAX_PIPELINED,
    HttpServerConnection,
    ListenerState,
    cached_header,
)
from isthmus.frontends.http.listener import HttpListenerSettings, _uvicorn_config
from isthmus.frontends.http.request_cycle import FIELDS, IncomingRequest, Message, Receive, Send, join_headers
from tests.unit.frontends.http.raw_client import PATIENCE_SECONDS, Echo, connect_raw, opened, read_body, request

CASES = 1_000
HEAD = b"POST /mcp HTTP/1.1\r\nHost: hub\r\nContent-Length: 2\r\nAuthorization: Bearer one\r\n\r\n"
SCOPE: dict[str, Any] = {"headers": [(b"host", b"hub"), (b"content-length", b"2"), (b"authorization", b"Bearer one")]}


def test_only_the_length_may_differ() -> None:
    seen = cached_header(HEAD + b"{}", 2, SCOPE)
    assert seen is not None
    assert seen.body_in(HEAD + b"[]") == b"[]"
    assert seen.body_in(HEAD.replace(b": 2", b": 11") + b"hello world") == b"hello world"
    for other in (
        HEAD.replace(b"one", b"two") + b"{}",
        HEAD.replace(b": 2", b": 3") + b"{}",
        HEAD.replace(b": 2", b": 1") + b"{}",
        HEAD.replace(b": 2", b": +2") + b"{}",
        HEAD.replace(b": 2", b": 2, 2") + b"{}",
        HEAD.replace(b": 2", b": 2\r\nContent-Length: 2") + b"{}",
        HEAD.replace(b": 2", b": 2\r\nTransfer-Encoding: chunked") + b"{}",
        HEAD.replace(b": 2", b": ") + b"{}",
        HEAD.replace(b": 2", b": 0000000002") + b"{}",
        HEAD + b"{}" + HEAD + b"{}",
        HEAD + b"{",
        HEAD[:-2],
        b"",
    ):
        assert seen.body_in(other) is None, other


async def test_an_application_sees_the_length_that_a_known_head_has_now() -> None:
    echo = Echo()
    async with opened(echo) as (_, port), connect_raw(port) as raw_client:
        for number in range(1, 5):
            raw_client.say(request("/same", b"x" * number))
            await raw_client.receive()
    assert [dict(headers)[b"content-length"] for headers in echo.headers] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("data", "body_bytes"),
    [
        pytest.param(HEAD + b"{}" + HEAD + b"{}", 2, id="two requests"),
        pytest.param(HEAD.replace(b"\r\nHost", b"\nHost") + b"{}", 2, id="lines that end in another way"),
        pytest.param(HEAD.replace(b"Content-Length: 2", b"X: 2") + b"{}", 2, id="no length"),
        pytest.param(HEAD.replace(b"one", b"1" * HEAD_BYTES_MAX) + b"{}", 2, id="long"),
        pytest.param(HEAD.replace(b"Content-Length: 2", b"X: \r\n Content-Length: 2") + b"{}", 2, id="folded"),
    ],
)
def test_ambiguous_heads_are_not_cached(data: bytes, body_bytes: int) -> None:
    assert cached_header(data, body_bytes, SCOPE) is None


async def test_a_head_that_comes_again_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(self: HttpServerConnection, data: bytes) -> None:
        parsed.append(data)
        plain(self, data)

    plain = HttpServerConnection._parse
    monkeypatch.setattr(HttpServerConnection, "_parse", parse)
    async with opened(Echo()) as (_, port), connect_raw(port) as raw_client:
        for number in range(6):
            raw_client.say(request("/same", b"x" * number * 7 + b"y"))
            assert (await raw_client.receive()).body == b"/same " + b"x" * number * 7 + b"y"
        for number in range(HEADS_MAX + 3):
            raw_client.say(request(f"/{number}", b"body"))
            assert (await raw_client.receive()).body == b"/%d body" % number
    assert len(parsed) == 2 + HEADS_MAX + 3  # the first of a connection, the one that is cached_header, and others


class Cable(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.is_closed = True

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def responses_to(reads: list[bytes]) -> tuple[list[Any], bytes, bool]:
    """What a connection makes of these reads: requests as its application sees them, what it answers, if it ends."""
    seen: list[Any] = []

    def at_once(arrival: IncomingRequest) -> bool:
        # Requests with the same head share a scope, whose length is that of the first; the body says how long it is.
        scope = dict(arrival.scope)
        fields = scope.pop(FIELDS, None) or join_headers(scope["headers"])
        scope["headers"] = [header for header in scope["headers"] if header[0] != b"content-length"]
        seen.append((scope, {**fields, b"content-length": b""}, arrival.body))
        arrival.answer(200, b"x-served: %d\r\n" % len(seen), arrival.body)
        return True

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        scope.pop("extensions")
        seen.append((dict(scope), await read_body(receive)))
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"later"})

    state = ListenerState(HttpListenerSettings(port=0, max_body_bytes=64))
    state.at_once = at_once
    cable = Cable()
    connection = HttpServerConnection(_uvicorn_config(app), state)
    connection.connection_made(cable)
    for data in reads:
        connection.data_received(data)
        await let_go_on(state)
        connection.flush()
    written, is_closed = cable.written, cable.is_closed
    connection.connection_lost(None)
    await asyncio.gather(*state.tasks)
    return seen, written, is_closed


async def test_known_heads_count_among_the_requests_that_may_wait() -> None:
    may_answer = asyncio.Event()

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await may_answer.wait()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b""})

    state, cable = ListenerState(HttpListenerSettings(port=0)), Cable()
    connection = HttpServerConnection(_uvicorn_config(app), state)
    connection.connection_made(cable)
    for _ in range(MAX_PIPELINED + 3):
        connection.data_received(HEAD + b"{}")
    may_answer.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not cable.is_closed:  # noqa: ASYNC110 - a cable has no notification
            await asyncio.sleep(0)
    connection.connection_lost(None)
    assert cable.written.count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1
    assert cable.written.count(b"HTTP/1.1 503") == 1


async def let_go_on(state: ListenerState) -> None:
    """As far as it goes without more of a request."""
    for _ in range(6 if state.tasks else 0):
        await asyncio.sleep(0)


MORE = (
    *(b"", b" ", b"0", b"\r\n folded", b"\0"),
    *(b"\r\nExpect: nothing", b"\r\nExpect: 100-continue", b"\r\nConnection: Upgrade\r\nUpgrade: h2c"),
)
"""What is put behind a line of a head."""


def some_request(random: Random) -> bytes:
    """A request out of few, now and then not quite right."""
    body = b"x" * random.choice((1, 2, 9, 10, 63, 64) if random.random() < 0.98 else (65,))
    path = random.choice((b"/a", b"/a", b"/b?c"))
    lines = [b"POST %s HTTP/1.1" % path, b"Host: hub", b"Content-Length: %d" % len(body), b"X-Api-Key: k"]
    if random.random() < 0.85:
        return b"\r\n".join([*lines, b"", body])
    lines[random.randrange(1, 4)] += random.choice(MORE)
    lines[random.randrange(4)] = random.choice(
        (
            *lines,
            b"Connection: close",
            b"Transfer-Encoding: chunked",
            b"content-length: 1",
            b"Content-Length: 01",
            b"Content-Encoding: gzip",
            b"POST /a HTTP/1.0",
            b"GET /a HTTP/1.1",
            b"\r\nPOST /a HTTP/1.1",
        )
    )
    return random.choice((b"\r\n", b"\r\n", b"\n")).join([*lines, b"", body])


@pytest.mark.parametrize("more", MORE)
async def test_a_repeated_head_means_the_same(more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = [HEAD.replace(b"Host: hub", b"Host: hub" + more) + b"{}"] * 4
    with monkeypatch.context() as forgetful:
        forgetful.setattr(connection_module, "HEADS_MAX", 0)
        expected = await responses_to(reads)
    assert await responses_to(reads) == expected


async def test_the_header_cache_changes_no_response(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0

    def is_taken_again(self: HttpServerConnection, data: bytes) -> bool:
        nonlocal taken
        found = plain(self, data)
        taken += found
        return found

    plain = HttpServerConnection._takes_cached
    monkeypatch.setattr(HttpServerConnection, "_takes_cached", is_taken_again)
    for case in range(CASES):
        random = Random(case)
        reads = [some_request(random) for _ in range(8)]
        if random.random() < 0.3:
            at = random.randrange(7)
            whole = reads[at] + reads[at + 1]
            cut = random.randrange(1, len(whole))
            reads[at : at + 2] = random.choice(([whole], [whole[:cut], whole[cut:]]))
        with monkeypatch.context() as forgetful:
            forgetful.setattr(connection_module, "HEADS_MAX", 0)
            expected = await responses_to(reads)
        assert await responses_to(reads) == expected, reads
    assert taken > CASES
