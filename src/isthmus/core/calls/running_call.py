"""A call that was started and has not ended: an entry in tables, not a stack frame and not an asyncio task.

`Deadlines` is one timer for all calls, a wheel of buckets, each a twentieth of a second wide: a call is put into the
bucket in which it expires and removed when it ends. Both are dictionary operations; a timer of the loop costs ten times
as much to start and to cancel, and nearly all are cancelled.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import ref

import msgspec
import structlog

from isthmus.core.access.tenants import TenantCalls
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
from isthmus.model.calls import (
    GIVEN_UP,
    NOT_ASKED,
    TOO_LATE,
    Call,
    Event,
    LogMessage,
    OnReply,
    Outcome,
    Question,
    Reply,
    Result,
)
from isthmus.model.fault_table import Cancelled, Executed, Fault, Lost, NotConnected, ServerError, TimedOut, Unanswered
from isthmus.model.names import ServerName
from isthmus.model.trace_context import parent_of

if TYPE_CHECKING:
    from isthmus.core.calls.server_queue import ServerQueue


log = structlog.get_logger(__name__)

_NUMBERS = count(1)

TICK_SECONDS = 0.05
"""How late a deadline may be noticed; never early."""


class Expiring(Protocol):
    """Something with a deadline."""

    def expire(self) -> None:
        """The deadline has passed."""

    def cancel(self, why: str) -> None:
        """Cancel it."""


Bucket: TypeAlias = dict[Expiring, None]


class Deadlines:
    """The deadlines of all calls of one hub."""

    __slots__ = ("_buckets", "_loop", "_ticks", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, Bucket] = {}
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, expiring: Expiring, seconds: float) -> Bucket:
        """Call `expire` in this many seconds, unless it is removed from the returned bucket before."""
        now = self._loop.time()
        due = int((now + seconds) / TICK_SECONDS) + 1
        bucket = self._buckets.get(due)
        if bucket is None:
            bucket = self._buckets[due] = {}
        bucket[expiring] = None
        if self._timer is None:
            self._ticks = int(now / TICK_SECONDS)
            self._timer = self._loop.call_later(TICK_SECONDS, self._turn)
        return bucket

    def pending(self) -> list[Expiring]:
        """Everything whose deadline has not come."""
        return [expiring for bucket in self._buckets.values() for expiring in bucket]

    def _turn(self) -> None:
        """Expire what is due, and continue while there is anything to wait for."""
        now = int(self._loop.time() / TICK_SECONDS)
        for tick in range(self._ticks + 1, now + 1):
            for expiring in list(self._buckets.pop(tick, ())):
                try:
                    expiring.expire()
                except Exception:  # one call's defect must not stop the clock of all the others
                    log.exception("a call failed to expire")
        self._ticks = now
        self._timer = self._loop.call_later(TICK_SECONDS, self._turn) if self._buckets else None


Keep: TypeAlias = "Callable[[InFlight, Outcome], Outcome | None]"
"""Receives how a call ended and returns what the caller gets; None if that takes a moment, and `deliver` is called
again."""

UNWRITTEN = object()
"""The `carriage` of a call that has a slot, and is sent once its exchange has stored that it may be sent."""


class HeldCall:
    """The `carriage` of a call that waits for a person's approval, or for the approval's use to be stored."""

    __slots__ = ("carriage", "late")

    def __init__(self, carriage: object, late: Callable[[], Fault]) -> None:
        self.carriage = carriage
        """What the call had before."""
        self.late = late
        """How the call ends if nobody decides before its deadline."""


QUESTIONS_MAX = 100
"""Open questions of one call; further ones are declined."""

ASKED_MAX = 1_000
"""All questions of one call; further ones are declined, so that its clock runs."""

QUESTION_SECONDS = 300.0
"""How long the caller may take to answer a question. That time counts neither as silence of the server nor towards the
caller's own timeout, but `hard_seconds` holds. The call keeps its slot, as far as its server's queue allows."""

TASK_QUESTION_SECONDS = 7 * 24 * 3600.0
"""The same for a task, whose caller is not connected and may be a person who is away. That time does not count towards
`hard_seconds`. A server with one slot must not stay blocked for its other callers for so long."""


STEPS_MAX = 32
"""Steps of one call that are remembered, the first ones: a server may report progress without end."""


class InFlight:
    """Ends exactly once, by the first of: the server's response, a fault, the deadline, the caller's cancellation.

    The hub's stages set `route`, `name` and `server_queue`; the server's queue sets `link` when it sends the call; the
    link uses `carriage` for its own data (a request id, a connection), which is `EXPENSIVE` before that while the
    arguments are checked in a worker. `name` is the server's own name for the tool. `keep`, if set, receives the
    outcome, once: to cache it, for approvals and budgets, and to cut large results. While its end is being written to
    the audit log (`is_sealed`), it has ended for its server and not yet for its caller.
    """

    __slots__ = (
        "__weakref__",
        "_began",
        "_bucket",
        "_clock",
        "_deadlines",
        "_id",
        "_loop",
        "_recorder",
        "_started",
        "call",
        "carriage",
        "context",
        "counted_by",
        "exchange",
        "is_sealed",
        "is_unreached",
        "keep",
        "link",
        "name",
        "outcome",
        "questions",
        "rounds",
        "route",
        "server_queue",
        "steps",
        "timeout",
        "trace",
        "wait_seconds",
        "within",
    )

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
        """The call that made this one, if a function of this process served it. Weak: a chain of ended calls would
        otherwise stay in memory."""
        self.exchange = exchange
        self.route: Route | None = None
        self.name = call.name
        self.keep: Keep | None = None
        self.server_queue: ServerQueue | None = None
        self.link: Link | None = None
        self.carriage: object = None
        self.context = copy_context()
        """Its caller's context variables, for a function of this process: a call that waited is sent from the context
        of another one."""
        self.counted_by: TenantCalls | None = None
        """The counter of its tenant's calls, until it has ended."""
        self.outcome: Outcome | None = None
        self.is_sealed = False
        self.is_unreached = False
        """A fleet has ended it, and no member can have run it."""
        self.timeout = 0.0
        self._id = 0
        self.wait_seconds = 0.0
        """How long it waited before it was sent."""
        self.trace: object = None
        """What the recorder keeps of a call that it traces."""
        self._recorder = recorder
        self._loop = loop
        self._started = loop.time()
        self._began = perf_counter()
        """The same for what it took: uvloop's clock has steps of a millisecond."""
        self._bucket: Bucket | None = None
        self._deadlines: Deadlines | None = None
        self._clock: _Clock | None = None
        self.questions: tuple[OpenQuestion, ...] = ()
        """Open questions that concern this call, or may."""
        self.rounds = 0
        """How often the call was sent again with answers to the server's questions."""
        self.steps: list[tuple[str, float]] | None = None
        """What happened on its way besides being sent at once and answered; see `note`."""

    @property
    def target(self) -> Route:
        """The route, once the stages have found it."""
        assert self.route is not None
        return self.route

    @property
    def is_done(self) -> bool:
        """Whether it has ended, also while its end is being written to the audit log."""
        return self.outcome is not None or self.is_sealed

    @property
    def was_sent(self) -> bool:
        """Whether it was sent to its server; to a member, if that is a fleet."""
        return self.link is not None and not self.is_unreached

    def outer(self) -> Iterator[InFlight]:
        """The running calls that this one was made within, the nearest first."""
        inflight: InFlight | None = self
        while inflight is not None:
            inflight = None if inflight.within is None else inflight.within()
            if inflight is not None and inflight.link is not None and not inflight.is_done:
                yield inflight

    def limit(self, seconds: float, deadlines: Deadlines) -> None:
        """Set the deadline; the shared wheel of `Deadlines` watches it."""
        self.timeout = seconds
        self._deadlines = deadlines
        self._bucket = deadlines.add(self, seconds)

    def begin_hold(self, seconds: float, deadlines: Deadlines, late: Callable[[], Fault]) -> None:
        """Let the call wait for a person, at most this long; then it ends with the fault that `late` returns."""
        self.end_hold()
        self.note("held")
        self.carriage = HeldCall(self.carriage, late)
        self.limit(seconds, deadlines)

    def end_hold(self) -> None:
        """End the wait. The call has no deadline until its next stage sets one; the time of a task's starts now."""
        if isinstance(self.carriage, HeldCall):
            self.note("decided")
            self.carriage = self.carriage.carriage
            if self._bucket is not None:
                self._bucket.pop(self, None)
                self._bucket = None
            if self.call.lasts:
                self._started, self._clock = self._loop.time(), None

    @property
    def is_held(self) -> bool:
        """Whether it waits for a person."""
        return isinstance(self.carriage, HeldCall)

    def keep_timeout(self) -> None:
        """Count the time for which the call was held towards its caller's own timeout."""
        if self.call.timeout is not None and not self.is_done:
            left = max(TICK_SECONDS, self._started + self.call.timeout - self._loop.time())
            if left < self.timeout:
                self.timeout = left
                self._expire_in(left)

    def prolong(self) -> None:
        """Let it take as long as any call may, because its caller does not wait on a connection."""
        if self.server_queue is not None:
            self.timeout = self.server_queue.hard_seconds
            if not self.questions:
                self._expire_in(self.timeout)

    def ids(self) -> dict[str, str]:
        """What log lines name it by: the process and its number there, and the trace that it belongs to."""
        if not self._id:  # most calls are never logged
            self._id = next(_NUMBERS)
        span = parent_of(self.call.meta)
        ids = {"call": f"{os.getpid()}-{self._id}"}
        return ids if span is None else {**ids, "trace_id": span.trace_id}

    def heartbeat(self) -> None:
        """Restart the server's timeout after a message about the call, up to `hard_seconds` in all.

        The timer is not touched: when it fires, it is set again for the rest.
        """
        self._get_clock().alive_at = self._loop.time()

    def note(self, step: str) -> None:
        """Remember that the call has come this far; `telemetry.activity` shows it. Most calls note nothing."""
        if self.steps is None:
            self.steps = []
        if len(self.steps) < STEPS_MAX:
            self.steps.append((step, perf_counter() - self._began))

    def held_seconds(self, at: float) -> float:
        """How long it has waited for people, seen so many seconds after its start."""
        held = -1.0
        total = 0.0
        for step, time in self.steps or ():
            if step == "held":
                held = time
            elif step == "decided" and held >= 0:
                total, held = total + time - held, -1.0
        return total if held < 0 else total + at - held

    def emit(self, event: Event) -> None:
        """Send an event to the caller, unless the call has ended. It restarts the timeout."""
        if self.outcome is not None:
            return
        self.heartbeat()
        self.note("log" if isinstance(event, LogMessage) else "progress")
        try:
            self.exchange.emit(event)
        except Exception:  # as in `finish`
            log.exception("exchange failed to handle an event", tool=self.call.name, **self.ids())

    def pause(self, seconds: float) -> None:
        """The server closed the call's stream and resumes later; the caller's stream may be closed as well."""
        if self.outcome is not None:
            return
        self.heartbeat()
        if not isinstance(self.exchange, PausableExchange):
            return
        try:
            self.exchange.pause(seconds)
        except Exception:  # as in `finish`
            log.exception("exchange failed to pause", tool=self.call.name, **self.ids())

    def ask(
        self, question: Question, reply: OnReply, others: Sequence[InFlight] = (), *, lasts: bool = False
    ) -> OpenQuestion | None:
        """Send a question of the server to the caller; the clock stops until it is answered.

        It may also concern `others`, calls of the same caller, whose clocks stop too; one that `lasts` may concern none
        of them. Returns the open question, or None if it is closed already.
        """
        too_many = len(self.questions) >= QUESTIONS_MAX or self._get_clock().asked >= ASKED_MAX
        if self.is_done or too_many or not self._left_in_all():
            reply(TOO_LATE if self.is_done else NOT_ASKED)
            return None
        self._get_clock().asked += 1
        self.note("question")
        asked = OpenQuestion(self, others, reply, lasts=lasts)
        try:
            self.exchange.ask(question, asked)
        except Exception:  # as in `finish`
            log.exception("exchange failed to handle a question", tool=self.call.name, **self.ids())
            asked(TOO_LATE)
        return asked if asked.is_open else None

    def retract(self, asked: OpenQuestion) -> None:
        """Tell the caller that a question no longer needs an answer."""
        if not isinstance(self.exchange, RetractingExchange):
            return
        try:
            self.exchange.retract(asked)
        except Exception:  # as in `finish`
            log.exception("exchange failed to retract a question", tool=self.call.name, **self.ids())

    def retract_later(self, asked: OpenQuestion) -> Callable[[], None] | None:
        """A function that tells the caller the same after the call, which is about to end."""
        if not isinstance(self.exchange, RetractingExchange):
            return None
        try:
            return self.exchange.retract_later(asked)
        except Exception:  # as in `finish`
            log.exception("exchange failed to prepare a later retraction", tool=self.call.name, **self.ids())
            return None

    def elicitation_complete(self, id: msgspec.Raw) -> None:
        """Tell the caller that its user has finished a URL elicitation."""
        if not isinstance(self.exchange, ElicitationExchange):
            return
        try:
            self.exchange.elicitation_completed(id)
        except Exception:  # as in `finish`
            log.exception("exchange failed to complete an elicitation", tool=self.call.name, **self.ids())

    def hold(self, asked: OpenQuestion) -> None:
        """Stop the clock for a question that concerns this call, or may, until `release`."""
        if not self.questions:
            self._get_clock().asked_at = self._loop.time()
            if self.server_queue is not None:
                self.server_queue.question_opened(self)
        self.questions = (*self.questions, asked)
        self._expire_in(self._question_seconds())

    def _question_seconds(self) -> float:
        return TASK_QUESTION_SECONDS if self._waits_for_people else QUESTION_SECONDS

    @property
    def _waits_for_people(self) -> bool:
        """Whether a question may stay open for days: a task's, if its server has slots for others."""
        return self.call.lasts and (self.server_queue is None or self.server_queue.max_calls > 1)

    def release(self, asked: OpenQuestion) -> None:
        """A question is closed: the clock runs again once none is open."""
        self.questions = tuple(each for each in self.questions if each is not asked)
        if not self.questions:
            self.note("answer")
            clock, now = self._get_clock(), self._loop.time()
            clock.answer_seconds += now - clock.asked_at
            clock.alive_at = now
            self._expire_in(max(0.0, self._due() - now))
            if self.server_queue is not None:
                self.server_queue.question_closed(self)

    def _get_clock(self) -> _Clock:
        """The clock of a call with progress or questions; most calls need none."""
        if self._clock is None:
            self._clock = _Clock(self._started)
        return self._clock

    def _due(self) -> float:
        """When the call times out, unless another message about it arrives."""
        clock = self._get_clock()
        due = clock.alive_at + self.timeout
        if self.call.timeout is not None and not (self.call.lasts and self.is_held):
            due = min(due, self._started + self.call.timeout + clock.answer_seconds)
        return due

    def _expire_in(self, seconds: float) -> None:
        """Move the deadline, but not beyond `hard_seconds`; a deadline that has passed stays."""
        left = self._left_in_all()
        if self._bucket is not None and self._deadlines is not None and self.outcome is None and left:
            self._bucket.pop(self, None)
            self._bucket = self._deadlines.add(self, min(seconds, left))

    def _left_in_all(self) -> float:
        whole = self.timeout if self.server_queue is None else self.server_queue.hard_seconds
        if self._clock is not None and self._waits_for_people:
            whole += self._clock.answer_seconds
            if self.questions:
                whole += self._loop.time() - self._clock.asked_at + TASK_QUESTION_SECONDS
        return max(0.0, self._started + whole - self._loop.time())

    def finish(self, outcome: Outcome) -> bool:
        """End the call; False if it had ended already: then the outcome is counted and dropped."""
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
            self.server_queue.call_ended(self, outcome)
        if route is not None:
            server: ServerName | None = route.feature.server
        else:  # a server that was never listed has no routes, but a fault may name it
            server = outcome.server if isinstance(outcome, Fault) else None
        seconds = perf_counter() - self._began
        recorder.call_ended(self, server, outcome, seconds)
        if recorder.strict_audit is None:
            self.deliver(outcome)
        else:
            self.outcome, self.is_sealed = None, True
            self._bucket = None  # an answer that arrives while it is being written must not start the clock
            recorder.strict_audit.call_ended(self, server, outcome, seconds)
        return True

    def deliver(self, outcome: Outcome) -> None:
        """Send the outcome to the caller. With an audit gate, that calls it once the log has the outcome or cannot."""
        self.outcome = outcome
        if self.keep is not None:
            keep, self.keep = self.keep, None
            shown = keep(self, outcome)
            if shown is None:
                return
            self.outcome = outcome = shown
        if self.questions:
            # Before the caller receives the end: afterwards it may have no stream to retract them.
            questions, self.questions = self.questions, ()
            if self.server_queue is not None:
                self.server_queue.question_closed(self)
            for asked in questions:
                asked.call_ended(self, outcome)
        try:
            self.exchange.end(outcome)
        except Exception:  # one caller's broken exchange must not affect the link, which serves others
            log.exception("exchange failed to handle an outcome", tool=self.call.name, **self.ids())

    def is_cleared(self, send: Callable[[InFlight], None]) -> bool:
        """Whether the call may be sent now; otherwise `send` is called once its exchange has stored that."""
        # Not `isinstance`: with a protocol it takes four hundred steps, and every call of a task comes here.
        may_send = getattr(self.exchange, "may_send", None)
        if may_send is None or may_send(self, send):
            return True
        self.carriage = UNWRITTEN
        return False

    def abandon(self) -> None:
        """Drop a call that was not sent: it leaves its queue or slot, without an end."""
        if self.is_done:
            return
        self.outcome = Cancelled("it is not to be sent", executed="no")
        if self._bucket is not None:
            self._bucket.pop(self, None)
        if self.counted_by is not None:
            self.counted_by.leave(self.call.caller.tenant)
        if self.server_queue is not None:
            if self.carriage is UNWRITTEN:
                self.server_queue.return_slot(self)
            self.server_queue.call_ended(self, self.outcome)
        self._drop_keep(self.outcome)

    def waited(self) -> None:
        """It is sent now, after it waited in its queue. Its timeout starts: the server could not answer before."""
        self._get_clock().alive_at = self._loop.time()
        self.wait_seconds = perf_counter() - self._began
        self._recorder.waited(self, self.wait_seconds)

    def redirect(self, call: Call) -> None:
        """Be this call from now on, for which that of a virtual tool stands."""
        self.call = call

    def put_back(self) -> bool:
        """Return an unsent call to its exchange, if that waits for the server itself."""
        if (
            self.server_queue is None
            or not isinstance(self.exchange, DurableExchange)
            or not self.exchange.put_back(self)
        ):
            return False
        self.outcome = self.server_queue.not_connected()
        if self._bucket is not None:
            self._bucket.pop(self, None)
        if self.counted_by is not None:
            self.counted_by.leave(self.call.caller.tenant)
        self._drop_keep(self.outcome)
        return True

    def _drop_keep(self, outcome: Outcome) -> None:
        """Tell `keep` that the call was not sent."""
        if self.keep is not None:
            keep, self.keep = self.keep, None
            keep(self, outcome)

    def fail(self, fault: Fault) -> None:
        """End the call with a fault; a call that was sent and asked something may have run, whatever came after."""
        if self.rounds and fault.executed == "no" and isinstance(fault, ServerError):
            fault.executed = "unknown"  # a hub said "no", which knows only about the last round
        elif self.rounds and fault.executed == "no":
            detail = fault.why if isinstance(fault, Lost | NotConnected) else fault.message
            fault = Lost(self.target.feature.server, detail, executed="unknown")
        self.finish(fault)

    def cancel(self, why: str) -> None:
        """Cancel the call: end it here and tell the server to stop."""
        if self.outcome is None:
            server = None if self.route is None else self.route.feature.server
            self._give_up(Cancelled(why, executed=self._executed(), server=server), why)

    def expire(self) -> None:
        """The deadline has passed: end the call and tell the server to stop, unless a message about it has arrived."""
        if self.is_done:
            return
        if isinstance(self.carriage, HeldCall):
            self.finish(self.carriage.late())
            return
        if self._clock is not None and not self.questions and self._left_in_all():
            left = self._due() - self._loop.time()
            if left > 0:
                self._expire_in(left)
                return
        seconds = self._allowed()
        if self.questions:
            self.go_unanswered(f"no answer within {seconds:g} s")
        else:
            # A call that was never sent did not time out at its server: that was busy.
            server_queue = self.server_queue if self.link is None and not self.rounds else None
            busy = None if server_queue is None else server_queue.overload()
            fault = busy or TimedOut(self.target.feature.server, seconds, executed=self._executed())
            self._give_up(fault, f"no answer within {seconds:g} s")

    def _allowed(self) -> float:
        """How long the hub waited without success: `hard_seconds`, for an answer, or for the server."""
        clock, wanted = self._clock, self.call.timeout
        if self.server_queue is not None and clock is not None and not self._left_in_all():
            return self.server_queue.hard_seconds
        if self.questions:
            return self._question_seconds()
        is_silent = clock is None or clock.alive_at + self.timeout <= self._loop.time()
        return self.timeout if is_silent or wanted is None else wanted

    def go_unanswered(self, why: str) -> None:
        """End a call whose question will not be answered in time."""
        if self.outcome is None:
            self._give_up(Unanswered(self.target.feature.server, why), why)

    def _give_up(self, fault: Fault, reason: str) -> None:
        if self.is_sealed:
            return
        if self.carriage is UNWRITTEN and self.server_queue is not None:
            self.server_queue.return_slot(self)
        elif self.link is not None:
            self.link.withdraw(self, reason)
            self.carriage = None
        self.finish(fault)

    def _executed(self) -> Executed:
        return "unknown" if self.may_have_run else "no"

    @property
    def may_have_run(self) -> bool:
        """Whether a part of the request may have left for its server."""
        if self.link is None or self.carriage is UNWRITTEN:
            return False
        return bool(self.rounds) or self.link.may_have_run(self)


