"""Figures that are counted where things happen, and that telemetry reads: histograms, and the writes of a journal."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

CALL_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""Upper bounds in seconds. From 10 ms on they are those of OpenTelemetry's conventions for MCP; the hub's own share of
a call is below that."""

WRITE_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds for writes of the journal and for the lag of the event loop."""


class Histogram:
    """Counts observations; the last bucket has no upper bound."""

    __slots__ = ("bounds", "buckets", "sum")

    def __init__(self, bounds: tuple[float, ...] = CALL_BOUNDS) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """All observations."""
        return sum(self.buckets)


class WriteMetrics:
    """The writes of a journal: how many wait, how long they took, and how they ended. On the event loop only."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: deque[float] = deque()
        """When each write that has not ended began; they end in this order."""
        self.seconds = Histogram(WRITE_BOUNDS)
        """How long the oldest write of each transaction took, from when it was queued."""
        self.results: dict[str, int] = {"kept": 0, "conflict": 0, "refused": 0, "unknown": 0}
        """Writes by `core.journal.WriteResult`."""

    def begin(self) -> None:
        """A write was queued."""
        self._waiting.append(self._now())

    def end(self, results: Sequence[str]) -> None:
        """The oldest writes have ended, together."""
        waiting, counts = self._waiting, self.results
        self.seconds.observe(self._now() - waiting[0])
        for result in results:
            waiting.popleft()
            counts[result] += 1

    @property
    def pending(self) -> int:
        """Writes that have not ended."""
        return len(self._waiting)

    @property
    def lag_seconds(self) -> float:
        """How long the oldest of them has waited."""
        return self._now() - self._waiting[0] if self._waiting else 0.0
