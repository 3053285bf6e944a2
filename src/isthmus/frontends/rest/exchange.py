"""The caller's side of a call over REST: a result or a problem, whole, or as the end of a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from isthmus.frontends.http.bodies import CROWDED_BYTES, JSON, STREAM, KeepAlive
from isthmus.frontends.http.request_cycle import Peer
from isthmus.frontends.rest.faults import Problem, problem_of
from isthmus.model.events import Event, LogMessage, LogLevel, is_at_least
from isthmus.model.faults import Fault
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import NOT_ASKED, OnReply, Question
from isthmus.wire import sse
from isthmus.wire.jsonrpc import render


def answer_problem(peer: Peer, problem: Problem) -> None:
    """Answer with a problem and its status."""
    peer.answer(problem.status, problem.lines(), problem.body())


class RestExchange:
    """One call's caller. With a `level` it wants a stream, whose log is of that level and above."""

    __slots__ = ("_alive", "_level", "_loop", "_peer", "on_end")

    def __init__(self, peer: Peer, level: LogLevel | None, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._level = level
        self._loop = loop
        self._alive: KeepAlive | None = None
        self.on_end: Callable[[], None] | None = None

    def open(self) -> None:
        """Begin the stream, if one is wanted: what fails before this is answered with a status of its own."""
        if self._level is not None and self._alive is None:
            self._peer.begin(200, STREAM)
            self._peer.push(sse.comment())
            self._alive = KeepAlive(self._peer, self._loop)

    def emit(self, event: Event) -> None:
        """Pass an event on to who wants a stream and reads it."""
        if self._level is None or (isinstance(event, LogMessage) and not is_at_least(event.level, self._level)):
            return
        self.open()
        if self._peer.buffered_bytes() <= CROWDED_BYTES:
            name = "log" if isinstance(event, LogMessage) else "progress"
            self._peer.push(sse.frame(render(event.members), event=name))

    def ask(self, question: Question, reply: OnReply) -> None:
        """Nobody here can answer."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """Answer."""
        if isinstance(outcome, Fault):
            self._fail(problem_of(outcome))
        elif self._level is None:
            self._peer.answer(200, JSON, bytes(outcome.payload))
        else:
            self.open()
            self._peer.end(sse.frame(outcome.payload, event="result"))
        if self._alive is not None:
            self._alive.stop()
        on_end, self.on_end = self.on_end, None  # it may hold this call, which holds this exchange
        if on_end is not None:
            on_end()

    def _fail(self, problem: Problem) -> None:
        if self._alive is None:
            answer_problem(self._peer, problem)
        else:
            self._peer.end(sse.frame(problem.body(), event="error"))
