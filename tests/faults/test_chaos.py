"""The proxy itself: it passes bytes unchanged, and cuts exactly where configured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.faults.chaos import ChaosProxy, Direction


class Echo:
    """A server that sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self.got = b""
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                self.got += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            writer.close()


@asynccontextmanager
async def echo_behind_proxy() -> AsyncIterator[tuple[Echo, ChaosProxy]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with asyncio.timeout(30), ChaosProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield echo, proxy
    server.close()


async def say(proxy: ChaosProxy, data: bytes) -> bytes:
    """Send through the proxy and return all that comes back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(data)
    back = b""
    try:
        while len(back) < len(data) and (more := await reader.read(1000)):
            back += more
    finally:
        writer.transport.abort()
    return back


async def test_without_faults_every_byte_passes() -> None:
    async with echo_behind_proxy() as (_, proxy):
        assert await say(proxy, b"x" * 100_000) == b"x" * 100_000
        assert proxy.passed == {"up": 100_000, "down": 100_000}
        assert (proxy.connections, proxy.cuts) == (1, 0)


@pytest.mark.parametrize("count", [0, 1, 16, 99, 100])
async def test_a_reset_on_the_way_up_lets_the_server_have_exactly_so_many_bytes(count: int) -> None:
    async with echo_behind_proxy() as (echo, proxy):
        proxy.reset_after(count, "up")
        with pytest.raises(ConnectionError):
            await read_to_the_end(proxy, b"x" * 100)
        await echo.ended.wait()

        assert echo.got == b"x" * count
        assert proxy.cuts == 1


@pytest.mark.parametrize("count", [0, 1, 16, 99])
async def test_a_close_on_the_way_down_lets_the_caller_have_exactly_so_many_bytes(count: int) -> None:
    async with echo_behind_proxy() as (echo, proxy):
        proxy.close_after(count, "down")

        assert await say(proxy, b"x" * 100) == b"x" * count
        assert echo.got == b"x" * 100


async def read_to_the_end(proxy: ChaosProxy, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(data)
    try:
        while await reader.read(1000):
            pass
    finally:
        writer.transport.abort()


async def test_a_cut_happens_once_unless_it_is_for_every_connection() -> None:
    async with echo_behind_proxy() as (_, proxy):
        proxy.close_after(3, "down")
        assert [await say(proxy, b"abcdef") for _ in range(2)] == [b"abc", b"abcdef"]

        proxy.close_after(3, "down", every=True)
        assert [await say(proxy, b"abcdef") for _ in range(2)] == [b"abc", b"abc"]

        await proxy.clear()
        assert await say(proxy, b"abcdef") == b"abcdef"


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_cut_counts_from_its_arming_on_a_connection_that_stands(way: Direction) -> None:
    async with echo_behind_proxy() as (_, proxy):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"

        proxy.close_after(2, way)
        writer.write(b"second")

        response = await reader.read(100)
        assert response == b"se" if way == "down" else response in {b"", b"se"}
        assert proxy.passed[way] == 2
        writer.transport.abort()


async def test_a_black_hole_holds_bytes_until_it_is_cleared() -> None:
    async with echo_behind_proxy() as (echo, proxy):
        proxy.blackhole()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"held")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(echo.ended.wait()), 0.05)
        assert echo.got == b""

        await proxy.clear()

        assert await reader.readexactly(4) == b"held"
        writer.transport.abort()


async def test_refusing_closes_open_connections_and_the_kernel_refuses_new_ones() -> None:
    async with echo_behind_proxy() as (_, proxy):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"x")
        await reader.readexactly(1)

        proxy.refuse()

        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        await proxy.clear()
        assert await say(proxy, b"back") == b"back"
        writer.transport.abort()


async def test_latency_delays_both_ways() -> None:
    async with echo_behind_proxy() as (_, proxy):
        proxy.latency(0.05)
        started = asyncio.get_running_loop().time()
        await say(proxy, b"x")

        assert asyncio.get_running_loop().time() - started >= 0.1


async def test_leaving_ends_connections_that_a_black_hole_holds() -> None:
    async with echo_behind_proxy() as (_, proxy):
        proxy.blackhole()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"held")

    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    writer.transport.abort()
