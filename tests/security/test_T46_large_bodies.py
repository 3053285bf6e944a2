"""T46: a body that is too large to keep.

What says that it is too large is refused before it comes; what does not say is cut where it becomes so. On every
endpoint that takes a body, and on sockets, by the same limit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Ledger
from tests.frontends.wire import connected
from tests.hubs import HubProcess
from tests.security.endpoints import POSTS, Endpoint, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 4 * 1024 * 1024
SLACK = 64 * 1024
"""What may have been on its way when the refusal was written."""


def head(endpoint: Endpoint, *lines: str) -> bytes:
    """The head of an endpoint's request, whose body is yet to come."""
    usual = [f"{name}: {value}" for name, value in endpoint.lines()]
    return "\r\n".join([f"{endpoint.method} {endpoint.path} HTTP/1.1", *usual, *lines, "", ""]).encode()


@pytest.mark.parametrize("size", [LIMIT + 1, 5 * 1024**3, 10**30])
@pytest.mark.parametrize("name", POSTS)
async def test_bodies_declared_too_large_are_not_read(guarded: tuple[HubProcess, Ledger], name: str, size: int) -> None:
    async with connected(guarded[0].port) as wire:
        await wire.say(head(POSTS[name], f"Content-Length: {size}"))
        status, headers = await wire.head()
        assert status == (400 if size > 10**20 else 413)
        assert headers["connection"] == "close"


@pytest.mark.parametrize("name", POSTS)
async def test_a_client_that_expects_continue_is_refused_before_it_sends(
    guarded: tuple[HubProcess, Ledger], name: str
) -> None:
    async with connected(guarded[0].port) as wire:
        await wire.say(head(POSTS[name], f"Content-Length: {LIMIT + 1}", "Expect: 100-continue"))
        assert (await wire.reader.readline()).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "name", [name for name, endpoint in POSTS.items() if not endpoint.path.startswith("/messages")]
)
async def test_a_body_of_unknown_length_is_cut_where_it_becomes_too_large(
    guarded: tuple[HubProcess, Ledger], name: str
) -> None:
    hub, _ = guarded
    before = resident(hub.pid)
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    async with connected(hub.port) as wire:
        await wire.say(head(POSTS[name], "Transfer-Encoding: chunked"))
        sent = 0
        while wire.reader.at_eof() is False and sent < 4 * LIMIT:
            try:
                await wire.say(chunk)
            except ConnectionError:
                break
            sent += len(chunk)
            if wire.reader._buffer:  # type: ignore[attr-defined]  # an answer, before the end
                break
        status, _headers = await wire.head()
    assert status == 413
    assert resident(hub.pid) - before < 2 * LIMIT + SLACK


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def test_a_multipart_body_is_a_body(guarded: tuple[HubProcess, Ledger]) -> None:
    async with connected(guarded[0].port) as wire:
        endpoint = next(iter(POSTS.values()))
        lines = [pair for pair in endpoint.lines() if pair[0] != "content-type"]
        reply = await wire.request(b"--x--", [*lines, ("content-type", "multipart/form-data; boundary=x")])
    assert reply.status == 415


async def test_the_limit_is_the_operators(tmp_path: Path) -> None:
    async with opened(tmp_path, limits={"request_bytes": 8192}) as (hub, _), connected(hub.port) as wire:
        await wire.say(head(POSTS["MCP, legacy"], "Content-Length: 8193"))
        assert (await wire.head())[0] == 413
