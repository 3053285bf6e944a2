"""A load balancer that sends every request to a random node: `python -m tests.cluster_hubs.balancer [GRPC_PORT]`.

It prints its port, and with an argument that for gRPC, and then reads lines of JSON with the ports of the nodes, the
newest of which counts. It speaks HTTP/1.1 on both sides, keeps connections alive, passes streams on as they come, and
tells each side when the other one leaves. A WebSocket stays with its node, and each call over gRPC goes to a random
one. A node that does not answer at all is left out for that request, as load balancers do; a request that may have
reached its node is never sent again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

CHUNK_BYTES = 64 * 1024
HEAD_BYTES_MAX = 1 << 20
TUNNEL_BYTES = 64 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:[ \t]*websocket", re.IGNORECASE)
_EXPECT = re.compile(rb"\r\nexpect:[ \t]*100-continue", re.IGNORECASE)
LINGER_SECONDS = 2.0
NO_BODY = (b"204", b"304")
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Balancer:
    """The nodes by port, and the connections to them that are free."""

    def __init__(self, choose: random.Random) -> None:
        self.ports: list[int] = []
        self._choose = choose
        self._free: dict[int, list[Streams]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it leaves."""
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            while await self._pass_on(reader, writer):
                pass
        writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its response; False if the client's connection is over."""
        head = await reader.readuntil(b"\r\n\r\n")
        port, (node_reader, node_writer) = await self._connect()
        try:
            if _UPGRADE.search(head):
                node_writer.write(head)
                await _tunnel((reader, writer), (node_reader, node_writer))
                return False
            if _EXPECT.search(head):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                head = _EXPECT.sub(b"", head)
            node_writer.write(head)
            sending = asyncio.ensure_future(_copy_body(head, reader, node_writer))
            answering = asyncio.ensure_future(_copy_response(head, node_reader, writer))
            leaving = asyncio.ensure_future(_watch(sending, reader))
            done, _ = await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering not in done:
                answering.cancel()
                return False
            leaving.cancel()
            await asyncio.wait({leaving})
            is_sent = sending.done() and not sending.cancelled() and sending.exception() is None
            is_kept = answering.result() and is_sent
            if not is_sent:
                sending.cancel()
                await asyncio.wait({sending})
                await _linger(reader, writer)
            if is_kept:
                self._free.setdefault(port, []).append((node_reader, node_writer))
                node_writer = None  # type: ignore[assignment]
            return is_kept and not _CLOSE.search(head)
        finally:
            if node_writer is not None:
                node_writer.close()

    async def _connect(self) -> tuple[int, Streams]:
        for port in self._choose.sample(self.ports, len(self.ports)):
            while self._free.get(port):
                reader, writer = self._free[port].pop()
                if not reader.at_eof() and not writer.is_closing():
                    return port, (reader, writer)
                writer.close()
            with suppress(OSError):
                return port, await asyncio.open_connection("127.0.0.1", port, limit=HEAD_BYTES_MAX)
        raise ConnectionError("no node listens")


async def _watch(sending: asyncio.Future[None], reader: asyncio.StreamReader) -> None:
    """Return when the client has left."""
    try:
        await sending
    except OSError:
        if not reader.at_eof():  # the node does not read on; its response may still come
            await asyncio.get_running_loop().create_future()
        return
    while not reader.at_eof() and reader.exception() is None:
        if reader._buffer:  # type: ignore[attr-defined]  # the next request, which waits
            await asyncio.sleep(0.01)
        else:
            await reader._wait_for_data("watch")  # type: ignore[attr-defined]


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let a client that still sends read its response: closing with unread bytes would reset it away."""
    writer.write_eof()
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while await reader.read(CHUNK_BYTES):
                pass


async def _copy_body(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if _CHUNKED.search(head):
        await _copy_chunks(reader, writer)
    elif (length := _LENGTH.search(head)) is not None:
        await _copy_bytes(int(length[1]), reader, writer)


async def _copy_response(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Copy a response; False if both connections end with it."""
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.write(answer)
    if head.startswith(b"HEAD ") or answer[9:12] in NO_BODY:
        pass
    elif _CHUNKED.search(answer):
        await _copy_chunks(reader, writer)
    elif (length := _LENGTH.search(answer)) is not None:
        await _copy_bytes(int(length[1]), reader, writer)
    else:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        return False
    await writer.drain()
    return not _CLOSE.search(answer)


async def _copy_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    size = -1
    while size:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        writer.write(line)
        await _copy_bytes(size + 2, reader, writer)


async def _copy_bytes(size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while size:
        data = await reader.read(min(size, CHUNK_BYTES))
        if not data:
            raise ConnectionResetError("it ended early")
        size -= len(data)
        writer.write(data)
        await writer.drain()


async def _tunnel(one: Streams, other: Streams) -> None:
    """Pass a WebSocket on. It holds little of what one side does not read, so that the other side notices."""
    for reader, writer in (one, other):
        reader._limit = TUNNEL_BYTES  # type: ignore[attr-defined]
        writer.transport.set_write_buffer_limits(TUNNEL_BYTES)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, TUNNEL_BYTES)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()

    ways = {asyncio.ensure_future(copy(one[0], other[1])), asyncio.ensure_future(copy(other[0], one[1]))}
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for way in ways:
        way.cancel()


class GrpcBalancer:
    """Sends each call over gRPC to a random node."""

    def __init__(self, choose: random.Random) -> None:
        self.channels: list[Any] = []
        self._choose = choose

    async def open(self, port: int) -> int:
        """Listen, and return the port."""
        self._server = grpc.aio.server(options=UNLIMITED)
        self._server.add_generic_rpc_handlers((self,))
        bound: int = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return bound

    def set_ports(self, ports: list[int]) -> None:
        """Send calls to these nodes."""
        self.channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) for port in ports]

    def service(self, details: Any) -> Any:
        """Handle every method; gRPC calls it."""
        return grpc.stream_stream_rpc_method_handler(partial(self._pass_on, details))

    async def _pass_on(self, details: Any, requests: Any, context: Any) -> None:
        # A client that streams its request may get INTERNAL from its own library instead of an early status.
        start = self._choose.choice(self.channels).unary_stream(details.method)
        request = await anext(aiter(requests))
        call = start(request, timeout=context.time_remaining(), metadata=details.invocation_metadata)
        try:
            async for message in call:
                await context.write(message)
            context.set_trailing_metadata(await call.trailing_metadata())
            context.set_code(await call.code())
            context.set_details(await call.details())
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            context.set_code(error.code())
            context.set_details(error.details())
        finally:
            call.cancel()


async def main(grpc_port: int | None) -> None:
    """Serve until standard input ends."""
    choose = random.Random(os.environ.get("BALANCER_SEED"))
    balancer, grpc_balancer = Balancer(choose), GrpcBalancer(choose)
    server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
    print(server.sockets[0].getsockname()[1], flush=True)
    if grpc_port is not None:
        print(await grpc_balancer.open(grpc_port), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        balancer.ports, grpc_ports = json.loads(line)
        grpc_balancer.set_ports(grpc_ports)
        print("known", flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else None))
