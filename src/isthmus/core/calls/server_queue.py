"""One server's share of the hub: its link, its slots, its queue and its breaker.

A lane is the bulkhead between servers: whatever happens on one, the others have their own. It is driven by the hub
(calls come in), by the supervisor (links come and go) and by in-flight calls (slots come back).
"""

from __future__ import annotations

import asyncio
import secrets
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Sequence, Set
from operator import attrgetter
from typing import TypeAlias, TypeVar

import msgspec
import structlog

from isthmus.core.access.tenants import TenantCalls
from isthmus.core.calls.circuit_breaker import CircuitBreaker
from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports import AnyMethodLink, Link, LinkPool
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.model.calls import LogLevel, Outcome
from isthmus.model.faults import (
    BadArguments,
    BadReply,
    BreakerOpen,
    Bug,
    Cancelled,
    Fault,
    Lost,
    NotConnected,
    Overloaded,
    TimedOut,
    UnknownTool,
)
from isthmus.model.names import FeatureName, ServerName

log = structlog.get_logger(__name__)

_FAILURES = (TimedOut, Lost, BadReply)
_SILENT = (BadArguments, Cancelled, NotConnected, Overloaded)
"""Outcomes that say nothing about whether the server works."""

CROWDED = "its caller keeps most of the server waiting for answers, and others wait for the server"

ENTANGLED = (
    "all that run wait for calls that they have made themselves, of which this is one: have tools call each other less "
    "deeply, or raise max_calls"
)

HEARD_MAX = 100
"""Lines that a server logged, as many as the operator is shown."""


Owner: TypeAlias = tuple[str, str]
OnLink: TypeAlias = "Callable[[ServerQueue], None]"
K = TypeVar("K")

_arrival = attrgetter("arrival")


class ServerLogLine(msgspec.Struct, frozen=True):
    """A line that a server logged and that is no caller's: when (since the epoch), how grave, and what."""

    at: float
    level: LogLevel
    text: str


