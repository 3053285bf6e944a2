"""A small keep-alive HTTP/1.1 client for one origin: requests in, callbacks out, no task per request.

A request is one write on an idle connection, or an entry in a queue until a connection is dialled or freed. Its reply
is handed to a `ResponseSink` as it arrives. The client never sends a request twice, follows no redirect, keeps no
cookie and decodes no content; it knows whether a lost request may have left.

Queue, sizes and time have no bounds here: the sender bounds them and calls `Ticket.abort`. Links to HTTP servers, the
push client and the credentials use it.
"""

from __future__ import annotations

import asyncio
import re
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

import httptools

from isthmus.core.background import BackgroundTasks
from isthmus.transport.egress import DialFailed, Egress, EgressRefused, HttpOrigin
from isthmus.transport.flow_control import PORTION_BYTES, ReadQuota, WriteBatch, cut

if TYPE_CHECKING:  # the command line loads this module for one request, and none of the core
    from isthmus.core.ports import RequestSigner

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_AUTHORIZATION: Final = re.compile(rb"\r\nauthorization: ([^\r]*)\r\n", re.IGNORECASE)
_TARGET: Final = re.compile(r"[\x21-\x7e]+")


def request_head(method: str, target: str, origin: HttpOrigin, headers: Mapping[str, str]) -> bytes:
    """Prepare what the requests of one kind have in common; more lines may be appended before it is sent.

    Raises:
        ValueError: something in it could break out of its line, or the method has replies we cannot delimit.
    """
    if not _TOKEN.fullmatch(method) or method in ("HEAD", "CONNECT"):
        raise ValueError(f"{method!r} is not a method this client can send")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} is not a request target")
    common = {"host": origin.authority, "accept-encoding": "identity"}
    return f"{method} {target} HTTP/1.1\r\n".encode("ascii") + header_lines(common) + header_lines(headers)


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Write `headers` as lines to append to a `request_head`.

    Raises:
        ValueError: a name or value is not one, or belongs to the framing, which is the client's.
    """
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} is not a header name")
        if name.lower() in ("content-length", "transfer-encoding", "connection"):
            raise ValueError(f"the header {name!r} is written by the client itself")
        if not _FIELD_VALUE.fullmatch(value):
            # The value may be a secret, so the message has only the name.
            raise ValueError(f"the value of header {name!r} contains a character that headers cannot carry")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("latin-1")


def media_type(headers: Mapping[str, str]) -> str:
    """The media type of a reply."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


HEAD_LIMIT_BYTES: Final = 64 * 1024
"""Limit of a response's head, and of its other bytes that are not body: trailers, chunk extensions, 1xx responses."""

BODY_PORTION_BYTES: Final = 64 * 1024
"""Bytes of a body of known length that are read in one step. With four times as many, the p99 of calls beside large
results doubled."""

EVENT_STREAM: Final = "text/event-stream"

PEEK_AFTER_SECONDS: Final = 1.0
"""A connection that was idle this long is checked for an end of stream before it is used. For shorter times the event
loop has just looked, and the check costs a system call."""