class _Clock:
    """What a call's deadline depends on: the last message about it, and the time its caller took for questions."""

    __slots__ = ("alive_at", "answer_seconds", "asked", "asked_at")

    def __init__(self, started: float) -> None:
        self.alive_at = started
        """When the last message about the call arrived."""
        self.asked = 0
        """The number of questions."""
        self.asked_at = 0.0
        """When the first open question was asked."""
        self.answer_seconds = 0.0
        """How long questions were open, in all."""


class OpenQuestion:
    """A question until it is answered, once, or retracted: by its server, or with the last call it may concern.

    One that `lasts` stays open when the server has answered these calls: it may concern none of them.
    """

    __slots__ = ("_lasts", "_reply", "_retract_later", "_waiting", "asked_of")

    def __init__(self, asked_of: InFlight, others: Sequence[InFlight], reply: OnReply, *, lasts: bool) -> None:
        self.asked_of: InFlight | None = asked_of
        """None once that call has ended: a question may stay open for hours, and must not keep a large result alive."""
        self._retract_later: Callable[[], None] | None = None
        self._reply: OnReply | None = reply
        self._lasts = lasts
        self._waiting = [asked_of, *others]
        for inflight in self._waiting:
            inflight.hold(self)

    @property
    def is_open(self) -> bool:
        """Whether it still waits for an answer."""
        return self._reply is not None

    def __call__(self, answer: Reply) -> None:
        """Pass the answer to the server."""
        reply = self._close()
        if reply is not None:
            reply(answer)

    def retract(self) -> None:
        """Retract the question for the server: it gets no answer, and the caller need not give one."""
        if self._close() is not None:
            self._retract()

    def call_ended(self, inflight: InFlight, outcome: Outcome) -> None:
        """A call that it may concern has ended."""
        if inflight in self._waiting:
            self._waiting.remove(inflight)
        is_answered = isinstance(outcome, Result | ServerError)
        if self._waiting or (self._lasts and is_answered):
            if inflight is self.asked_of:
                self._retract_later = inflight.retract_later(self)
                self.asked_of = None
            return
        reply = self._close()
        if reply is not None:
            self._retract()
            reply(TOO_LATE if is_answered else GIVEN_UP)

    def _retract(self) -> None:
        if self.asked_of is not None:
            self.asked_of.retract(self)
        elif self._retract_later is not None:
            try:
                self._retract_later()
            except Exception:  # as in `InFlight.finish`
                log.exception("exchange failed to retract a question after its call")

    def _close(self) -> OnReply | None:
        reply, self._reply = self._reply, None
        waiting, self._waiting = self._waiting, []
        for inflight in waiting:
            inflight.release(self)
        return reply
