"""A call that has been started and has not finished: an entry in tables, not a stack frame and not a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING
from weakref import ref

import msgspec
import structlog

from isthmus.core.access.tenants import TenantCalls
from isthmus.core.calls.deadlines import Bucket, Deadlines
from isthmus.core.catalog.view import Route
from isthmus.core.ports import (
    DurableExchange,
    ElicitationExchange,
    Exchange,
    Link,
    PausableExchange,
    Recorder,
    RetractingExchange,
)
from isthmus.model.calls import GIVEN_UP, NOT_ASKED, TOO_LATE, Call, Event, OnReply, Outcome, Question, Reply, Result
from isthmus.model.faults import Cancelled, Executed, Fault, Lost, NotConnected, ServerError, TimedOut, Unanswered

if TYPE_CHECKING:
    from isthmus.core.calls.server_queue import ServerQueue

log = structlog.get_logger(__name__)

UNWRITTEN = object()
"""The `carriage` of a call that has a slot, and is sent once its exchange has written that it may be."""

QUESTIONS_MAX = 100
"""Questions of one call that may be open at once; further ones are refused."""

ASKED_MAX = 1_000
"""Questions of one call in all; further ones are refused, and the clock of a call that is asked nothing runs."""

QUESTION_SECONDS = 300.0
"""How long the caller may think about a question. That time does not count as silence of the server, nor towards the
caller's own timeout, but `hard_seconds` holds. The call keeps its slot of the server, as far as its lane allows."""


