"""Telling an agent that nobody waits for a task any more. What it answers is of no interest; made by the link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from isthmus.model.conversation import Update
from isthmus.model.faults import Fault
from isthmus.upstream.agent.visit import Visit

FAREWELL_SECONDS = 10.0
"""How long an agent may take to hear it."""


class Farewell:
    """Waits until an agent has heard that a task is given up, or long enough."""

    def __init__(self, on_done: Callable[[Farewell], None]) -> None:
        self._on_done = on_done
        self._visit: Visit | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, visit: Visit) -> None:
        """Wait for the answer."""
        self._visit = visit
        self._timer = asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self.end)

    @property
    def has_left(self) -> bool:
        """Whether the agent may have heard it."""
        return self._visit is not None and self._visit.may_have_left

    def heard(self, update: Update, *, is_whole: bool) -> None:
        """See `VisitOwner`."""
        self.end()

    def ended(self) -> None:
        """See `VisitOwner`."""
        self.end()

    def failed(self, fault: Fault) -> None:
        """See `VisitOwner`; it may have ended by itself."""
        self.end()

    def end(self) -> None:
        """Wait no longer."""
        if self._timer is not None:
            self._timer.cancel()
        if self._visit is not None:
            self._visit.abandon()
        if not self.done.done():
            self.done.set_result(None)
        self._on_done(self)
