"""Measures how late the event loop runs, and names the code that held it.

A timer fires on the loop at a fixed interval. If it fires late, something held the loop: meanwhile no deadline, ping or
health check ran. A watchdog thread notices the missing beat and samples the loop's stack, so that the log names the
code. `app.serve` starts one monitor; REST shows its figures to operators.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from typing import Any

import structlog

from isthmus.core.histograms import WRITE_BOUNDS, Histogram

log = structlog.get_logger(__name__)

BEAT_SECONDS = 0.02
"""Fifty beats a second cost an idle hub 0.05 % of a core."""

BUSY_BEAT_SECONDS = 0.005
"""While the loop works, more beats tell one long piece of work from several short ones; they cost 0.2 % of a core."""

WORKING_SECONDS = 0.001
"""A loop that used more processor time since the last beat works."""

HELD_SECONDS = 0.05
"""Longer work on the loop is counted."""

WATCH_SECONDS = 0.1
NAMED_SECONDS = 0.25
"""Longer work is logged, with the code that held the loop."""

WINDOW_BEATS = 3_000
"""The beats of the last minute, for the maximum."""

FRAMES_SHOWN = 4

BUSY_BOUNDS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the histogram of pieces of work, in seconds."""


class LoopMonitor:
    """Measures the running loop from `start` to `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._due = 0.0
        self._period = BEAT_SECONDS
        self._cpu = 0.0
        self._recent: deque[tuple[float, float]] = deque()
        """Late beats of the last minute: time and lag."""
        self._holder: str | None = None
        self.last_seconds = 0.0
        self.lag = Histogram(WRITE_BOUNDS)
        self.busy_seconds_max = 0.0
        """The most CPU time of the loop's thread between two beats, since the start."""
        self.held = 0
        """How often the loop was held for more than 50 ms."""
        self._busy = [0] * (len(BUSY_BOUNDS) + 1)
        """A histogram of the CPU time between two beats; the last bin has no upper bound."""

    def start(self) -> None:
        """Start measuring."""
        self._cpu = time.thread_time()
        self._schedule()
        threading.Thread(target=self._watch, name="event loop watchdog", daemon=True).start()

    def close(self) -> None:
        """Stop measuring."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def figures(self) -> dict[str, Any]:
        """The figures for operators."""
        self._drop_old(self._loop.time())
        return {
            "lag_seconds": round(self.last_seconds, 6),
            "lag_seconds_max": round(max((late for _, late in self._recent), default=self.last_seconds), 6),
            "busy_seconds_max": round(self.busy_seconds_max, 6),
            "held": self.held,
            "busy_over": {f"{bound:g}": sum(self._busy[at + 1 :]) for at, bound in enumerate(BUSY_BOUNDS)},
        }

    def _schedule(self, seconds: float = BEAT_SECONDS) -> None:
        self._period = seconds
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        now, cpu = self._loop.time(), time.thread_time()
        late, busy = max(0.0, now - self._due), cpu - self._cpu
        self._cpu, self.last_seconds = cpu, late
        self.lag.observe(late)
        self.busy_seconds_max = max(self.busy_seconds_max, busy)
        if busy > BUSY_BOUNDS[0]:
            self._busy[bisect_left(BUSY_BOUNDS, busy)] += 1
        if late > BEAT_SECONDS:
            self._recent.append((now, late))
            self._drop_old(now)
        # CPU time counts, so that a busy machine is not mistaken for a fault of the hub.
        # Work that began right after a beat delays the next one by its length less the time between beats.
        if busy > HELD_SECONDS and late > HELD_SECONDS - self._period:
            self.held += 1
        if self._holder is not None:
            if busy > NAMED_SECONDS:
                log.warning(
                    "the event loop was blocked", seconds=round(late, 3), busy=round(busy, 3), where=self._holder
                )
            self._holder = None
        self._schedule(BUSY_BEAT_SECONDS if busy > WORKING_SECONDS else BEAT_SECONDS)

    def _drop_old(self, now: float) -> None:
        while self._recent and (self._recent[0][0] < now - 60.0 or len(self._recent) > WINDOW_BEATS):
            self._recent.popleft()

    def _watch(self) -> None:
        while not self._stopped.wait(WATCH_SECONDS):
            if self._holder is not None or self._loop.time() - self._due <= NAMED_SECONDS - WATCH_SECONDS:
                continue
            # The current stack of the loop's thread, innermost first.
            frame = sys._current_frames().get(self._thread_id)
            places: list[str] = []
            while frame is not None and len(places) < FRAMES_SHOWN:
                module = frame.f_globals.get("__name__", "?")
                if module != __name__:
                    places.append(f"{module}.{frame.f_code.co_name}:{frame.f_lineno}")
                frame = frame.f_back
            self._holder = " < ".join(places) or "unknown"
