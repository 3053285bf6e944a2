"""An MCP server with one tool, `echo`, that costs as little as Python allows.

It stands behind the relay and the hub, and a call straight to it is the floor that they are compared with.
It trusts its callers and checks nothing, so it is no example of a server. Run as `python -m bench.direct`:
over Streamable HTTP by default, printing `PORT n` first, or by another carrier with `--carrier`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import cast

import httptools
import msgspec
import uvloop
from websockets.asyncio.server import ServerConnection, serve

from bench.messages import VERSIONS, Era

ECHO_TOOL = {
    "name": "echo",
    "description": "Return the text it was given.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}
ABOUT = {"capabilities": {"tools": {}}, "serverInfo": {"name": "direct", "version": "1"}}
NO_TEXT = msgspec.Raw(b'""')
PLAIN = b'{"jsonrpc":"2.0","id":%b,"result":%b}'
INITIALIZED = b'{"jsonrpc":"2.0","id":%b,"result":{"protocolVersion":%b,' + msgspec.json.encode(ABOUT)[1:] + b"}"
UNKNOWN_METHOD = b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32601,"message":"Method not found"}}'
ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: endpoint\ndata: /messages\n\n"
PROGRESS = (
    b'data: {"jsonrpc":"2.0","method":"notifications/progress",'
    b'"params":{"progressToken":%b,"progress":%d,"total":%d}}\n\n'
)
EVENTS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
)
NOT_ALLOWED = b"HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\nContent-Length: 0\r\n\r\n"


class Arguments(msgspec.Struct):
    """The one argument, kept as the JSON text that came."""

    text: msgspec.Raw = NO_TEXT


class Params(msgspec.Struct):
    """Of all that a request may say, what this server reads; without MCP, the text is all there is."""

    arguments: Arguments = msgspec.field(default_factory=Arguments)
    text: msgspec.Raw = NO_TEXT
    protocol_version: str = msgspec.field(default=VERSIONS["legacy"], name="protocolVersion")


class Message(msgspec.Struct):
    """A request, or a notification when the id is empty."""

    method: str = ""
    id: msgspec.Raw = msgspec.Raw()
    params: Params = msgspec.field(default_factory=Params)


DECODER = msgspec.json.Decoder(Message)


class Echo:
    """Bytes of a request in, bytes of its answer out; the same for every carrier."""

    def __init__(self, era: Era) -> None:
        envelope = b'{"jsonrpc":"2.0","id":%b,"result":'
        # The kind of result is a modern word; a legacy server does not say it.
        kind = b"" if era == "legacy" else b',"resultType":"complete"'
        self._call = envelope + b'{"content":[{"type":"text","text":%b}]' + kind + b"}}"
        self._answers = {
            method: envelope + msgspec.json.encode(result) + b"}" for method, result in fixed_results(era).items()
        }

    def answer(self, body: bytes) -> bytes | None:
        """Return the answer, or None for a notification."""
        message = DECODER.decode(body)
        id = bytes(message.id)
        if message.method == "tools/call":
            return self._call % (id, bytes(message.params.arguments.text))
        if message.method == "echo":  # who does not know MCP names the tool itself
            return PLAIN % (id, bytes(message.params.text))
        if not id:
            return None
        if message.method == "initialize":  # in the revision of the client: older ones refuse a newer one
            return INITIALIZED % (id, msgspec.json.encode(message.params.protocol_version))
        if template := self._answers.get(message.method):
            return template % id
        return UNKNOWN_METHOD % id


def fixed_results(era: Era) -> dict[str, object]:
    """Return the results that do not depend on the request, by method."""
    legacy: dict[str, object] = {
        "ping": {},
        "tools/list": {"tools": [ECHO_TOOL]},
    }
    if era == "legacy":
        return legacy
    fresh = {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "public"}
    return legacy | {
        "server/discover": {"supportedVersions": list(VERSIONS.values()), **ABOUT, **fresh},
        "tools/list": {"tools": [ECHO_TOOL], **fresh},
    }


class HttpPeer(asyncio.Protocol):
    """One keep-alive HTTP connection; a request is answered in the callback that completes it."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._body = b""
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport to write to."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Let the parser call back; what is not HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_body(self, body: bytes) -> None:
        """Gather the request's body, which nearly always comes in one piece."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer with one write."""
        body, self._body = self._body, b""
        if not body:
            self._transport.write(NOT_ALLOWED)
        elif (answer := self._echo.answer(body)) is None:
            self._transport.write(ACCEPTED)
        else:
            self._transport.write(ANSWER % (len(answer), answer))


