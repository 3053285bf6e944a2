"""The hub: where calls start. Frontends, the library and the command line reach servers only through it.

Every call passes the stages at the end of this module before it is sent: small synchronous functions that return None
or how the call ends. A new capability is a new stage in `STAGES`, not a branch in another one. Stages decide and note
what they found on the in-flight entry; the server's queue sends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import ref

import msgspec
import structlog

from isthmus.core.access.bytes_in_flight import BytesInFlight
from isthmus.core.access.policy import CustomPolicy
from isthmus.core.access.tenants import TenantCalls
from isthmus.core.calls.result_cache import ResultCache
from isthmus.core.calls.running_call import Deadlines, InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.argument_validation import EXPENSIVE, CheckCache
from isthmus.core.catalog.definition_review import Review
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.sets import SetSettings
from isthmus.core.catalog.snapshot import ServerStatus, Snapshot
from isthmus.core.catalog.view import ALL_EXPOSED, Route, View, VirtualRoute
from isthmus.core.event_loop import in_passes
from isthmus.core.ports import ArgumentValidator, Exchange, Link, ListLoader, Recorder, VirtualTool
from isthmus.core.settings import Limits
from isthmus.core.watch.log_levels import LogLevels
from isthmus.core.watch.server_tasks import ServerTasks
from isthmus.core.watch.subscriptions import Subscriptions
from isthmus.model.callers import VIRTUAL_TOOLS, Caller, Exposure, Grants
from isthmus.model.calls import EVERYTHING, NO_CAPABILITIES, Call, ClientCapabilities, Outcome, Surface
from isthmus.model.fault_table import (
    BadArguments,
    Bug,
    Draining,
    Fault,
    NotConnected,
    ServerError,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
)
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName

if TYPE_CHECKING:  # they start calls
    from isthmus.core.calls.approvals import CallApprovals
    from isthmus.core.calls.budgets import CallBudgets
    from isthmus.core.calls.fleet_calls import Fleets
    from isthmus.core.calls.result_cuts import ResultCuts

log = structlog.get_logger(__name__)


class Held(Enum):
    """What a stage returns for a call that continues elsewhere: its holder restarts, resumes or ends it."""

    HELD = "held"


HELD: Final = Held.HELD

METHOD_NOT_FOUND = -32601
"""The JSON-RPC code for an unknown method."""

_UNKNOWN = (UnknownTool, UnknownPrompt, UnknownResource)

NOTIFY_SECONDS = 0.005
"""How long watchers may run before the loop gets a turn: each may compile a large view, and calls must not wait for
all of them."""

PAUSE_FACTOR = 4
PAUSE_SECONDS_MAX = 1.0
"""If the watchers took longer than that, the next notification waits so many times as long: where thousands of servers
connect and disconnect, the loop would otherwise only notify."""


NewInFlight: TypeAlias = Callable[
    [Call, Exchange, Recorder, asyncio.AbstractEventLoop, "ref[InFlight] | None"], InFlight
]


class Hub:
    """Holds the snapshot and the server queues; starts calls and notifies watchers when the snapshot changes."""

    on_session_ended: Callable[[str], None] | None = None
    """Called with a session that has ended, in a cluster: its processes may be at another node."""

    def __init__(self, limits: Limits, recorder: Recorder) -> None:
        self.limits = limits
        self.id = secrets.token_hex(8)
        """Lets it recognize itself when it is its own server."""
        self.other_ids: Collection[str] = ()
        """The ids of hubs that serve the same servers at the same address: a server that is one of them is a loop."""
        self.server_queues: dict[ServerName, ServerQueue] = {}
        self._leaving: set[ServerQueue] = set()
        """Queues that were closed or replaced and still have calls."""
        self.is_draining = False
        self._may_refuse = False
        """Whether some call is refused for what the hub has to do already."""
        self.bytes_in_flight = BytesInFlight(limits.caller_bytes, limits.tenant_bytes)
        self.bytes_in_flight.on_excess = self._on_excess
        self._recorder = recorder
        self.strict_audit = recorder.strict_audit
        self._on_start = recorder.started
        self.new_inflight: NewInFlight = InFlight
        """Makes the running calls; another one where they are recorded into a cassette."""
        self.validation: ArgumentValidator | None = None
        """Checks arguments that take long to check. Without it, such calls are refused."""
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.deadlines = Deadlines(self._loop)
        self.result_cache = ResultCache()
        self.subscriptions = Subscriptions()
        self.levels = LogLevels()
        self.tasks = ServerTasks(self.now)
        self.tenants = TenantCalls()
        self._checks = CheckCache(limit_bytes=limits.schema_bytes)
        self.review = Review()
        self.custom_policy: CustomPolicy | None = None
        """The operator's own policy; set before the first server."""
        self.sets: Mapping[str, SetSettings] = {}
        """The operator's sets by name; see `change_sets`."""
        self.exposed = ALL_EXPOSED
        """What lists have instead of servers' tools; see `change_exposure` and `add_virtual_tools`."""
        self.fleets: Fleets | None = None
        """Servers that callers see as one; set by `Fleets`."""
        self._stages = STAGES
        self._approvals: CallApprovals | None = None
        self._budgets: CallBudgets | None = None
        self.cuts: ResultCuts | None = None
        """Cuts large results, and has those that were cut; see `change_cuts`."""
        self.is_cutting = False
        self._snapshot = Snapshot(0, {}, self._checks)
        self._changed: dict[ServerName, ServerStatus | None] = {}
        """Changes since the snapshot, None for a removed server. One snapshot covers many changes: copying thousands of
        statuses for each would block the loop for seconds."""
        self.settling: dict[ServerName, asyncio.Future[None]] = {}
        """Servers that lists and calls wait for: connecting for the first time without a cached list, or relisted."""
        self._relisted: set[ServerName] = set()
        """Those of them that are connected, and whose lists are read again."""
        self._list_loaders: dict[ServerName, ListLoader] = {}
        self._watchers: dict[Callable[[], None], None] = {}
        self._to_notify: dict[Callable[[], None], None] = {}
        """Watchers that have not been notified of the present snapshot, the longest waiting first."""
        self._is_notifying = False
        self._notify_seconds = 0.0
        """How long watchers have taken for the present snapshot."""
        self._paused_until = 0.0

    @cached_property
    def snapshot(self) -> Snapshot:
        """All servers now: the same value until something changes, then created on demand."""
        before = self._snapshot
        hides = None if self.fleets is None else self.fleets.hides
        is_same = before.sets is self.sets and before.exposed is self.exposed and before.hides is hides
        if self._changed or not is_same:
            server_statuses = {**before.server_statuses}
            for server, server_status in self._changed.items():
                if server_status is None:
                    server_statuses.pop(server, None)
                else:
                    server_statuses[server] = server_status
            if self.fleets is not None:
                self.fleets.join(server_statuses, self._changed)
            self._changed = {}
            self._snapshot = Snapshot(
                before.version + 1, server_statuses, self._checks, self.custom_policy, self.sets, self.exposed, hides
            )
        return self._snapshot

    @property
    def approvals(self) -> CallApprovals | None:
        """Holds calls until a person allows them; None without rules, so that calls pay nothing for it."""
        return self._approvals

    @approvals.setter
    def approvals(self, approvals: CallApprovals | None) -> None:
        self._approvals = approvals
        self._stages = stages_of(self)

    @property
    def budgets(self) -> CallBudgets | None:
        """Counts calls and refuses those without room; None without budgets, so that calls pay nothing for it."""
        return self._budgets

    @budgets.setter
    def budgets(self, budgets: CallBudgets | None) -> None:
        self._budgets = budgets
        self._stages = stages_of(self)

    def change_cuts(self, cuts: ResultCuts, *, is_cutting: bool) -> None:
        """Cut large results from now on, or no longer; those that were cut stay readable."""
        if is_cutting or self.cuts is not None:
            self.cuts = cuts
        if is_cutting != self.is_cutting:
            self.is_cutting = is_cutting
            self._stages = stages_of(self)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def start(self, call: Call, exchange: Exchange, within: ref[InFlight] | None = None) -> InFlight:
        """Start a call. It may have ended when this returns; `exchange.end` is called exactly once either way.

        `within` is the call that makes this one, if a function of this process serves that.
        """
        inflight = self.new_inflight(call, exchange, self._recorder, self._loop, within)
        try:
            if self._on_start is not None:
                self._on_start(inflight)
            for stage in self._stages:
                if (outcome := stage(self, inflight)) is not None:
                    is_unknown = bool(call.client_caps) and isinstance(outcome, _UNKNOWN)
                    if outcome is not HELD and not (is_unknown and self._retry_later(inflight)):
                        inflight.finish(outcome)
                    break
        except Exception as defect:  # noqa: BLE001 - it must cost one call, not the connection that brought it
            _fail_with_bug(inflight, defect)
        return inflight

    def _on_excess(self) -> None:
        self._may_refuse = self.is_draining or self.bytes_in_flight.has_excess

    def refusal(self, caller: Caller) -> Fault | None:
        """Why the hub accepts no call of this caller now."""
        return Draining() if self.is_draining else self.bytes_in_flight.excess(caller)

    def start_builtin(self, call: Call, exchange: Exchange, link: Link) -> InFlight:
        """Start a call that the hub answers itself; `link` is no server's, and ends the call."""
        inflight = InFlight(call, exchange, self._recorder, self._loop)
        inflight.link = link
        inflight.route = Route(Tool.of(BUILTIN, FeatureName(call.name), {}), call.name)
        if self._on_start is not None:
            self._on_start(inflight)
        inflight.limit(self.limits.hard_seconds, self.deadlines)
        return inflight

    def start_again(self, inflight: InFlight) -> None:
        """Run the stages of a call again; a name that is still unknown stays unknown."""
        inflight.note("checked")
        self._run(inflight, self._stages)

    def proceed(self, inflight: InFlight) -> None:
        """Continue with a call that a person has allowed, from the stage after the one that held it."""
        self._run(inflight, self._stages[STAGES.index(validate) + 1 :])
        inflight.keep_timeout()

    def _run(self, inflight: InFlight, stages: Iterable[Stage]) -> None:
        try:
            outcome = next((found for stage in stages if (found := stage(self, inflight)) is not None), None)
            if outcome is not None and outcome is not HELD:
                inflight.finish(outcome)
        except Exception as defect:  # noqa: BLE001 - as in `start`
            _fail_with_bug(inflight, defect)

    def submit(self, inflight: InFlight) -> None:
        """Continue with a call whose arguments were checked in the worker."""
        if inflight.is_done:
            return
        if self.strict_audit is not None:
            self.strict_audit.begin(inflight, self.send)
        else:
            self.send(inflight)

    def send(self, inflight: InFlight) -> None:
        """Submit a call that waited for the audit log or the worker to its server's queue, unless it has ended."""
        if inflight.is_done:
            return
        inflight.note("checked")
        try:
            # The configuration may have changed since the queue was found.
            server = inflight.target.feature.server
            inflight.server_queue = server_queue = self.server_queues.get(server)
            fault = NotConnected(server, "it was removed") if server_queue is None else server_queue.submit(inflight)
            if fault is not None:
                inflight.finish(fault)
        except Exception as defect:  # noqa: BLE001 - as in `start`
            _fail_with_bug(inflight, defect)

    def unreached(self, grants: Grants, surface: Surface, name: str) -> NotConnected | None:
        """The fault if an unknown tool may belong to a server that is down and was never listed."""
        server = self.snapshot.find_unreached(grants, surface, name)
        server_queue = None if server is None else self.server_queues.get(server)
        return None if server_queue is None else server_queue.not_connected()

    def _retry_later(self, inflight: InFlight) -> bool:
        """Start a call with an unknown name again once its caller's lists are loaded; False if they are."""
        call = inflight.call
        waits = self._load_lists(call.caller, call.surface, call.client_caps)
        if waits:
            again = _StartAgain(self, inflight, len(waits))
            for done in waits:
                done.add_done_callback(again.on_loaded)
            self._loop.call_later(max(waits.values()), again.start)
        return bool(waits)

    def cache_result(self, changes: int, inflight: InFlight, outcome: Outcome) -> Outcome:
        """Cache how a call ended, if that is allowed and its server is still the same; see `ResultCache.keep`."""
        is_same = inflight.server_queue is self.server_queues.get(inflight.target.feature.server)
        if is_same and getattr(inflight.link, "is_cacheable", True):
            self.result_cache.store(inflight, outcome, inflight.target.keep_seconds, self.now(), changes)
        return outcome

    # -- servers -------------------------------------------------------------------------------------------------------

    def open_server_queue(
        self,
        server_queue: ServerQueue,
        server_status: ServerStatus,
        *,
        is_awaited: bool = True,
        learner: ListLoader | None = None,
    ) -> None:
        """Add a server, or replace a changed one.

        If it is awaited, lists and calls wait a moment until its first connection attempt has ended. Without a
        `learner` it lists the same to all clients.
        """
        self._retire(self.server_queues.get(server_queue.server))
        self.server_queues[server_queue.server] = server_queue
        server_queue.tasks = self.tasks
        server_queue.tenants = self.tenants
        self._list_loaders.pop(server_queue.server, None)
        if learner is not None:
            self._list_loaders[server_queue.server] = learner
        if is_awaited and not server_status.is_settled:
            self.settling[server_queue.server] = self._loop.create_future()
        self.publish(server_status)

    def unsettle(self, server: ServerName) -> None:
        """The lists of a server are read again: lists wait for that as for a server that starts, until `settled`."""
        server_queue = self.server_queues.get(server)
        if server_queue is not None and server not in self.settling:
            server_queue.opened_at = self._loop.time()
            self.settling[server] = self._loop.create_future()
            self._relisted.add(server)

    def settled(self, server: ServerName) -> None:
        """Lists no longer wait for a server."""
        self._relisted.discard(server)
        if (settling := self.settling.pop(server, None)) is not None:
            settling.set_result(None)

    def close_server_queue(self, server: ServerName) -> None:
        """Remove a server from all lists. Its running calls are not affected."""
        self._retire(self.server_queues.pop(server))
        self._list_loaders.pop(server, None)
        self.result_cache.forget(server)
        self.review.forget(server)
        self.settled(server)
        self._change(server, None)

    def _retire(self, server_queue: ServerQueue | None) -> None:
        self._leaving = {left for left in self._leaving if left.running or left.queued}
        if server_queue is not None:
            self._leaving.add(server_queue)

    def publish(self, server_status: ServerStatus, *, is_awaited: bool = False) -> None:
        """Put a server's new status into the next snapshot, and notify watchers.

        If it `is_awaited`, lists that wait for the server wait on.
        """
        if not is_awaited and (server_status.is_settled or server_status.is_recalled):
            self.settled(server_status.server)
        server_status = self.review.reviewed(server_status)
        server = server_status.server
        present = self._changed[server] if server in self._changed else self._snapshot.server_statuses.get(server)
        if present == server_status:
            return
        self._change(server, server_status)
        hidden = {*server_status.withheld, *server_status.left_out}
        server_queue = self.server_queues.get(server) if hidden else None
        # Waiting calls were made for tools that looked different.
        for inflight in () if server_queue is None else server_queue.waiting_for(hidden):
            call = inflight.call
            if self.snapshot.find_tool(call.caller.grants, call.surface, call.client_caps, call.name) is None:
                inflight.finish(UnknownTool(call.name))

    def publish_again(self, server: ServerName) -> None:
        """Review a server's status again, because other tools may be visible now."""
        server_status = self.review.last_published(server)
        if server_status is not None and server in self.server_queues:
            self.publish(server_status)

    def change_sets(self, sets: Mapping[str, SetSettings]) -> None:
        """Replace all sets. Clients are notified if their own lists change."""
        if sets != self.sets:
            self.sets = sets
            self._renew()

    def change_exposure(self, expose: Exposure) -> None:
        """Replace the hub's exposure, which holds where neither the caller nor its set has one."""
        if expose != self.exposed.default:
            self.exposed = msgspec.structs.replace(self.exposed, default=expose)
            self._renew()

    def add_virtual_tools(self, expose: Exposure, *tools: VirtualTool) -> None:
        """Let lists with this exposure have these tools of the hub, in this order."""
        virtual, names = self.exposed.virtual, self.exposed.names.union(each.tool.name for each in tools)
        virtual = {**virtual, expose: (*virtual.get(expose, ()), *tools)}
        self.exposed = msgspec.structs.replace(self.exposed, virtual=virtual, names=names)
        self._renew()

    def redirected(self, call: Call) -> Call:
        """The call that a call of a virtual tool stands for; the same call if it stands for none.

        `find` does this for every call. Frontends need it where they look at a call's tool before the call starts.
        """
        if call.name not in self.exposed.names:
            return call
        route = self.snapshot.find_virtual(call.caller.grants, call.surface, call.client_caps, call.name)
        redirected = None if route is None or call.kind != "tool" else route.virtual.redirect(call)
        return redirected if isinstance(redirected, Call) else call

    def change_fleets(self, fleets: Fleets) -> None:
        """Read the fleets again, which have changed. Clients are notified if their own lists change."""
        self.fleets = fleets
        self._renew()

    def _change(self, server: ServerName, server_status: ServerStatus | None) -> None:
        self._changed[server] = server_status
        self._renew()

    def _renew(self) -> None:
        """Let the next reader make a new snapshot, and notify watchers."""
        self.__dict__.pop("snapshot", None)
        if not self._watchers:
            return
        self._to_notify |= self._watchers
        if self._is_notifying:  # a later turn of the loop continues
            return
        if self._loop.time() < self._paused_until:
            self._is_notifying = True
            self._loop.call_at(self._paused_until, self._notify_watchers)
        else:
            self._notify_watchers()

    def _notify_watchers(self) -> None:
        """Notify waiting watchers, the first at once and the others as the loop has time for them."""
        began = self._loop.time()
        until = began + NOTIFY_SECONDS
        self._is_notifying = bool(self._to_notify)
        while self._to_notify:
            watcher = next(iter(self._to_notify))
            del self._to_notify[watcher]
            try:
                watcher()
            except Exception:  # one broken watcher must not affect the others, or the supervisor
                log.exception("a watcher of the snapshot failed")
            if self._loop.time() > until:
                break
        self._is_notifying = bool(self._to_notify)
        self._notify_seconds += self._loop.time() - began
        if self._to_notify:
            self._loop.call_soon(self._notify_watchers)
            return
        took, self._notify_seconds = self._notify_seconds, 0.0
        if took > NOTIFY_SECONDS:
            self._paused_until = self._loop.time() + min(PAUSE_FACTOR * took, PAUSE_SECONDS_MAX)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after changes, until the returned function is called; once for several in a row."""
        self._watchers[callback] = None

        def unwatch() -> None:
            self._watchers.pop(callback, None)
            self._to_notify.pop(callback, None)

        return unwatch

    # -- waiting for servers that start --------------------------------------------------------------------------------

    def awaited(self) -> list[ServerName]:
        """Servers that start, and that a list of everything would wait for now."""
        waits = self._unsettled(EVERYTHING, None)
        started = self.settling.keys() - self._relisted
        return [server for server, settling in self.settling.items() if settling in waits and server in started]

    async def wait_connected(
        self, surface: Surface, *, within: float | None = None, until: Callable[[], bool] | None = None
    ) -> None:
        """Wait for the first connection attempts of servers without a cached list.

        For each server at most `listing_seconds` after it was added, or `within` if that is shorter. `until` ends the
        wait earlier: a call only needs its own server.
        """
        when = asyncio.ALL_COMPLETED if until is None else asyncio.FIRST_COMPLETED
        waits = self._unsettled(surface, within)
        while waits:
            if until is not None and until():
                return
            await asyncio.wait(waits, timeout=max(waits.values()), return_when=when)
            # Not for what came meanwhile: of several servers whose lists never stand still, one is always awaited.
            waits = {each: seconds for each, seconds in self._unsettled(surface, within).items() if each in waits}

    def _unsettled(self, surface: Surface, within: float | None) -> dict[asyncio.Future[None], float]:
        servers = self.settling if surface.server is None else self.settling.keys() & {surface.server}
        if self.fleets is not None and surface.server is not None and surface.server in self.fleets:
            statuses, fleet = self.snapshot.server_statuses, self.fleets[surface.server]
            servers = {server for server in self.settling if fleet.settings.matches(statuses[server])}
        began = {self.settling[server]: self.server_queues[server].opened_at for server in servers}
        return self._seconds_left(began, within)

    def _seconds_left(
        self, began: Mapping[asyncio.Future[None], float], within: float | None = None
    ) -> dict[asyncio.Future[None], float]:
        """How long to wait for each; those whose time is over are left out."""
        seconds = self.limits.listing_seconds
        until = (seconds if within is None else min(seconds, within)) - self._loop.time()
        waits = {future: at + until for future, at in began.items()}
        return {future: seconds for future, seconds in waits.items() if seconds > 0}

    async def view(self, grants: Grants, surface: Surface) -> View:
        """What these permissions see, after waiting a moment for servers that start."""
        if self.settling:
            await self.wait_connected(surface)
        if surface.set or grants.set:
            await in_passes(self.snapshot.variant_passes(grants, surface))
        return self.snapshot.view(grants, surface)

    async def view_for(
        self,
        caller: Caller,
        surface: Surface,
        client_caps: ClientCapabilities = NO_CAPABILITIES,
        *,
        within: float | None = None,
    ) -> View:
        """What this caller sees, after waiting a moment for servers that start or load lists for its capabilities.

        With `within`, the wait ends so many seconds after a server was added.
        """
        if self.settling:
            await self.wait_connected(surface, within=within)
        if client_caps and (waits := self._load_lists(caller, surface, client_caps, within)):
            await asyncio.wait(waits, timeout=max(waits.values()))
        if surface.set or caller.grants.set:
            await in_passes(self.snapshot.variant_passes(caller.grants, surface))
        return self.snapshot.view(caller.grants, surface, client_caps)

    def awaits(self, servers: Iterable[ServerName]) -> bool:
        """Whether a list waits for one of these servers, because it starts."""
        awaited = self.awaited() if self.settling else ()
        return bool(awaited) and any(server in awaited for server in servers)

    def _load_lists(
        self, caller: Caller, surface: Surface, client_caps: ClientCapabilities, within: float | None = None
    ) -> dict[asyncio.Future[None], float]:
        """Load the lists for a client's capabilities; what to wait for, and how long."""
        servers = self.snapshot.view(caller.grants, surface).servers
        loaders = [self._list_loaders[server] for server in servers if server in self._list_loaders]
        loads = [load for loader in loaders if (load := loader.load_lists(caller, client_caps)) is not None]
        return self._seconds_left({load.done: load.began for load in loads}, within)

    def has_link_per_caller(self, servers: Iterable[ServerName], client_caps: ClientCapabilities) -> bool:
        """Whether one of these servers has a link for each caller, outside of sessions."""
        queues = self.server_queues
        return any(
            (server_queue := queues.get(server)) is not None
            and server_queue.pool is not None
            and server_queue.pool.is_per_caller(client_caps)
            for server in servers
        )

    def session_ended(self, session: str) -> None:
        """A caller's session has ended with all its calls: servers can close what belongs to it."""
        self.session_ended_here(session)
        if self.on_session_ended is not None:
            self.on_session_ended(session)

    def session_ended_here(self, session: str) -> None:
        """The same for the servers of this node of a cluster."""
        for server_queue in (*self.server_queues.values(), *self._leaving):
            if server_queue.pool is not None:
                server_queue.pool.left(session)

    # -- shutting down -------------------------------------------------------------------------------------------------

    def running(self) -> int:
        """Calls that are running or queued, wait for the audit log, or have a result that is being cut."""
        waiting = 0 if self.strict_audit is None else self.strict_audit.waiting
        waiting += 0 if self.cuts is None else self.cuts.cutting
        return waiting + sum(
            server_queue.running + server_queue.queued
            for server_queue in (*self.server_queues.values(), *self._leaving)
        )

    def cancel_all(self, why: str) -> None:
        """Cancel all calls."""
        for inflight in self.deadlines.pending():
            inflight.cancel(why)

    def stop_waiting(self, why: str) -> None:
        """Refuse calls that wait for a disconnected server, and answer lists without the servers that start."""
        for server_queue in [*self.server_queues.values(), *self._leaving]:
            server_queue.stop_waiting(why)
        for server in tuple(self.settling):
            self.settled(server)

    def refuse_new_calls(self) -> None:
        """Refuse every new call, because the hub is shutting down."""
        self.is_draining = self._may_refuse = True


