"""The least that can stand between a caller and a server: the yardstick for the hub's own cost.

uvicorn with a raw ASGI application, and a keep-alive client on httptools behind it. It passes the body on
and the answer back; it reads neither, knows no callers and has no limits or deadlines. Run as `python -m
bench.relay PORT`, where PORT is the server's; prints `PORT n` first.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httptools
import uvicorn

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

FORWARD = (
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%b"
)


class ServerConnection(asyncio.Protocol):
    """One keep-alive connection to the server, carrying one request at a time."""

    def __init__(self, idle: list[ServerConnection]) -> None:
        self._idle = idle
        self._body = b""
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to write to."""
        self._transport = cast(asyncio.Transport, transport)

    def forward(self, body: bytes) -> asyncio.Future[bytes]:
        """Send one body; the future is the answer's body."""
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._transport.write(FORWARD % (len(body), body))
        return self._answer

    def data_received(self, data: bytes) -> None:
        """Let the parser call back."""
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Gather the answer's body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Hand over the answer; the connection is free again."""
        body, self._body = self._body, b""
        self._idle.append(self)
        if not self._answer.done():
            self._answer.set_result(body)


class Relay:
    """The ASGI application."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._idle: list[ServerConnection] = []

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Pass one request on and its answer back."""
        body = await whole_body(receive)
        connection = self._idle.pop() if self._idle else await self._connect()
        answer = await connection.forward(body)
        length = b"%d" % len(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _connect(self) -> ServerConnection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ServerConnection(self._idle), "127.0.0.1", self._server_port
        )
        return connection


async def whole_body(receive: Receive) -> bytes:
    """Return the request's body, however many messages bring it."""
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return body


def main() -> None:
    """Serve on a free loopback port until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server_port", type=int, help="the port of the server to forward to")
    # uvicorn.Config types an application by its own protocols; this one has the same shape in plain types.
    relay = cast(Any, Relay(parser.parse_args().server_port))
    listener = socket.create_server(("127.0.0.1", 0))
    print("PORT", listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        relay,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        date_header=False,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
