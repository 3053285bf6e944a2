"""The hub: where calls start. Faces, the library and the command line reach servers only through it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from weakref import ref

import structlog

from isthmus.core.access.policy import CustomPolicy
from isthmus.core.access.tenants import TenantCalls
from isthmus.core.calls.deadlines import Deadlines
from isthmus.core.calls.inflight import InFlight
from isthmus.core.calls.result_cache import ResultCache
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.calls.stages import STAGES
from isthmus.core.catalog.checks import CheckCache
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.review import Review
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.catalog.view import Route, View
from isthmus.core.ports import ArgumentValidator, Exchange, Link, ListLoader, Recorder
from isthmus.core.settings import Limits
from isthmus.core.watch.log_levels import LogLevels
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.core.watch.subscriptions import Subscriptions
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, NO_CAPABILITIES, Call, ClientCapabilities, Outcome, Surface
from isthmus.model.faults import Bug, NotConnected, UnknownPrompt, UnknownResource, UnknownTool
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName

log = structlog.get_logger(__name__)

_UNKNOWN = (UnknownTool, UnknownPrompt, UnknownResource)

TELLING_SECONDS = 0.005
"""How long watchers keep the loop before it is let go to others: each may have a large view to compile, and calls
must not stand still while all of them do."""

RESTING_SHARE = 4
RESTING_SECONDS_MAX = 1.0
"""When watchers took longer than that, nobody is told for so many times as long: where thousands of servers come and
go, telling of each would be all that the loop does."""


class Hub:
    """Holds the one snapshot and the lanes; starts calls and tells watchers when the snapshot changes."""

    def __init__(self, limits: Limits, recorder: Recorder) -> None:
        self.limits = limits
        self.id = secrets.token_hex(8)
        """Tells it from other hubs, so that it knows itself when it is its own server."""
        self.server_queues: dict[ServerName, ServerQueue] = {}
        self._leaving: set[ServerQueue] = set()
        """Lanes that were closed or replaced and still have calls."""
        self.is_draining = False
        self._recorder = recorder
        self.audit_gate = recorder.audit_gate
        self.validation: ArgumentValidator | None = None
        """Checks arguments that take long to check. Without it, such calls are refused."""
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.deadlines = Deadlines(self._loop)
        self.recall = ResultCache()
        self.subscriptions = Subscriptions()
        self.levels = LogLevels()
        self.tasks = ServerTasks(self.now)
        self.tenants = TenantCalls()
        self._checks = CheckCache(limit_bytes=limits.schema_bytes)
        self.review = Review()
        self.narrowing: CustomPolicy | None = None
        """Who else decides of what callers may use; said before there is a server."""
        self._snapshot = Snapshot(0, {}, self._checks)
        self._news: dict[ServerName, ServerStatus | None] = {}
        """What stands otherwise since it was made, None for what is gone. Where thousands of servers go at once, one
        snapshot says so of all: to copy so many standings for each would keep the loop for seconds."""
        self._settling: dict[ServerName, asyncio.Future[None]] = {}
        self._learners: dict[ServerName, ListLoader] = {}
        self._watchers: dict[Callable[[], None], None] = {}
        self._untold: dict[Callable[[], None], None] = {}
        """Watchers that have not heard of the present snapshot, those first that have waited longest."""
        self._is_telling = False
        self._telling_seconds = 0.0
        """How long the watchers who have heard of the present snapshot took."""
        self._resting_until = 0.0

    @cached_property
    def snapshot(self) -> Snapshot:
        """How everything stands now: the same value until something stands otherwise, then made when it is wanted."""
        if self._news:
            server_statuses = _after(self._snapshot.server_statuses, self._news)
            self._news = {}
            self._snapshot = Snapshot(self._snapshot.version + 1, server_statuses, self._checks, self.narrowing)
        return self._snapshot

    # -- calls ---------------------------------------------------------------------------------------------------

    def start(self, call: Call, exchange: Exchange, within: ref[InFlight] | None = None) -> InFlight:
        """Start a call. It may have ended when this returns; `exchange.end` is called exactly once either way.

        `within` is the call that makes this one, if that is being served by a function of this process.
        """
        inflight = InFlight(call, exchange, self._recorder, self._loop, within)
        try:
            for stage in STAGES:
                if (outcome := stage(self, inflight)) is not None:
                    if not call.client_caps or not isinstance(outcome, _UNKNOWN) or not self._put_off(inflight):
                        inflight.finish(outcome)
                    break
        except Exception as defect:  # noqa: BLE001 - it must cost one call, not the connection that brought it
            _blame(inflight, defect)
        return inflight

    def attend(self, call: Call, exchange: Exchange, link: Link) -> InFlight:
        """A call that the hub answers itself, by a `link` that is no server's and sees to its end."""
        inflight = InFlight(call, exchange, self._recorder, self._loop)
        inflight.link = link
        inflight.route = Route(Tool.of(BUILTIN, FeatureName(call.name), {}), call.name)
        inflight.limit(self.limits.hard_seconds, self.deadlines)
        return inflight

    def start_again(self, inflight: InFlight) -> None:
        """Start a call that was put off; what is still unknown is so."""
        try:
            outcome = next((found for stage in STAGES if (found := stage(self, inflight)) is not None), None)
            if outcome is not None:
                inflight.finish(outcome)
        except Exception as defect:  # noqa: BLE001 - as in `start`
            _blame(inflight, defect)

    def submit(self, inflight: InFlight) -> None:
        """Go on with a call whose arguments were checked elsewhere."""
        if inflight.is_over:
            return
        if self.audit_gate is not None:
            self.audit_gate.begin(inflight, self.send)
        else:
            self.send(inflight)

    def send(self, inflight: InFlight) -> None:
        """Send a call that had to be written down first, unless it has ended meanwhile."""
        if inflight.is_over:
            return
        try:
            # What is configured may have changed since its lane was found.
            server = inflight.target.feature.server
            inflight.server_queue = server_queue = self.server_queues.get(server)
            fault = NotConnected(server, "it was removed") if server_queue is None else server_queue.submit(inflight)
            if fault is not None:
                inflight.finish(fault)
        except Exception as defect:  # noqa: BLE001 - as in `start`
            _blame(inflight, defect)

    def unreached(self, grants: Grants, surface: Surface, name: str) -> NotConnected | None:
        """Why nothing has a tool's name, if that is because its server is down and has never said what it has."""
        server = self.snapshot.find_unreached(grants, surface, name)
        server_queue = None if server is None else self.server_queues.get(server)
        return None if server_queue is None else server_queue.absence()

    def _put_off(self, inflight: InFlight) -> bool:
        """Start a call for what nobody lists once it is known what servers list to its caller; False if it is."""
        call = inflight.call
        waits = self._learn(call.caller, call.surface, call.client_caps)
        if waits:
            again = _Again(self, inflight, len(waits))
            for done in waits:
                done.add_done_callback(again.one_more)
            self._loop.call_later(max(waits.values()), again.now)
        return bool(waits)

    def keep(self, inflight: InFlight, outcome: Outcome) -> None:
        """Remember how a call ended, if it may be given again and its server is still the same."""
        if inflight.server_queue is self.server_queues.get(inflight.target.feature.server):
            self.recall.keep(inflight, outcome, inflight.target.keep_seconds, self.now())

    # -- servers -------------------------------------------------------------------------------------------------

    def open_server_queue(
        self,
        server_queue: ServerQueue,
        server_status: ServerStatus,
        *,
        is_awaited: bool = True,
        learner: ListLoader | None = None,
    ) -> None:
        """Make room for a server, or for a changed one in place of what it was.

        If it is awaited, listings and calls wait a moment for it until its first attempt has ended. Without a
        `learner` it lists the same to everybody.
        """
        self._leave(self.server_queues.get(server_queue.server))
        self.server_queues[server_queue.server] = server_queue
        server_queue.tasks = self.tasks
        server_queue.tenants = self.tenants
        self._learners.pop(server_queue.server, None)
        if learner is not None:
            self._learners[server_queue.server] = learner
        if is_awaited and not server_status.is_settled:
            self._settling[server_queue.server] = self._loop.create_future()
        self.publish(server_status)

    def close_server_queue(self, server: ServerName) -> None:
        """Forget a server: from now on nobody sees it. Its calls in flight are not touched."""
        self._leave(self.server_queues.pop(server))
        self._learners.pop(server, None)
        self.recall.forget(server)
        self.review.forget(server)
        if (settling := self._settling.pop(server, None)) is not None:
            settling.set_result(None)
        self._note(server, None)

    def _leave(self, server_queue: ServerQueue | None) -> None:
        self._leaving = {left for left in self._leaving if left.running or left.queued}
        if server_queue is not None:
            self._leaving.add(server_queue)

    def publish(self, server_status: ServerStatus) -> None:
        """Have the next snapshot show this server's new standing, and tell the watchers."""
        if (server_status.is_settled or server_status.is_recalled) and (
            settling := self._settling.pop(server_status.server, None)
        ) is not None:
            settling.set_result(None)
        server_status = self.review.of(server_status)
        server = server_status.server
        present = self._news[server] if server in self._news else self._snapshot.server_statuses.get(server)
        if present != server_status:
            self._note(server, server_status)
            if server_status.withheld or server_status.left_out:
                self._refuse_unseen(server_status)

    def _refuse_unseen(self, server_status: ServerStatus) -> None:
        """Calls that still wait were for tools that looked otherwise."""
        server_queue, unseen = (
            self.server_queues.get(server_status.server),
            {*server_status.withheld, *server_status.left_out},
        )
        for inflight in () if server_queue is None else server_queue.waiting_for(unseen):
            call = inflight.call
            if self.snapshot.find_tool(call.caller.grants, call.surface, call.client_caps, call.name) is None:
                inflight.finish(UnknownTool(call.name))

    def publish_again(self, server: ServerName) -> None:
        """Have a server's standing reviewed once more: other tools of it may be seen now."""
        server_status = self.review.again(server)
        if server_status is not None and server in self.server_queues:
            self.publish(server_status)

    def _note(self, server: ServerName, server_status: ServerStatus | None) -> None:
        self._news[server] = server_status
        self.__dict__.pop("snapshot", None)
        if not self._watchers:
            return
        self._untold |= self._watchers
        if self._is_telling:  # the rest is told in a later turn of the loop
            return
        if self._loop.time() < self._resting_until:
            self._is_telling = True
            self._loop.call_at(self._resting_until, self._tell_watchers)
        else:
            self._tell_watchers()

    def _tell_watchers(self) -> None:
        """Tell those who have not heard, the first at once and the others as the loop has time for them."""
        began = self._loop.time()
        until = began + TELLING_SECONDS
        self._is_telling = bool(self._untold)
        while self._untold:
            watcher = next(iter(self._untold))
            del self._untold[watcher]
            _tell(watcher)
            if self._loop.time() > until:
                break
        self._is_telling = bool(self._untold)
        self._telling_seconds += self._loop.time() - began
        if self._untold:
            self._loop.call_soon(self._tell_watchers)
        else:
            self._rest()

    def _rest(self) -> None:
        """Everybody has heard; if that took long, leave them alone for a while."""
        took, self._telling_seconds = self._telling_seconds, 0.0
        if took > TELLING_SECONDS:
            self._resting_until = self._loop.time() + min(RESTING_SHARE * took, RESTING_SECONDS_MAX)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after swaps, until the returned function is called; of several in a row it may hear once."""
        self._watchers[callback] = None
        return lambda: self._unwatch(callback)

    def _unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.pop(callback, None)
        self._untold.pop(callback, None)

    def is_settling(self) -> bool:
        """Whether some server's first attempt to connect still runs, and it is not known what it listed before."""
        return bool(self._settling)

    def awaited(self) -> list[ServerName]:
        """Servers that a list of everything would wait for now."""
        waits = self._unsettled(EVERYTHING, None)
        return [server for server, settling in self._settling.items() if settling in waits]

    async def settle(
        self, surface: Surface, *, within: float | None = None, until: Callable[[], bool] | None = None
    ) -> None:
        """Wait for first attempts to end, of servers whose lists are not known from an earlier run.

        For each server at most `listing_seconds` after it was added, or `within` if that is shorter. With `until` it
        is enough that that holds: a call need not wait for others than its own server.
        """
        when = asyncio.ALL_COMPLETED if until is None else asyncio.FIRST_COMPLETED
        while waits := self._unsettled(surface, within):
            if until is not None and until():
                return
            await asyncio.wait(waits, timeout=max(waits.values()), return_when=when)

    def _unsettled(self, surface: Surface, within: float | None) -> dict[asyncio.Future[None], float]:
        servers = self._settling if surface.server is None else self._settling.keys() & {surface.server}
        began = {self._settling[server]: self.server_queues[server].opened_at for server in servers}
        return self._patience(began, within)

    def _patience(
        self, began: Mapping[asyncio.Future[None], float], within: float | None = None
    ) -> dict[asyncio.Future[None], float]:
        """How long each may still be waited for; those that had their time are left out."""
        patience = self.limits.listing_seconds
        until = (patience if within is None else min(patience, within)) - self._loop.time()
        waits = {future: at + until for future, at in began.items()}
        return {future: seconds for future, seconds in waits.items() if seconds > 0}

    async def view(self, grants: Grants, surface: Surface) -> View:
        """What these permissions see now, after a moment's patience with servers that are only starting."""
        if self._settling:
            await self.settle(surface)
        return self.snapshot.view(grants, surface)

    async def view_for(
        self,
        caller: Caller,
        surface: Surface,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        *,
        within: float | None = None,
    ) -> View:
        """What this caller sees now: also servers that must be asked what they list to such callers have a moment.

        With `within`, servers are waited for only so long after they were added, even if a list would wait longer.
        """
        if self._settling:
            await self.settle(surface, within=within)
        if client_caps:
            await _wait_for(self._learn(caller, surface, client_caps, within))
        return self.snapshot.view(caller.grants, surface, client_caps)

    def awaits(self, servers: Iterable[ServerName]) -> bool:
        """Whether a list waits for one of these servers, of which nothing is known yet."""
        awaited = self._settling and self._unsettled(EVERYTHING, None)
        return bool(awaited) and any(self._settling.get(server) in awaited for server in servers)

    def _learn(
        self, caller: Caller, surface: Surface, client_caps: ClientCapabilities, within: float | None = None
    ) -> dict[asyncio.Future[None], float]:
        """See to it that it becomes known what the caller is listed; what is worth waiting for, and how long."""
        servers = self.snapshot.view(caller.grants, surface).servers
        learners = [self._learners[server] for server in servers if server in self._learners]
        asked = [learning for learner in learners if (learning := learner.load_lists(caller, client_caps)) is not None]
        return self._patience({learning.done: learning.began for learning in asked}, within)

    def left(self, session: str) -> None:
        """A caller's conversation is over, with all its calls: servers need not keep anything for it."""
        for server_queue in (*self.server_queues.values(), *self._leaving):
            if server_queue.pool is not None:
                server_queue.pool.left(session)

    # -- going away ----------------------------------------------------------------------------------------------

    def running(self) -> int:
        """Calls sent, or waiting for a slot or to be written down."""
        written = 0 if self.audit_gate is None else self.audit_gate.waiting
        return written + sum(
            server_queue.running + server_queue.queued
            for server_queue in (*self.server_queues.values(), *self._leaving)
        )

    def cancel_all(self, why: str) -> None:
        """Withdraw every call that is still in flight; each is answered so."""
        for inflight in self.deadlines.everything():
            inflight.cancel(why)

    def wait_no_more(self, why: str) -> None:
        """Have no call wait for a server that is away: none will come."""
        for server_queue in [*self.server_queues.values(), *self._leaving]:
            server_queue.wait_no_more(why)

    def refuse_new_calls(self) -> None:
        """From now on every new call is told that the hub is shutting down."""
        self.is_draining = True


