"""The circuit breaker of one server, which refuses calls after too many failures. `ServerQueue` has one."""

from __future__ import annotations

from typing import Literal, TypeAlias

from isthmus.core.settings import Limits

BreakerState: TypeAlias = Literal["closed", "half_open", "open"]


class CircuitBreaker:
    """Opens after failures in a row, or when too large a share of the calls in one window failed.

    Open, it refuses calls for a while that doubles each time; then one call may probe. A success, or a new link, closes
    it. Windows follow each other instead of sliding: two integers then suffice, however many calls there are.
    """

    __slots__ = ("_calls", "_failed", "_is_probing", "_limits", "_pause", "_row", "_window_ends", "open_until")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calls = self._failed = 0
        self._window_ends = 0.0
        self.reset()

    def reset(self) -> None:
        """Forget every failure."""
        self._row = self._calls = self._failed = 0
        self._pause = self._limits.breaker_open_seconds
        self.open_until = 0.0
        """When it may be probed; 0 while it is closed, as it nearly always is, so that callers need not call `wait`."""
        self._is_probing = False

    def wait(self, now: float) -> float:
        """Return 0 if a call may go, else the seconds until one may. The first call after the pause is the probe."""
        if not self.open_until:
            return 0.0
        if now < self.open_until:
            return self.open_until - now
        if self._is_probing:
            return self._limits.breaker_open_seconds
        self._is_probing = True
        return 0.0

    def state(self, now: float) -> BreakerState:
        """Whether calls may go, may not, or one may as a probe."""
        return "closed" if not self.open_until else "open" if now < self.open_until else "half_open"

    def succeeded(self, now: float) -> None:
        """The server answered."""
        self._row = 0
        if self.open_until:
            self.reset()
        self._count(now, failures=0)

    def failed(self, now: float) -> None:
        """The server did not answer, or its answer was unusable."""
        self._row += 1
        self._count(now, failures=1)
        if self._is_probing:
            self._pause = min(self._pause * 2, self._limits.breaker_open_max_seconds)
            self._open(now)
            return
        is_share_exceeded = (
            self._calls >= self._limits.breaker_calls and self._failed >= self._limits.breaker_share * self._calls
        )
        if self._row >= self._limits.breaker_failures or is_share_exceeded:
            self._open(now)

    def gave_up(self) -> None:
        """A call ended without saying anything about the server, such as a cancelled one: another call may probe."""
        self._is_probing = False

    def _open(self, now: float) -> None:
        self._is_probing = False
        self.open_until = now + self._pause

    def _count(self, now: float, *, failures: int) -> None:
        if now >= self._window_ends:
            self._window_ends = now + self._limits.breaker_window_seconds
            self._calls = self._failed = 0
        self._calls += 1
        self._failed += failures
