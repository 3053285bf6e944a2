"""A small keep-alive HTTP/1.1 client for one origin: requests in, callbacks out, no task per request.

A request is one write on an idle connection, or an entry in a queue until a connection is dialled or freed.
Its reply is handed to a `ResponseSink` as it arrives. The client never sends a request twice, follows no redirect,
keeps no cookie and decodes no content; what it promises is to know whether a lost request may have left.

It does not know what it carries, and does not bound its queue, sizes or time: the sender does, and calls
`Ticket.abort`. The upstream kinds call it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final, cast

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import RequestSigner
from isthmus.transport.egress import DialFailed, Egress, EgressRefused, HttpOrigin
from isthmus.transport.http_connection import ClientConnection, ConnectionLost, ResponseSink, Ticket
from isthmus.transport.write_batching import WriteBatch

__all__ = ["ConnectionLost", "HttpClient", "ResponseSink", "Ticket", "client_for", "header_lines", "request_head"]

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
    return b"".join(_header_line(name, value) for name, value in headers.items())


def _header_line(name: str, value: str) -> bytes:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} is not a header name")
    if name.lower() in ("content-length", "transfer-encoding", "connection"):
        raise ValueError(f"the header {name!r} is written by the client itself")
    if not _FIELD_VALUE.fullmatch(value):
        # The value may be a secret, so only the name is told.
        raise ValueError(f"the value of header {name!r} contains a character that headers cannot carry")
    return f"{name}: {value}\r\n".encode("latin-1")


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
    ) -> None:
        """Must be made inside the running loop. `limit` counts long-lived streams as well.

        `is_configured` is as for `Egress.dial`: unless the operator chose the origin, it must be public.
        """
        self.origin = origin
        self.idle_seconds = idle_seconds
        self._egress = egress
        self._background = background
        self._is_configured = is_configured
        self._limit = limit
        self._connect_seconds = connect_seconds
        self._loop = asyncio.get_running_loop()
        self.cork = WriteBatch()
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
        rest = (b"\r\n",) if body is None else (b"content-length: %d\r\n\r\n" % len(body), body)
        ticket = Ticket(self, b"".join((head, *rest)), sink)
        connection = self._take_idle()
        if connection is not None:
            connection.carry(ticket)
        else:
            self._queue(ticket)
        return ticket

    async def aclose(self) -> None:
        """Close every connection; whoever still waits hears that its request is lost."""
        self._is_closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._lose_all("the client was closed")
        dials = list(self._dials)
        for dial in dials:
            dial.cancel()
        if dials:
            await asyncio.wait(dials, timeout=self._connect_seconds)

    def _lose_all(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection in list(self._open):
            connection.lose(reason)
        for ticket in waiting:
            ticket.lose(reason)

    def _take_idle(self) -> ClientConnection | None:
        # The newest first: the others may then grow old and go.
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fit(self._loop.time()):
                return connection
            connection.close()
        return None

    def _queue(self, ticket: Ticket) -> None:
        if self._is_closed:
            self._loop.call_soon(ticket.lose, "the client is closed")
            return
        self._waiting[ticket] = None
        self._dial_enough()

    def _next_waiting(self) -> Ticket:
        ticket = next(iter(self._waiting))
        del self._waiting[ticket]
        return ticket

    # What its connections and tickets tell it.

    def forget(self, ticket: Ticket) -> None:
        """Let a request that still waits go."""
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
        """Hear that a connection is gone, possibly not for the first time; its place may be needed."""
        self._open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        self._dial_enough()

    # Connections come and go.

    def _dial_enough(self) -> None:
        while len(self._waiting) > len(self._dials) and len(self._open) + len(self._dials) < self._limit:
            name = f"dial {self.origin}"
            self._dials.add(self._background.spawn(name, self._dial(), on_crash=self._dial_crashed))

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

    def _dial_crashed(self, error: BaseException) -> None:
        self._dial_failed(f"dialling {self.origin} failed unexpectedly: {error!r}")

    def _dial_failed(self, reason: str) -> None:
        # A dial answers for the oldest request, unless the dials still under way suffice for all that wait.
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
"""How much of a refusal's body is read to keep the connection; of a longer one the connection is closed."""


def client_for(
    signer: RequestSigner | None,
    origin: HttpOrigin,
    egress: Egress,
    background: BackgroundTasks,
    *,
    is_configured: bool,
    limit: int,
    connect_seconds: float,
) -> HttpClient:
    """The client of a link: one that signs each request, where the token in it needs a proof."""
    client = HttpClient if signer is None else partial(SigningClient, signer)
    return client(origin, egress, background, is_configured=is_configured, limit=limit, connect_seconds=connect_seconds)


class SigningClient(HttpClient):
    """Adds to every request the proof that the hub holds the key of the token in it (RFC 9449).

    A server may refuse a proof because it wants a nonce in it. That request did not run, and is sent once more.
    """

    def __init__(
        self,
        signer: RequestSigner,
        origin: HttpOrigin,
        egress: Egress,
        background: BackgroundTasks,
        *,
        is_configured: bool = False,
        limit: int = 64,
        connect_seconds: float = 5.0,
        idle_seconds: float = 4.0,
    ) -> None:
        super().__init__(
            origin,
            egress,
            background,
            is_configured=is_configured,
            limit=limit,
            connect_seconds=connect_seconds,
            idle_seconds=idle_seconds,
        )
        self.signer = signer

    def send(self, head: bytes, body: bytes | None, sink: ResponseSink) -> Ticket:
        """See `HttpClient`."""
        return _SignedTicket(self, head, body, sink)

    def send_signed(self, head: bytes, body: bytes | None, sink: ResponseSink) -> Ticket:
        """Send a request with a new proof, if the token in it needs one."""
        shown = _AUTHORIZATION.search(head)
        authorization = shown[1].decode("latin-1") if shown else ""
        proof = self.signer.proof_for(head.partition(b" ")[0].decode("ascii"), self.url_of(head), authorization)
        lines = b"" if proof is None else header_lines({"dpop": proof})
        return super().send(head + lines, body, sink)

    def url_of(self, head: bytes) -> str:
        """Where a request with this head goes."""
        return f"{self.origin}{head.split(b' ', 2)[1].decode('ascii')}"


class _SignedTicket(Ticket):
    """One request of a `SigningClient`, and the sink of its replies: a refusal for want of a nonce stays here."""

    __slots__ = ("_body", "_client", "_head", "_inner", "_is_refused", "_is_second", "_refusal_bytes")

    def __init__(self, client: SigningClient, head: bytes, body: bytes | None, sink: ResponseSink) -> None:
        super().__init__(client, b"", sink)
        self._client = client
        self._head = head
        self._body = body
        self._is_refused = False
        """The server wants another proof, and has not run the request."""
        self._is_second = False
        self._refusal_bytes = 0
        self._inner = client.send_signed(head, body, self)

    @property
    def may_have_left(self) -> bool:
        """See `Ticket`."""
        return not self._is_refused and self._inner.may_have_left

    @property
    def has_boarded(self) -> bool:
        """See `Ticket`."""
        return self._inner.has_boarded

    def abort(self) -> None:
        """See `Ticket`."""
        self._sink = None
        self._inner.abort()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """See `ResponseSink`."""
        wants_nonce = self._client.signer.wants_nonce(self._client.url_of(self._head), status, headers)
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
            self._inner = self._client.send_signed(self._head, self._body, self)