class _StartAgain:
    """Starts a call again, once: when all lists are loaded, or when the time is over."""

    def __init__(self, hub: Hub, inflight: InFlight, waits: int) -> None:
        self._hub = hub
        self._inflight: InFlight | None = inflight
        self._waits = waits

    def on_loaded(self, _: asyncio.Future[None]) -> None:
        self._waits -= 1
        if not self._waits:
            self.start()

    def start(self) -> None:
        inflight, self._inflight = self._inflight, None
        if inflight is not None and inflight.outcome is None:
            self._hub.start_again(inflight)


def _fail_with_bug(inflight: InFlight, defect: Exception) -> None:
    incident = secrets.token_hex(6)
    ids = inflight.ids()
    log.error("defect while starting a call", incident=incident, tool=inflight.call.name, exc_info=defect, **ids)
    inflight.finish(Bug(incident))


# -- the stages of a call ----------------------------------------------------------------------------------------------

Stage: TypeAlias = Callable[[Hub, InFlight], Outcome | Held | None]


def find(hub: Hub, inflight: InFlight) -> Outcome | Held | None:
    """Look the name up in the caller's own view, which is also what the caller's lists show.

    A denied tool is not in the view: denied and unknown are one answer. If its server was never reached, a caller that
    may use the tool learns that the server is down. While the hub shuts down, every call is refused.
    """
    call = inflight.call
    if hub._may_refuse and (refused := hub.refusal(call.caller)) is not None:
        return refused
    if call.kind == "tool":  # nearly all calls: the short way
        route = hub.snapshot.find_tool(call.caller.grants, call.surface, call.client_caps, call.name)
        if route is None:
            if call.surface.style == "llm":  # only these names have aliases
                route = hub.snapshot.view(call.caller.grants, call.surface, call.client_caps).by_alias(call.name)
            if route is None:
                virtual = hub.snapshot.find_virtual(call.caller.grants, call.surface, call.client_caps, call.name)
                if virtual is not None:
                    return _start_virtual(hub, inflight, virtual)
                return hub.unreached(call.caller.grants, call.surface, call.name) or _unknown(hub, call)
        inflight.route = route
        inflight.name = route.feature.name
        return None
    if hub.cuts is not None and call.kind == "resource" and call.name.startswith(hub.cuts.URI):
        return hub.cuts.read(hub, inflight) or HELD
    view = hub.snapshot.view(call.caller.grants, call.surface, call.client_caps)
    found = view.find(call.kind, call.name)
    if found is None:
        return _unknown(hub, call, view)
    inflight.route, inflight.name = found.route, found.name
    if call.kind == "method":
        server = found.route.feature.server
        server_queue = hub.server_queues.get(server)
        if server_queue is not None and not server_queue.takes_methods:
            # It is not an MCP server, such as functions of this process: answer in its place.
            return ServerError(server, METHOD_NOT_FOUND, f"Method not found: {inflight.name}")
    return None


