"""T10: one request that two readers cut in two places, so that the second one's rest is a request of its own.

Whatever could be read in two ways is refused and its connection closed; nothing behind it is read. On the MCP endpoint
the same is shown by `tests/frontends/test_bad_input.py`; here it is every frontend that takes a body.
"""

from __future__ import annotations

import pytest

from tests.conftest import Ledger
from tests.frontends.wire import connected
from tests.hubs import HubProcess
from tests.security.endpoints import KEY, POSTS, Endpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")

INNER = (
    b"POST /v1/tools/raw.pay HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %b\r\nContent-Length: 2\r\n\r\n{}" % KEY.encode()
)
"""What would run a tool if it were read."""


def spoilt(endpoint: Endpoint, *lines: bytes, body: bytes, end: bytes = b"\r\n") -> bytes:
    """An endpoint's request with these lines about its length, and the other one behind it."""
    usual = [f"{name}: {value}".encode() for name, value in endpoint.lines()]
    head = [f"{endpoint.method} {endpoint.path} HTTP/1.1".encode(), *usual, *lines, b"", b""]
    return end.join(head) + body


def corpus(endpoint: Endpoint) -> dict[str, bytes]:
    """Lengths of a body that parsers read differently."""
    length = b"Content-Length: %d" % len(endpoint.body)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(endpoint.body), endpoint.body)
    both = endpoint.body + INNER
    return {
        "a length and chunks": spoilt(endpoint, length, b"Transfer-Encoding: chunked", body=chunks + INNER),
        "chunks and a length": spoilt(endpoint, b"Transfer-Encoding: chunked", length, body=chunks + INNER),
        "two lengths": spoilt(endpoint, length, b"Content-Length: 0", body=both),
        "the same length twice": spoilt(endpoint, length, length, body=both),
        "a list of lengths": spoilt(endpoint, length + b", 0", body=both),
        "a sign": spoilt(endpoint, b"Content-Length: +%d" % len(endpoint.body), body=both),
        "a space before the colon": spoilt(endpoint, b"Transfer-Encoding : chunked", body=chunks + INNER),
        "a tab before chunked": spoilt(endpoint, b"Transfer-Encoding:\x0bchunked", body=chunks + INNER),
        "chunked twice": spoilt(endpoint, b"Transfer-Encoding: chunked, chunked", body=chunks + INNER),
        "chunked and another": spoilt(endpoint, b"Transfer-Encoding: chunked, identity", body=chunks + INNER),
        "chunked, then another line": spoilt(
            endpoint, b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=chunks + INNER
        ),
        "a folded line": spoilt(endpoint, b"Transfer-Encoding:\r\n chunked", body=chunks + INNER),
        "a chunk size that overflows": spoilt(
            endpoint, b"Transfer-Encoding: chunked", body=b"f" * 17 + b"\r\n" + INNER
        ),
        "a chunk size with a sign": spoilt(
            endpoint, b"Transfer-Encoding: chunked", body=b"+2\r\n{}\r\n0\r\n\r\n" + INNER
        ),
        "a chunk size with 0x": spoilt(endpoint, b"Transfer-Encoding: chunked", body=b"0x2\r\n{}\r\n0\r\n\r\n" + INNER),
        "a chunk that is longer than it says": spoilt(
            endpoint, b"Transfer-Encoding: chunked", body=b"1\r\n{}\r\n0\r\n\r\n" + INNER
        ),
        "bare line feeds in the head": spoilt(endpoint, length, body=both, end=b"\n"),
        "a bare carriage return": spoilt(endpoint, length + b"\rX: y", body=both),
        "a NUL in a name": spoilt(endpoint, b"Content-Length\0: 5", length, body=both),
    }


@pytest.mark.parametrize("name", POSTS)
async def test_ambiguously_framed_requests_are_refused_with_all_that_follow(
    guarded: tuple[HubProcess, Ledger], name: str
) -> None:
    hub, ledger = guarded
    for label, request in corpus(POSTS[name]).items():
        async with connected(hub.port) as wire:
            await wire.say(request)
            status, headers = await wire.head()
            assert status in (400, 501), label
            assert headers["connection"] == "close", label
            await wire.reader.readexactly(int(headers["content-length"]))
            assert await wire.is_closed(), label
        assert "pay" not in ledger.ran(), label


async def test_the_inner_request_would_run(guarded: tuple[HubProcess, Ledger]) -> None:
    """Else the tests above could not fail."""
    hub, ledger = guarded
    before = len(ledger.lines())
    async with connected(hub.port) as wire:
        await wire.say(INNER)
        assert (await wire.reply()).status == 200
    assert len(ledger.lines()) > before
