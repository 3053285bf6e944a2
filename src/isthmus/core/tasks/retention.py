"""Takes away what need not be kept any longer: tasks that ended long ago, what was sent of them, and old keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

import structlog

from isthmus.core.ports.journal import Journal
from isthmus.core.tasks.engine import Engine, Now
from isthmus.core.tasks.pushes import DELIVERY, STATES
from isthmus.core.tasks.record import TASK
from isthmus.core.tasks.repeats import KEPT_SECONDS, REPEAT
from isthmus.model.conversation import ENDED

log = structlog.get_logger(__name__)

EVERY_SECONDS = (1.0, 3600.0)
"""How long at least, and at most, until it is looked again; in between, as long as ended tasks are kept."""

BATCH = 500
"""What is taken away at once: more would keep those waiting who write."""

UNANSWERED: tuple[str, ...] = ("input_required", "auth_required")
UNANSWERED_SECONDS = 24 * 3600.0
"""How long at least a task waits for its caller's next message. A running call never waits nearly so long."""


def pause_seconds(keep: float) -> float:
    """How long until it is looked again, where ended tasks are kept for so long."""
    least, most = EVERY_SECONDS
    return min(most, max(least, keep))


class Retention:
    """Looks through the journal at the start, and then again and again. `keep` says how long ended tasks are kept now.

    So what is kept for a short time is there for twice that, at most.
    """

    def __init__(self, engine: Engine, journal: Journal, now: Now, keep: Callable[[], float]) -> None:
        self._engine = engine
        self._journal = journal
        self._now = now
        self._keep = keep
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            try:
                await self.prune()
            except OSError as error:
                log.warning("what is no longer needed could not be taken away", error=str(error))
            await self._pause()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), pause_seconds(self._keep()))
        self._wake.clear()

    def look_again(self) -> None:
        """Look at once: how long tasks are kept may have changed."""
        self._wake.set()

    async def prune(self) -> int:
        """Take away what is due; return how much that was."""
        now = self._now()
        ended, waiting = now - self._keep(), now - max(self._keep(), UNANSWERED_SECONDS)
        count = await self._all(TASK, ENDED, ended)
        count += await self._all(TASK, UNANSWERED, waiting)
        self._engine.forget_before(ended, waiting)
        count += await self._all(DELIVERY, STATES, ended)
        return count + await self._all(REPEAT, ("",), now - KEPT_SECONDS)

    async def _all(self, kind: str, states: Collection[str], before: float) -> int:
        count = 0
        while taken := await self._journal.prune(kind, states, before=before, limit=BATCH):
            count += taken
        return count
