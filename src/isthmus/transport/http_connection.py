"""One HTTP/1.1 connection of a client: a request at a time, replies as callbacks, an account of what left.

It neither dials nor waits nor chooses among connections: `transport.http` does, and alone makes these.
"""

from __future__ import annotations

import asyncio
import re
import select
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

import httptools

from isthmus.transport.cut import cut
from isthmus.transport.read_quota import ReadQuota
from isthmus.transport.write_batching import WriteBatch

HEAD_LIMIT_BYTES: Final = 64 * 1024
"""How much a server may send without getting on with its reply: head, trailers, chunk extensions, 1xx."""

PEEK_AFTER_SECONDS: Final = 1.0
"""A connection that lay idle this long is asked for an end of stream before it is written to. Before that it
is not: the event loop has just looked, and asking costs a system call."""

_KEEP_ALIVE_TIMEOUT: Final = re.compile(r"timeout\s*=\s*(\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """Why a request has no complete reply; `may_have_left` is False only if its last byte provably stayed."""

    reason: str
    may_have_left: bool


class ResponseSink(Protocol):
    """Who receives one reply. It ends with either `on_end` or `on_lost`, once; nothing comes after."""

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """The final status, never 1xx; header names in lower case, repeated ones joined by a comma."""

    def on_body(self, chunk: bytes) -> None:
        """The next bytes of the body, decoded from nothing but the transfer's chunks."""

    def on_end(self) -> None:
        """The reply is complete."""

    def on_lost(self, lost: ConnectionLost) -> None:
        """There will be no complete reply, whatever was heard so far."""


class ConnectionPool(Protocol):
    """Whom a connection and a ticket belong to."""

    idle_seconds: float
    cork: WriteBatch

    def forget(self, ticket: Ticket) -> None:
        """A request that still waits was given up."""

    def freed(self, connection: ClientConnection) -> None:
        """A connection may carry the next request."""

    def removed(self, connection: ClientConnection) -> None:
        """A connection is gone; said once or more."""


class Ticket:
    """One request of a client, in the hands of its sender."""

    __slots__ = ("_connection", "_data", "_may_have_left", "_pool", "_sink")

    def __init__(self, pool: ConnectionPool, data: bytes, sink: ResponseSink) -> None:
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
    def has_boarded(self) -> bool:
        """Whether a connection has taken it, which may be over by now; else it still waits for one."""
        return not self._data

    def abort(self) -> None:
        """Give the request up: from now on no byte of it is written and no callback made. Always harmless."""
        if self._sink is None:
            return
        self._sink = None
        if self._connection is None:
            self._pool.forget(self)
        else:
            self._connection.drop()

    # For its connection and its client.

    def board(self, connection: ClientConnection) -> tuple[bytes, ResponseSink | None]:
        """Hand over what is to be written and who is to hear of it."""
        data, self._data = self._data, b""
        self._connection = connection
        return data, self._sink

    def leave(self, *, may_have_left: bool) -> None:
        """Part from the connection, with its last word on what left."""
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

    `_ticket` is the request it carries, `_sink` who still wants to hear of it. Callbacks of the parser look
    only at `_sink`, so that one of them may end the request while the parser goes on with its bytes.
    """

    def __init__(self, pool: ConnectionPool, *, is_secure: bool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport
        self._portions: ReadQuota
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

    # What its client asks of it.

    def carry(self, ticket: Ticket) -> None:
        """Write the request at the end of this turn of the loop; the connection must be free and fit."""
        self._has_head = self._is_complete = self._is_stillborn = False
        self._header_bytes = self._idle_bytes = 0
        self._ticket = ticket
        self._unsent, self._sink = ticket.board(self)
        self._pool.cork.add(self)

    def flush(self) -> None:
        """Write the request, unless it was given up meanwhile."""
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
        """Whether a request may be put on it, after the time that it lay idle."""
        idle = now - self.idle_since
        if self._transport.is_closing() or idle > self.idle_limit:
            return False
        return idle < PEEK_AFTER_SECONDS or not _is_readable(self._transport)

    def close(self) -> None:
        """Close it when it carries nothing."""
        self._transport.close()
        self._pool.removed(self)

    def drop(self) -> None:
        """Close it at once; whatever it carries is neither written nor heard any further."""
        ticket, self._ticket, self._sink = self._ticket, None, None
        if ticket is not None:
            ticket.leave(may_have_left=self.may_have_left)
        self._unsent = b""
        self._portions.stop()
        cut(self._transport)
        self._pool.removed(self)

    def lose(self, reason: str) -> None:
        """Drop it and tell the sink why."""
        ticket = self._ticket
        self.drop()
        if ticket is not None:
            ticket.lose(reason)

    # What the event loop tells it.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not asyncio's by class.
        self._transport = cast("asyncio.Transport", transport)
        self._portions = ReadQuota(self._read, pause=self._transport.pause_reading, resume=self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._portions.feed(data)

    def _read(self, data: bytes) -> None:
        if self._ticket is None or self._unsent:
            # Nothing was asked, so this would become the answer to the next question.
            self.lose("the server spoke before it was asked")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            # A sink raised. The loop reports it and closes this connection; `connection_lost` does the rest.
            raise
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._malformed(error)
        if self._is_complete:
            self._complete()
        elif self._ticket is not None:
            self._check_progress(len(data))

    def eof_received(self) -> None:
        self._portions.finish()
        if self._ticket is None:
            self.close()
        elif self._has_head and self._ends_with_the_stream():
            self._can_stay = False
            self._complete()
        else:
            self.lose(f"the server closed the connection {self._stage()}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._portions.finish()
        reason = "was closed" if exc is None else f"broke ({exc})"
        self.lose(f"the connection to the server {reason} {self._stage()}")

    # What the parser tells it.

    def on_message_begin(self) -> None:
        self._headers = {}
        if self._is_complete:
            # A second reply to one request: somebody's stream is out of step, so it ends here.
            self._can_stay = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer, or a reply nobody asked for
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
            self._heed(self._headers["keep-alive"])
        self._has_head = self._has_progressed = True
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

    # What it makes of that.

    def _fault_in_head(self, status: int) -> str | None:
        headers = self._headers
        if self._header_bytes > HEAD_LIMIT_BYTES:
            return f"the reply has more than {HEAD_LIMIT_BYTES} bytes of headers"
        if (encoding := headers.get("content-encoding", "identity").lower()) != "identity":
            return f"the reply is encoded as {encoding[:40]}, which was not asked for"
        if (encoding := headers.get("transfer-encoding", "chunked").lower()) != "chunked":
            return f"the reply is transferred as {encoding[:40]}, which was not asked for"
        if status < 400 and self._transport.get_write_buffer_size() > 0:
            # An early refusal (413, 401) is a server's right; an early success answers something else.
            return f"the server answered {status} before it had the whole request"
        return None

    def _heed(self, keep_alive: str) -> None:
        if (found := _KEEP_ALIVE_TIMEOUT.search(keep_alive)) is not None:
            # A second earlier than the server, because its clock started before ours.
            self.idle_limit = min(self._pool.idle_seconds, int(found[1]) - 1.0)

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

    def _check_progress(self, received: int) -> None:
        # Counts what is neither head nor body yet, which the parser collects without a limit of its own.
        self._idle_bytes = 0 if self._has_progressed else self._idle_bytes + received
        self._has_progressed = False
        if self._idle_bytes > HEAD_LIMIT_BYTES:
            self.lose(f"the server sent more than {HEAD_LIMIT_BYTES} bytes without getting on with its reply")

    def _malformed(self, error: Exception) -> None:
        if self._is_complete:
            self._can_stay = False
        elif isinstance(error, httptools.HttpParserUpgrade):
            self.lose("the server switched protocols, which was not asked for")
        else:
            self.lose(f"the reply is not valid HTTP: {error}")

    def _ends_with_the_stream(self) -> bool:
        return "content-length" not in self._headers and "transfer-encoding" not in self._headers

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