class EventPeer(HttpPeer):
    """A connection of the earlier HTTP+SSE transport: the stream, or one that brings messages."""

    streams: list[asyncio.Transport] = []  # noqa: RUF012 - one process serves one hub

    def on_message_complete(self) -> None:
        """Open the stream, or accept a message and answer it there."""
        body, self._body = self._body, b""
        if not body:
            self.streams.append(self._transport)
            self._transport.write(STREAM)
            return
        self._transport.write(ACCEPTED)
        if (answer := self._echo.answer(body)) is not None:
            self.streams[-1].write(b"event: message\ndata: %b\n\n" % answer)


class Meta(msgspec.Struct):
    """By what token a caller knows the events of a request."""

    token: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"0"), name="progressToken")


class StreamParams(Params):
    """The same with the token."""

    meta: Meta = msgspec.field(default_factory=Meta, name="_meta")


class StreamCall(msgspec.Struct):
    """A call that is answered by a stream."""

    id: msgspec.Raw
    params: StreamParams


class StreamPeer(HttpPeer):
    """A connection whose calls are answered by streams: as many events as the text says, then the answer."""

    def on_message_complete(self) -> None:
        """Write the whole stream at once; its reader sets the pace."""
        if b'"tools/call"' not in self._body:
            super().on_message_complete()
            return
        body, self._body = self._body, b""
        call = msgspec.json.decode(body, type=StreamCall)
        count = int(msgspec.json.decode(call.params.arguments.text, type=str))
        token = bytes(call.params.meta.token)
        events = [PROGRESS % (token, number, count) for number in range(1, count + 1)]
        stream = b"".join((*events, b"data: %b\n\n" % (self._echo.answer(body) or b"")))
        self._transport.write(EVENTS % (len(stream), stream))


class LineReader(asyncio.Protocol):
    """Standard input cut into lines, each answered at once through `write`."""

    def __init__(self, echo: Echo, output: asyncio.WriteTransport, ended: asyncio.Event) -> None:
        self._echo = echo
        self._output = output
        self._ended = ended
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        """Answer every whole line of the chunk in one write."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        answers = [self._echo.answer(line) for line in lines if line.strip()]
        whole = b"".join(answer + b"\n" for answer in answers if answer is not None)
        if whole:
            self._output.write(whole)

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the caller."""
        self._ended.set()


async def serve_http(echo: Echo, peer: Callable[[Echo], HttpPeer] = HttpPeer) -> None:
    """Serve on a free loopback port until killed."""
    server = await asyncio.get_running_loop().create_server(lambda: peer(echo), "127.0.0.1", 0)
    print("PORT", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def serve_socket(echo: Echo) -> None:
    """Serve WebSockets on a free loopback port until killed."""

    async def converse(socket: ServerConnection) -> None:
        async for message in socket:
            answer = echo.answer(message.encode() if isinstance(message, str) else message)
            if answer is not None:
                await socket.send(answer.decode())

    async with serve(converse, "127.0.0.1", 0, compression=None) as server:
        print("PORT", next(iter(server.sockets)).getsockname()[1], flush=True)
        await server.serve_forever()


async def serve_stdio(echo: Echo) -> None:
    """Serve on stdin and stdout until stdin ends; both must be pipes or sockets, not files."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    output, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(1, "wb", buffering=0))
    await loop.connect_read_pipe(lambda: LineReader(echo, output, ended), os.fdopen(0, "rb", buffering=0))
    await ended.wait()


def main() -> None:
    """Run the server that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--era", choices=VERSIONS, default="modern", help="the newest era it understands")
    parser.add_argument("--carrier", choices=CARRIERS, default="http", help="what it is spoken to over")
    arguments = parser.parse_args()
    uvloop.run(CARRIERS[arguments.carrier](Echo(arguments.era)))


CARRIERS: dict[str, Callable[[Echo], Coroutine[None, None, None]]] = {
    "http": serve_http,
    "sse": lambda echo: serve_http(echo, EventPeer),
    "socket": serve_socket,
    "stream": lambda echo: serve_http(echo, StreamPeer),
    "stdio": serve_stdio,
}


if __name__ == "__main__":
    main()
