"""A call that has been started and has not finished: an entry in tables, not a stack frame and not a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from isthmus.core.calls.deadlines import Bucket, Deadlines
from isthmus.core.catalog.view import Route
from isthmus.core.ports.exchange import Exchange, Pausable
from isthmus.core.ports.link import Link
from isthmus.core.ports.recorder import Recorder
from isthmus.model.calls import Call
from isthmus.model.events import Event
from isthmus.model.faults import Cancelled, Executed, Fault, TimedOut, Unanswered
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import NOT_ASKED, TOO_LATE, OnReply, Question, Reply

if TYPE_CHECKING:
    from isthmus.core.calls.lane import Lane

log = structlog.get_logger(__name__)

QUESTIONS_MAX = 100
"""Questions of one call that may be open at once; further ones are refused."""

QUESTION_SECONDS = 300.0
"""How long the caller may think about a question; meanwhile the call's own clock stands still."""


class InFlight:
    """Ends exactly once, by the first of: the server's answer, a fault, the deadline, the caller's withdrawal.

    `route`, `name` and `lane` are set by the stages, `link` by the lane when the call leaves its queue, `carriage`
    by the link for its own use (a request id, a connection). `name` is what the server calls what is asked for.
    `keep`, if it is set, is given the outcome, to remember it.
    """

    __slots__ = (
        "_bucket",
        "_deadlines",
        "_loop",
        "_recorder",
        "_started",
        "call",
        "carriage",
        "exchange",
        "keep",
        "lane",
        "link",
        "name",
        "open_questions",
        "outcome",
        "rounds",
        "route",
        "timeout",
    )

    def __init__(self, call: Call, exchange: Exchange, recorder: Recorder, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.exchange = exchange
        self.route: Route | None = None
        self.name = call.name
        self.keep: Callable[[InFlight, Outcome], None] | None = None
        self.lane: Lane | None = None
        self.link: Link | None = None
        self.carriage: object = None
        self.outcome: Outcome | None = None
        self.timeout = 0.0
        self._recorder = recorder
        self._loop = loop
        self._started = loop.time()
        self._bucket: Bucket | None = None
        self._deadlines: Deadlines | None = None
        self.open_questions = 0
        self.rounds = 0
        """How often the call was sent again with answers to what the server asked."""

    @property
    def target(self) -> Route:
        """Where the call goes; only asked once the stages have found it."""
        assert self.route is not None
        return self.route

    def limit(self, seconds: float, deadlines: Deadlines) -> None:
        """Set the deadline; no scope, no task and no timer of its own watches it."""
        self.timeout = seconds
        self._deadlines = deadlines
        self._bucket = deadlines.add(self, seconds)

    def emit(self, event: Event) -> None:
        """Pass an event on to the caller, unless the call has ended."""
        if self.outcome is not None:
            return
        try:
            self.exchange.emit(event)
        except Exception:  # as in `finish`
            log.exception("exchange failed while taking an event", tool=self.call.name)

    def pause(self, seconds: float) -> None:
        """The server let the call's stream go and will be asked for the rest; the caller may be let go as well."""
        if self.outcome is not None or not isinstance(self.exchange, Pausable):
            return
        try:
            self.exchange.pause(seconds)
        except Exception:  # as in `finish`
            log.exception("exchange failed while letting its caller go", tool=self.call.name)

    def ask(self, question: Question, reply: OnReply) -> None:
        """Put a question of the server to the caller; the clock stands still until it is answered."""
        if self.outcome is not None or self.open_questions >= QUESTIONS_MAX:
            reply(TOO_LATE if self.outcome is not None else NOT_ASKED)
            return
        self.hold()
        answering = _Answering(self, reply)
        try:
            self.exchange.ask(question, answering)
        except Exception:  # as in `finish`
            log.exception("exchange failed while taking a question", tool=self.call.name)
            answering(TOO_LATE)

    def hold(self) -> None:
        """A question is open that is about this call, or may be: its clock stands still until `answered`."""
        self.open_questions += 1
        self._restart_clock(QUESTION_SECONDS)

    def answered(self) -> None:
        """A question was answered, or will not be: the clock runs again once none is open."""
        self.open_questions -= 1
        if not self.open_questions:
            self._restart_clock(self.timeout)

    def _restart_clock(self, seconds: float) -> None:
        if self._bucket is not None and self._deadlines is not None and self.outcome is None:
            self._bucket.pop(self, None)
            self._bucket = self._deadlines.add(self, seconds)

    def finish(self, outcome: Outcome) -> bool:
        """End the call; False if it had ended already, in which case the outcome is counted and dropped."""
        route = self.route
        if self.outcome is not None:
            if route is not None:
                self._recorder.late(route.feature.server)
            return False
        self.outcome = outcome
        if self._bucket is not None:
            self._bucket.pop(self, None)
        if self.lane is not None:
            self.lane.released(self, outcome)
        server = None if route is None else route.feature.server
        self._recorder.ended(self.call, server, outcome, self._loop.time() - self._started)
        if self.keep is not None:
            self.keep(self, outcome)
        try:
            self.exchange.end(outcome)
        except Exception:  # one caller's broken exchange must not reach the link, which serves others
            log.exception("exchange failed while taking an outcome", tool=self.call.name)
        return True

    def cancel(self, why: str) -> None:
        """Withdraw the call: end it here and tell the server to stop."""
        if self.outcome is None:
            server = None if self.route is None else self.route.feature.server
            self._give_up(Cancelled(why, executed=self._executed(), server=server), why)

    def expire(self) -> None:
        """The deadline has passed: end the call and tell the server to stop."""
        if self.outcome is not None:
            return
        if self.open_questions:
            why = f"nobody answered within {QUESTION_SECONDS:g} s"
            self._give_up(Unanswered(self.target.feature.server, why), why)
        else:
            fault = TimedOut(self.target.feature.server, self.timeout, executed=self._executed())
            self._give_up(fault, f"no answer within {self.timeout:g} s")

    def _give_up(self, fault: Fault, reason: str) -> None:
        if self.link is not None:
            self.link.withdraw(self, reason)
            self.carriage = None
        self.finish(fault)

    def _executed(self) -> Executed:
        if self.link is None or not self.link.may_have_run(self):
            return "no"
        return "unknown"


class _Answering:
    """Takes the answer to one question, once.

    One that comes after the call's end is the server's all the same: on a stream that all calls share, the question
    may have been about another call of the same caller.
    """

    __slots__ = ("_inflight", "_reply")

    def __init__(self, inflight: InFlight, reply: OnReply) -> None:
        self._inflight = inflight
        self._reply: OnReply | None = reply

    def __call__(self, answer: Reply) -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            return
        self._inflight.answered()
        reply(answer)
