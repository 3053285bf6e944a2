"""The stream on which a server tells what belongs to no request: chiefly that its tools changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Protocol

from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, Fault, ServerError
from isthmus.model.names import ServerName
from isthmus.transport.http_connection import Lost, Ticket
from isthmus.upstream.hiding import Hide, hide_error
from isthmus.upstream.replies import EVENT_STREAM, OK, media_type
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Notification, Request
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.messages import Members
from isthmus.wire.oversized import Oversized
from isthmus.wire.sse import SseDecoder

SERVER_TROUBLE = 500
"""From here on a status tells of a passing trouble, and the stream is tried again."""

PASSING = (408, 409, 425, 429)
"""So do these: above all a server that allows one stream, and has not noticed that the last one broke (409)."""


REFUSAL_BYTES = 64 * 1024
"""How much of a refusal is read for the server's own words."""


class ChangesOwner(Protocol):
    """What the stream needs of its link."""

    server: ServerName
    limits: Limits
    hide: Hide

    def heard(self, changes: Changes, honoured: Collection[str] | None = None) -> None:
        """The server tells on the stream from now on; of resources only these, if it says which."""

    def unheard(self, changes: Changes, refusal: Fault) -> None:
        """The server gives no such stream."""

    def deaf(self, changes: Changes) -> None:
        """The stream has ended and may be opened again."""

    def noted(self, method: str, params: Members) -> None:
        """The server tells something."""

    def asked(self, request: Request, waiter: None = None) -> None:
        """The server asks something of its own."""


class Changes:
    """The stream on which a server announces changes.

    In the earlier era it is open with its head; a modern server says in its first message that it tells now.
    """

    def __init__(self, link: ChangesOwner, era: Literal["legacy", "modern"]) -> None:
        self._link = link
        self._is_modern = era == "modern"
        self._decoder = SseDecoder(link.limits.notification_bytes)
        self._words = b""
        self._status = 0
        self._is_stream = False
        self._refusal: Fault | None = None
        self.ticket: Ticket | None = None
        self.is_resumed = False
        """Whether it was asked for from an event on."""

    @property
    def event_id(self) -> str | None:
        """The last event."""
        return self._decoder.last_event_id

    @property
    def retry(self) -> float | None:
        """How many seconds the server wants to be left alone after the stream's end, if it says so."""
        return None if self._decoder.retry is None else self._decoder.retry / 1000

    def close(self) -> None:
        """Hear nothing more."""
        if self.ticket is not None:
            self.ticket.abort()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """A server without such a stream says so by its status; it is not asked again."""
        self._status = status
        self._is_stream = status == OK and media_type(headers) == EVENT_STREAM
        if self._is_stream and not self._is_modern:
            self._link.heard(self)

    def on_body(self, chunk: bytes) -> None:
        """Look for announcements."""
        if not self._is_stream:
            self._words += chunk[: REFUSAL_BYTES - len(self._words)]
            return
        for event in self._decoder.feed(chunk):
            if not isinstance(event, Oversized) and event.data:
                self._read(event.data)

    def _read(self, data: bytes) -> None:
        match jsonrpc.decode(data, max_depth=self._link.limits.depth, max_values=None):
            case Notification(method=method, params=params):
                self._link.heard(self, modern.read_honoured(params) if method == modern.ACKNOWLEDGED else None)
                self._link.noted(method, params)
            case Request() as request:
                self._link.asked(request)
            case ErrorReply() as refused:
                reply = hide_error(refused, self._link.hide)
                self._refusal = ServerError(self._link.server, reply.code, reply.message, reply.data)
            case _:
                pass

    def on_end(self) -> None:
        """The server ended the stream, or gave none."""
        if (refusal := self._refusal or self._refused()) is not None:
            self._link.unheard(self, refusal)
        else:
            self._link.deaf(self)

    def on_lost(self, lost_: Lost) -> None:
        """The stream broke, or could not be asked for."""
        self.on_end()

    def _refused(self) -> Fault | None:
        """Why there is no stream and never will be; None if there was one, or may be another time."""
        if self._is_stream or not self._status or self._status >= SERVER_TROUBLE or self._status in PASSING:
            return None
        match jsonrpc.decode(self._words):
            case ErrorReply() as refused:
                reply = hide_error(refused, self._link.hide)
                return ServerError(self._link.server, reply.code, reply.message, reply.data)
            case _:
                return BadReply(self._link.server, f"HTTP {self._status} instead of a stream of changes")