class InFlight:
    """Ends exactly once, by the first of: the server's answer, a fault, the deadline, the caller's withdrawal.

    `route`, `name` and `server_queue` are set by the stages, `link` by the lane when the call leaves its queue, `carriage`
    by the link for its own use (a request id, a connection); before that it is `EXPENSIVE` while the arguments have to
    be checked elsewhere. `name` is what the server calls what is asked for.
    `keep`, if it is set, is given the outcome, to remember it. While its end is being written down (`is_sealed`), it
    has ended for its server and not yet for its caller.
    """

    __slots__ = (
        "__weakref__",
        "_bucket",
        "_clock",
        "_deadlines",
        "_loop",
        "_recorder",
        "_started",
        "arrival",
        "call",
        "carriage",
        "context",
        "counted_by",
        "exchange",
        "is_sealed",
        "keep",
        "link",
        "name",
        "outcome",
        "questions",
        "rounds",
        "route",
        "server_queue",
        "timeout",
        "within",
    )

    arrival: int
    """Its place in its lane's order of arrival, once it has had to wait."""

    def __init__(
        self,
        call: Call,
        exchange: Exchange,
        recorder: Recorder,
        loop: asyncio.AbstractEventLoop,
        within: ref[InFlight] | None = None,
    ) -> None:
        self.call = call
        self.within = within
        """The call that made this one, while it was being served by a function of this process. Weakly: calls that
        each make another and end would otherwise be kept, all of them."""
        self.exchange = exchange
        self.route: Route | None = None
        self.name = call.name
        self.keep: Callable[[InFlight, Outcome], None] | None = None
        self.server_queue: ServerQueue | None = None
        self.link: Link | None = None
        self.carriage: object = None
        self.context = copy_context()
        """Its caller's context variables, for a function of this process: a call that had to wait for its slot, or for
        the log, begins where another one ends."""
        self.counted_by: TenantCalls | None = None
        """Where it counts as one of its tenant's, until it has ended."""
        self.outcome: Outcome | None = None
        self.is_sealed = False
        self.timeout = 0.0
        self._recorder = recorder
        self._loop = loop
        self._started = loop.time()
        self._bucket: Bucket | None = None
        self._deadlines: Deadlines | None = None
        self._clock: _Clock | None = None
        self.questions: tuple[OpenQuestion, ...] = ()
        """What is open that is about this call, or may be."""
        self.rounds = 0
        """How often the call was sent again with answers to what the server asked."""

    @property
    def target(self) -> Route:
        """Where the call goes; only asked once the stages have found it."""
        assert self.route is not None
        return self.route

    @property
    def is_over(self) -> bool:
        """Whether it has ended, also if its end is only being written down."""
        return self.outcome is not None or self.is_sealed

    def outer(self) -> Iterator[InFlight]:
        """The calls that this one was made within and that still run, the nearest first."""
        inflight: InFlight | None = self
        while inflight is not None:
            inflight = None if inflight.within is None else inflight.within()
            if inflight is not None and inflight.link is not None and not inflight.is_over:
                yield inflight

    def limit(self, seconds: float, deadlines: Deadlines) -> None:
        """Set the deadline; no scope, no task and no timer of its own watches it."""
        self.timeout = seconds
        self._deadlines = deadlines
        self._bucket = deadlines.add(self, seconds)

    def prolong(self) -> None:
        """Let it take as long as any call may: nobody stands and waits for it."""
        if self.server_queue is not None:
            self.timeout = self.server_queue.hard_seconds
            if not self.questions:
                self._expire_in(self.timeout)

    def heartbeat(self) -> None:
        """Note a sign of life of this call: its timeout counts from the last one, up to `hard_seconds` in all.

        The timer is not touched: when it fires, it is set again for the rest.
        """
        self._stopwatch().heard_at = self._loop.time()

    def emit(self, event: Event) -> None:
        """Pass an event on to the caller, unless the call has ended. It is a sign of life."""
        if self.outcome is not None:
            return
        self.heartbeat()
        try:
            self.exchange.emit(event)
        except Exception:  # as in `finish`
            log.exception("exchange failed while taking an event", tool=self.call.name)

    def pause(self, seconds: float) -> None:
        """The server let the call's stream go and will be asked for the rest; the caller may be let go as well."""
        if self.outcome is not None:
            return
        self.heartbeat()
        if not isinstance(self.exchange, PausableExchange):
            return
        try:
            self.exchange.pause(seconds)
        except Exception:  # as in `finish`
            log.exception("exchange failed while letting its caller go", tool=self.call.name)

    def ask(
        self, question: Question, reply: OnReply, others: Sequence[InFlight] = (), *, lasts: bool = False
    ) -> OpenQuestion | None:
        """Put a question of the server to the caller; the clock stands still until it is answered.

        It may be about `others` as well, the same caller's, whose clocks stand still too; one that `lasts` may be
        about none of them. Returns what it can be taken back by, or None if it is over already.
        """
        if self.is_over or not self._may_ask():
            reply(TOO_LATE if self.is_over else NOT_ASKED)
            return None
        self._stopwatch().asked += 1
        asked = OpenQuestion(self, others, reply, lasts=lasts)
        try:
            self.exchange.ask(question, asked)
        except Exception:  # as in `finish`
            log.exception("exchange failed while taking a question", tool=self.call.name)
            asked(TOO_LATE)
        return asked if asked.is_open else None

    def _may_ask(self) -> bool:
        """Whether one more question is not too much, at once or in all, and there is time for it."""
        too_many = len(self.questions) >= QUESTIONS_MAX or self._stopwatch().asked >= ASKED_MAX
        return not too_many and self._left_in_all() > 0

    def retract(self, asked: OpenQuestion) -> None:
        """Tell the caller that it need not answer any more."""
        if not isinstance(self.exchange, RetractingExchange):
            return
        try:
            self.exchange.retract(asked)
        except Exception:  # as in `finish`
            log.exception("exchange failed while a question was taken back", tool=self.call.name)

    def retract_later(self, asked: OpenQuestion) -> Callable[[], None] | None:
        """What tells the caller the same once the call, which is about to end, is over."""
        if not isinstance(self.exchange, RetractingExchange):
            return None
        try:
            return self.exchange.retract_later(asked)
        except Exception:  # as in `finish`
            log.exception("exchange failed while a question outlived its call", tool=self.call.name)
            return None

    def done_elsewhere(self, id: msgspec.Raw) -> None:
        """Tell the caller that its user is done where a question sent them."""
        if not isinstance(self.exchange, ElicitationExchange):
            return
        try:
            self.exchange.done(id)
        except Exception:  # as in `finish`
            log.exception("exchange failed while its user was done elsewhere", tool=self.call.name)

    def hold(self, asked: OpenQuestion) -> None:
        """A question is open that is about this call, or may be: its clock stands still until `release`."""
        if not self.questions:
            self._stopwatch().asked_at = self._loop.time()
            if self.server_queue is not None:
                self.server_queue.waits(self)
        self.questions = (*self.questions, asked)
        self._expire_in(QUESTION_SECONDS)

    def release(self, asked: OpenQuestion) -> None:
        """A question was answered, or will not be: the clock runs again once none is open."""
        self.questions = tuple(each for each in self.questions if each is not asked)
        if not self.questions:
            clock, now = self._stopwatch(), self._loop.time()
            clock.thought += now - clock.asked_at
            clock.heard_at = now
            self._expire_in(max(0.0, self._due() - now))
            if self.server_queue is not None:
                self.server_queue.goes_on(self)

    def _stopwatch(self) -> _Clock:
        """The clock of a call of which something was heard before its answer; most calls need none."""
        if self._clock is None:
            self._clock = _Clock(self._started)
        return self._clock

    def _due(self) -> float:
        """When the call runs out of time, if nothing more is heard of it."""
        clock = self._stopwatch()
        due = clock.heard_at + self.timeout
        if self.call.timeout is not None:
            due = min(due, self._started + self.call.timeout + clock.thought)
        return due

    def _expire_in(self, seconds: float) -> None:
        """Move the deadline, though not beyond what any call may take: what is due already stays so."""
        left = self._left_in_all()
        if self._bucket is not None and self._deadlines is not None and self.outcome is None and left:
            self._bucket.pop(self, None)
            self._bucket = self._deadlines.add(self, min(seconds, left))

    def _left_in_all(self) -> float:
        whole = self.timeout if self.server_queue is None else self.server_queue.hard_seconds
        return max(0.0, self._started + whole - self._loop.time())

    def finish(self, outcome: Outcome) -> bool:
        """End the call; False if it had ended already, in which case the outcome is counted and dropped."""
        route, recorder = self.route, self._recorder
        if self.outcome is not None or self.is_sealed:
            if route is not None:
                recorder.late(route.feature.server)
            return False
        self.outcome = outcome
        if self._bucket is not None:
            self._bucket.pop(self, None)
        if self.counted_by is not None:
            self.counted_by.leave(self.call.caller.tenant)
        if self.server_queue is not None:
            self.server_queue.released(self, outcome)
        server = None if route is None else route.feature.server
        seconds = self._loop.time() - self._started
        recorder.ended(self.call, server, outcome, seconds, self.link)
        if recorder.audit_gate is None:
            self._tell(outcome)
        else:
            self.outcome, self.is_sealed = None, True
            self._bucket = None  # what is answered while it is being written must not set the clock again
            recorder.audit_gate.ended(self, server, outcome, seconds)
        return True

    def tell(self, outcome: Outcome) -> None:
        """Its end is written down, or cannot be: tell this to the caller. Once, by the recorder's witness."""
        self.outcome = outcome
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        if self.keep is not None:
            self.keep(self, outcome)
        if self.questions:
            self._end_questions(outcome)
        try:
            self.exchange.end(outcome)
        except Exception:  # one caller's broken exchange must not reach the link, which serves others
            log.exception("exchange failed while taking an outcome", tool=self.call.name)

    def _end_questions(self, outcome: Outcome) -> None:
        """Before the caller's side hears the end: after it, there may be no stream on which to take them back."""
        questions, self.questions = self.questions, ()
        if self.server_queue is not None:
            self.server_queue.goes_on(self)
        for asked in questions:
            asked.ended(self, outcome)

    def is_cleared(self, send: Callable[[InFlight], None]) -> bool:
        """Whether the call may be sent now; else `send` is called once its exchange has written that it may be."""
        if not isinstance(self.exchange, DurableExchange) or self.exchange.may_send(self, send):
            return True
        self.carriage = UNWRITTEN
        return False

    def abandon(self) -> None:
        """Drop a call that was not sent: it leaves its queue or its slot, and nobody is told."""
        if self.is_over:
            return
        self.outcome = Cancelled("it is not to be sent", executed="no")
        if self._bucket is not None:
            self._bucket.pop(self, None)
        if self.counted_by is not None:
            self.counted_by.leave(self.call.caller.tenant)
        if self.server_queue is not None:
            if self.carriage is UNWRITTEN:
                self.server_queue.take_back(self)
            self.server_queue.released(self, self.outcome)

    def put_back(self) -> bool:
        """Give a call that was not sent back to who started it, if they would rather wait themselves for its server."""
        if (
            self.server_queue is None
            or not isinstance(self.exchange, DurableExchange)
            or not self.exchange.put_back(self)
        ):
            return False
        self.outcome = self.server_queue.absence()
        if self._bucket is not None:
            self._bucket.pop(self, None)
        if self.counted_by is not None:
            self.counted_by.leave(self.call.caller.tenant)
        return True

    def fail(self, fault: Fault) -> None:
        """End the call without an answer: what was sent once and asked something may have run, whatever came after."""
        if self.rounds and fault.executed == "no":
            detail = fault.why if isinstance(fault, Lost | NotConnected) else fault.message
            fault = Lost(self.target.feature.server, detail, executed="unknown")
        self.finish(fault)

    def cancel(self, why: str) -> None:
        """Withdraw the call: end it here and tell the server to stop."""
        if self.outcome is None:
            server = None if self.route is None else self.route.feature.server
            self._give_up(Cancelled(why, executed=self._executed(), server=server), why)

    def expire(self) -> None:
        """The deadline has passed: end the call and tell the server to stop, unless it gave a sign of life since."""
        if self.is_over:
            return
        if self._clock is not None and not self.questions and self._left_in_all():
            left = self._due() - self._loop.time()
            if left > 0:
                self._expire_in(left)
                return
        seconds = self._allowed()
        if self.questions:
            self.go_unanswered(f"nobody answered within {seconds:g} s")
        else:
            self._give_up(self._lateness(seconds), f"no answer within {seconds:g} s")

    def _lateness(self, seconds: float) -> Fault:
        """Why it is too late: the server did not answer, or was too busy to be asked."""
        server_queue = self.server_queue if self.link is None and not self.rounds else None
        busy = None if server_queue is None else server_queue.busyness()
        return busy or TimedOut(self.target.feature.server, seconds, executed=self._executed())

    def _allowed(self) -> float:
        """How long was waited for what did not come: as long as any call may take, or for what was due next."""
        clock, wanted = self._clock, self.call.timeout
        if self.server_queue is not None and clock is not None and not self._left_in_all():
            return self.server_queue.hard_seconds
        if self.questions:
            return QUESTION_SECONDS
        is_silent = clock is None or clock.heard_at + self.timeout <= self._loop.time()
        return self.timeout if is_silent or wanted is None else wanted

    def go_unanswered(self, why: str) -> None:
        """End a call that was asked something: an answer is not waited for any more."""
        if self.outcome is None:
            self._give_up(Unanswered(self.target.feature.server, why), why)

    def _give_up(self, fault: Fault, reason: str) -> None:
        if self.is_sealed:
            return
        if self.carriage is UNWRITTEN and self.server_queue is not None:
            self.server_queue.take_back(self)
        elif self.link is not None:
            self.link.withdraw(self, reason)
            self.carriage = None
        self.finish(fault)

    def _executed(self) -> Executed:
        return "unknown" if self.may_have_run else "no"

    @property
    def may_have_run(self) -> bool:
        """Whether some of it may have left for its server."""
        if self.link is None or self.carriage is UNWRITTEN:
            return False
        return bool(self.rounds) or self.link.may_have_run(self)


