"""Tasks whose servers are disconnected: their calls wait here, outside of the server's queue.

The journal stores each as not sent, so that the next hub can send it after a crash. That it may have been sent is
stored before it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.tasks.live_task import LiveTask, ShutdownListener
from isthmus.core.tasks.record import PendingCall, TaskOwner
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Call, Surface
from isthmus.model.fault_table import Fault, NotConnected, TimedOut, UnknownTool
from isthmus.model.names import ServerName

FindCaller: TypeAlias = Callable[[TaskOwner], Caller | None]

OnServerNews: TypeAlias = Callable[[LiveTask, ServerQueue | None], None]
"""Called for a waiting task: with its server's queue if that has news, or with None after some time."""

CHECK_SECONDS = 5.0
"""How often a task that the previous hub left checks whether its server is connected."""

NO_GRANTS = Grants(())
"""Permissions are not stored with a call, but looked up when it is sent."""


class OfflineQueue:
    """The tasks that wait for their servers."""

    def __init__(self, hub: Hub, now: Callable[[], float], on_news: OnServerNews) -> None:
        self._hub = hub
        self._now = now
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self._stops: dict[LiveTask, Callable[[], None]] = {}
        self.find_caller: FindCaller | None = None
        """The owner with its present permissions; without it, a task keeps the permissions it started with."""
        self.is_closed = False
        """All waiting tasks are left to the next hub."""

    def __contains__(self, live: LiveTask) -> bool:
        return live in self._stops

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, live: LiveTask, server_queue: ServerQueue, seconds: float) -> None:
        """Call `on_news` once: when the server's link has news, or after some seconds."""
        self.stop(live)
        if self.is_closed:
            return

        def stop() -> None:
            timer.cancel()
            unwatch()

        def end(news: ServerQueue | None) -> None:
            if self._stops.get(live) is stop:
                self.stop(live)
                self._on_news(live, news)

        timer = self._loop.call_later(seconds, end, None)
        unwatch = server_queue.watch_link(end)
        self._stops[live] = stop

    def stop(self, live: LiveTask) -> None:
        """Stop waiting, without calling `on_news`."""
        if (stop := self._stops.pop(live, None)) is not None:
            stop()

    def close(self, lives: Iterable[LiveTask]) -> None:
        """Leave these tasks to the next hub and notify callers that wait for them."""
        self.is_closed = True
        for live in lives:
            self.stop(live)
            for listener in list(live.listeners):
                if isinstance(listener, ShutdownListener):
                    listener.left()

    # -- what is stored of an unsent call ------------------------------------------------------------------------------

    def put_back(self, live: LiveTask, inflight: InFlight) -> PendingCall | None:
        """Let a call wait that its server's queue could not send; None if it must wait in that queue."""
        if live.call is None or inflight.server_queue is None or live.record.is_terminal:
            return None
        self._wait(live, inflight.server_queue, self._seconds_left(live, live.call))
        pending, server = self.pending(live, inflight), inflight.server_queue.server
        if pending.server == server:
            return pending
        # The server was renamed while the call was queued.
        return self.rename(live, msgspec.structs.replace(pending, agent=self._agent_of(server)), server)

    def pending(self, live: LiveTask, inflight: InFlight) -> PendingCall:
        """What to store of a call that was not sent."""
        # A call has no route while the server's lists for the caller's capabilities are being loaded.
        server = ServerName("") if inflight.route is None else inflight.route.feature.server
        unsent = _without_grants(live.call or inflight.call)
        return PendingCall(unsent, server, self._agent_of(server), inflight.name, live.since, live.waits_for_login)

    def rename(self, live: LiveTask, pending: PendingCall, server: ServerName) -> PendingCall:
        """The pending call of a task whose server has a new name. A call of a set is looked up there again."""
        if live.call is not None and live.call.set is None:
            live.call = msgspec.structs.replace(live.call, surface=Surface("own", server), name=pending.name)
        unsent = pending.call if live.call is None else _without_grants(live.call)
        return msgspec.structs.replace(pending, call=unsent, server=server)

    # -- what to do next -----------------------------------------------------------------------------------------------

    def next_step(self, live: LiveTask) -> Call | Fault | None:
        """The call of a waiting task if it can be started now, the fault that ends it, or None if it must wait."""
        call, pending = self._call_of(live), live.record.pending
        if self.is_closed or self._hub.is_draining or pending is None:
            return None
        if call is None:  # the same answer as for a caller that may not see the tool
            return UnknownTool(pending.call.name)
        if (left := self._seconds_left(live, call)) <= 0:
            return TimedOut(pending.server, self._seconds(call), executed="no")
        server_queue = self._hub.server_queues.get(pending.server)
        if server_queue is not None and self._agent_of(pending.server) != pending.agent:
            return NotConnected(pending.server, "it is gone, and another server has its name")
        if live.is_left and server_queue is not None and not server_queue.has_link and not server_queue.grace:
            # It is configured, and perhaps only starting. A reload may replace this queue.
            self._wait(live, server_queue, min(left, CHECK_SECONDS))
            return None
        return msgspec.structs.replace(call, timeout=left)

    def _agent_of(self, server: ServerName) -> str | None:
        server_status = self._hub.snapshot.server_statuses.get(server)
        return None if server_status is None else server_status.agent

    def _call_of(self, live: LiveTask) -> Call | None:
        """The task's call with its caller's present permissions; None if the caller is unknown."""
        if live.call is None or self.find_caller is None:
            return live.call
        caller = self.find_caller(live.record.owner)
        if caller is None:
            return None
        frontend = live.call.caller.frontend
        return msgspec.structs.replace(live.call, caller=caller if frontend is None else caller.at_large.on(frontend))

    def _seconds(self, call: Call) -> float:
        hard = self._hub.limits.hard_seconds
        return hard if call.timeout is None else min(call.timeout, hard)

    def _seconds_left(self, live: LiveTask, call: Call) -> float:
        return self._seconds(call) - (self._now() - live.since)


def _without_grants(call: Call) -> Call:
    grants = NO_GRANTS if call.caller.grants.set is None else Grants((), set=call.caller.grants.set)
    return msgspec.structs.replace(call, caller=msgspec.structs.replace(call.caller, grants=grants))
