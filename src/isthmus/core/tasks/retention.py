"""How long tasks are stored: deletes ended and abandoned ones, their deliveries, and expired idempotency keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

import structlog

from isthmus.core.ports import Journal
from isthmus.core.tasks.push_delivery import DELIVERY, STATES
from isthmus.core.tasks.record import DEDUP_KEY, KEY_SECONDS, TASK
from isthmus.model.tasks import ENDED

log = structlog.get_logger(__name__)

BATCH = 500
"""Documents deleted at once: more would delay other writers."""

RETENTION_SECONDS = (1.0, 3600.0)
"""The shortest and the longest pause of `Retention`; in between, it is as long as ended tasks are stored."""

UNANSWERED: tuple[str, ...] = ("input_required", "auth_required")
UNANSWERED_SECONDS = 8 * 24 * 3600.0
"""The shortest time that a task waits for its caller's next message, or for an operator: a day longer than a question
of a running call may stay open, or a request for approval."""


def pause_seconds(keep: float) -> float:
    """How long `Retention` pauses if ended tasks are stored for `keep` seconds."""
    least, most = RETENTION_SECONDS
    return min(most, max(least, keep))


class Retention:
    """Deletes tasks that ended long ago, their deliveries, and expired idempotency keys, again and again.

    `keep` returns how long ended tasks are stored now; `on_pruned` receives the times before which ended and
    unanswered tasks were deleted. A short time is exceeded by up to once its length.
    """

    def __init__(
        self,
        journal: Journal,
        now: Callable[[], float],
        keep: Callable[[], float],
        on_pruned: Callable[[float, float], None],
    ) -> None:
        self._journal = journal
        self._now = now
        self._keep = keep
        self._on_pruned = on_pruned
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.prune()
            except OSError as error:
                log.warning("old tasks could not be deleted", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    pause_seconds(self._keep())
                ):  # not `wait_for`: on 3.11 it can swallow a cancellation
                    await self._wake.wait()
            self._wake.clear()

    def look_again(self) -> None:
        """Prune now: `keep` may have changed."""
        self._wake.set()

    async def prune(self) -> int:
        """Delete what is old; return how many documents."""
        now = self._now()
        ended, waiting = now - self._keep(), now - max(self._keep(), UNANSWERED_SECONDS)
        count = await self._prune_all(TASK, ENDED, ended)
        count += await self._prune_all(TASK, UNANSWERED, waiting)
        self._on_pruned(ended, waiting)
        count += await self._prune_all(DELIVERY, STATES, ended)
        return count + await self._prune_all(DEDUP_KEY, ("",), now - KEY_SECONDS)

    async def _prune_all(self, kind: str, states: Collection[str], before: float) -> int:
        count = 0
        while deleted := await self._journal.prune(kind, states, before=before, limit=BATCH):
            count += deleted
        return count