def _start_virtual(hub: Hub, inflight: InFlight, route: VirtualRoute) -> Outcome | Held | None:
    """Start a call of a tool of the hub itself, or find the tool that it stands for.

    Such names are in no table of routes, so that other calls pay nothing for them.
    """
    call, virtual = inflight.call, route.virtual
    redirected = virtual.redirect(call)
    if isinstance(redirected, Fault):
        return redirected
    if redirected is None:
        inflight.route = route
        if (detail := route.check(call.arguments)) is not None:
            return BadArguments(call.name, detail)
        longest = hub.limits.hard_seconds
        inflight.limit(longest if call.timeout is None else min(call.timeout, longest), hub.deadlines)
        if hub.is_cutting and hub.cuts is not None:
            hub.cuts.watch(inflight)
        virtual.start(inflight)
        return HELD
    inflight.redirect(redirected)
    outcome = find(hub, inflight)
    if not isinstance(outcome, UnknownTool):
        return outcome
    inflight.call = call
    if not call.client_caps or not hub._retry_later(inflight):
        virtual.unknown(inflight, redirected.name)
    return HELD


def _unknown(hub: Hub, call: Call, view: View | None = None) -> Fault:
    about = (call.caller.grants, call.surface)
    match call.kind:
        case "tool":
            # On a surface that says what its lists have, such as that of a script, no setting helps.
            exposure = VIRTUAL_TOOLS.get(call.name, "") if call.surface.expose is None else ""
            is_denied = hub.snapshot.is_denied(*about, "tools", call.name)
            return UnknownTool(call.name, exposure=exposure, is_denied=is_denied)
        case "method":
            return UnknownTool(call.name)
        case "prompt" | "prompt_argument":
            return UnknownPrompt(call.name, is_denied=hub.snapshot.is_denied(*about, "prompts", call.name))
        case "resource" | "uri_argument":
            return UnknownResource(call.name, () if view is None else view.candidates(call.name))
        case "task" | "task_result" | "task_cancel" | "task_update":
            server = call.surface.server
            return UnknownTool(call.name) if server is None else NotConnected(server, "it was removed")


