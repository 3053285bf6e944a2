"""The caller's side of a call over HTTP: answers as soon as the call ends, without a task waiting for it.

A quick answer is plain JSON, what precedes a slow one makes it a stream. Which connection of an earlier caller hears
that stream is the tape's matter (`replays`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from isthmus.core.calls.deadlines import Bucket, Deadlines
from isthmus.frontends.http.bodies import CROWDED_BYTES, JSON, STREAM, KeepAlive
from isthmus.frontends.http.request_cycle import Peer
from isthmus.frontends.mcp.asker import Asker
from isthmus.frontends.mcp.caller_side import CallerSide
from isthmus.frontends.mcp.dialogue import Answer
from isthmus.frontends.mcp.faults import Era
from isthmus.frontends.mcp.sessions import Session
from isthmus.model.calls import Call
from isthmus.model.events import Event, LogLevel
from isthmus.model.outcomes import Outcome
from isthmus.wire import jsonrpc, sse
from isthmus.wire.mcp import modern

RESUME_SECONDS = 30.0
"""How long a legacy caller's call goes on after its connection broke: by its protocol, that is no cancellation."""

PLAIN_SECONDS = 0.1
"""How long an answer may take and still be plain JSON, for a caller that could come back to a stream."""

RETRY_SECONDS_MAX = 10.0
"""The longest that a caller is told to stay away: it is waited for only so much longer."""

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


class Stream(Protocol):
    """What precedes an answer, and the answer."""

    is_over: bool
    """Whether the answer was given, after which nothing can be said on it."""

    def report(self, message: bytes) -> None:
        """Say what a later report replaces; a caller that does not read is spared it."""

    def say(self, message: bytes) -> None:
        """Say what the caller cannot do without."""

    def put(self, id: bytes, message: bytes) -> None:
        """Say what the caller is to answer under this id, and again if it comes back before `settle`."""

    def settle(self, id: bytes) -> None:
        """It was answered, or need not be."""

    def end(self, message: bytes) -> None:
        """Say the last thing."""

    def left(self, peer: Peer) -> bool:
        """A connection broke; False if another has taken its place already."""

    def pause(self, retry_ms: int) -> bool:
        """Let the caller go for so many milliseconds; False if that cannot be."""


class Passing:
    """A stream that ends with its connection."""

    __slots__ = ("_alive", "_peer", "is_over")

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        peer.begin(200, STREAM)
        self._peer = peer
        self._alive = KeepAlive(peer, loop)
        self.is_over = False

    def report(self, message: bytes) -> None:
        """See `Stream`."""
        if self._peer.buffered_bytes() <= CROWDED_BYTES:
            self.say(message)

    def say(self, message: bytes) -> None:
        """See `Stream`."""
        self._peer.push(sse.frame(message))

    def put(self, id: bytes, message: bytes) -> None:
        """See `Stream`; nobody comes back."""
        self.say(message)

    def settle(self, id: bytes) -> None:
        """Nothing is kept."""

    def end(self, message: bytes) -> None:
        """See `Stream`."""
        self.is_over = True
        self._alive.stop()
        self._peer.end(sse.frame(message))

    def left(self, peer: Peer) -> bool:
        """See `Stream`."""
        self._alive.stop()
        return True

    def pause(self, retry_ms: int) -> bool:
        """Nobody can come back to it."""
        return False


class HttpExchange(CallerSide):
    """One call's caller. The answer is plain JSON unless an event precedes it; then it is a stream of events."""

    __slots__ = ("_bucket", "_loop", "_patience", "_peer", "_stream", "on_end", "session")

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
        self.session: Session | None = None
        """Where the caller may come back to a stream of this call, if it may."""
        self.inflight = None
        self.on_end: Callable[[], None] | None = None
        self._stream: Stream | None = None
        self._bucket: Bucket | None = None
        self._patience: asyncio.TimerHandle | None = None
        """Runs while a caller that left may still come back."""

    # -- what happens to the call ----------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Pass an event on, if the caller asked for it; the first makes the answer a stream."""
        message = self._told(event)
        if message is not None:
            self._streamed().report(message)

    def say(self, message: bytes) -> None:
        """Tell the caller something; the first time makes the answer a stream, and after it there is the session's."""
        stream = self._streamed()
        if not stream.is_over:
            stream.say(message)
        elif self.session is not None:
            self.session.say(message)

    def put(self, id: bytes, message: bytes) -> None:
        """See `asker.Askable`."""
        stream = self._streamed()
        if stream.is_over:
            self.say(message)
        else:
            stream.put(id, message)

    def settle(self, id: bytes) -> None:
        """See `asker.Askable`."""
        if self._stream is not None:
            self._stream.settle(id)

    def _afterwards(self) -> Callable[[bytes], None] | None:
        return None if self.session is None else self.session.report

    def pause(self, seconds: float) -> None:
        """The server let its stream of this call go for a while: the caller's goes too, if it knows of such."""
        if self.session is None or not self.session.can_poll:
            return
        if self._streamed().pause(int(min(seconds, RETRY_SECONDS_MAX) * 1000)):
            self._wait_for_return()

    def end(self, outcome: Outcome) -> None:
        """Answer."""
        if self._patience is not None:
            self.came_back()
        if self._bucket is not None:
            self._bucket.pop(self, None)
        answer = self._answer_to(outcome)
        if self._stream is None:
            self._peer.answer(status_of(answer, self._era), JSON, answer.body)
        else:
            self._stream.end(answer.body)
        on_end, self.on_end = self.on_end, None  # it may hold this call, which holds this exchange
        if on_end is not None:
            on_end()

    # -- the stream, and who listens to it -------------------------------------------------------------------------

    def _streamed(self) -> Stream:
        if self._stream is None:
            self._stream = self._open()
        return self._stream

    def _open(self) -> Stream:
        if self.session is None:
            return Passing(self._peer, self._loop)
        tape = self.session.record(self)
        tape.start(self._peer, is_primed=self.session.can_poll)
        return tape

    def hasten(self, deadlines: Deadlines) -> None:
        """Make the answer a stream if it does not come soon, so that the caller can come back to it."""
        self._bucket = deadlines.add(self, PLAIN_SECONDS)

    def expire(self) -> None:
        """The answer takes its time; who has left already would not learn how to come back."""
        if self._patience is None:
            self._streamed()

    def cancel(self, why: str) -> None:
        """A stream that was not begun needs no end."""

    def left(self, peer: Peer) -> None:
        """A legacy caller's connection broke; it may come back to its stream for a while."""
        if self._stream is None or self._stream.left(peer):
            self._wait_for_return()

    def _wait_for_return(self) -> None:
        inflight = self.inflight
        if inflight is not None and self._patience is None:
            why = "the caller's connection broke"
            self._patience = self._loop.call_later(RESUME_SECONDS, inflight.cancel, why)

    def came_back(self) -> None:
        """Nobody waits for the caller any more."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
