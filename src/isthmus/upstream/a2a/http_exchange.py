"""One HTTP request to an agent and its response: one body, or a stream of events.

Reports to its owner what the agent says, in the terms of A2A, and how the exchange ended. It decides nothing about the
call, and retries nothing. Started by the link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, Fault, Lost, ServerError
from isthmus.model.names import ServerName
from isthmus.model.tasks import Update
from isthmus.transport.http import ConnectionLost as LostReply
from isthmus.transport.http import Ticket
from isthmus.upstream.http_shared import ADVICE, EVENT_STREAM, OK, UNAUTHORIZED, login_url, media_type
from isthmus.upstream.redaction import Redact
from isthmus.upstream.waiters import lost, turned_away
from isthmus.wire.a2a.client import ClientBinding, ClientOperation, code_of
from isthmus.wire.a2a.operations import A2aProblem, SendMessage
from isthmus.wire.lines import Oversized
from isthmus.wire.sse import SseDecoder

LINGERING_MAX = 2
"""Enough to reuse the connections of most agents. The link needs one spare connection for each."""


class LingeringConnections:
    """Exchanges that are over but still hold a connection. Each ends after a timeout, or when there are too many."""

    def __init__(self) -> None:
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def add(self, stop: Callable[[], None], seconds: float) -> None:
        """Call `stop` after this time, unless it is dropped before."""
        self._timers[stop] = asyncio.get_running_loop().call_later(seconds, self._stop, stop)
        if len(self._timers) > LINGERING_MAX:
            self._stop(next(iter(self._timers)))

    def drop(self, stop: Callable[[], None]) -> None:
        """Cancel the timeout of `stop`, if it has one."""
        timer = self._timers.pop(stop, None)
        if timer is not None:
            timer.cancel()

    def _stop(self, stop: Callable[[], None]) -> None:
        self.drop(stop)
        stop()


TURNED_AWAY = (307, 308, 401, 403, 405, 406, 415)
"""Statuses that prove that the agent did not process the request; the same as for MCP servers."""

PASSING = (408, 425, 429)
SERVER_TROUBLE = 500
"""These statuses, and all from 500 on, are temporary: a request may be repeated."""

EVENTS_MAX = 100_000
"""Events of one stream: a text that is streamed word by word has some thousands of them."""

LINGER_SECONDS = 1.0
"""How long an agent may keep a stream open after its last event before the hub closes the connection."""

_ADVICE = {**ADVICE, 405: "; check that its card names the right place"}


class ExchangeOwner(Protocol):
    """The owner of an exchange."""

    def on_update(self, update: Update, *, is_whole: bool) -> None:
        """The agent sent an update; `is_whole` if it is the whole response."""

    def ended(self) -> None:
        """The stream ended normally."""

    def failed(self, fault: Fault) -> None:
        """The exchange failed; no further updates follow."""


class ExchangeLink(Protocol):
    """What an exchange needs from its link."""

    server: ServerName
    limits: Limits
    lingering: LingeringConnections
    redact: Redact
    on_doubt: Callable[[], None]
    on_unauthorized: Callable[[], None]


class HttpExchange:
    """One request and its reply."""

    __slots__ = (
        "_binding",
        "_chunks",
        "_decoder",
        "_events",
        "_is_over",
        "_link",
        "_login",
        "_owner",
        "_size",
        "_status",
        "asked",
        "id",
        "ticket",
    )

    def __init__(
        self, link: ExchangeLink, binding: ClientBinding, id: int, asked: ClientOperation, owner: ExchangeOwner
    ) -> None:
        self._link = link
        self._binding = binding
        self.id = id
        self.asked = asked
        self._owner = owner
        self.ticket: Ticket | None = None
        self._is_over = False
        self._status = 0
        self._login: str | None = None
        self._chunks: list[bytes] = []
        self._size = self._events = 0
        self._decoder: SseDecoder | None = None

    @property
    def may_have_left(self) -> bool:
        """False while the request provably has not left."""
        return self.ticket is not None and self.ticket.may_have_left

    def abandon(self) -> None:
        """Ignore the rest of the response, and close the connection."""
        self._is_over = True
        self._link.lingering.drop(self.abandon)
        if self.ticket is not None:
            self.ticket.abort()

    def leave(self) -> None:
        """Ignore the rest of the response, but let the agent end its stream, so that the connection can be reused."""
        if not self._is_over:
            self._is_over = True
            if self.ticket is not None and self._decoder is not None:
                self._link.lingering.add(self.abandon, LINGER_SECONDS)

    # -- callbacks of the HTTP client ------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Receive status and headers; the body is a stream of events or one document."""
        self._status = status
        self._login = login_url(status, headers)
        if status == OK and media_type(headers) == EVENT_STREAM:
            self._decoder = SseDecoder(self._link.limits.reply_bytes)

    def on_body(self, chunk: bytes) -> None:
        """Receive a part of the body."""
        if self._is_over:
            return
        if self._decoder is not None:
            self._read_events(chunk, self._decoder)
            return
        self._size += len(chunk)
        self._chunks.append(chunk)
        if self._size > self._link.limits.reply_bytes:
            self._reject(f"an answer of over {self._link.limits.reply_bytes} bytes")

    def _read_events(self, chunk: bytes, decoder: SseDecoder) -> None:
        for event in decoder.feed(chunk):
            if self._is_over:
                return
            self._events += 1
            if isinstance(event, Oversized):
                self._reject(f"an event of over {event.limit_bytes} bytes")
            elif self._events > EVENTS_MAX:
                self._reject(f"a stream of over {EVENTS_MAX} events")
            elif event.data:
                update = self._binding.read_event(self.id, event)
                if isinstance(update, A2aProblem):
                    self.abandon()
                    self._owner.failed(self._fault(update))
                else:
                    self._owner.on_update(update, is_whole=False)

    def on_end(self) -> None:
        """The body is complete."""
        if self._is_over:
            self._link.lingering.drop(self.abandon)
        elif self._decoder is None:
            self._read_whole(b"".join(self._chunks))
        else:
            self._is_over = True
            self._owner.ended()

    def on_lost(self, lost_: LostReply) -> None:
        """The connection was lost before the body was complete."""
        if self._is_over:
            self._link.lingering.drop(self.abandon)
        else:
            self._is_over = True
            self._link.on_doubt()
            self._owner.failed(lost(self._link.server, lost_.reason, may_have_left=lost_.may_have_left))

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_whole(self, body: bytes) -> None:
        self._is_over = True
        if self._status in TURNED_AWAY:
            detail = f"it answered HTTP {self._status}{_ADVICE.get(self._status, '')}"
            if self._status == UNAUTHORIZED:
                self._link.on_unauthorized()
            self._owner.failed(turned_away(self._link.server, detail, self._status, self._login))
            return
        answer = self._binding.read(self.id, self.asked, self._status, body)
        is_temporary = self._status in PASSING or self._status >= SERVER_TROUBLE
        if not isinstance(answer, A2aProblem):
            self._owner.on_update(answer, is_whole=True)
        elif is_temporary and not isinstance(self.asked, SendMessage):
            # The owner may repeat the request; a message is never repeated.
            self._owner.failed(Lost(self._link.server, f"it answered HTTP {self._status}", executed="unknown"))
        else:
            self._owner.failed(self._fault(answer))

    def _fault(self, problem: A2aProblem) -> Fault:
        code = code_of(problem)
        if code is None:
            return BadReply(self._link.server, self._link.redact(problem.message))
        fault = ServerError(self._link.server, code, self._link.redact(problem.message))
        if self._status != OK:
            fault.executed = "unknown"
        return fault

    def _reject(self, detail: str) -> None:
        self.abandon()
        self._owner.failed(BadReply(self._link.server, detail))
