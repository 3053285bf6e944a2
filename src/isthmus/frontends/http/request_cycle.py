"""One request and its answer on a connection, from the head's arrival to the answer's last byte.

A turn speaks ASGI to the application and is the `Peer` that a face finds in the scope. It decides how an
answer is framed and when it is written. It reads no socket and keeps no deadline: that is the connection's.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Literal, Protocol

import msgspec
import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE as BARE_STATUS_LINE

log = structlog.get_logger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
"""An ASGI 3 application, with messages as its specification spells them."""

NO_CONTENT = 204
"""The status whose answer must not even name a length."""

PEER = "isthmus"
"""Where a face finds its `Peer`: `scope["extensions"][PEER]`."""

ALLOW_ORIGIN = b"access-control-allow-origin:"

Framing = Literal["length", "chunked", "close", "none"]
"""How a client learns where an answer's body ends."""

_BAD_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


STATUS_LINE = {status: line + b"x-content-type-options: nosniff\r\n" for status, line in BARE_STATUS_LINE.items()}
"""How an answer begins. No browser is to guess what one is: what servers say may look like a page."""


class Peer(Protocol):
    """The client behind one request, beyond what ASGI tells of it."""

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once if the client goes before its answer ends; soon, if it has gone."""

    def take_body(self) -> bytes | None:
        """The whole request body if all of it is here and none was received; None means: use `receive`."""

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Answer whole and now; `lines` are `header_lines`, the length is added. Nothing once the client has gone."""

    def begin(self, status: int, lines: bytes) -> None:
        """Start an answer of unknown length, whose first piece should follow soon."""

    def push(self, chunk: bytes) -> None:
        """Write a piece of a started answer now, without waiting.

        Does nothing once the client has gone; one that holds more than `stall_bytes` unsent is cut instead.
        """

    def end(self, chunk: bytes) -> None:
        """Write the last piece of a started answer."""

    def buffered_bytes(self) -> int:
        """How much output the client has not taken yet."""

    def abort(self) -> None:
        """Cut the connection at once and drop its unsent output; does nothing after the answer's end."""