def validate(hub: Hub, inflight: InFlight) -> Fault | None:
    """Add the operator's own arguments, and check all arguments against the tool's own schema.

    `submit` passes arguments that take long to check to the worker.
    """
    route = inflight.route
    assert route is not None  # not `target`: a property costs a function call
    if route.changes is not None:
        changed = route.changes.applied_to(inflight.call)
        if isinstance(changed, str):
            return BadArguments(inflight.call.name, changed)
        inflight.call = changed
    detail = route.check(inflight.call.arguments)
    if detail is None:
        return None
    if detail is EXPENSIVE and hub.validation is not None:
        inflight.carriage = EXPENSIVE
        return None
    return BadArguments(inflight.call.name, detail)


def validate_and_hold(hub: Hub, inflight: InFlight) -> Outcome | Held | None:
    """`validate`, and hold the call if a rule says that a person must allow it first.

    After the arguments are complete, because these are approved; before the cache, because a result is a result.
    """
    call = inflight.call
    if (fault := validate(hub, inflight)) is not None:
        return fault
    if call.is_admitted:
        return None
    assert hub.approvals is not None
    return hub.approvals.check(hub, inflight, call)


def use_cache(hub: Hub, inflight: InFlight) -> Outcome | None:
    """Answer from the cache, where that is allowed; otherwise cache the answer."""
    route = inflight.route
    assert route is not None
    if not route.keep_seconds and inflight.call.kind != "resource":
        return None
    cached = hub.result_cache.find(inflight, hub.now())
    if cached is None:
        inflight.keep = partial(hub.cache_result, hub.result_cache.changes)
    return cached


