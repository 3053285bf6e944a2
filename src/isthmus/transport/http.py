"""A small keep-alive HTTP/1.1 client for one origin: requests in, callbacks out, no task per request.

A request is one write on an idle connection, or an entry in a queue until a connection is dialled or freed.
Its reply is handed to a `Sink` as it arrives. The client never sends a request twice, follows no redirect,
keeps no cookie and decodes no content; what it promises is to know whether a lost request may have left.

It does not know what it carries, and does not bound its queue, sizes or time: the sender does, and calls
`Ticket.abort`. The upstream kinds call it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, cast

from isthmus.core.crew import Crew
from isthmus.transport.cork import Cork
from isthmus.transport.egress import DialFailed, Egress, EgressRefused, Origin
from isthmus.transport.http_connection import Connection, Lost, Sink, Ticket

__all__ = ["HttpClient", "Lost", "Sink", "Ticket", "header_lines", "request_head"]

_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FIELD_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(r"[\x21-\x7e]+")


def request_head(method: str, target: str, origin: Origin, headers: Mapping[str, str]) -> bytes:
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
        origin: Origin,
        egress: Egress,
        crew: Crew,
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
        self._crew = crew
        self._is_configured = is_configured
        self._limit = limit
        self._connect_seconds = connect_seconds
        self._loop = asyncio.get_running_loop()
        self.cork = Cork()
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []  # the longest idle first
        self._waiting: dict[Ticket, None] = {}  # in order of arrival; a dict, because any of them may leave
        self._dials: set[asyncio.Task[None]] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def send(self, head: bytes, body: bytes | None, sink: Sink) -> Ticket:
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

    def _take_idle(self) -> Connection | None:
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

    def freed(self, connection: Connection) -> None:
        """Give a free connection to the oldest request that waits, or keep it for the next."""
        if self._waiting:
            connection.carry(self._next_waiting())
        elif self._is_closed or connection.idle_limit <= 0:
            connection.close()
        else:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
            self._sweep_later()

    def removed(self, connection: Connection) -> None:
        """Hear that a connection is gone, possibly not for the first time; its place may be needed."""
        self._open.discard(connection)
        with suppress(ValueError):
            self._idle.remove(connection)
        self._dial_enough()

    # Connections come and go.

    def _dial_enough(self) -> None:
        while len(self._waiting) > len(self._dials) and len(self._open) + len(self._dials) < self._limit:
            name = f"dial {self.origin}"
            self._dials.add(self._crew.spawn(name, self._dial(), on_crash=self._dial_crashed))

    async def _dial(self) -> None:
        connection, reason = None, "the server closed the connection at once"
        try:
            _, connection = await self._egress.dial(
                self.origin,
                lambda: Connection(self, is_secure=self.origin.is_secure),
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