class ServerQueue:
    """At most `max_calls` running and `max_queued` waiting; integers count, nothing locks."""

    __slots__ = (
        "_arrivals",
        "_breaker",
        "_gone_at",
        "_grace",
        "_heard",
        "_held",
        "_is_held_due",
        "_is_sending",
        "_lasting",
        "_lasting_of",
        "_limits",
        "_link",
        "_login",
        "_loop",
        "_outside",
        "_patience",
        "_queue",
        "_shares",
        "_tenants",
        "_waiting",
        "_why_not",
        "answered",
        "hard_seconds",
        "max_calls",
        "max_queued",
        "on_idle",
        "on_wanted",
        "opened_at",
        "pool",
        "running",
        "server",
        "tasks",
        "tenants",
        "timeout",
        "uses_pool",
    )

    def __init__(
        self,
        server: ServerName,
        limits: Limits,
        *,
        max_calls: int | None = None,
        max_queued: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self.server = server
        self.hard_seconds = limits.hard_seconds
        """How long any call may take, the time included in which its caller thinks."""
        self._limits = limits
        self._link: Link | None = None
        self._queue: list[InFlight] = []
        """Not a deque: an empty one has half a kilobyte, and there may be ten thousand lanes."""
        self._held: list[InFlight] = []
        """Calls that wait while enough like them run: that last, of one tenant, or of one that shares the server.

        Both lists are in the order of arrival. A free slot goes to the call that has waited longest of all that may
        have it; so what is held back lets others by, and never those that are like it."""
        self._arrivals = 0
        self._is_held_due = False
        """A call ended that others may have been held back for."""
        self._is_sending = False
        self.adjust(
            limits.max_calls if max_calls is None else max_calls,
            limits.max_queued if max_queued is None else max_queued,
            limits.call_seconds if timeout is None else timeout,
        )
        self.running = 0
        self._heard: deque[ServerLogLine] | None = None
        self.pool: LinkPool | None = None
        """The links that not everybody shares. It hears of the end of every call that was sent on one."""
        self.uses_pool = False
        """The pool carries the calls of those who can be asked something, or every call."""
        self.tasks: ServerTasks | None = None
        """Where the hub remembers which tasks its callers were given."""
        self.tenants: TenantCalls | None = None
        """Where the hub counts the calls of its tenants, and knows whether there are several."""
        self.on_idle: Callable[[], None] | None = None
        """Hears when the last call has ended, for who waits to take the lane away."""
        self.on_wanted: Callable[[], None] | None = None
        """Hears of calls while there is no link, for who could have one made."""
        self.answered = 0
        """Calls that the present link has answered; the supervisor takes them for a sign of health."""
        self._waiting: dict[InFlight, None] = {}
        """Calls that keep their slot until their caller has answered what it was asked, the oldest first."""
        self._lasting: dict[InFlight, Owner] = {}
        """Calls that may take as long as any, which hold half of the slots at most."""
        self._lasting_of: dict[Owner, int] = {}
        self._shares: dict[str, int] = {}
        """How many calls run, of each that shares the server with others."""
        self._tenants: dict[str, int] = {}
        """How many calls run, of each tenant."""
        self._breaker = CircuitBreaker(limits)
        self._why_not = "it has not been started"
        self._login: str | None = None
        self._loop = asyncio.get_running_loop()
        self.opened_at = self._gone_at = self._loop.time()
        self._grace = 0.0
        self._patience: asyncio.TimerHandle | None = None
        """Runs while calls wait for a link that is not there."""
        self._outside: list[OnLink] = []
        """Those who wait for a link with a call of which the lane knows nothing yet."""

    def adjust(self, max_calls: int, max_queued: int, timeout: float) -> None:
        """Allow more or less from now on; what runs already is not touched, and what waits takes free slots first."""
        self.max_calls = max_calls
        self.max_queued = max_queued
        self.timeout = min(timeout, self._limits.hard_seconds)
        self._is_held_due = True
        self._send_waiting()

    @property
    def queued(self) -> int:
        """Calls waiting for a slot."""
        return len(self._queue) + len(self._held)

    def attach(self, link: Link) -> None:
        """Calls go to `link` from now on; that it came up wipes the breaker clean."""
        self._link = link
        self.answered = 0
        self._breaker.reset()
        self._stop_patience()
        if self._queue or self._outside:
            self._send_waiting()
            self._tell_outside()

    def detach(self, why: str, *, is_failure: bool, login: str | None = None) -> None:
        """There is no link any more: what waits is told so. A lost link counts as one failure, not as many.

        Within the lane's `grace` it goes on to wait. `login` is where the server says how to prove who one is, if that
        is what it wants.
        """
        if self._link is not None:
            if is_failure:
                self._breaker.failed(self._loop.time())
            self._gone_at = self._loop.time()
        self._link = None
        self._why_not = why
        self._login = login
        # No call runs that could give its place to those that are held back: the next link decides about them anew.
        waiting, self._held, self._queue = self._in_order(), [], []
        if self._grace_left() > 0:
            waiting = [inflight for inflight in waiting if not inflight.put_back()]
        self._queue = waiting
        self._wait_or_refuse(why)

    # -- waiting for a link ----------------------------------------------------------------------------------------

    @property
    def grace(self) -> float:
        """How long calls wait for a link, in seconds since there was one; without any, they are refused at once."""
        return self._grace

    @grace.setter
    def grace(self, seconds: float) -> None:
        self._grace = seconds
        self._stop_patience()
        if self._link is None:
            self._wait_or_refuse(self._why_not)

    def end_grace(self) -> None:
        """Let no further call wait for a link. What waits already is sent or refused by `attach` or `detach`, next."""
        self._grace = 0.0
        self._stop_patience()

    def wait_no_more(self, why: str) -> None:
        """Let calls wait for no link from now on; those that do so are told why."""
        if self._link is None:
            self._why_not = f"{self._why_not}; {why}"
        self.grace = 0.0

    def inherit(self, before: ServerQueue) -> None:
        """Be the lane of a server that is called otherwise from now on: what waits there waits here.

        If it has a link, that is to be attached here next.
        """
        self._grace, self._gone_at, self._why_not = before._grace, before._gone_at, before._why_not
        before._stop_patience()
        inherited = before._in_order()
        before._held, before._queue = [], []
        self._outside, before._outside = before._outside, []
        self._tell_outside()
        for inflight in inherited:
            inflight.server_queue = self
            self._enqueue(inflight)
        if before._link is None:
            self._wait_or_refuse(self._why_not)

    def refuse_tools(self, names: Set[FeatureName]) -> None:
        """Refuse calls that wait for tools that the server does not have any more."""
        for inflight in self.waiting_for(names):
            inflight.finish(UnknownTool(inflight.call.name))

    def waiting_for(self, names: Set[FeatureName]) -> list[InFlight]:
        """Calls of these tools that wait, for a slot or for a link."""
        waiting = self._in_order()
        return [inflight for inflight in waiting if inflight.call.kind == "tool" and inflight.name in names]

    def _grace_left(self) -> float:
        return self._gone_at + self._grace - self._loop.time() if self._grace else 0.0

    def _wait_or_refuse(self, why: str) -> None:
        """Without a link: let what waits do so until the grace is over, or tell it why not."""
        if not self._queue and not self._outside:
            return
        if (left := self._grace_left()) > 0:
            if self._patience is None:
                self._patience = self._loop.call_later(left, self._lose_patience)
            return
        self._stop_patience()
        waiting, self._queue = self._queue, []
        for inflight in waiting:
            inflight.finish(NotConnected(self.server, why, login=self._login))
        self._tell_outside()

    def _lose_patience(self) -> None:
        self._patience = None
        self._wait_or_refuse(f"{self._why_not}; it did not come back within {self._grace:g} s")

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _expect(self, inflight: InFlight) -> Fault | None:
        """Without a link: let a call wait for one, or say why not."""
        if self._grace_left() <= 0:
            return self.absence()
        is_shared = self.tenants is not None and self.tenants.are_several
        if not self._has_room() or (is_shared and self._waits_enough(inflight.call.caller.tenant)):
            return Overloaded(self.server, self.running, self.queued + len(self._outside))
        if inflight.put_back():
            return None
        self._enqueue(inflight)
        self._wait_or_refuse(self._why_not)
        return None

    def _has_room(self) -> bool:
        return self.queued + len(self._outside) < self.max_queued

    @property
    def has_link(self) -> bool:
        """Whether a call could be sent."""
        return self._link is not None

    def watch_link(self, waiter: OnLink) -> Callable[[], None]:
        """Call `waiter` once, as soon as there is a link or the grace is over; what is returned takes that back.

        It is given the lane that its server has by then: this one, or an heir if that is called otherwise now.
        """
        self._outside.append(waiter)
        if self._link is not None:
            self._tell_outside()
        elif self._grace:
            self._wait_or_refuse(self._why_not)
        return lambda: self._forget_outside(waiter)

    def _forget_outside(self, waiter: OnLink) -> None:
        if waiter in self._outside:
            self._outside.remove(waiter)

    def _tell_outside(self) -> None:
        waiters, self._outside = self._outside, []
        for waiter in waiters:
            self._loop.call_soon(waiter, self)

    # -- what the operator reads -----------------------------------------------------------------------------------

    @property
    def heard(self) -> Sequence[ServerLogLine]:
        """The last lines that the server logged and that are no caller's."""
        return self._heard or ()

    def hear(self, line: ServerLogLine) -> None:
        """Keep a line for the operator."""
        if self._heard is None:
            self._heard = deque(maxlen=HEARD_MAX)
        self._heard.append(line)

    # -- calls -----------------------------------------------------------------------------------------------------

    def explain(self, why: str) -> None:
        """Say why there is no link, for those who call meanwhile."""
        self._why_not = why

    def absence(self) -> NotConnected:
        """Why there is no link, as those are told who call meanwhile."""
        if self.on_wanted is not None:
            self.on_wanted()
        return NotConnected(self.server, self._why_not, login=self._login)

    @property
    def takes_methods(self) -> bool:
        """Whether any method can be asked for; False only if it is known that none can."""
        return self._link is None or (isinstance(self._link, AnyMethodLink) and self._link.takes_methods)

    def submit(self, inflight: InFlight) -> Fault | None:
        """Send the call, or queue it, or say why not."""
        if self._link is None:
            return self._expect(inflight) if self._grace else self.absence()
        call = inflight.call
        if self._breaker.open_until and call.kind != "method" and (seconds := self._breaker.wait(self._loop.time())):
            return BreakerOpen(self.server, seconds)
        is_shared = self.tenants is not None and self.tenants.are_several
        if (
            self.running < self.max_calls
            and not self._queue
            and not ((is_shared or call.lasts or call.sharer) and self._is_held_back(inflight))
        ):
            self._send(inflight, self._link)
        elif inflight.within is not None and self._is_kept_by_those_who_wait(inflight):
            self._left_unsent(inflight)
            return Overloaded(self.server, self.running, self.queued, ENTANGLED)
        elif self.queued < self.max_queued and not (is_shared and self._waits_enough(call.caller.tenant)):
            self._enqueue(inflight, is_held=self._is_held_back(inflight))
            if self._waiting:
                self._loop.call_soon(self._relieve)
        else:
            self._left_unsent(inflight)
            return Overloaded(self.server, self.running, self.queued)
        return None

    def _is_kept_by_those_who_wait(self, inflight: InFlight) -> bool:
        """Whether no slot would come free any more: each is kept by a call that made one that waits, or this one.

        Most likely they wait for what they made; and where they do not, one call was refused that had to wait.
        """
        waiting = (inflight, *self._held, *self._queue)
        reconnectors = {outer for each in waiting for outer in each.outer() if outer.server_queue is self}
        if len(reconnectors) >= self.running:
            return True
        tenant = inflight.call.caller.tenant
        if inflight.counted_by is None or not inflight.counted_by.are_several or not self._has_its_slots(tenant):
            return False
        # Only its own tenant's slots count: what others give back is not for it.
        return sum(reconnector.call.caller.tenant == tenant for reconnector in reconnectors) >= self._tenants[tenant]

    def _left_unsent(self, inflight: InFlight) -> None:
        """If it was to be the breaker's probe, the next one may be."""
        if self._breaker.open_until and inflight.call.kind != "method":
            self._breaker.gave_up()

    def released(self, inflight: InFlight, outcome: Outcome) -> None:
        """A call of this lane has ended: take its slot back and let the next one go."""
        if self._lasting:
            self._forget_lasting(inflight)
        link = inflight.link
        if link is None:
            self._leave_queue(inflight)
            self._left_unsent(inflight)
        else:
            self.running -= 1
            if inflight.call.sharer:
                _count_down(self._shares, inflight.call.sharer)
                self._is_held_due = True
            if inflight.counted_by is not None:
                counts, tenant = self._tenants, inflight.call.caller.tenant  # not `_count_down`: nearly all come by
                if left := counts[tenant] - 1:
                    counts[tenant] = left
                else:
                    del counts[tenant]
                self._is_held_due = True
            if link is self.pool and self.pool is not None:
                self.pool.ended(inflight)
                self._judge(inflight, outcome)
            elif link is self._link:  # what a lost link's calls say was counted when it was lost
                self._judge(inflight, outcome)
        if self._queue or self._held:
            self._send_waiting()
        if self.on_idle is not None and not self.running and not self.queued:
            self.on_idle()

    def take_back(self, inflight: InFlight) -> None:
        """A call that has a slot was not sent: somebody else may have that."""
        self._forget_lasting(inflight)
        self.running -= 1
        if inflight.call.sharer:
            _count_down(self._shares, inflight.call.sharer)
        if inflight.counted_by is not None:
            _count_down(self._tenants, inflight.call.caller.tenant)
        self._is_held_due = True
        if inflight.link is self.pool and self.pool is not None:
            self.pool.ended(inflight)
        inflight.link = inflight.carriage = None
        self._send_waiting()

    def _leave_queue(self, inflight: InFlight) -> None:
        # A call that was refused, or ended while waiting; at most `max_queued` entries are looked at.
        for queue in (self._queue, self._held):
            if inflight in queue:
                queue.remove(inflight)
        if self._patience is not None and not self._queue and not self._outside:
            self._stop_patience()

    def _send_waiting(self) -> None:
        # A link that has just broken ends each call within `send`, which leads back here: the loop that is
        # already running goes on instead, or a full queue would be as deep a stack.
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._link is not None and self.running < self.max_calls:
                inflight = self._next_waiting()
                if inflight is None:
                    break
                inflight.heartbeat()  # its server could not be silent about what it did not have
                self._send(inflight, self._link)
        finally:
            self._is_sending = False

    def _next_waiting(self) -> InFlight | None:
        """Take the call that has waited longest of those that may be sent now; None if there is no such call."""
        while self._queue and self._is_held_back(self._queue[0]):
            insort(self._held, self._queue.pop(0), key=_arrival)
        held = None
        if self._is_held_due:
            held = next((each for each in self._held if not self._is_held_back(each)), None)
            self._is_held_due = held is not None
        if held is not None and (not self._queue or held.arrival < self._queue[0].arrival):
            self._held.remove(held)
            return held
        return self._queue.pop(0) if self._queue else None

    def _enqueue(self, inflight: InFlight, *, is_held: bool = False) -> None:
        self._arrivals += 1
        inflight.arrival = self._arrivals
        (self._held if is_held else self._queue).append(inflight)
        if not is_held:
            self._send_waiting()

    def _in_order(self) -> list[InFlight]:
        """All that waits, what came first at the beginning."""
        return sorted(self._held + self._queue, key=_arrival)

    def _send(self, inflight: InFlight, link: Link) -> None:
        if self.uses_pool and inflight.call.client_caps and self.pool is not None:
            link = self.pool
        inflight.link = link
        self.running += 1
        if sharer := inflight.call.sharer:
            self._shares[sharer] = self._shares.get(sharer, 0) + 1
        if inflight.counted_by is not None:
            tenant = inflight.call.caller.tenant
            self._tenants[tenant] = self._tenants.get(tenant, 0) + 1
        if inflight.call.lasts and not self._may_send_task(inflight, link):
            return
        try:
            link.send(inflight)
        except Exception:  # a defect in a link must cost this call, and neither its neighbour nor a slot
            incident = secrets.token_hex(6)
            log.exception("a link failed to send a call", server=self.server, incident=incident)
            inflight.finish(Bug(incident))

    def _may_send_task(self, inflight: InFlight, link: Link) -> bool:
        """Whether a task's call may be sent at once; a pool asks itself, when there is a link for it."""
        self._note_lasting(inflight)
        return link is self.pool or inflight.is_cleared(self._send_cleared)

    def _send_cleared(self, inflight: InFlight) -> None:
        """It is written that a call may be sent: send it, unless it has ended or its link is gone meanwhile."""
        if inflight.is_over:
            return
        if inflight.link is not self._link or self._link is None:
            self.take_back(inflight)
            if (fault := self.submit(inflight)) is not None:
                inflight.finish(fault)
            return
        inflight.carriage = None
        try:
            self._link.send(inflight)
        except Exception:  # as in `_send`
            incident = secrets.token_hex(6)
            log.exception("a link failed to send a call", server=self.server, incident=incident)
            inflight.finish(Bug(incident))

    # -- calls that last -------------------------------------------------------------------------------------------

    def let_last(self, inflight: InFlight) -> bool:
        """Count a call among those that last from now on, if there are not enough of them."""
        may_last = len(self._lasting) < self._half() and self._lasting_of.get(_owner(inflight), 0) < self._share()
        if may_last:
            self._note_lasting(inflight)
        return may_last

    def lasts_no_more(self, inflight: InFlight) -> None:
        """It goes on as any other."""
        self._forget_lasting(inflight)
        self._send_waiting()

    def _half(self) -> int:
        """Nobody stands and waits for those, so that who does must find slots that they do not hold."""
        return max(1, self.max_calls // 2)

    def _share(self) -> int:
        """How many of them one caller's may be: a quarter is left to others, where there are four or more."""
        half = self._half()
        return half - half // 4

    def _is_held_back(self, inflight: InFlight) -> bool:
        """Whether enough calls run that are like this one."""
        sharer = inflight.call.sharer
        if sharer and self._shares.get(sharer, 0) >= max(1, self.max_calls // 4):
            return True
        counting = inflight.counted_by  # one that is not counted would give no slot back to those that are held for it
        if counting is not None and counting.are_several and self._has_its_slots(inflight.call.caller.tenant):
            return True
        return inflight.call.lasts and self._is_enough(inflight)

    def _is_enough(self, inflight: InFlight) -> bool:
        """Whether enough calls last, of everybody or of its caller, before this one does."""
        return len(self._lasting) >= self._half() or self._lasting_of.get(_owner(inflight), 0) >= self._share()

    def _note_lasting(self, inflight: InFlight) -> None:
        owner = self._lasting[inflight] = _owner(inflight)
        self._lasting_of[owner] = self._lasting_of.get(owner, 0) + 1

    def _forget_lasting(self, inflight: InFlight) -> None:
        """If it was one of them, another may take its place."""
        owner = self._lasting.pop(inflight, None)
        if owner is not None:
            _count_down(self._lasting_of, owner)
            self._is_held_due = True

    # -- calls of several tenants ----------------------------------------------------------------------------------

    def _has_its_slots(self, tenant: str) -> bool:
        """Whether it has three quarters of the slots: where several tenants call, some are left to the others."""
        return self._tenants.get(tenant, 0) >= self.max_calls - self.max_calls // 4

    def _waits_enough(self, tenant: str) -> bool:
        """The same of those that wait; at most `max_queued` entries are looked at, and only when some wait."""
        if not (self._queue or self._held):
            return False
        theirs = sum(each.call.caller.tenant == tenant for queue in (self._queue, self._held) for each in queue)
        return theirs >= self.max_queued - self.max_queued // 4

    def busyness(self) -> Overloaded | None:
        """What is told to a call that was not sent in time; None if that was for want of a link."""
        return None if self._link is None else Overloaded(self.server, self.running, self.queued)

    # -- calls that wait for their caller --------------------------------------------------------------------------

    def waits(self, inflight: InFlight) -> None:
        """A running call was asked something, and keeps its slot until that is answered."""
        self._waiting[inflight] = None
        if self._queue:
            self._loop.call_soon(self._relieve)

    def goes_on(self, inflight: InFlight) -> None:
        """It was answered, or has ended."""
        self._waiting.pop(inflight, None)

    def _relieve(self) -> None:
        """One caller's unanswered calls hold half of the slots at most while somebody else waits for one.

        The oldest end until that is so: where nobody else waits, a caller may think about as much as it likes.
        """
        counts = Counter(_owner(inflight) for inflight in self._waiting)
        for owner, held in counts.most_common(1):
            if held > max(1, self.max_calls // 2) and any(_owner(inflight) != owner for inflight in self._queue):
                oldest = next(inflight for inflight in self._waiting if _owner(inflight) == owner)
                oldest.go_unanswered(CROWDED)
                self._loop.call_soon(self._relieve)

    def _judge(self, inflight: InFlight, outcome: Outcome) -> None:
        if inflight.call.kind == "method":  # it may be made up, and its failure says nothing of what the server has
            return
        if isinstance(outcome, _FAILURES):
            if isinstance(outcome, Lost) and outcome.is_behind:
                self._breaker.gave_up()  # who lost it has a breaker of its own, and starts the server again
            else:
                self._breaker.failed(self._loop.time())
        elif isinstance(outcome, _SILENT):
            self._breaker.gave_up()
        else:
            self.answered += 1
            self._breaker.succeeded(self._loop.time())


def _owner(inflight: InFlight) -> Owner:
    caller = inflight.call.caller
    return caller.tenant, caller.name


def _count_down(counts: dict[K, int], key: K) -> None:
    """Count one less, and forget what there is none of."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