def use_cache_and_cut(hub: Hub, inflight: InFlight) -> Outcome | None:
    """`use_cache`, and have a large result cut, cached or not. The cache has the whole."""
    cached = use_cache(hub, inflight)
    assert hub.cuts is not None
    assert inflight.route is not None
    # A fleet does that when it knows who answers.
    if not inflight.call.is_admitted and (hub.fleets is None or inflight.route.feature.server not in hub.fleets):
        hub.cuts.watch(inflight)
    return cached


def submit(hub: Hub, inflight: InFlight) -> Fault | None:
    """Start the clock and submit the call to its server's queue, which sends, queues or refuses it.

    Arguments that take long to check go to the worker before that, and every call to the audit log, if it must have it.
    """
    assert inflight.route is not None
    server = inflight.route.feature.server
    server_queue = hub.server_queues.get(server)
    if server_queue is None:
        return NotConnected(server, "it was removed")
    call = inflight.call
    tenant, tenants = call.caller.tenant, hub.tenants
    # The calls of a fleet's members count.
    if tenant != tenants.uncounted and not call.is_admitted and not (hub.fleets is not None and server in hub.fleets):
        if (refused := tenants.enter(tenant, hub.limits.tenant_calls)) is not None:
            return refused
        inflight.counted_by = tenants
    wanted = call.timeout
    # The result of a task may take as long as the task.
    longest = hub.limits.hard_seconds if call.lasts or call.kind == "task_result" else server_queue.timeout
    inflight.limit(longest if wanted is None else min(wanted, longest), hub.deadlines)
    inflight.server_queue = server_queue
    if inflight.carriage is EXPENSIVE:
        assert hub.validation is not None
        inflight.carriage = None
        hub.validation.validate(inflight, hub.submit)
        return None
    if hub.strict_audit is not None:
        hub.strict_audit.begin(inflight, hub.send)
        return None
    return server_queue.submit(inflight)


def charge_and_submit(hub: Hub, inflight: InFlight) -> Fault | Held | None:
    """`submit`, if the budgets of the operator have room for the call. An answer from the cache costs nothing.

    Where several hubs count together, the call may wait until their journal has agreed.
    """
    assert hub.budgets is not None
    refused = None if inflight.call.is_admitted else hub.budgets.charge(hub, inflight, _submit_charged)
    return refused or submit(hub, inflight)


def _submit_charged(hub: Hub, inflight: InFlight) -> None:
    """Submit a call that waited for its charge, unless it has ended."""
    if inflight.is_done:
        return
    try:
        if (fault := submit(hub, inflight)) is not None:
            inflight.finish(fault)
    except Exception as defect:  # noqa: BLE001 - as in `start`
        _fail_with_bug(inflight, defect)


STAGES: tuple[Stage, ...] = (find, validate, use_cache, submit)


def stages_of(hub: Hub) -> tuple[Stage, ...]:
    """The stages of a hub's calls: approvals, limits of results and budgets each give one of them more to do."""
    return (
        find,
        validate if hub.approvals is None else validate_and_hold,
        use_cache_and_cut if hub.is_cutting else use_cache,
        submit if hub.budgets is None else charge_and_submit,
    )