_KEEP_ALIVE_TIMEOUT: Final = re.compile(r"timeout\s*=\s*(\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """Why a request has no complete reply; `may_have_left` is False only if its last byte provably stayed."""

    reason: str
    may_have_left: bool


class ResponseSink(Protocol):
    """Receives one reply. It ends with either `on_end` or `on_lost`, once; nothing comes after."""

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """The final status, never 1xx; header names in lower case, repeated ones joined by a comma."""

    def on_body(self, chunk: bytes) -> None:
        """The next bytes of the body, without the framing of chunks."""

    def on_end(self) -> None:
        """The reply is complete."""

    def on_lost(self, lost: ConnectionLost) -> None:
        """There will be no complete reply."""


class HttpResponse(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ResponseLost(Exception):
    """There is no complete response; the message says why."""


class ResponseTooLong(ResponseLost):
    """The response is longer than it may be."""


class _ResponseReader:
    """Collects one response, for `HttpClient.fetch`."""

    def __init__(self, limit_bytes: int) -> None:
        self.done: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._limit_bytes = limit_bytes
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers

    def on_body(self, chunk: bytes) -> None:
        self._body += chunk
        if len(self._body) > self._limit_bytes and not self.done.done():
            self.done.set_exception(ResponseTooLong(f"a response of over {self._limit_bytes} bytes"))

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(HttpResponse(self._status, self._headers, bytes(self._body)))

    def on_lost(self, lost: ConnectionLost) -> None:
        if not self.done.done():
            self.done.set_exception(ResponseLost(lost.reason))


class Ticket:
    """One request of a client; its sender holds it."""

    __slots__ = ("_connection", "_data", "_may_have_left", "_pool", "_sink")

    def __init__(self, pool: HttpClient, data: bytes, sink: ResponseSink) -> None:
        self._pool = pool
        self._data = data
        self._sink: ResponseSink | None = sink
        self._connection: ClientConnection | None = None
        self._may_have_left = False

    @property
    def may_have_left(self) -> bool:
        """False while the last byte is provably still here; after the end or an abort, what was true then."""
        if self._connection is None:
            return self._may_have_left
        return self._connection.may_have_left

    @property
    def has_connection(self) -> bool:
        """Whether it was assigned to a connection; otherwise it waits for one."""
        return not self._data

    def abort(self) -> None:
        """Abort the request: no further bytes are written and no further callbacks made. May be called at any time."""
        if self._sink is None:
            return
        self._sink = None
        if self._connection is None:
            self._pool.forget(self)
        else:
            self._connection.drop()

    # For its connection and its client.

    def assign(self, connection: ClientConnection) -> tuple[bytes, ResponseSink | None]:
        """Assign it to a connection; returns the bytes to write and the sink."""
        data, self._data = self._data, b""
        self._connection = connection
        return data, self._sink

    def leave(self, *, may_have_left: bool) -> None:
        """Release the connection and keep its final `may_have_left`."""
        self._may_have_left = may_have_left
        self._connection = None

    def end(self) -> None:
        """Tell the sink that its reply is complete."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_end()

    def lose(self, reason: str) -> None:
        """Tell the sink that there is no complete reply."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.on_lost(ConnectionLost(reason, self._may_have_left))


class ClientConnection(asyncio.Protocol):
    """One connection: carries one request at a time and turns what comes back into its sink's callbacks.

    `_ticket` is its current request, `_sink` the receiver of the reply until that is complete. Callbacks of the parser
    look only at `_sink`, so that one of them may end the request while the parser goes on with its bytes.
    """

    def __init__(self, pool: HttpClient, *, is_secure: bool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport
        self._read_quota: ReadQuota
        self._parser = httptools.HttpResponseParser(self)
        self._is_secure = is_secure
        self._ticket: Ticket | None = None
        self._sink: ResponseSink | None = None
        self._unsent = b""
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._idle_bytes = 0
        self._has_head = False
        self._has_progressed = False
        self._is_complete = False
        self._is_stillborn = False
        self._can_stay = False
        self.idle_since = 0.0
        self.idle_limit = pool.idle_seconds

    def carry(self, ticket: Ticket) -> None:
        """Write the request at the end of this turn of the loop; the connection must be free and fit."""
        self._has_head = self._is_complete = self._is_stillborn = False
        self._header_bytes = self._idle_bytes = 0
        self._ticket = ticket
        self._read_quota.portion_bytes = min(self._read_quota.portion_bytes, PORTION_BYTES)
        self._unsent, self._sink = ticket.assign(self)
        self._pool.write_batch.add(self)

    def flush(self) -> None:
        """Write the request, unless it was aborted meanwhile."""
        data, self._unsent = self._unsent, b""
        if not data:
            return
        self._transport.write(data)
        # Both loops try the system call inside write(); if it fails there, not one byte has left.
        self._is_stillborn = self._transport.is_closing() and not self._is_secure

    @property
    def may_have_left(self) -> bool:
        """Whether the last byte of the request it carries may have left this process."""
        if self._unsent or self._is_stillborn:
            return False
        # TLS keeps a buffer of its own, which cannot be asked; a server that answers has seen enough to act.
        if self._is_secure or self._has_head:
            return True
        return self._transport.get_write_buffer_size() == 0

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def is_fit(self, now: float) -> bool:
        """Whether it can take a request, after the time that it was idle."""
        idle = now - self.idle_since
        if self._transport.is_closing() or idle > self.idle_limit:
            return False
        return idle < PEEK_AFTER_SECONDS or not _is_readable(self._transport)

    def close(self) -> None:
        """Close it when it carries nothing."""
        self._transport.close()
        self._pool.removed(self)

    def drop(self) -> None:
        """Close it at once: nothing more of its request is written, and its reply is dropped."""
        ticket, self._ticket, self._sink = self._ticket, None, None
        if ticket is not None:
            ticket.leave(may_have_left=self.may_have_left)
        self._unsent = b""
        self._read_quota.stop()
        cut(self._transport)
        self._pool.removed(self)

    def lose(self, reason: str) -> None:
        """Drop it and tell the sink why."""
        ticket = self._ticket
        self.drop()
        if ticket is not None:
            ticket.lose(reason)

    # -- callbacks of the event loop -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not asyncio's by class.
        self._transport = cast("asyncio.Transport", transport)
        self._read_quota = ReadQuota(self._read, pause=self._transport.pause_reading, resume=self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._read_quota.feed(data)

    def _read(self, data: bytes) -> None:
        if self._ticket is None or self._unsent:
            # Nothing was asked, so this would become the answer to the next question.
            self.lose("the server sent data before a request")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            # A sink raised. The loop reports it and closes this connection; `connection_lost` does the rest.
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._is_complete:
                self._can_stay = False
            elif isinstance(error, httptools.HttpParserUpgrade):
                self.lose("the server switched protocols, which was not requested")
            else:
                self.lose(f"the reply is not valid HTTP: {error}")
        if self._is_complete:
            self._complete()
        elif self._ticket is not None:
            # Counts what is neither head nor body yet, which the parser collects without a limit of its own.
            self._idle_bytes = 0 if self._has_progressed else self._idle_bytes + len(data)
            self._has_progressed = False
            if self._idle_bytes > HEAD_LIMIT_BYTES:
                self.lose(f"the server sent more than {HEAD_LIMIT_BYTES} bytes without progress in its reply")

    def eof_received(self) -> None:
        self._read_quota.finish()
        if self._ticket is None:
            self.close()
        elif self._has_head and "content-length" not in self._headers and "transfer-encoding" not in self._headers:
            # The end of the stream is the end of such a reply.
            self._can_stay = False
            self._complete()
        else:
            self.lose(f"the server closed the connection {self._stage()}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_quota.finish()
        reason = "was closed" if exc is None else f"broke ({exc})"
        self.lose(f"the connection to the server {reason} {self._stage()}")

    # -- callbacks of the parser -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._headers = {}
        if self._is_complete:
            # A second reply to one request: the stream is out of step, so it ends here.
            self._can_stay = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer, or a second reply
        self._header_bytes += len(name) + len(value)
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        sink, status = self._sink, self._parser.get_status_code()
        if sink is None or status < 200:
            return
        if (fault := self._fault_in_head(status)) is not None:
            self.lose(fault)
            return
        if "keep-alive" in self._headers:
            found = _KEEP_ALIVE_TIMEOUT.search(self._headers["keep-alive"])
            if found is not None:
                # A second earlier than the server, because its clock started before ours.
                self.idle_limit = min(self._pool.idle_seconds, int(found[1]) - 1.0)
        self._has_head = self._has_progressed = True
        if "content-length" in self._headers and media_type(self._headers) != EVENT_STREAM:
            # The parser hands on such a body as it is, so a portion of it takes no longer than its copy.
            self._read_quota.portion_bytes = max(self._read_quota.portion_bytes, BODY_PORTION_BYTES)
        sink.on_head(status, self._headers)

    def on_body(self, chunk: bytes) -> None:
        if self._sink is not None:
            self._has_progressed = True
            self._sink.on_body(chunk)

    def on_message_complete(self) -> None:
        if self._sink is None or not self._has_head:
            return
        self._sink = None
        self._is_complete = True
        self._can_stay = self._parser.should_keep_alive()

    def _fault_in_head(self, status: int) -> str | None:
        headers = self._headers
        if self._header_bytes > HEAD_LIMIT_BYTES:
            return f"the reply has more than {HEAD_LIMIT_BYTES} bytes of headers"
        if "content-encoding" in headers and (encoding := headers["content-encoding"].lower()) != "identity":
            return f"the reply is encoded as {encoding[:40]}, which was not requested"
        if "transfer-encoding" in headers and (encoding := headers["transfer-encoding"].lower()) != "chunked":
            return f"the reply is transferred as {encoding[:40]}, which was not requested"
        if status < 400 and self._transport.get_write_buffer_size() > 0:
            # An early refusal (413, 401) is a server's right; an early success answers something else.
            return f"the server answered {status} before it had the whole request"
        return None

    def _complete(self) -> None:
        ticket, self._ticket, self._sink = self._ticket, None, None
        if ticket is None:
            return
        ticket.leave(may_have_left=True)
        if self._transport.get_write_buffer_size() > 0:
            self.drop()
        elif self._can_stay and not self._transport.is_closing():
            self._pool.freed(self)
        else:
            self.close()
        ticket.end()

    def _stage(self) -> str:
        return "in the middle of its reply" if self._has_head else "without answering"


def _is_readable(transport: asyncio.Transport) -> bool:
    """Whether bytes or an end of stream wait on an idle connection; either makes it unfit."""
    fileno: int = transport.get_extra_info("socket").fileno()
    if sys.platform == "win32":
        return bool(select.select([fileno], [], [], 0)[0])
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(0))


class HttpClient:
    """The connections to one origin, and the requests that wait for one."""

    def __init__(
        self,
        origin: HttpOrigin,
        egress: Egress,
        background: BackgroundTasks,
        *,
        is_configured: bool = False,
        limit: int = 64,
        connect_seconds: float = 5.0,
        idle_seconds: float = 4.0,
        signer: RequestSigner | None = None,
    ) -> None:
        """Must be made inside the running loop. `limit` counts long-lived streams as well.

        `is_configured` is as for `Egress.dial`: unless the operator chose the origin, it must be public. `signer` adds
        to every request the proof that the hub holds the key of the token in it (RFC 9449).
        """
        self.origin = origin
        self._signer = signer
        self.idle_seconds = idle_seconds
        self._egress = egress
        self._background = background
        self._is_configured = is_configured
        self._limit = limit
        self._connect_seconds = connect_seconds
        self._loop = asyncio.get_running_loop()
        self.write_batch = WriteBatch()
        self._open: set[ClientConnection] = set()
        self._idle: list[ClientConnection] = []  # the longest idle first
        self._waiting: dict[Ticket, None] = {}  # in order of arrival; a dict, because any of them may leave
        self._dials: set[asyncio.Task[None]] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def send(self, head: bytes, body: bytes | None, sink: ResponseSink) -> Ticket:
        """Send a request as soon as a connection is free, oldest first; without one idle, one is dialled.

        `head` is a `request_head` with any further `header_lines`; the length and the blank line are added
        here (`None` is no body, as of a GET). The sink is not called before this returns.
        """
        if self._signer is not None and not isinstance(sink, _SignedTicket):
            return _SignedTicket(self, self._signer, head, body, sink)
        rest = (b"\r\n",) if body is None else (b"content-length: %d\r\n\r\n" % len(body), body)
        ticket = Ticket(self, b"".join((head, *rest)), sink)
        while self._idle:  # the newest first, so that the others can reach their idle limit
            connection = self._idle.pop()
            if connection.is_fit(self._loop.time()):
                connection.carry(ticket)
                return ticket
            connection.close()
        if self._is_closed:
            self._loop.call_soon(ticket.lose, "the client is closed")
        else:
            self._waiting[ticket] = None
            self._dial_enough()
        return ticket

    async def fetch(self, head: bytes, body: bytes | None, *, limit_bytes: int, within: float) -> HttpResponse:
        """Send a request and wait for the whole response.

        Raises:
            TimeoutError: it took too long.
            ResponseTooLong: it has more than `limit_bytes`.
            ResponseLost: the connection broke, or could not be made.
        """
        reader = _ResponseReader(limit_bytes)
        ticket = self.send(head, body, reader)
        try:
            async with asyncio.timeout(within):
                return await reader.done
        finally:
            ticket.abort()

    async def aclose(self) -> None:
        """Close every connection; pending requests end as lost."""
        self._is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for connection in list(self._open):
            connection.lose("the client was closed")
        for ticket in waiting:
            ticket.lose("the client was closed")
        dials = list(self._dials)
        for dial in dials:
            dial.cancel()
        if dials:
            await asyncio.wait(dials, timeout=self._connect_seconds)

    def _next_waiting(self) -> Ticket:
        ticket = next(iter(self._waiting))
        del self._waiting[ticket]
        return ticket

    # -- callbacks of connections and tickets ------------------------------------------------------------------------

    def forget(self, ticket: Ticket) -> None:
        """Drop a waiting request."""
        self._waiting.pop(ticket, None)

    def freed(self, connection: ClientConnection) -> None:
        """Give a free connection to the oldest request that waits, or keep it for the next."""
        if self._waiting:
            connection.carry(self._next_waiting())
        elif self._is_closed or connection.idle_limit <= 0:
            connection.close()
        else:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
            self._sweep_later()

    def removed(self, connection: ClientConnection) -> None:
        """A connection is gone, and its place may be needed. May be called more than once."""
        self._open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        self._dial_enough()

    # -- dialling and closing ----------------------------------------------------------------------------------------

    def _dial_enough(self) -> None:
        while len(self._waiting) > len(self._dials) and len(self._open) + len(self._dials) < self._limit:
            dial = self._background.spawn(
                f"dial {self.origin}",
                self._dial(),
                on_crash=lambda error: self._dial_failed(f"dialling {self.origin} failed unexpectedly: {error!r}"),
            )
            self._dials.add(dial)

    async def _dial(self) -> None:
        connection, reason = None, "the server closed the connection at once"
        try:
            _, connection = await self._egress.dial(
                self.origin,
                lambda: ClientConnection(self, is_secure=self.origin.is_secure),
                is_configured=self._is_configured,
                within=self._connect_seconds,
            )
        except EgressRefused as error:
            reason = str(error)
        except DialFailed as error:
            reason = error.reason
        finally:
            self._dials.discard(cast("asyncio.Task[None]", asyncio.current_task()))
        if connection is None or connection.is_closing:
            self._dial_failed(reason)
        else:
            self._open.add(connection)
            self.freed(connection)

    def _dial_failed(self, reason: str) -> None:
        # A failed dial fails the oldest request, unless the pending dials suffice for all that wait.
        if len(self._waiting) > len(self._dials):
            ticket = self._next_waiting()
            self._dial_enough()
            ticket.lose(reason)

    def _sweep_later(self) -> None:
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self.idle_seconds, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = self._loop.time()
        for connection in [idle for idle in self._idle if now - idle.idle_since >= idle.idle_limit]:
            connection.close()
        if self._idle:
            self._sweep_later()


# -- requests that are signed one by one ---------------------------------------------------------------------------

REFUSAL_BYTES_MAX: Final = 64 * 1024
"""How much of a refusal's body is read to keep the connection; a longer one closes it."""


class _SignedTicket(Ticket):
    """A signed request, and the sink of its replies.

    A server may refuse a proof because it wants a nonce in it. That request did not run, and is sent once more.
    """

    __slots__ = ("_body", "_client", "_head", "_inner", "_is_refused", "_is_second", "_refusal_bytes", "_signer")

    def __init__(
        self, client: HttpClient, signer: RequestSigner, head: bytes, body: bytes | None, sink: ResponseSink
    ) -> None:
        super().__init__(client, b"", sink)
        self._client = client
        self._signer = signer
        self._head = head
        self._body = body
        self._is_refused = False
        """The server wants another proof, and has not run the request."""
        self._is_second = False
        self._refusal_bytes = 0
        self._inner = self._send()

    def _send(self) -> Ticket:
        """Send the request with a new proof, if the token in it needs one."""
        shown = _AUTHORIZATION.search(self._head)
        authorization = shown[1].decode("latin-1") if shown else ""
        verb = self._head.partition(b" ")[0].decode("ascii")
        proof = self._signer.proof_for(verb, self._url, authorization)
        lines = b"" if proof is None else header_lines({"dpop": proof})
        return self._client.send(self._head + lines, self._body, self)

    @property
    def _url(self) -> str:
        """Where the request goes."""
        return f"{self._client.origin}{self._head.split(b' ', 2)[1].decode('ascii')}"

    @property
    def may_have_left(self) -> bool:
        """See `Ticket`."""
        return not self._is_refused and self._inner.may_have_left

    @property
    def has_connection(self) -> bool:
        """See `Ticket`."""
        return self._inner.has_connection

    def abort(self) -> None:
        """See `Ticket`."""
        self._sink = None
        self._inner.abort()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """See `ResponseSink`."""
        wants_nonce = self._signer.wants_nonce(self._url, status, headers)
        if wants_nonce and not self._is_second:
            self._is_refused = True
        elif self._sink is not None:
            self._sink.on_head(status, headers)

    def on_body(self, chunk: bytes) -> None:
        """See `ResponseSink`."""
        if not self._is_refused:
            if self._sink is not None:
                self._sink.on_body(chunk)
            return
        self._refusal_bytes += len(chunk)
        if self._refusal_bytes > REFUSAL_BYTES_MAX:
            self._inner.abort()
            self._send_again()

    def on_end(self) -> None:
        """See `ResponseSink`."""
        if self._is_refused:
            self._send_again()
        else:
            super().end()

    def on_lost(self, lost: ConnectionLost) -> None:
        """See `ResponseSink`."""
        if self._is_refused:
            self._send_again()
        elif (sink := self._sink) is not None:
            self._sink = None
            sink.on_lost(lost)

    def _send_again(self) -> None:
        self._is_refused, self._is_second = False, True
        if self._sink is not None:
            self._inner = self._send()
