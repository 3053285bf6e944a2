"""One HTTP request and its response, and what all frontends use to read and write them.

A `RequestCycle` speaks ASGI to the application and is the `Peer` that a frontend finds in the scope. It frames the
response. The connection reads the socket and enforces deadlines.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Literal, Protocol

import msgspec
import structlog

from isthmus.core.event_loop import READER_BYTES, pause
from isthmus.frontends.http.auth import Fields, Headers
from isthmus.wire import sse
from isthmus.wire.jsonrpc import Text

log = structlog.get_logger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
"""An ASGI 3 application, with messages as its specification spells them."""

NO_CONTENT = 204
"""The status whose response must not have a Content-Length."""

FIELDS = "isthmus.fields"
"""The member of a scope that has the headers by name, where requests share the scope."""

PEER = "isthmus"
"""Where a frontend finds its `Peer`: `scope["extensions"][PEER]`."""

ALLOW_ORIGIN = b"access-control-allow-origin:"

Framing = Literal["length", "chunked", "close", "none"]
"""How a client learns where the body of a response ends."""

_BAD_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


PHRASES = {int(status): status.phrase for status in HTTPStatus}
STATUS_LINE = {
    status: f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\nx-content-type-options: nosniff\r\n".encode()
    for status in range(100, 600)
}
"""The start of a response. Browsers must not guess its type: the output of a server may look like a page."""


class Peer(Protocol):
    """The client of one request, with more than ASGI offers."""

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client disconnects before the response ends; soon, if it already has."""

    def take_body(self) -> bytes | None:
        """The whole request body, if it has arrived and none of it was received; else use `receive`."""

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        """Send a whole response; `lines` are `header_lines`, the length is added. Ignored after a disconnect."""

    def begin(self, status: int, lines: bytes) -> None:
        """Start a response of unknown length; its first piece should follow soon."""

    def push(self, chunk: bytes) -> None:
        """Write a piece of a started response, without waiting.

        Ignored after a disconnect; a client with more than `stall_bytes` unsent is disconnected.
        """

    def end(self, chunk: bytes) -> None:
        """Write the last piece of a started response."""

    def buffered_bytes(self) -> int:
        """The size of the output that the client has not read."""

    def abort(self) -> None:
        """Abort the connection and drop its unsent output; ignored after the end of the response."""