class _Again:
    """Starts a call that was put off, once: when all that it waits for has ended, or when its patience has."""

    def __init__(self, hub: Hub, inflight: InFlight, waits: int) -> None:
        self._hub = hub
        self._inflight: InFlight | None = inflight
        self._waits = waits

    def one_more(self, _: asyncio.Future[None]) -> None:
        self._waits -= 1
        if not self._waits:
            self.now()

    def now(self) -> None:
        inflight, self._inflight = self._inflight, None
        if inflight is not None and inflight.outcome is None:
            self._hub.start_again(inflight)


def _after(
    server_statuses: Mapping[ServerName, ServerStatus], news: Mapping[ServerName, ServerStatus | None]
) -> dict[ServerName, ServerStatus]:
    """The standings once these have changed; None is one that is gone."""
    changed = {**server_statuses}
    for server, server_status in news.items():
        if server_status is None:
            changed.pop(server, None)
        else:
            changed[server] = server_status
    return changed


def _tell(watcher: Callable[[], None]) -> None:
    try:
        watcher()
    except Exception:  # one broken watcher must not keep the others, or the supervisor, from the news
        log.exception("a watcher of the snapshot failed")


def _blame(inflight: InFlight, defect: Exception) -> None:
    incident = secrets.token_hex(6)
    log.error("defect while starting a call", incident=incident, tool=inflight.call.name, exc_info=defect)
    inflight.finish(Bug(incident))


async def _wait_for(waits: Mapping[asyncio.Future[None], float]) -> None:
    if waits:
        await asyncio.wait(waits, timeout=max(waits.values()))
