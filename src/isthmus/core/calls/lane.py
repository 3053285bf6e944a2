"""One server's share of the hub: its link, its slots, its queue and its breaker.

A lane is the bulkhead between servers: whatever happens on one, the others have their own. It is driven by the hub
(calls come in), by the supervisor (links come and go) and by in-flight calls (slots come back).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import structlog

from isthmus.core.access.breaker import Breaker
from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.link import Link, Pooled
from isthmus.core.settings import Limits
from isthmus.core.watch.tasks import Tasks
from isthmus.model.events import LogLevel
from isthmus.model.faults import BadReply, BreakerOpen, Bug, Cancelled, Fault, Lost, NotConnected, Overloaded, TimedOut
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome

log = structlog.get_logger(__name__)

_FAILURES = (TimedOut, Lost, BadReply)
_SILENT = (Cancelled, NotConnected, Overloaded)
"""Outcomes that say nothing about whether the server works."""

CROWDED = "its caller keeps most of the server waiting for answers, and others wait for the server"

LASTING_LINKS_MAX = 8
"""Calls that last and have a link of their own, of one caller at once: over stdio, each of these is a process."""

HEARD_MAX = 100
"""Lines that a server logged, as many as the operator is shown."""


Owner: TypeAlias = tuple[str, str]


class Heard(msgspec.Struct, frozen=True):
    """A line that a server logged and that is no caller's: when (since the epoch), how grave, and what."""

    at: float
    level: LogLevel
    text: str


