"""When calls time out: one timer for all of them instead of one each.

A wheel of buckets, each a twentieth of a second wide: a call is put into the bucket in which it expires and removed
when it ends. Both are dictionary operations; a timer of the loop costs ten times as much to start and to cancel, and
nearly all are cancelled.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

import structlog

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.05
"""How late a deadline may be noticed; never early."""


class Expiring(Protocol):
    """Something with a deadline."""

    def expire(self) -> None:
        """The deadline has passed."""

    def cancel(self, why: str) -> None:
        """Cancel it."""


Bucket: TypeAlias = dict[Expiring, None]


class Deadlines:
    """The deadlines of all calls of one hub."""

    __slots__ = ("_buckets", "_loop", "_ticks", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, Bucket] = {}
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, expiring: Expiring, seconds: float) -> Bucket:
        """Call `expire` in this many seconds, unless it is removed from the returned bucket before."""
        now = self._loop.time()
        due = int((now + seconds) / TICK_SECONDS) + 1
        bucket = self._buckets.get(due)
        if bucket is None:
            bucket = self._buckets[due] = {}
        bucket[expiring] = None
        if self._timer is None:
            self._ticks = int(now / TICK_SECONDS)
            self._timer = self._loop.call_later(TICK_SECONDS, self._turn)
        return bucket

    def pending(self) -> list[Expiring]:
        """Whatever has a deadline that has not come."""
        return [expiring for bucket in self._buckets.values() for expiring in bucket]

    def _turn(self) -> None:
        """Expire what is due, and continue while there is anything to wait for."""
        now = int(self._loop.time() / TICK_SECONDS)
        for tick in range(self._ticks + 1, now + 1):
            for expiring in list(self._buckets.pop(tick, ())):
                try:
                    expiring.expire()
                except Exception:  # one call's defect must not stop the clock of all the others
                    log.exception("a call failed to expire")
        self._ticks = now
        self._timer = self._loop.call_later(TICK_SECONDS, self._turn) if self._buckets else None