class DrainAwarePeer(Peer, Protocol):
    """A client that reports when all output has left."""

    def on_taken(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all output for the client has left; never, if it disconnects before."""


class IncomingRequest(Peer, Protocol):
    """A request that has arrived whole."""

    scope: Message

    @property
    def body(self) -> bytes:
        """The request's body; reading it here does not consume it."""


SyncHandler = Callable[[IncomingRequest], bool]
"""Handles a whole request without a task; False leaves it to the ASGI application. It makes common requests cheap."""


class WriteFlow(Protocol):
    """Whether the client reads too slowly to write more; uvicorn's `FlowControl` is one."""

    write_paused: bool

    async def drain(self) -> None:
        """Wait until writing may continue."""


class ConnectionWriter(Protocol):
    """What a request cycle needs of its connection."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    @property
    def flow(self) -> WriteFlow:
        """The state of the connection's output."""

    def put(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write these bytes, together."""

    def buffered_bytes(self) -> int:
        """The size of the output that has not left."""

    def on_taken(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all output has left; never, if the client disconnects before."""

    def read_on(self) -> None:
        """Continue reading, if it was paused because nothing consumed the body."""

    def on_response_complete(self) -> None:
        """The response is written: the next request may start."""


class RequestCycle:
    """A request in progress; its connection makes and starts it."""

    __slots__ = (
        "_body",
        "_connection",
        "_disconnect_callbacks",
        "_framing",
        "_has_event",
        "_held_head",
        "_owed_bytes",
        "_waiter",
        "cors",
        "has_whole_body",
        "is_complete",
        "is_gone",
        "is_kept_alive",
        "is_short",
        "is_started",
        "owes_continue",
        "pending_bytes",
        "scope",
    )

    def __init__(
        self,
        connection: ConnectionWriter,
        scope: Message,
        *,
        is_kept_alive: bool,
        owes_continue: bool = False,
        is_short: bool = False,
        cors: bytes = b"",
        body: bytes | None = None,
    ) -> None:
        """`cors` are header lines for the web page that sent the request, `body` is the whole body if it is there."""
        self.scope = scope
        self.cors = cors
        self.is_short = is_short
        self.is_kept_alive = is_kept_alive
        self.owes_continue = owes_continue
        self.has_whole_body = self._has_event = body is not None
        self.pending_bytes = 0 if body is None else len(body)
        self.is_started = False
        self.is_complete = False
        self.is_gone = False
        self._connection = connection
        self._body: list[bytes] = [] if body is None else [body]
        self._waiter: asyncio.Future[None] | None = None
        self._held_head: bytes | None = None
        self._framing: Framing = "length"
        self._owed_bytes = 0
        self._disconnect_callbacks: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        """Whether nothing more can be sent for this request."""
        return self.is_gone or self.is_complete

    @property
    def is_unsaid(self) -> bool:
        """Whether no byte of the response was written, so that an error may replace it."""
        return not self.is_started or self._held_head is not None

    # For frontends (see `Peer`)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """See `Peer`."""
        if self.is_gone:
            self._connection.loop.call_soon(callback)
        elif not self.is_complete:
            self._disconnect_callbacks.append(callback)

    def take_body(self) -> bytes | None:
        """See `Peer`."""
        if not self.has_whole_body or not self._has_event or self.is_done:
            return None
        return self._take_pending()

    @property
    def body(self) -> bytes:
        """See `IncomingRequest`."""
        if len(self._body) != 1:
            self._body = [b"".join(self._body)]
        return self._body[0]

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        """See `Peer`."""
        if self.is_gone or self.is_complete:
            return
        self.is_started = True
        pieces = (body,) if isinstance(body, bytes) else body
        length = b"" if status == NO_CONTENT else b"content-length: %d\r\n" % sum(map(len, pieces))
        if self.scope["method"] == "HEAD":
            pieces = ()  # only its length is sent: a client would read the bytes as the next response
        if self.cors:
            lines = self._with_cors(lines)
        self._finish([STATUS_LINE[status], lines, length, *self._closing_lines(), *pieces])

    def begin(self, status: int, lines: bytes) -> None:
        """See `Peer`."""
        if self.is_done:
            return
        self.is_started = True
        self._framing = self._framing_for(status, None)
        self._held_head = b"".join([STATUS_LINE[status], self._with_cors(lines), *self._closing_lines()])

    def end(self, chunk: bytes) -> None:
        """See `Peer`."""
        if not self.is_done:
            self._write(chunk, is_last=True)

    def push(self, chunk: bytes) -> None:
        """See `Peer`."""
        if not self.is_done:
            self._write(chunk, is_last=False)

    def buffered_bytes(self) -> int:
        """See `Peer`."""
        return self._connection.buffered_bytes()

    def on_taken(self, callback: Callable[[], None]) -> None:
        """See `DrainAwarePeer`."""
        if not self.is_gone:
            self._connection.on_taken(callback)

    def abort(self) -> None:
        """See `Peer`."""
        if not self.is_complete:
            self._connection.transport.abort()

    # For the connection

    def add_body(self, chunk: bytes) -> None:
        """A piece of the request's body has arrived."""
        self._body.append(chunk)
        self.pending_bytes += len(chunk)
        self._wake()

    def end_body(self) -> None:
        """The request's body is complete."""
        self.has_whole_body = True
        self._wake()

    def leave(self) -> None:
        """The client has disconnected or is being refused: call the `on_disconnect` callbacks, once."""
        if self.is_done:
            return
        self.is_gone = True
        self._wake()
        callbacks, self._disconnect_callbacks = self._disconnect_callbacks, []
        for callback in callbacks:
            call_contained(callback)

    def _wake(self) -> None:
        self._has_event = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ASGI

    async def run(self, app: App) -> None:
        """Run the application; whatever it does, the client gets a response or its connection is aborted."""
        self.scope = self._own_scope()
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:  # one request's bug must not reach other requests, nor its text the client
            log.exception("the application failed", path=self.scope["path"])
            self.fail()
        else:
            if not self.is_done:
                log.error("the application returned without a whole response", path=self.scope["path"])
                self.fail()
        finally:
            # Breaks the reference cycle between the scope and this object.
            self.scope.pop("extensions", None)

    def _own_scope(self) -> Message:
        """The scope for the application, which may change it; requests with a cached head share theirs."""
        scope = {**self.scope, "extensions": {PEER: self}}
        if scope.pop(FIELDS, None) is not None:
            length = b"%d" % self.pending_bytes
            headers = scope["headers"]
            scope["headers"] = [(name, length if name == b"content-length" else value) for name, value in headers]
        return scope

    def fail(self) -> None:
        """Answer 500, or abort the connection if the response has begun."""
        if self.is_done:
            return
        if not self.is_unsaid:
            self._connection.transport.abort()
            return
        self.is_kept_alive = False
        self._finish([render_error(500, "The hub failed to answer this request.", lines=self.cors)])

    async def receive(self) -> Message:
        """ASGI `receive`: a piece of the body, or the disconnect."""
        if not self.is_done:
            if self.owes_continue:
                self.owes_continue = False
                self._connection.put([b"HTTP/1.1 100 Continue\r\n\r\n"])
            self._connection.read_on()
            if not self._has_event:
                self._waiter = self._connection.loop.create_future()
                await self._waiter
        if self.is_done:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._take_pending(), "more_body": not self.has_whole_body}

    def _take_pending(self) -> bytes:
        self._has_event = False
        body = b"".join(self._body)
        self._body.clear()
        self.pending_bytes = 0
        return body

    async def send(self, message: Message) -> None:
        """ASGI `send`; waits while the client reads slowly, and is ignored after a disconnect."""
        if self._connection.flow.write_paused and not self.is_gone:
            await self._connection.flow.drain()
        if self.is_gone:
            return
        match message["type"]:
            case "http.response.start":
                # Held back, to be written together with the first piece of the body.
                status = message["status"]
                if self.is_started:
                    raise RuntimeError("the response was started twice")
                length: int | None = None
                lines = [STATUS_LINE[status]]
                for name, value in message.get("headers", ()):
                    line, role = render_header(name, value)
                    lines.append(line)
                    if role == "length":
                        length = int(value)
                    elif role == "close":
                        self.is_kept_alive = False
                self._framing = self._framing_for(status, length)
                self._owed_bytes = length or 0
                self._held_head = b"".join([self._with_cors(b"".join(lines)), *self._closing_lines()])
                self.is_started = True
            case "http.response.body":
                self._write(message.get("body", b""), is_last=not message.get("more_body", False))
            case other:
                raise RuntimeError(f"unknown ASGI message {other!r}")

    def _with_cors(self, lines: bytes) -> bytes:
        """A response's header lines with the CORS lines, unless it has its own."""
        return lines if ALLOW_ORIGIN in lines else lines + self.cors

    def _framing_for(self, status: int, length: int | None) -> Framing:
        if self.scope["method"] == "HEAD" or status in (204, 304):
            return "none"
        if length is not None:
            return "length"
        return "close" if self.scope["http_version"] == "1.0" else "chunked"

    def _closing_lines(self) -> list[bytes]:
        if self.owes_continue:
            # The client may send its body or not: closing avoids that it is read as the next request.
            self.owes_continue = False
            self.is_kept_alive = False
        lines = [] if self.is_kept_alive else [b"connection: close\r\n"]
        if self._framing == "chunked":
            lines.append(b"transfer-encoding: chunked\r\n")
        return [*lines, b"\r\n"]

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if not self.is_started or self.is_complete:
            raise RuntimeError("the response has not been started, or has ended")
        pieces = self._framed(body, is_last=is_last)
        if self._held_head is not None:
            pieces.insert(0, self._held_head)
            self._held_head = None
        if is_last:
            self._finish(pieces)
        else:
            self._connection.put(pieces)

    def _framed(self, body: bytes, *, is_last: bool) -> list[bytes]:
        match self._framing:
            case "none":
                return []
            case "close":
                return [body]
            case "length":
                self._owed_bytes -= len(body)
                if self._owed_bytes < 0 or (is_last and self._owed_bytes):
                    raise RuntimeError("the body does not have the length that its Content-Length announces")
                return [body]
            case "chunked":
                pieces = [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
                return [*pieces, b"0\r\n\r\n"] if is_last else pieces

    def _finish(self, last_pieces: Sequence[bytes | memoryview]) -> None:
        self._complete()
        self._connection.put(last_pieces)
        self._connection.on_response_complete()

    def _complete(self) -> None:
        self.is_complete = True
        self._wake()
        self._disconnect_callbacks.clear()


def call_contained(callback: Callable[[], None]) -> None:
    """Call a callback; an exception is logged."""
    try:
        callback()
    except Exception:  # one failing callback must not prevent the next
        log.exception("an HTTP callback failed")


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as lines; frontends prepare those that they send often."""
    return b"".join(render_header(name, value)[0] for name, value in headers)


@functools.lru_cache(maxsize=1024)
def render_header(name: bytes, value: bytes) -> tuple[bytes, Literal["length", "close"] | None]:
    """A header's line and its role in the framing; cached, because responses repeat few headers."""
    name = name.lower()
    if not name or _BAD_NAME.search(name) or _BAD_VALUE.search(value):
        raise RuntimeError(f"the header {name!r} has an invalid name or value")
    if name == b"transfer-encoding":
        raise RuntimeError("the connection frames responses itself: leave the header transfer-encoding out")
    if name == b"connection":
        # `close` is written with the framing, so that it is there once.
        return b"", "close" if b"close" in value.lower() else None
    return b"%b: %b\r\n" % (name, value), "length" if name == b"content-length" else None


def render_error(
    status: int, sentence: str, headers: Iterable[tuple[bytes, bytes]] = (), *, lines: bytes = b""
) -> bytes:
    """A whole error response (RFC 9457) of the listener itself, after which the connection closes.

    A refused request reached no frontend, so nothing was executed; after a failure that is unknown.
    """
    executed = "unknown" if status == HTTPStatus.INTERNAL_SERVER_ERROR else "no"
    problem = {"title": HTTPStatus(status).phrase, "status": status, "detail": sentence, "executed": executed}
    body = msgspec.json.encode(problem)
    head = b"content-type: application/problem+json\r\ncontent-length: %d\r\nconnection: close\r\n"
    return b"".join([STATUS_LINE[status], head % len(body), header_lines(headers), lines, b"\r\n", body])


KEEP_ALIVE_SECONDS = 15.0
"""An open stream sends something at least this often, or a proxy may close it."""

CROWDED_BYTES = 64 * 1024
"""With more unsent output, progress and log events are dropped."""

JSON = header_lines([(b"content-type", b"application/json")])
# Without no-store, Chromium caches the stream and sends a later DELETE to the same address twice.
STREAM = header_lines(
    [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-store, no-transform"),
        (b"x-accel-buffering", b"no"),
    ]
)


class KeepAlive:
    """Sends a comment regularly on an open stream."""

    __slots__ = ("_loop", "_peer", "_timer")

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._loop = loop
        self._timer = loop.call_later(KEEP_ALIVE_SECONDS, self._beat)

    def _beat(self) -> None:
        self._peer.push(sse.comment())
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._beat)

    def stop(self) -> None:
        """The stream has ended."""
        self._timer.cancel()


def join_headers(headers: Headers) -> dict[bytes, bytes]:
    """Headers by name; the values of repeated headers are joined with commas, as HTTP defines it."""
    found = dict(headers)
    if len(found) == len(headers):
        return found
    found = {}
    for name, value in headers:
        found[name] = found[name] + b", " + value if name in found else value
    return found


def accepted_types(fields: Fields) -> list[bytes]:
    """The media types in `Accept`, without parameters."""
    return [part.partition(b";")[0].strip().lower() for part in fields.get(b"accept", b"").split(b",")]


def is_json(headers: Fields) -> bool:
    """Whether a request's Content-Type is JSON."""
    content_type = headers.get(b"content-type", b"")
    return content_type == b"application/json" or content_type.partition(b";")[0].strip().lower() == b"application/json"


async def read_body(receive: Receive) -> bytes | None:
    """The body; None if the client disconnects meanwhile. The connection limits its size."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            if sum(map(len, chunks)) > READER_BYTES:
                await pause()
            return b"".join(chunks)


def respond(peer: Peer, status: int, text: str, headers: Headers = ()) -> None:
    """Respond with a status and a message as `{"error": ...}`, or without a body if `text` is empty."""
    if text:
        peer.answer(status, JSON + header_lines(headers), msgspec.json.encode({"error": text}))
    else:
        peer.answer(status, header_lines(headers), b"")
