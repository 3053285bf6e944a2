"""The hub: where calls start. Faces, the library and the command line reach servers only through it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import structlog

from isthmus.core.calls.deadlines import Deadlines
from isthmus.core.calls.inflight import InFlight
from isthmus.core.calls.lane import Lane
from isthmus.core.calls.recall import Recall
from isthmus.core.calls.stages import STAGES
from isthmus.core.catalog.checks import CheckCache
from isthmus.core.catalog.snapshot import Snapshot, Standing
from isthmus.core.catalog.view import View
from isthmus.core.ports.exchange import Exchange
from isthmus.core.ports.recorder import Recorder
from isthmus.core.settings import Limits
from isthmus.core.watch.levels import Levels
from isthmus.core.watch.subscriptions import Subscriptions
from isthmus.model.callers import Grants
from isthmus.model.calls import Call, Surface
from isthmus.model.faults import Bug
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome

log = structlog.get_logger(__name__)


class Hub:
    """Holds the one snapshot and the lanes; starts calls and tells watchers when the snapshot changes."""

    def __init__(self, limits: Limits, recorder: Recorder) -> None:
        self.limits = limits
        self.lanes: dict[ServerName, Lane] = {}
        self._leaving: set[Lane] = set()
        """Lanes that were closed or replaced and still have calls."""
        self.is_draining = False
        self._recorder = recorder
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.deadlines = Deadlines(self._loop)
        self.recall = Recall()
        self.subscriptions = Subscriptions()
        self.levels = Levels()
        self._checks = CheckCache(limit_bytes=limits.schema_bytes)
        self.snapshot = Snapshot(0, {}, self._checks)
        self._settling: dict[ServerName, asyncio.Future[None]] = {}
        self._watchers: set[Callable[[], None]] = set()

    # -- calls ---------------------------------------------------------------------------------------------------

    def start(self, call: Call, exchange: Exchange) -> InFlight:
        """Start a call. It may have ended when this returns; `exchange.end` is called exactly once either way."""
        inflight = InFlight(call, exchange, self._recorder, self._loop)
        try:
            for stage in STAGES:
                if (outcome := stage(self, inflight)) is not None:
                    inflight.finish(outcome)
                    break
        except Exception:  # a defect here must cost one call, not the connection that brought it
            incident = secrets.token_hex(6)
            log.exception("defect while starting a call", incident=incident, tool=call.name)
            inflight.finish(Bug(incident))
        return inflight

    def keep(self, inflight: InFlight, outcome: Outcome) -> None:
        """Remember how a call ended, if it may be given again and its server is still the same."""
        if inflight.lane is self.lanes.get(inflight.target.feature.server):
            self.recall.keep(inflight, outcome, inflight.target.keep_seconds, self.now())

    # -- servers -------------------------------------------------------------------------------------------------

    def open_lane(self, lane: Lane, standing: Standing, *, is_awaited: bool = True) -> None:
        """Make room for a server, or for a changed one in place of what it was.

        If it is awaited, listings and calls wait a moment for it until its first attempt has ended.
        """
        self._leave(self.lanes.get(lane.server))
        self.lanes[lane.server] = lane
        if is_awaited and not standing.is_settled:
            self._settling[lane.server] = self._loop.create_future()
        self.publish(standing)

    def close_lane(self, server: ServerName) -> None:
        """Forget a server: from now on nobody sees it. Its calls in flight are not touched."""
        self._leave(self.lanes.pop(server))
        self.recall.forget(server)
        if (settling := self._settling.pop(server, None)) is not None:
            settling.set_result(None)
        self._swap({name: standing for name, standing in self.snapshot.standings.items() if name != server})

    def _leave(self, lane: Lane | None) -> None:
        self._leaving = {left for left in self._leaving if left.running or left.queued}
        if lane is not None:
            self._leaving.add(lane)

    def publish(self, standing: Standing) -> None:
        """Swap in a snapshot with this server's new standing, and tell the watchers."""
        if standing.is_settled and (settling := self._settling.pop(standing.server, None)) is not None:
            settling.set_result(None)
        if self.snapshot.standings.get(standing.server) == standing:
            return
        self._swap({**self.snapshot.standings, standing.server: standing})

    def _swap(self, standings: dict[ServerName, Standing]) -> None:
        self.snapshot = Snapshot(self.snapshot.version + 1, standings, self._checks)
        for watcher in tuple(self._watchers):
            try:
                watcher()
            except Exception:  # one broken watcher must not keep the others, or the supervisor, from the news
                log.exception("a watcher of the snapshot failed")

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every swap, until the returned function is called."""
        self._watchers.add(callback)
        return lambda: self._watchers.discard(callback)

    def is_settling(self) -> bool:
        """Whether some server's first attempt to connect still runs."""
        return bool(self._settling)

    async def settle(self, surface: Surface) -> None:
        """Wait for first attempts to end: for each server at most `listing_seconds` after it was added."""
        now = self._loop.time()
        waits = {
            settling: self.lanes[server].opened_at + self.limits.listing_seconds - now
            for server, settling in self._settling.items()
            if surface.server in (None, server)
        }
        pending = [settling for settling, seconds in waits.items() if seconds > 0]
        if pending:
            await asyncio.wait(pending, timeout=max(waits.values()))

    async def view(self, grants: Grants, surface: Surface) -> View:
        """What these permissions see now, after a moment's patience with servers that are only starting."""
        if self._settling:
            await self.settle(surface)
        return self.snapshot.view(grants, surface)

    # -- going away ----------------------------------------------------------------------------------------------

    def running(self) -> int:
        """Calls sent or waiting for a slot."""
        return sum(lane.running + lane.queued for lane in (*self.lanes.values(), *self._leaving))

    def cancel_all(self, why: str) -> None:
        """Withdraw every call that is still in flight; each is answered so."""
        for inflight in self.deadlines.everything():
            inflight.cancel(why)

    def refuse_new_calls(self) -> None:
        """From now on every new call is told that the hub is shutting down."""
        self.is_draining = True
