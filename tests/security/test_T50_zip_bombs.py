"""T50: a few bytes that unfold to gigabytes: in a request, in a server's answer, in a WebSocket's frames.

The hub unfolds nothing: compressed requests are refused, servers are asked for answers as they are and a compressed one
is none, and no socket agrees to compression.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import Ledger
from tests.faults.watching import eventually
from tests.frontends.wire import BASE, connected, encoded, key_header, legacy
from tests.hubs import HubProcess, Raw, serving
from tests.security.endpoints import ENDPOINTS, KEY, POSTS, knock

pytestmark = pytest.mark.asyncio(loop_scope="module")


@cache
def bomb(compress: Callable[[bytes, int], bytes]) -> bytes:
    """64 MiB in a few bytes; made when a test needs it, because collecting the tests should not."""
    return compress(b" " * 64 * 1024 * 1024, 9)


@pytest.mark.parametrize("name", POSTS)
async def test_a_compressed_request_is_refused(guarded: tuple[HubProcess, Ledger], name: str) -> None:
    hub, _ = guarded
    before = resident(hub.pid)
    endpoint = POSTS[name]
    for coding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "x-gzip"):
        async with connected(hub.port) as wire:
            reply = await knock(wire, endpoint, [*endpoint.lines(), ("content-encoding", coding)], bomb(gzip.compress))
        assert reply.status == 415, coding
        assert resident(hub.pid) - before < 32 * 1024 * 1024, coding


@pytest.mark.parametrize("name", [name for name, endpoint in ENDPOINTS.items() if endpoint.is_socket])
async def test_no_socket_agrees_to_compression(guarded: tuple[HubProcess, Ledger], name: str) -> None:
    endpoint = ENDPOINTS[name]
    wish = ("sec-websocket-extensions", "permessage-deflate; client_max_window_bits")
    async with connected(guarded[0].port) as wire:
        reply = await knock(wire, endpoint, [*endpoint.lines(), wish])
    assert "sec-websocket-extensions" not in reply.headers


async def test_a_server_that_compresses_is_not_understood_and_costs_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        bombs = {
            coding: await stack.enter_async_context(bombing(coding)) for coding in ("gzip", "deflate", "br", "zstd")
        }
        entries = {
            coding: {"url": f"http://127.0.0.1:{port}/mcp", "type": "http"} for coding, (port, _) in bombs.items()
        }
        async with serving(tmp_path, entries) as hub, Raw(hub.url) as raw:
            before = resident(hub.pid)
            await eventually(lambda: all(heads for _, heads in bombs.values()), "the hub has asked all of them")
            assert (await raw.call("builtin.echo", {"text": "x"}))["result"]["content"][0]["text"] == "x"
            assert {name.partition(".")[0] for name in await raw.names()} == {"builtin"}
            assert resident(hub.pid) - before < 32 * 1024 * 1024
        for coding, (_, heads) in bombs.items():
            assert b"accept-encoding: identity" in heads[0].lower(), coding


@asynccontextmanager
async def bombing(coding: str) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server with compressed bombs as answers, and the heads of its requests."""
    heads: list[bytes] = []
    body = bomb(zlib.compress)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                sent = b"content-type: application/json\r\ncontent-encoding: %b\r\n" % coding.encode()
                writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (sent, len(body), body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], heads


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def test_uncompressed_bodies_are_accepted(guarded: tuple[HubProcess, Ledger]) -> None:
    """Else the tests above could not fail."""
    async with connected(guarded[0].port) as wire:
        headers = [*BASE, *key_header(KEY), ("content-encoding", "identity")]
        assert (await wire.request(encoded(legacy("ping")), headers)).status == 200
