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

ANSWER_SECONDS = 60.0
"""How long an answer that the server waits for may itself wait for a connection: others are acknowledged slowly."""


class Notices:
    """Those that are under way on one client."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self._under_way: set[_Notice] = set()
        self._quiet: asyncio.Future[None] | None = None

    def has_room(self) -> bool:
        """Whether another one would be sent."""
        return len(self._under_way) < NOTICES_MAX

    def send(self, head: bytes, message: bytes) -> None:
        """Send one, unless too many are under way."""
        if self.has_room():
            notice = _Notice(self, head, message)
            self._under_way.add(notice)
            notice.send()

    def answer(self, head: bytes, message: bytes) -> None:
        """Send what the server waits for, however many others do: a call has only so many questions."""
        _Answer(self, head, message).send()

    async def quiet(self) -> None:
        """Wait until no notification is under way, which takes `NOTICE_SECONDS` at most."""
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

    def __init__(self, notices: Notices, head: bytes, message: bytes) -> None:
        self._notices = notices
        self._head = head
        self._message = message
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def send(self) -> None:
        """Put it on its way, and give it up after a while."""
        self._watch(self._notices.client.send(self._head, self._message, self))

    def _watch(self, ticket: Ticket) -> None:
        self._timer = self._loop.call_later(NOTICE_SECONDS, self._expire, ticket)

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


class _Answer(_Notice):
    """One that its server waits for: its time begins when a connection takes it, and it is tried a second time.

    Only if it provably did not leave, though a server that had it twice would drop the second: its id is used up.
    """

    def __init__(self, notices: Notices, head: bytes, message: bytes) -> None:
        super().__init__(notices, head, message)
        self._until = self._loop.time() + ANSWER_SECONDS
        self._is_second = False
        self._is_taken = False
        """Whether a connection had taken it when it was last looked at."""

    def _watch(self, ticket: Ticket) -> None:
        self._is_taken = ticket.has_boarded
        super()._watch(ticket)

    def _expire(self, ticket: Ticket) -> None:
        if self._is_taken or self._loop.time() >= self._until:
            super()._expire(ticket)
        else:
            self._watch(ticket)

    def on_lost(self, lost: Lost) -> None:
        if lost.may_have_left or self._is_second:
            self.on_end()
            return
        self._is_second = True
        if self._timer is not None:
            self._timer.cancel()
        self.send()
