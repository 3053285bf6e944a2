"""The stream on which a server tells what belongs to no request: chiefly that its tools changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from isthmus.core.settings import Limits
from isthmus.transport.http_connection import Lost
from isthmus.upstream.streamable.post import EVENT_STREAM, OK, media_type
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Notification, Request
from isthmus.wire.mcp.tools import Members
from isthmus.wire.oversized import Oversized
from isthmus.wire.sse import SseDecoder

SERVER_TROUBLE = 500
"""From here on a status tells of a passing trouble, and the stream is tried again."""


class ChangesOwner(Protocol):
    """What the stream needs of its link."""

    limits: Limits

    def heard(self) -> None:
        """The stream is open."""

    def deaf(self) -> None:
        """The stream has ended and may be opened again."""

    def noted(self, method: str, params: Members) -> None:
        """The server tells something."""

    def asked(self, request: Request) -> None:
        """The server asks something of its own."""


class Changes:
    """The stream on which a server announces changes."""

    def __init__(self, link: ChangesOwner) -> None:
        self._link = link
        self._decoder = SseDecoder(link.limits.notification_bytes)
        self._is_refused = False
        self._is_stream = False

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """A server without such a stream says so by its status; it is not asked again."""
        self._is_stream = status == OK and media_type(headers) == EVENT_STREAM
        self._is_refused = not self._is_stream and status < SERVER_TROUBLE
        if self._is_stream:
            self._link.heard()

    def on_body(self, chunk: bytes) -> None:
        """Look for announcements."""
        if not self._is_stream:
            return
        for event in self._decoder.feed(chunk):
            if not isinstance(event, Oversized) and event.data:
                match jsonrpc.decode(event.data, max_depth=self._link.limits.depth):
                    case Notification(method=method, params=params):
                        self._link.noted(method, params)
                    case Request() as request:
                        self._link.asked(request)
                    case _:
                        pass

    def on_end(self) -> None:
        """The server ended the stream."""
        if not self._is_refused:
            self._link.deaf()

    def on_lost(self, lost_: Lost) -> None:
        """The stream broke."""
        if not self._is_refused:
            self._link.deaf()