class Lane:
    """At most `max_calls` running and `max_queued` waiting; integers count, nothing locks."""

    __slots__ = (
        "_breaker",
        "_held",
        "_is_sending",
        "_lasting",
        "_lasting_of",
        "_limits",
        "_link",
        "_login",
        "_loop",
        "_queue",
        "_waiting",
        "_why_not",
        "answered",
        "hard_seconds",
        "heard",
        "max_calls",
        "max_queued",
        "on_idle",
        "opened_at",
        "pool",
        "running",
        "server",
        "tasks",
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
        self.adjust(
            limits.max_calls if max_calls is None else max_calls,
            limits.max_queued if max_queued is None else max_queued,
            limits.call_seconds if timeout is None else timeout,
        )
        self.running = 0
        self.heard: deque[Heard] = deque(maxlen=HEARD_MAX)
        self.pool: Pooled | None = None
        """The links that not everybody shares. It hears of the end of every call that was sent on one."""
        self.uses_pool = False
        """The pool carries the calls of those who can be asked something, or every call."""
        self.tasks: Tasks | None = None
        """Where the hub remembers which tasks its callers were given."""
        self.on_idle: Callable[[], None] | None = None
        """Hears when the last call has ended, for who waits to take the lane away."""
        self.answered = 0
        """Calls that the present link has answered; the supervisor takes them for a sign of health."""
        self._queue: deque[InFlight] = deque()
        self._waiting: dict[InFlight, None] = {}
        """Calls that keep their slot until their caller has answered what it was asked, the oldest first."""
        self._lasting: dict[InFlight, Owner] = {}
        """Calls that may take as long as any, which hold half of the slots at most."""
        self._lasting_of: Counter[Owner] = Counter()
        self._held: deque[InFlight] = deque()
        """Such calls whose turn came while there were enough of them, before all that is queued."""
        self._is_sending = False
        self._breaker = Breaker(limits)
        self._link: Link | None = None
        self._why_not = "it has not been started"
        self._login: str | None = None
        self._loop = asyncio.get_running_loop()
        self.opened_at = self._loop.time()

    def adjust(self, max_calls: int, max_queued: int, timeout: float) -> None:
        """Allow more or less from now on; what runs or waits already is not touched."""
        self.max_calls = max_calls
        self.max_queued = max_queued
        self.timeout = min(timeout, self._limits.hard_seconds)

    @property
    def queued(self) -> int:
        """Calls waiting for a slot."""
        return len(self._queue) + len(self._held)

    def attach(self, link: Link) -> None:
        """Calls go to `link` from now on; that it came up wipes the breaker clean."""
        self._link = link
        self.answered = 0
        self._breaker.reset()

    def detach(self, why: str, *, is_failure: bool, login: str | None = None) -> None:
        """There is no link any more: what waits is told so. A lost link counts as one failure, not as many.

        `login` is where the server says how to prove who one is, if that is what it wants.
        """
        if self._link is not None and is_failure:
            self._breaker.failed(self._loop.time())
        self._link = None
        self._why_not = why
        self._login = login
        waiting = [*self._held, *self._queue]
        self._held.clear()
        self._queue.clear()
        for inflight in waiting:
            inflight.finish(NotConnected(self.server, why, login=login))

    def explain(self, why: str) -> None:
        """Say why there is no link, for those who call meanwhile."""
        self._why_not = why

    def absence(self) -> NotConnected:
        """Why there is no link, as those are told who call meanwhile."""
        return NotConnected(self.server, self._why_not, login=self._login)

    def submit(self, inflight: InFlight) -> Fault | None:
        """Send the call, or queue it, or say why not."""
        if self._link is None:
            return self.absence()
        if seconds := self._breaker.wait(self._loop.time()):
            return BreakerOpen(self.server, seconds)
        is_free = self.running < self.max_calls
        if is_free and not (inflight.call.lasts and self._is_held_back(inflight)):
            self._send(inflight, self._link)
        elif self.queued < self.max_queued:
            (self._held if is_free else self._queue).append(inflight)
            if self._waiting:
                self._loop.call_soon(self._relieve)
        else:
            return Overloaded(self.server, self.running, self.queued)
        return None

    def released(self, inflight: InFlight, outcome: Outcome) -> None:
        """A call of this lane has ended: take its slot back and let the next one go."""
        if self._lasting:
            self._forget_lasting(inflight)
        if inflight.link is None:
            self._leave_queue(inflight)
        else:
            self.running -= 1
            if inflight.link is self.pool and self.pool is not None:
                self.pool.ended(inflight)
                self._judge(outcome)
            elif inflight.link is self._link:  # what a lost link's calls say was counted when it was lost
                self._judge(outcome)
            if self._queue:
                self._send_waiting()
        if self.on_idle is not None and not self.running and not self.queued:
            self.on_idle()

    def _leave_queue(self, inflight: InFlight) -> None:
        # A call that was refused, or ended while waiting; at most `max_queued` entries are looked at.
        for queue in (self._queue, self._held):
            if inflight in queue:
                queue.remove(inflight)

    def _send_waiting(self) -> None:
        # A link that has just broken ends each call within `send`, which leads back here: the loop that is
        # already running goes on instead, or a full queue would be as deep a stack.
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._queue and self._link is not None and self.running < self.max_calls:
                inflight = self._queue.popleft()
                if inflight.call.lasts and self._is_held_back(inflight):
                    self._held.append(inflight)
                else:
                    self._send(inflight, self._link)
        finally:
            self._is_sending = False

    def _send(self, inflight: InFlight, link: Link) -> None:
        if inflight.call.profile and self.uses_pool and self.pool is not None:
            link = self.pool
        inflight.link = link
        self.running += 1
        if inflight.call.lasts:
            self._note_lasting(inflight)
        try:
            link.send(inflight)
        except Exception:  # a defect in a link must cost this call, and neither its neighbour nor a slot
            incident = secrets.token_hex(6)
            log.exception("a link failed to send a call", server=self.server, incident=incident)
            inflight.finish(Bug(incident))

    # -- calls that last -------------------------------------------------------------------------------------------

    def let_last(self, inflight: InFlight) -> bool:
        """Count a call among those that last from now on, if there are not enough of them."""
        may_last = len(self._lasting) < self._half() and self._lasting_of[_owner(inflight)] < self._share()
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
        """Whether enough calls last, of everybody or of its caller, before this one does."""
        has_link = self.uses_pool and inflight.call.profile and inflight.call.session
        share = min(self._share(), LASTING_LINKS_MAX) if has_link else self._share()
        return len(self._lasting) >= self._half() or self._lasting_of[_owner(inflight)] >= share

    def _note_lasting(self, inflight: InFlight) -> None:
        owner = self._lasting[inflight] = _owner(inflight)
        self._lasting_of[owner] += 1

    def _forget_lasting(self, inflight: InFlight) -> None:
        """If it was one of them, the first that may take its place is the next to be sent."""
        owner = self._lasting.pop(inflight, None)
        if owner is None:
            return
        self._lasting_of[owner] -= 1
        if not self._lasting_of[owner]:
            del self._lasting_of[owner]
        if (after := next((each for each in self._held if not self._is_held_back(each)), None)) is not None:
            self._held.remove(after)
            self._queue.appendleft(after)

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

    def _judge(self, outcome: Outcome) -> None:
        if isinstance(outcome, _FAILURES):
            self._breaker.failed(self._loop.time())
        elif isinstance(outcome, _SILENT):
            self._breaker.gave_up()
        else:
            self.answered += 1
            self._breaker.succeeded(self._loop.time())


def _owner(inflight: InFlight) -> Owner:
    caller = inflight.call.caller
    return caller.tenant, caller.name