class _Clock:
    """What a call's deadline depends on: the last sign of life, and how long its caller thought about questions."""

    __slots__ = ("asked", "asked_at", "heard_at", "thought")

    def __init__(self, started: float) -> None:
        self.heard_at = started
        """When the last sign of life came."""
        self.asked = 0
        """How many questions there were."""
        self.asked_at = 0.0
        """Since when a question is open."""
        self.thought = 0.0
        """How long questions were open in all."""


class OpenQuestion:
    """A question until it is answered, once; or taken back, by its server or with the last call it may be about.

    One that `lasts` is still open when the server has answered these calls: it may be about none of them.
    """

    __slots__ = ("_lasts", "_reply", "_retract_later", "_waiting", "asked_of")

    def __init__(self, asked_of: InFlight, others: Sequence[InFlight], reply: OnReply, *, lasts: bool) -> None:
        self.asked_of: InFlight | None = asked_of
        """Until that has ended: a question may stay open for hours, and must not keep a result of megabytes."""
        self._retract_later: Callable[[], None] | None = None
        self._reply: OnReply | None = reply
        self._lasts = lasts
        self._waiting = [asked_of, *others]
        for inflight in self._waiting:
            inflight.hold(self)

    @property
    def is_open(self) -> bool:
        """Whether an answer is still wanted."""
        return self._reply is not None

    def __call__(self, answer: Reply) -> None:
        """Take the answer, for the server."""
        reply = self._close()
        if reply is not None:
            reply(answer)

    def take_back(self) -> None:
        """The server does not want to know any more: nobody answers it, and the caller need not."""
        if self._close() is not None:
            self._retract()

    def ended(self, inflight: InFlight, outcome: Outcome) -> None:
        """A call that it may be about has ended."""
        if inflight in self._waiting:
            self._waiting.remove(inflight)
        is_answered = isinstance(outcome, Result | ServerError)
        if self._waiting or (self._lasts and is_answered):
            self._outlive(inflight)
            return
        reply = self._close()
        if reply is not None:
            self._retract()
            reply(TOO_LATE if is_answered else GIVEN_UP)

    def _outlive(self, inflight: InFlight) -> None:
        if inflight is self.asked_of:
            self._retract_later = inflight.retract_later(self)
            self.asked_of = None

    def _retract(self) -> None:
        if self.asked_of is not None:
            self.asked_of.retract(self)
        elif self._retract_later is not None:
            try:
                self._retract_later()
            except Exception:  # as in `InFlight.finish`
                log.exception("exchange failed while a question was taken back after its call")

    def _close(self) -> OnReply | None:
        reply, self._reply = self._reply, None
        waiting, self._waiting = self._waiting, []
        for inflight in waiting:
            inflight.release(self)
        return reply