class Taking(Peer, Protocol):
    """A client of which it can be told when it has taken its answer."""

    def on_taken(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once all that was written for the client has left; never, if it goes before."""


class IncomingRequest(Peer, Protocol):
    """A request that has arrived whole, and its client."""

    scope: Message

    @property
    def body(self) -> bytes:
        """The request's body, which stays untaken."""


AtOnce = Callable[[IncomingRequest], bool]
"""Answers a whole request without waiting, or sees to it that it will be answered; False leaves it to the
application. It spares the common request a task."""


class ConnectionWriter(Protocol):
    """What a turn needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl
    loop: asyncio.AbstractEventLoop

    def put(self, pieces: list[bytes]) -> None:
        """Write these bytes, together."""

    def buffered_bytes(self) -> int:
        """How much of what was put has not left."""

    def on_taken(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once all that was put has left; never, if the client goes before."""

    def read_on(self) -> None:
        """Go on reading, if reading was paused for want of a reader."""

    def on_response_complete(self) -> None:
        """Give the next request its turn."""


class RequestCycle:
    """A request being answered; made and started by its connection."""

    __slots__ = (
        "_body",
        "_carrier",
        "_farewells",
        "_framing",
        "_has_news",
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
        carrier: ConnectionWriter,
        scope: Message,
        *,
        is_kept_alive: bool,
        owes_continue: bool,
        is_short: bool = False,
        cors: bytes = b"",
    ) -> None:
        """`cors` are header lines for the page that sent the request; empty for any other client."""
        self.scope = scope
        self.cors = cors
        self.is_short = is_short
        self.is_kept_alive = is_kept_alive
        self.owes_continue = owes_continue
        self.has_whole_body = False
        self.pending_bytes = 0
        self.is_started = False
        self.is_complete = False
        self.is_gone = False
        self._carrier = carrier
        self._body: list[bytes] = []
        self._has_news = False
        self._waiter: asyncio.Future[None] | None = None
        self._held_head: bytes | None = None
        self._framing: Framing = "length"
        self._owed_bytes = 0
        self._farewells: list[Callable[[], None]] = []

    @property
    def is_over(self) -> bool:
        """Nothing more can be said to the client about this request."""
        return self.is_gone or self.is_complete

    @property
    def is_unsaid(self) -> bool:
        """No byte of the answer has left, so an error may still take its place."""
        return not self.is_started or self._held_head is not None

    # What faces see

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """See `Peer`."""
        if self.is_gone:
            self._carrier.loop.call_soon(callback)
        elif not self.is_complete:
            self._farewells.append(callback)

    def take_body(self) -> bytes | None:
        """See `Peer`."""
        if not self.has_whole_body or not self._has_news or self.is_over:
            return None
        return self._taken()

    @property
    def body(self) -> bytes:
        """What has come of the body and was not taken yet."""
        if len(self._body) != 1:
            self._body = [b"".join(self._body)]
        return self._body[0]

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """See `Peer`."""
        if self.is_over:
            return
        self.is_started = True
        length = b"" if status == NO_CONTENT else b"content-length: %d\r\n" % len(body)
        if self.scope["method"] == "HEAD":
            body = b""  # its length is told all the same; the bytes would be taken for the next answer
        if self.cors:
            lines = self._with_cors(lines)
        self._carrier.put([STATUS_LINE[status], lines, length, *self._closing_lines(), body])
        self._finish()

    def begin(self, status: int, lines: bytes) -> None:
        """See `Peer`."""
        if self.is_over:
            return
        self.is_started = True
        self._framing = self._framing_for(status, None)
        self._held_head = b"".join([STATUS_LINE[status], self._with_cors(lines), *self._closing_lines()])

    def end(self, chunk: bytes) -> None:
        """See `Peer`."""
        if not self.is_over:
            self._write(chunk, is_last=True)

    def push(self, chunk: bytes) -> None:
        """See `Peer`."""
        if not self.is_over:
            self._write(chunk, is_last=False)

    def buffered_bytes(self) -> int:
        """See `Peer`."""
        return self._carrier.buffered_bytes()

    def on_taken(self, callback: Callable[[], None]) -> None:
        """See `Taking`."""
        if not self.is_gone:
            self._carrier.on_taken(callback)

    def abort(self) -> None:
        """See `Peer`."""
        if not self.is_complete:
            self._carrier.transport.abort()

    # What the connection tells

    def add_body(self, chunk: bytes) -> None:
        """A piece of the request's body has come."""
        self._body.append(chunk)
        self.pending_bytes += len(chunk)
        self._tell()

    def end_body(self) -> None:
        """The request has come to its end."""
        self.has_whole_body = True
        self._tell()

    def leave(self) -> None:
        """The client has gone or is being refused: whoever works for it is told, once."""
        if self.is_over:
            return
        self.is_gone = True
        self._tell()
        farewells, self._farewells = self._farewells, []
        for farewell in farewells:
            call_contained(farewell)

    def _tell(self) -> None:
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # Without a task

    def is_taken(self, at_once: AtOnce) -> bool:
        """Offer the request to who may answer it at once; a defect there costs this request only."""
        try:
            return at_once(self)
        except Exception:
            log.exception("a request could not be taken at once", path=self.scope["path"])
            self._fail()
            return True

    # ASGI

    async def run(self, app: App) -> None:
        """Have the application answer; whatever it does, the client gets an answer or a cut."""
        self.scope["extensions"] = {PEER: self}
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:  # One request's bug must reach neither the others nor, as text, the client
            log.exception("the application failed", path=self.scope["path"])
            self._fail()
        else:
            if not self.is_over:
                log.error("the application returned without a whole answer", path=self.scope["path"])
                self._fail()
        finally:
            # Scope and turn hold each other; untied, both are freed at once and not by the collector.
            self.scope.pop("extensions", None)

    def _fail(self) -> None:
        if self.is_over:
            return
        if not self.is_unsaid:
            self._carrier.transport.abort()
            return
        self.is_kept_alive = False
        self._carrier.put([render_error(500, "The hub failed to answer this request.", lines=self.cors)])
        self._finish()

    async def receive(self) -> Message:
        """ASGI's next event of the request: a piece of body, or the client's going."""
        if not self.is_over:
            await self._wait_for_news()
        if self.is_over:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self._taken(), "more_body": not self.has_whole_body}

    async def _wait_for_news(self) -> None:
        if self.owes_continue:
            self.owes_continue = False
            self._carrier.put([b"HTTP/1.1 100 Continue\r\n\r\n"])
        self._carrier.read_on()
        if not self._has_news:
            self._waiter = self._carrier.loop.create_future()
            await self._waiter

    def _taken(self) -> bytes:
        self._has_news = False
        body = b"".join(self._body)
        self._body.clear()
        self.pending_bytes = 0
        return body

    async def send(self, message: Message) -> None:
        """ASGI's next event of the answer; waits while the client is slow, does nothing once it has gone."""
        if self._carrier.flow.write_paused and not self.is_gone:
            await self._carrier.flow.drain()
        if self.is_gone:
            return
        match message["type"]:
            case "http.response.start":
                self._hold_head(message["status"], message.get("headers", ()))
            case "http.response.body":
                self._write(message.get("body", b""), is_last=not message.get("more_body", False))
            case other:
                raise RuntimeError(f"the door does not know the ASGI message {other!r}")

    def _hold_head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep the head back until there is body to share its write with."""
        if self.is_started:
            raise RuntimeError("the answer was started twice")
        length: int | None = None
        lines = [STATUS_LINE[status]]
        for name, value in headers:
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

    def _with_cors(self, lines: bytes) -> bytes:
        """An answer's lines with those for the page; what is open to every page says so itself."""
        return lines if ALLOW_ORIGIN in lines else lines + self.cors

    def _framing_for(self, status: int, length: int | None) -> Framing:
        if self.scope["method"] == "HEAD" or status in (204, 304):
            return "none"
        if length is not None:
            return "length"
        return "close" if self.scope["http_version"] == "1.0" else "chunked"

    def _closing_lines(self) -> list[bytes]:
        if self.owes_continue:
            # The client may now send its body or not: only closing keeps it from being mistaken.
            self.owes_continue = False
            self.is_kept_alive = False
        lines = [] if self.is_kept_alive else [b"connection: close\r\n"]
        if self._framing == "chunked":
            lines.append(b"transfer-encoding: chunked\r\n")
        return [*lines, b"\r\n"]

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if not self.is_started or self.is_complete:
            raise RuntimeError("a piece of body belongs between an answer's start and its end")
        pieces = self._framed(body, is_last=is_last)
        if self._held_head is not None:
            pieces.insert(0, self._held_head)
            self._held_head = None
        self._carrier.put(pieces)
        if is_last:
            self._finish()

    def _framed(self, body: bytes, *, is_last: bool) -> list[bytes]:
        match self._framing:
            case "none":
                return []
            case "close":
                return [body]
            case "length":
                self._owed_bytes -= len(body)
                if self._owed_bytes < 0 or (is_last and self._owed_bytes):
                    raise RuntimeError("the answer's body does not have the length its head promised")
                return [body]
            case "chunked":
                pieces = [b"%x\r\n" % len(body), body, b"\r\n"] if body else []
                return [*pieces, b"0\r\n\r\n"] if is_last else pieces

    def _finish(self) -> None:
        self.is_complete = True
        self._tell()
        self._farewells.clear()
        self._carrier.on_response_complete()


