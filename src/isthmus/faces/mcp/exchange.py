"""The caller's side of a call over HTTP: answers as soon as the call ends, without a task waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.faces.http.bodies import CROWDED_BYTES, JSON, STREAM, KeepAlive
from isthmus.faces.http.turn import Peer
from isthmus.faces.mcp.asker import Asker
from isthmus.faces.mcp.dialogue import Answer, answer_call, event_notification
from isthmus.faces.mcp.faults import Era
from isthmus.model.calls import Call
from isthmus.model.events import Event, Log, LogLevel, is_at_least
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import NOT_ASKED, OnReply, Question
from isthmus.wire import jsonrpc, sse
from isthmus.wire.mcp import modern

STATUS = {
    jsonrpc.PARSE_ERROR: 400,
    jsonrpc.INVALID_REQUEST: 400,
    jsonrpc.INVALID_PARAMS: 400,
    jsonrpc.METHOD_NOT_FOUND: 404,
    modern.HEADER_MISMATCH: 400,
    modern.MISSING_CAPABILITY: 400,
    modern.UNSUPPORTED_VERSION: 400,
}
"""HTTP statuses of errors in the modern era; the earlier one answers 200 to what it could read."""


def status_of(answer: Answer, era: Era) -> int:
    """The HTTP status that goes with an answer."""
    return STATUS.get(answer.code, 200) if era == "modern" and answer.code is not None else 200


class HttpExchange:
    """One call's caller. The answer is plain JSON unless an event precedes it; then it is a stream of events."""

    __slots__ = (
        "_alive",
        "_asker",
        "_era",
        "_id",
        "_level",
        "_loop",
        "_peer",
        "_token",
        "call",
        "inflight",
        "on_end",
        "patience",
    )

    def __init__(
        self,
        peer: Peer,
        id: msgspec.Raw,
        era: Era,
        token: msgspec.Raw | None,
        loop: asyncio.AbstractEventLoop,
        call: Call,
        level: LogLevel | None = None,
        asker: Asker | None = None,
    ) -> None:
        """`token` is the caller's own for progress, `level` that of the lines it wants to hear, if it can take them.

        `asker` knows how the caller is asked; without one it cannot be.
        """
        self._peer = peer
        self._id = id
        self._era = era
        self._token = token
        self._level = level
        self._asker = asker
        self._loop = loop
        self.call = call
        self.inflight: InFlight | None = None
        """The running call, where it may have to wait for its caller to come back."""
        self._alive: KeepAlive | None = None
        self.on_end: Callable[[], None] | None = None
        self.patience: asyncio.TimerHandle | None = None
        """Runs while a caller that left may still come back."""

    def emit(self, event: Event) -> None:
        """Pass an event on, if the caller asked for it; the first makes the answer a stream."""
        if isinstance(event, Log) and (self._level is None or not is_at_least(event.level, self._level)):
            return
        message = event_notification(event, self._token)
        if message is None:
            return
        if self._alive is None or self._peer.buffered_bytes() <= CROWDED_BYTES:
            self.say(message)

    def say(self, message: bytes) -> None:
        """Tell the caller something; the first time makes the answer a stream."""
        if self._alive is None:
            self._peer.begin(200, STREAM)
            self._alive = KeepAlive(self._peer, self._loop)
        self._peer.push(sse.frame(message))

    def ask(self, question: Question, reply: OnReply) -> None:
        """Ask the caller, in its era's way."""
        if self._asker is None:
            reply(NOT_ASKED)
        else:
            self._asker.ask(self, question, reply)

    def end(self, outcome: Outcome) -> None:
        """Answer."""
        if self.patience is not None:
            self.patience.cancel()
        self.inflight = None
        if isinstance(outcome, Result) and outcome.is_question and self._asker is not None:
            outcome = self._asker.seal(self.call, outcome)
        answer = answer_call(self._id, outcome, self._era, self.call.kind)
        if self._alive is None:
            self._peer.answer(status_of(answer, self._era), JSON, answer.body)
        else:
            self._alive.stop()
            self._peer.end(sse.frame(answer.body))
        on_end, self.on_end = self.on_end, None  # it may hold this call, which holds this exchange
        if on_end is not None:
            on_end()
