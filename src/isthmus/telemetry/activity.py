"""The last calls of a hub, and a feed of new ones. REST shows them to operators; `app.hub` creates the recorder."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports import AuditGate, EndedCall, Recorder
from isthmus.model.calls import Outcome
from isthmus.model.faults import Fault
from isthmus.model.names import ServerName

KEPT_CALLS = 500
"""How many calls are remembered: names and a sentence each, no arguments and no results; about 200 KB."""

FEED_SECONDS = 0.1
"""New calls reach a feed this often, however many there are."""

Feed: TypeAlias = Callable[[Sequence[EndedCall]], None]


class RecentCalls:
    """A recorder that remembers the last calls, and forwards each call to another recorder."""

    audit_gate: AuditGate | None = None

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.started = recorder.started
        self.waited = recorder.waited
        self.late = recorder.late
        self._count = 0
        self._calls: deque[EndedCall] = deque(maxlen=KEPT_CALLS)
        self._feeds: list[Feed] = []
        self._fed = 0
        """The number of the last call that the feeds have."""
        self._timer: asyncio.TimerHandle | None = None

    def ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Remember and forward the end of a call."""
        self._recorder.ended(inflight, server, outcome, seconds)
        self._count += 1
        call = inflight.call
        # At `/mcp/{server}` a name has no server in front.
        name = f"{call.surface.server}.{call.name}" if call.surface.style == "own" else call.name
        caller = call.caller
        about = (self._count, time.time(), seconds, caller.name, caller.tenant, call.frontend, call.kind, name)
        if isinstance(outcome, Fault):
            ended = EndedCall(*about, server or outcome.server, outcome.reason, outcome.executed, outcome.message)
        else:
            ended = EndedCall(*about, server, "tool_error" if outcome.is_error else "result", "yes", None)
        self._calls.append(ended)
        if self._feeds and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FEED_SECONDS, self._feed)

    def latest(self, count: int) -> list[EndedCall]:
        """At most so many of the last calls, the oldest first."""
        return list(islice(self._calls, max(0, len(self._calls) - count), None))

    def follow(self, feed: Feed) -> Callable[[], None]:
        """Pass new calls to `feed` in batches, until the returned function is called."""
        if not self._feeds:
            self._fed = self._count
        self._feeds.append(feed)
        return lambda: self._feeds.remove(feed)

    def _feed(self) -> None:
        self._timer = None
        calls = self.latest(self._count - self._fed)
        self._fed = self._count
        for feed in list(self._feeds):
            feed(calls)