def call_contained(callback: Callable[[], None]) -> None:
    """Call someone who wished to be told, and survive it."""
    try:
        callback()
    except Exception:  # Who is told first must not keep the next from being told
        log.exception("a callback of the door failed")


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as lines, to be prepared once by a face that answers with the same ones again and again."""
    return b"".join(render_header(name, value)[0] for name, value in headers)


@functools.lru_cache(maxsize=1024)
def render_header(name: bytes, value: bytes) -> tuple[bytes, Literal["length", "close"] | None]:
    """A header's line and what it means for the framing; cached, because answers repeat few headers."""
    name = name.lower()
    if not name or _BAD_NAME.search(name) or _BAD_VALUE.search(value):
        raise RuntimeError(f"the header {name!r} cannot be sent as it is")
    if name == b"transfer-encoding":
        raise RuntimeError("the door frames answers itself: leave transfer-encoding out")
    if name == b"connection":
        # The door says `close` itself, whoever wished it, so that it is said once.
        return b"", "close" if b"close" in value.lower() else None
    return b"%b: %b\r\n" % (name, value), "length" if name == b"content-length" else None


def render_error(
    status: int, sentence: str, headers: Iterable[tuple[bytes, bytes]] = (), *, lines: bytes = b""
) -> bytes:
    """A whole answer of the door's own, after which the connection closes: a problem as RFC 9457 has it.

    What the door refuses has reached no face; only of its own failure is it not known how far the request came.
    """
    executed = "unknown" if status == HTTPStatus.INTERNAL_SERVER_ERROR else "no"
    told = {"title": HTTPStatus(status).phrase, "status": status, "detail": sentence, "executed": executed}
    body = msgspec.json.encode(told)
    head = b"content-type: application/problem+json\r\ncontent-length: %d\r\nconnection: close\r\n"
    return b"".join([STATUS_LINE[status], head % len(body), header_lines(headers), lines, b"\r\n", body])
