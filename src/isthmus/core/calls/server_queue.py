"""One server's share of the hub: its link, its slots, its queue and its circuit breaker.

It is the bulkhead between servers: whatever happens to one, the others have their own. The hub submits calls, the
supervisor attaches and detaches links, and ended calls return their slots.

Calls are sent first in, first out. Four rules keep one kind of call from taking every slot, each a cap on the running
calls of a group: a tenant (three quarters, once several tenants call), a relay device (a quarter), long calls such as
tasks (half, and one caller three quarters of these), and calls of scripts (half). A call whose group is full keeps its
place in the queue while later calls pass it. Two more rules break standstills: a call made by a running call of the
same server is refused if no slot could ever come free, and a caller whose unanswered questions hold over half of the
slots loses the oldest while others wait.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence, Set
from operator import itemgetter
from typing import Literal, TypeAlias

import msgspec
import structlog

from isthmus.core.access.tenants import TenantCalls
from isthmus.core.calls.circuit_breaker import BreakerState, CircuitBreaker
from isthmus.core.calls.running_call import InFlight
from isthmus.core.ports import AnyMethodLink, CallerLinks, Link
from isthmus.core.settings import Limits
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.model.calls import LogLevel, Outcome, Result
from isthmus.model.fault_table import (
    BreakerOpen,
    Bug,
    Fault,
    Lost,
    NotConnected,
    Overloaded,
    ServerError,
    Unanswered,
    UnknownTool,
)
from isthmus.model.names import FeatureName, ServerName

log = structlog.get_logger(__name__)

_ANSWERS = (Result, ServerError, Unanswered)
"""Outcomes that show that the server works."""

CROWDED = "its caller has too many unanswered questions at this server while other callers wait for it"

ENTANGLED = (
    "all running calls wait for calls that they made themselves, including this one: nest tool calls less deeply, or "
    "raise max_calls"
)

LogSource: TypeAlias = Literal["log", "stderr", "hub"]

LOG_LINES_MAX = 400
"""The last lines of a server that an operator can read."""

STORED_LINE_MAX = 2_000
SHOWN_LINE_MAX = 500
"""Characters of a line. More are stored than shown: a secret must be whole to be recognized and removed."""

Owner: TypeAlias = tuple[str, str]
"""A caller: tenant and name."""

Group: TypeAlias = tuple[str, str, str]
"""Calls that share a cap: the kind of group, and whose."""

Caps: TypeAlias = tuple[str, str | None, Owner | None, bool]
"""What decides whether a call is held back: its device, its tenant if that is counted, its caller if it is long, and
whether a script makes it."""

NO_CAPS: Caps = ("", None, None, False)

OnLink: TypeAlias = "Callable[[ServerQueue], None]"

LONG_CALLS: Group = ("long", "", "")
SCRIPT_CALLS: Group = ("scripts", "", "")


class ServerLogLine(msgspec.Struct, frozen=True):
    """A line for operators: its time since the epoch, its level if it has one, its text, who wrote it, its number."""

    at: float
    level: LogLevel | None
    text: str
    source: LogSource = "log"
    number: int = 0


class ServerLog:
    """The last lines of one server: what it logged outside of calls, its standard error, and what became of its links.

    It outlasts links and reloads. Secrets are removed when it is read: standard error is frequent, readers are rare.
    """

    __slots__ = ("_count", "_lines")

    def __init__(self) -> None:
        self._count = 0
        self._lines: deque[tuple[int, float, LogSource, LogLevel | None, str | bytes, Callable[[str], str]]] = deque(
            maxlen=LOG_LINES_MAX
        )

    def add(
        self,
        at: float,
        source: LogSource,
        text: str | bytes,
        redact: Callable[[str], str] = str,
        level: LogLevel | None = None,
    ) -> None:
        """Store a line."""
        self._count += 1
        self._lines.append((self._count, at, source, level, text[:STORED_LINE_MAX], redact))

    def lines(self, after: int = 0) -> list[ServerLogLine]:
        """The lines with a higher number than this, the oldest first."""
        found = []
        for number, at, source, level, text, redact in self._lines:
            if number > after:
                shown = redact(text if isinstance(text, str) else text.decode("utf-8", "replace"))
                # Only a part of the stored line: a secret at its end may be cut, and then is not recognized.
                found.append(ServerLogLine(at, level, shown[:SHOWN_LINE_MAX], source, number))
        return found


class WaitingCalls:
    """Calls that wait, in the order of arrival. Calls under the same caps form one line, which is held back as a whole.

    After each call that ends, the queue looks for the next one to send. That costs as much as there are lines, not
    calls: a device may have dozens of calls that wait for its own cap.
    """

    __slots__ = ("_arrived", "lines")

    def __init__(self) -> None:
        self._arrived = 0
        self.lines: dict[Caps, dict[InFlight, int]] = {}
        """Each call with its number of arrival. Empty if no call waits: every call asks that, and this is cheaper."""

    def __len__(self) -> int:
        return sum(map(len, self.lines.values()))

    def __iter__(self) -> Iterator[InFlight]:
        numbered = [(number, inflight) for line in self.lines.values() for inflight, number in line.items()]
        return (inflight for _, inflight in sorted(numbered, key=itemgetter(0)))

    def add(self, inflight: InFlight) -> None:
        """Let a call wait behind all others."""
        self._arrived += 1
        self.lines.setdefault(_caps(inflight), {})[inflight] = self._arrived

    def discard(self, inflight: InFlight) -> None:
        """Remove a call, if it waits here."""
        caps = _caps(inflight)
        if (line := self.lines.get(caps)) is not None and line.pop(inflight, None) is not None and not line:
            del self.lines[caps]

    def clear(self) -> list[InFlight]:
        """Remove and return all calls."""
        waiting = list(self)
        self.lines.clear()
        return waiting

    def take_first(self, is_held_back: Callable[[InFlight], bool]) -> InFlight | None:
        """Remove and return the call that has waited longest of those that are not held back."""
        found, earliest, caps = None, self._arrived + 1, NO_CAPS
        for each, line in self.lines.items():
            inflight, number = next(iter(line.items()))
            if number < earliest and not is_held_back(inflight):
                found, earliest, caps = inflight, number, each
        if found is not None:
            line = self.lines[caps]
            del line[found]
            if not line:
                del self.lines[caps]
        return found


class ServerQueue:
    """At most `max_calls` running and `max_queued` waiting calls; integers count, nothing locks."""

    __slots__ = (
        "_breaker",
        "_gone_at",
        "_grace",
        "_grace_timer",
        "_groups",
        "_is_sending",
        "_limits",
        "_link",
        "_link_watchers",
        "_log",
        "_login",
        "_loop",
        "_queue",
        "_running_in",
        "_unanswered",
        "_waits_no_longer",
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
        """How long any call may take, including the time its caller takes to answer questions."""
        self._limits = limits
        self._link: Link | None = None
        self._queue = WaitingCalls()
        self._is_sending = False
        self.running = 0
        self._running_in: dict[Group, int] = {}
        """Running calls per group."""
        self._groups: dict[InFlight, tuple[Group, ...]] = {}
        """The groups in which a call is counted. Most calls are in none."""
        self._unanswered: dict[InFlight, None] = {}
        """Running calls that wait for an answer of their caller, the oldest first."""
        self.adjust(
            limits.max_calls if max_calls is None else max_calls,
            limits.max_queued if max_queued is None else max_queued,
            limits.call_seconds if timeout is None else timeout,
        )
        self._log: ServerLog | None = None
        self.pool: CallerLinks | None = None
        """The links that not all callers share; it is notified when a call that it carried ends."""
        self.uses_pool = False
        """Whether the pool carries the calls of clients with capabilities, or all calls."""
        self.tasks: ServerTasks | None = None
        """Where the hub remembers the tasks of its callers."""
        self.tenants: TenantCalls | None = None
        """Where the hub counts the calls of each tenant."""
        self.on_idle: Callable[[], None] | None = None
        """Called when the last call has ended."""
        self.on_wanted: Callable[[], None] | None = None
        """Called for each call that finds no link."""
        self.answered = 0
        """Calls that the present link has answered: a sign of health for the supervisor."""
        self._breaker = CircuitBreaker(limits)
        self._why_not = "it has not been started"
        self._login: str | None = None
        self._loop = asyncio.get_running_loop()
        self.opened_at = self._gone_at = self._loop.time()
        self._grace = 0.0
        self._grace_timer: asyncio.TimerHandle | None = None
        """Runs while calls wait for a link."""
        self._waits_no_longer = False
        """The hub shuts down: whatever grace is set, no call waits for a link."""
        self._link_watchers: list[OnLink] = []
        """Tasks whose unsent calls wait outside of this queue for a link."""

    def adjust(self, max_calls: int, max_queued: int, timeout: float) -> None:
        """Change the limits; running calls are not affected, and queued calls take free slots first."""
        self.max_calls = max_calls
        self.max_queued = max_queued
        self.timeout = min(timeout, self._limits.hard_seconds)
        self._send_waiting()

    @property
    def queued(self) -> int:
        """Calls waiting for a slot or a link."""
        return len(self._queue)

    @property
    def breaker_state(self) -> BreakerState:
        """Whether calls are sent, refused, or only one of them as a probe."""
        return self._breaker.state(self._loop.time())

    @property
    def links(self) -> int:
        """Connections to the server: the shared one, and those of certain callers."""
        return (self._link is not None) + (0 if self.pool is None else len(self.pool))

    # -- the link ------------------------------------------------------------------------------------------------------

    @property
    def has_link(self) -> bool:
        """Whether the server is connected."""
        return self._link is not None

    def uses(self, link: Link) -> bool:
        """Whether calls are sent on this link now."""
        return self._link is link

    def attach(self, link: Link) -> None:
        """Send calls on `link` from now on; a new link resets the breaker."""
        self._link = link
        self.answered = 0
        self._breaker.reset()
        self._stop_grace_timer()
        if self._queue.lines or self._link_watchers:
            self._send_waiting()
            self._notify_link_watchers()

    def detach(self, why: str, *, is_failure: bool, login: str | None = None) -> None:
        """The link is gone: queued calls wait for another within `grace`, or fail. A lost link counts as one failure.

        `login` is the URL of the server's protected resource metadata, if it requires a login.
        """
        if self._link is not None:
            if is_failure:
                self._breaker.failed(self._loop.time())
            self._gone_at = self._loop.time()
        self._link = None
        self._why_not = why
        self._login = login
        may_wait = self._grace_left() > 0
        for inflight in self._queue.clear():
            if not (may_wait and inflight.put_back()):
                self._queue.add(inflight)
        self._wait_or_refuse(why)

    @property
    def grace(self) -> float:
        """How many seconds after the last link calls wait for a new one; 0 refuses them at once."""
        return self._grace

    @grace.setter
    def grace(self, seconds: float) -> None:
        self._grace = 0.0 if self._waits_no_longer else seconds
        self._stop_grace_timer()
        if self._link is None:
            self._wait_or_refuse(self._why_not)

    def end_grace(self) -> None:
        """Let no further call wait for a link. The next `attach` or `detach` sends or refuses those that wait."""
        self._grace = 0.0
        self._stop_grace_timer()

    def stop_waiting(self, why: str) -> None:
        """Refuse calls that wait for a link, now and later."""
        if self._link is None:
            self._why_not = f"{self._why_not}; {why}"
        self._waits_no_longer = True
        self.grace = 0.0

    def inherit(self, before: ServerQueue) -> None:
        """Take over the waiting calls of a server that is renamed to this one.

        If it has a link, attach that here next.
        """
        self._grace, self._gone_at, self._why_not = before._grace, before._gone_at, before._why_not
        before._stop_grace_timer()
        self._link_watchers, before._link_watchers = before._link_watchers, []
        self._notify_link_watchers()
        for inflight in before._queue.clear():
            inflight.server_queue = self
            self._queue.add(inflight)
        if before._link is None:
            self._wait_or_refuse(self._why_not)

    def refuse_tools(self, names: Set[FeatureName]) -> None:
        """Refuse waiting calls of tools that the server no longer has."""
        for inflight in self.waiting_for(names):
            inflight.finish(UnknownTool(inflight.call.name))

    def waiting_for(self, names: Set[FeatureName]) -> list[InFlight]:
        """Waiting calls of these tools."""
        return [inflight for inflight in self._queue if inflight.call.kind == "tool" and inflight.name in names]

    def _grace_left(self) -> float:
        return self._gone_at + self._grace - self._loop.time() if self._grace else 0.0

    def _wait_or_refuse(self, why: str) -> None:
        """Without a link: let calls wait until the grace is over, or refuse them."""
        if not self._queue.lines and not self._link_watchers:
            return
        if (left := self._grace_left()) > 0:
            if self._grace_timer is None:
                self._grace_timer = self._loop.call_later(left, self._on_grace_over)
            return
        self._stop_grace_timer()
        for inflight in self._queue.clear():
            inflight.finish(NotConnected(self.server, why, login=self._login))
        self._notify_link_watchers()

    def _on_grace_over(self) -> None:
        self._grace_timer = None
        self._wait_or_refuse(f"{self._why_not}; it did not come back within {self._grace:g} s")

    def _stop_grace_timer(self) -> None:
        if self._grace_timer is not None:
            self._grace_timer.cancel()
            self._grace_timer = None

    def watch_link(self, on_link: OnLink) -> Callable[[], None]:
        """Call `on_link` once there is a link, or the grace is over; the returned function cancels that.

        It receives the queue that the server has by then: this one, or its heir if the server was renamed.
        """
        self._link_watchers.append(on_link)
        if self._link is not None:
            self._notify_link_watchers()
        elif self._grace:
            self._wait_or_refuse(self._why_not)

        def unwatch() -> None:
            if on_link in self._link_watchers:
                self._link_watchers.remove(on_link)

        return unwatch

    def _notify_link_watchers(self) -> None:
        watchers, self._link_watchers = self._link_watchers, []
        for on_link in watchers:
            self._loop.call_soon(on_link, self)

    def explain(self, why: str) -> None:
        """Set the reason why there is no link."""
        self._why_not = why

    def not_connected(self) -> NotConnected:
        """The fault of a call that finds no link."""
        if self.on_wanted is not None:
            self.on_wanted()
        return NotConnected(self.server, self._why_not, login=self._login)

    @property
    def takes_methods(self) -> bool:
        """Whether any method can be called; False only if it is known that none can."""
        return self._link is None or (isinstance(self._link, AnyMethodLink) and self._link.takes_methods)

    # -- the server's own log ------------------------------------------------------------------------------------------

    @property
    def log(self) -> ServerLog:
        """What the operator can read of the server."""
        if self._log is None:  # many servers never log anything
            self._log = ServerLog()
        return self._log

    @log.setter
    def log(self, log: ServerLog) -> None:
        self._log = log

    @property
    def log_lines(self) -> Sequence[ServerLogLine]:
        """The last lines that the server logged outside of any call."""
        return () if self._log is None else [line for line in self._log.lines() if line.source == "log"]

    # -- calls ---------------------------------------------------------------------------------------------------------

    def submit(self, inflight: InFlight) -> Fault | None:
        """Send the call, or queue it, or return why neither is possible."""
        if self._link is None:
            return self._wait_for_link(inflight) if self._grace else self.not_connected()
        call = inflight.call
        if self._breaker.open_until and call.kind != "method" and (seconds := self._breaker.wait(self._loop.time())):
            return BreakerOpen(self.server, seconds)
        # While a slot is free, every queued call is held back by a cap, unless the queue is just being sent.
        may_be_next = self.running < self.max_calls and not (self._is_sending and self._queue.lines)
        is_shared = self.tenants is not None and self.tenants.are_several
        if may_be_next and not (
            (is_shared or call.lasts or call.sharer or call.script) and self._is_held_back(inflight)
        ):
            self._send(inflight, self._link)
            return None
        if inflight.within is not None and self._is_standstill(inflight):
            self._return_probe(inflight)
            return Overloaded(self.server, self.running, self.queued, ENTANGLED)
        if self.queued >= self.max_queued or (is_shared and self._queues_enough(call.caller.tenant)):
            self._return_probe(inflight)
            return Overloaded(self.server, self.running, self.queued)
        self._queue.add(inflight)
        if inflight.steps is None:
            inflight.steps = [("queued", 0.0)]  # it has just been received; `note` costs three times as much
        else:
            inflight.note("queued")
        if self._unanswered:
            self._loop.call_soon(self._end_unanswered)
        return None

    def _wait_for_link(self, inflight: InFlight) -> Fault | None:
        if self._grace_left() <= 0:
            return self.not_connected()
        waiting = self.queued + len(self._link_watchers)
        is_shared = self.tenants is not None and self.tenants.are_several
        if waiting >= self.max_queued or (is_shared and self._queues_enough(inflight.call.caller.tenant)):
            return Overloaded(self.server, self.running, waiting)
        if not inflight.put_back():
            self._queue.add(inflight)
            inflight.note("queued")
            self._wait_or_refuse(self._why_not)
        return None

    def _is_standstill(self, inflight: InFlight) -> bool:
        """Whether no slot would ever come free: every running call made a call that waits here, or this one.

        Most likely they wait for the calls that they made. If not, one call was refused that could have waited.
        """
        waiting: list[InFlight] = [inflight, *self._queue]
        holders = {outer for each in waiting for outer in each.outer() if outer.server_queue is self}
        if len(holders) >= self.running:
            return True
        tenant = inflight.call.caller.tenant
        if inflight.counted_by is None or not inflight.counted_by.are_several or not self._is_tenant_full(tenant):
            return False
        # Only slots of its own tenant count: it does not get those of others.
        return sum(holder.call.caller.tenant == tenant for holder in holders) >= self._running_in["tenant", tenant, ""]

    def _return_probe(self, inflight: InFlight) -> None:
        """A call that was not sent cannot be the breaker's probe: let the next one be."""
        if self._breaker.open_until and inflight.call.kind != "method":
            self._breaker.gave_up()

    def call_ended(self, inflight: InFlight, outcome: Outcome) -> None:
        """Return the slot or the queue place of a call that has ended, and send the next one."""
        link = inflight.link
        if link is None:
            if self._groups:
                self._leave_groups(inflight)
            self._queue.discard(inflight)
            if self._grace_timer is not None and not self._queue.lines and not self._link_watchers:
                self._stop_grace_timer()
            self._return_probe(inflight)
        else:
            self.running -= 1
            if self._groups:
                self._leave_groups(inflight)
            if link is self.pool and self.pool is not None:
                self.pool.call_ended(inflight)
                self._judge(inflight, outcome)
            elif link is self._link:  # the calls of a lost link were counted as one failure by `detach`
                self._judge(inflight, outcome)
        if self._queue.lines:
            self._send_waiting()
        if self.on_idle is not None and not self.running and not self._queue.lines:
            self.on_idle()

    def return_slot(self, inflight: InFlight) -> None:
        """A call that has a slot was not sent after all."""
        self.running -= 1
        self._leave_groups(inflight)
        if inflight.link is self.pool and self.pool is not None:
            self.pool.call_ended(inflight)
        inflight.link = inflight.carriage = None
        self._send_waiting()

    def _send_waiting(self) -> None:
        # A link that has just broken ends each call within `send`, which leads back here: the outer loop continues
        # instead, because recursion would be as deep as the queue is long.
        if self._is_sending or not self._queue.lines:
            return
        self._is_sending = True
        try:
            while self._link is not None and self.running < self.max_calls:
                inflight = self._queue.take_first(self._is_held_back)
                if inflight is None:
                    break
                inflight.waited()
                self._send(inflight, self._link)
        finally:
            self._is_sending = False

    def _send(self, inflight: InFlight, link: Link) -> None:
        call = inflight.call
        if self.uses_pool and call.client_caps and self.pool is not None:
            link = self.pool
        inflight.link = link
        self.running += 1
        if call.sharer:
            self._join_groups(inflight, ("device", call.sharer, ""))
        if inflight.counted_by is not None:
            self._join_groups(inflight, ("tenant", call.caller.tenant, ""))
        if call.script:
            self._join_groups(inflight, SCRIPT_CALLS)
        if call.lasts:
            self._count_long(inflight)
            # A pool asks itself, once it has a link.
            if link is not self.pool and not inflight.is_cleared(self._send_cleared):
                return
        try:
            link.send(inflight)
        except Exception:  # a defect of a link must cost this call only, and no slot
            incident = secrets.token_hex(6)
            log.exception("a link failed to send a call", server=self.server, incident=incident, **inflight.ids())
            inflight.finish(Bug(incident))

    def _send_cleared(self, inflight: InFlight) -> None:
        """The journal has stored that a call may be sent: send it, unless it has ended or its link is gone."""
        if inflight.is_done:
            return
        if inflight.link is not self._link or self._link is None:
            self.return_slot(inflight)
            if (fault := self.submit(inflight)) is not None:
                inflight.finish(fault)
            return
        inflight.carriage = None
        inflight.note("sent")
        try:
            self._link.send(inflight)
        except Exception:  # as in `_send`
            incident = secrets.token_hex(6)
            log.exception("a link failed to send a call", server=self.server, incident=incident, **inflight.ids())
            inflight.finish(Bug(incident))

    def overload(self) -> Overloaded | None:
        """The fault of a call that was not sent in time; None if that was for want of a link."""
        return None if self._link is None else Overloaded(self.server, self.running, self.queued)

    def _judge(self, inflight: InFlight, outcome: Outcome) -> None:
        """Count the outcome of a call for the breaker."""
        if inflight.call.kind == "method":  # its caller may have made it up, so its failure says nothing
            return
        if isinstance(outcome, _ANSWERS):
            self.answered += 1
            self._breaker.succeeded(self._loop.time())
        elif outcome.is_server_failure and not (isinstance(outcome, Lost) and outcome.is_behind):
            self._breaker.failed(self._loop.time())
        else:
            self._breaker.gave_up()  # it says nothing about the server; a hub behind it has its own breaker

    # -- caps ----------------------------------------------------------------------------------------------------------

    def _is_held_back(self, inflight: InFlight) -> bool:
        """Whether a group of this call is full."""
        call = inflight.call
        if call.sharer and self._running_in.get(("device", call.sharer, ""), 0) >= (self.max_calls // 4 or 1):
            return True
        counting = inflight.counted_by  # uncounted calls of a tenant return no slot to those held back
        if counting is not None and counting.are_several and self._is_tenant_full(call.caller.tenant):
            return True
        if call.script and self._running_in.get(SCRIPT_CALLS, 0) >= (self.max_calls // 2 or 1):
            return True
        return call.lasts and self._are_long_calls_full(inflight)

    def _is_tenant_full(self, tenant: str) -> bool:
        return self._running_in.get(("tenant", tenant, ""), 0) >= self.max_calls - self.max_calls // 4

    def _are_long_calls_full(self, inflight: InFlight) -> bool:
        """Long calls take at most half of the slots, and those of one caller at most three quarters of that."""
        half, running = max(1, self.max_calls // 2), self._running_in
        return running.get(LONG_CALLS, 0) >= half or running.get(_long_calls_of(inflight), 0) >= half - half // 4

    def _queues_enough(self, tenant: str) -> bool:
        """Whether a tenant has three quarters of the queue; at most `max_queued` entries are looked at."""
        if not self._queue.lines:
            return False
        theirs = sum(each.call.caller.tenant == tenant for each in self._queue)
        return theirs >= self.max_queued - self.max_queued // 4

    def _join_groups(self, inflight: InFlight, *groups: Group) -> None:
        self._groups[inflight] = self._groups.get(inflight, ()) + groups
        running = self._running_in
        for group in groups:
            running[group] = running.get(group, 0) + 1

    def _leave_groups(self, inflight: InFlight) -> None:
        running = self._running_in
        for group in self._groups.pop(inflight, ()):
            if left := running[group] - 1:
                running[group] = left
            else:
                del running[group]

    def _count_long(self, inflight: InFlight) -> None:
        if LONG_CALLS not in self._groups.get(inflight, ()):
            self._join_groups(inflight, LONG_CALLS, _long_calls_of(inflight))

    def admit_long_call(self, inflight: InFlight) -> bool:
        """Count a call as long from now on; False if there are too many."""
        if self._are_long_calls_full(inflight):
            return False
        self._count_long(inflight)
        return True

    def end_long_call(self, inflight: InFlight) -> None:
        """Count a call as an ordinary one again."""
        groups = self._groups.get(inflight, ())
        self._leave_groups(inflight)
        if others := tuple(group for group in groups if group[0] in ("device", "tenant", "scripts")):
            self._join_groups(inflight, *others)
        self._send_waiting()

    # -- calls that wait for their caller ------------------------------------------------------------------------------

    def question_opened(self, inflight: InFlight) -> None:
        """A running call waits for an answer of its caller, and keeps its slot."""
        self._unanswered[inflight] = None
        if self._queue.lines:
            self._loop.call_soon(self._end_unanswered)

    def question_closed(self, inflight: InFlight) -> None:
        """Its questions are answered, or it has ended."""
        self._unanswered.pop(inflight, None)

    def _end_unanswered(self) -> None:
        """End the oldest unanswered call of a caller that holds over half of the slots while another caller waits."""
        counts = Counter(_owner(inflight) for inflight in self._unanswered)
        for owner, held in counts.most_common(1):
            if held > max(1, self.max_calls // 2) and any(
                _owner(inflight) != owner and not self._is_held_back(inflight) for inflight in self._queue
            ):
                oldest = next(inflight for inflight in self._unanswered if _owner(inflight) == owner)
                oldest.go_unanswered(CROWDED)
                self._loop.call_soon(self._end_unanswered)


def _owner(inflight: InFlight) -> Owner:
    caller = inflight.call.caller
    return caller.tenant, caller.name


def _long_calls_of(inflight: InFlight) -> Group:
    caller = inflight.call.caller
    return ("long of", caller.tenant, caller.name)


def _caps(inflight: InFlight) -> Caps:
    call = inflight.call
    tenant = None if inflight.counted_by is None else call.caller.tenant
    return call.sharer, tenant, _owner(inflight) if call.lasts else None, call.script != ""
