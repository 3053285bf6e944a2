"""A small document by GET, within a bound, for cards.

Redirects are not followed: a card must be where it is said to be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from isthmus.model.faults import BadReply, NotConnected
from isthmus.model.names import ServerName
from isthmus.transport.http import Lost, Ticket


class Fetched(NamedTuple):
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Fetch:
    """A reply that is collected; `done` is awaited by whoever asked, and raises `Fault`."""

    def __init__(self, server: ServerName, limit_bytes: int) -> None:
        self._server = server
        self._limit_bytes = limit_bytes
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()
        self.ticket: Ticket | None = None
        self.done: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status and the headers."""
        self._status, self._headers = status, headers

    def on_body(self, chunk: bytes) -> None:
        """Take a part of the document."""
        self._body += chunk
        if len(self._body) > self._limit_bytes:
            self._fail(BadReply(self._server, f"a document of over {self._limit_bytes} bytes"))
            if self.ticket is not None:
                self.ticket.abort()

    def on_end(self) -> None:
        """The document is whole."""
        if not self.done.done():
            self.done.set_result(Fetched(self._status, self._headers, bytes(self._body)))

    def on_lost(self, lost: Lost) -> None:
        """The document never became whole."""
        self._fail(NotConnected(self._server, lost.reason))

    def _fail(self, fault: BadReply | NotConnected) -> None:
        if not self.done.done():
            self.done.set_exception(fault)
