"""Messages of ours over HTTP that have no answer worth reading: notifications, and replies to a server's requests.

Nobody waits for them on the path of a call. A server that does not take them costs little, and not for long. Called
by the links over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from isthmus.transport.http import HttpClient, Lost, Ticket

NOTICES_MAX = 256
"""How many may be under way; a server that asks faster than it listens gets no more of them."""

NOTICE_SECONDS = 5.0
"""How long a server may take to acknowledge one, before the connection is taken back."""


class Notices:
    """Those that are under way on one client."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._under_way: set[_Notice] = set()
        self._quiet: asyncio.Future[None] | None = None

    def has_room(self) -> bool:
        """Whether another one would be sent."""
        return len(self._under_way) < NOTICES_MAX

    def send(self, head: bytes, message: bytes) -> None:
        """Send one, unless too many are under way."""
        if self.has_room():
            notice = _Notice(self)
            self._under_way.add(notice)
            notice.watch(self._client.send(head, message, notice))

    async def quiet(self) -> None:
        """Wait until none is under way, which takes `NOTICE_SECONDS` at most."""
        while self._under_way:
            self._quiet = asyncio.get_running_loop().create_future()
            await self._quiet

    def done(self, notice: _Notice) -> None:
        """One was taken, lost, or given up."""
        self._under_way.discard(notice)
        if not self._under_way and self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)


class _Notice:
    """One of them: a sink that reads nothing, until the reply ends or its time is over."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, ticket: Ticket) -> None:
        """Give it up after a while."""
        self._timer = asyncio.get_running_loop().call_later(NOTICE_SECONDS, self._expire, ticket)

    def _expire(self, ticket: Ticket) -> None:
        ticket.abort()
        self._notices.done(self)

    def on_head(self, status: int, headers: Mapping[str, str]) -> None: ...

    def on_body(self, chunk: bytes) -> None: ...

    def on_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._notices.done(self)

    def on_lost(self, lost: Lost) -> None:
        self.on_end()
