"""The stream on which a server tells what belongs to no request: chiefly that its tools changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, Fault, ServerError
from isthmus.model.names import ServerName
from isthmus.transport.http_connection import Lost, Ticket
from isthmus.upstream.streamable.post import EVENT_STREAM, OK, media_type
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Notification, Request
from isthmus.wire.mcp.messages import Members
from isthmus.wire.oversized import Oversized
from isthmus.wire.sse import SseDecoder

SERVER_TROUBLE = 500
"""From here on a status tells of a passing trouble, and the stream is tried again."""


REFUSAL_BYTES = 64 * 1024
"""How much of a refusal is read for the server's own words."""


class ChangesOwner(Protocol):
    """What the stream needs of its link."""

    server: ServerName
    limits: Limits

    def heard(self, changes: Changes) -> None:
        """The server tells on the stream from now on."""

    def unheard(self, changes: Changes, refusal: Fault) -> None:
        """The server gives no such stream."""

    def deaf(self, changes: Changes) -> None:
        """The stream has ended and may be opened again."""

    def noted(self, method: str, params: Members) -> None:
        """The server tells something."""

    def asked(self, request: Request) -> None:
        """The server asks something of its own."""


class Changes:
    """The stream on which a server announces changes.

    In the earlier era it is open with its head; a modern server says in its first message that it tells now.
    """

    def __init__(self, link: ChangesOwner, era: Literal["legacy", "modern"]) -> None:
        self._link = link
        self._is_modern = era == "modern"
        self._decoder = SseDecoder(link.limits.notification_bytes)
        self._refusal = b""
        self._status = 0
        self.is_stream = False
        self.ticket: Ticket | None = None

    def close(self) -> None:
        """Hear nothing more."""
        if self.ticket is not None:
            self.ticket.abort()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """A server without such a stream says so by its status; it is not asked again."""
        self._status = status
        self.is_stream = status == OK and media_type(headers) == EVENT_STREAM
        if self.is_stream and not self._is_modern:
            self._link.heard(self)

    def on_body(self, chunk: bytes) -> None:
        """Look for announcements."""
        if not self.is_stream:
            self._refusal += chunk[: REFUSAL_BYTES - len(self._refusal)]
            return
        for event in self._decoder.feed(chunk):
            if not isinstance(event, Oversized) and event.data:
                self._read(event.data)

    def _read(self, data: bytes) -> None:
        match jsonrpc.decode(data, max_depth=self._link.limits.depth):
            case Notification(method=method, params=params):
                self._link.heard(self)
                self._link.noted(method, params)
            case Request() as request:
                self._link.asked(request)
            case ErrorReply() as reply:
                self._link.unheard(self, ServerError(self._link.server, reply.code, reply.message, reply.data))
            case _:
                pass

    def on_end(self) -> None:
        """The server ended the stream, or gave none."""
        if self.is_stream or self._status >= SERVER_TROUBLE:
            self._link.deaf(self)
        else:
            self._link.unheard(self, self._in_words())

    def on_lost(self, lost_: Lost) -> None:
        """The stream broke."""
        if self.is_stream or not self._status or self._status >= SERVER_TROUBLE:
            self._link.deaf(self)
        else:
            self._link.unheard(self, self._in_words())

    def _in_words(self) -> Fault:
        match jsonrpc.decode(self._refusal):
            case ErrorReply() as reply:
                return ServerError(self._link.server, reply.code, reply.message, reply.data)
            case _:
                return BadReply(self._link.server, f"HTTP {self._status} instead of a stream of changes")
