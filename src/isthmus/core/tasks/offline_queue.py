"""Tasks whose calls were not sent: what the journal keeps of them, and those whose servers are away.

A call waits in its server's lane for a slot, or in its pool for a link; that of a task whose server is away waits here,
outside the lane. The journal has each of them as not sent, so after a crash it is known that it did not run: the next
hub sends it. That it may have been sent is kept before it is. The engine asks, and does what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.tasks.draft import Leaving
from isthmus.core.tasks.record import Owner, Pending
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Call, Surface
from isthmus.model.faults import Fault, NotConnected, TimedOut, UnknownTool
from isthmus.model.names import ServerName

if TYPE_CHECKING:
    from isthmus.core.tasks.engine import Engine
    from isthmus.core.tasks.live import Live

FindCaller: TypeAlias = Callable[[Owner], Caller | None]
OnEnd: TypeAlias = Callable[[ServerQueue | None], None]

LOOK_SECONDS = 5.0
"""How often it is looked again whether the server of a task that the hub before left is there."""

NO_GRANTS = Grants(())
"""What a caller may do is not kept with its call, but looked up when that is sent."""


class Wait:
    """Ends once: when a lane has news of its link, or after some seconds; then `then` is called, unless it stopped.

    It is given the lane that has news, if it is that.
    """

    __slots__ = ("_is_over", "_take_back", "_then", "_timer")

    def __init__(self, server_queue: ServerQueue, seconds: float, then: OnEnd) -> None:
        self._is_over = False
        self._then = then
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end, None)
        self._take_back = server_queue.tell_of_link(self._end)

    def _end(self, server_queue: ServerQueue | None) -> None:
        if not self._is_over:
            self.stop()
            self._then(server_queue)

    def stop(self) -> None:
        """Wait no more."""
        self._is_over = True
        self._timer.cancel()
        self._take_back()


class Waits:
    """All that wait."""

    def __init__(self, engine: Engine, hub: Hub) -> None:
        self._engine = engine
        self._hub = hub
        self.find_caller: FindCaller | None = None
        """Who an owner is now, and what it may do; without it, who began a task may do what it could then."""
        self.are_left = False
        """Whether all that waits is left to the hub that comes next."""

    def put_back(self, live: Live, inflight: InFlight) -> Pending | None:
        """Have a call wait that its lane could not send: what is to be kept of it; None if it is to wait there."""
        if live.call is None or inflight.server_queue is None or live.record.is_ended:
            return None
        self._wait(live, inflight.server_queue, self._seconds_left(live, live.call))
        pending, server = self.pending(live, inflight), inflight.server_queue.server
        if pending.server == server:
            return pending
        # It was renamed while the call was queued.
        pending = msgspec.structs.replace(pending, agent=self._agent_of(server))
        return self.rename(live, pending, server)

    def pending(self, live: Live, inflight: InFlight) -> Pending:
        """What is to be kept of a call that was not sent."""
        # What is put off until its server has listed it for such callers has no server yet.
        server = ServerName("") if inflight.route is None else inflight.route.feature.server
        unsent = _without_grants(live.call or inflight.call)
        return Pending(unsent, server, self._agent_of(server), inflight.name, live.since, live.waits_for_login)

    def _agent_of(self, server: ServerName) -> str | None:
        server_status = self._hub.snapshot.server_statuses.get(server)
        return None if server_status is None else server_status.agent

    def rename(self, live: Live, pending: Pending, server: ServerName) -> Pending:
        """Have a task wait for its server by the name that this has now; what is to be kept of that."""
        if live.call is not None:
            live.call = msgspec.structs.replace(live.call, surface=Surface("own", server), name=pending.name)
        unsent = pending.call if live.call is None else _without_grants(live.call)
        return msgspec.structs.replace(pending, call=unsent, server=server)

    def check(self, pending: Pending) -> Fault | None:
        """Why a call must not be sent now: its server's name is another's."""
        if self._agent_of(pending.server) == pending.agent or pending.server not in self._hub.server_queues:
            return None
        return NotConnected(pending.server, "it is gone, and another server has its name")

    def look(self, live: Live) -> Call | Fault | None:
        """The call of a task that waits, if it is to be started now, or why it cannot be; None if it is to wait on."""
        call, pending = self._call_of(live), live.record.pending
        if self.are_left or self._hub.is_draining or pending is None:
            return None
        if call is None:  # the same answer as if the caller were there and might not see it
            return UnknownTool(pending.call.name)
        if (left := self._seconds_left(live, call)) <= 0:
            return TimedOut(pending.server, self._seconds(call), executed="no")
        if (fault := self.check(pending)) is not None:
            return fault
        server_queue = self._hub.server_queues.get(pending.server)
        if live.is_left and server_queue is not None and not server_queue.has_link and not server_queue.grace:
            # It is configured, and only starting perhaps. Another lane may come in the place of this one.
            self._wait(live, server_queue, min(left, LOOK_SECONDS))
            return None
        return msgspec.structs.replace(call, timeout=left)

    def _wait(self, live: Live, server_queue: ServerQueue, seconds: float) -> None:
        self.stop(live)
        if not self.are_left:
            live.wait = Wait(server_queue, seconds, partial(self._engine.go_on, live))

    def stop(self, live: Live) -> None:
        """Have a task wait no more."""
        wait, live.wait = live.wait, None
        if wait is not None:
            wait.stop()

    def leave(self, lives: Iterable[Live]) -> None:
        """Leave all that waits to the hub that comes next, and tell those who stand and wait for it."""
        self.are_left = True
        for live in lives:
            self.stop(live)
            for listener in list(live.listeners):
                if isinstance(listener, Leaving):
                    listener.left()

    def _call_of(self, live: Live) -> Call | None:
        """The call of a task with its caller as it is known now; None if it is not."""
        if live.call is None or self.find_caller is None:
            return live.call
        caller = self.find_caller(live.record.owner)
        if caller is None:
            return None
        face = live.call.caller.face
        return msgspec.structs.replace(live.call, caller=caller if face is None else caller.at_large.on(face))

    def _seconds(self, call: Call) -> float:
        hard = self._hub.limits.hard_seconds
        return hard if call.timeout is None else min(call.timeout, hard)

    def _seconds_left(self, live: Live, call: Call) -> float:
        return self._seconds(call) - (self._engine.now() - live.since)


def _without_grants(call: Call) -> Call:
    return msgspec.structs.replace(call, caller=msgspec.structs.replace(call.caller, grants=NO_GRANTS))
