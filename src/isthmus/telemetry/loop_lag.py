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
from collections import deque
from typing import Any

import structlog

log = structlog.get_logger(__name__)

BEAT_SECONDS = 0.02
"""Fifty beats a second cost 0.05 % of a core."""

HELD_SECONDS = 0.05
"""Longer work on the loop is counted."""

WATCH_SECONDS = 0.1
NAMED_SECONDS = 0.25
"""Longer work is logged, with the code that held the loop."""

WINDOW_BEATS = 3_000
"""The beats of the last minute, for the maximum."""

FRAMES_SHOWN = 4


class LoopMonitor:
    """Measures the running loop from `start` to `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._due = 0.0
        self._cpu = 0.0
        self._recent: deque[tuple[float, float]] = deque()
        """Late beats of the last minute: time and lag."""
        self._holder: str | None = None
        self.last_seconds = 0.0
        self.busy_seconds_max = 0.0
        """The most CPU time of the loop's thread between two beats, since the start."""
        self.held = 0
        """How often the loop was held for more than 50 ms."""

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
        }

    def _schedule(self) -> None:
        self._due = self._loop.time() + BEAT_SECONDS
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        now, cpu = self._loop.time(), time.thread_time()
        late, busy = max(0.0, now - self._due), cpu - self._cpu
        self._cpu, self.last_seconds = cpu, late
        self.busy_seconds_max = max(self.busy_seconds_max, busy)
        if late > BEAT_SECONDS:
            self._recent.append((now, late))
            self._drop_old(now)
        # CPU time counts, so that a busy machine is not mistaken for a fault of the hub.
        if min(late, busy) > HELD_SECONDS:
            self.held += 1
        if self._holder is not None:
            if busy > NAMED_SECONDS:
                log.warning("the event loop was held", seconds=round(late, 3), busy=round(busy, 3), where=self._holder)
            self._holder = None
        self._schedule()

    def _drop_old(self, now: float) -> None:
        while self._recent and (self._recent[0][0] < now - 60.0 or len(self._recent) > WINDOW_BEATS):
            self._recent.popleft()

    def _watch(self) -> None:
        while not self._stopped.wait(WATCH_SECONDS):
            if self._holder is None and self._loop.time() - self._due > NAMED_SECONDS - WATCH_SECONDS:
                self._holder = self._current_stack()

    def _current_stack(self) -> str:
        """The current stack of the loop's thread, innermost first."""
        frame = sys._current_frames().get(self._thread_id)
        places: list[str] = []
        while frame is not None and len(places) < FRAMES_SHOWN:
            module = frame.f_globals.get("__name__", "?")
            if module != __name__:
                places.append(f"{module}.{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        return " < ".join(places) or "unknown"
