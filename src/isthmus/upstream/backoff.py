"""The pause before a server is tried again. Pure: the random number is an argument."""

from __future__ import annotations

FIRST_SECONDS = 0.5
MAX_SECONDS = 30.0


class Backoff:
    """Full jitter: a random pause below a bound that doubles, so that many hubs do not retry at once."""

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self._bound = FIRST_SECONDS
        self._max_seconds = max_seconds

    def next(self, chance: float) -> float:
        """The next pause; `chance` is uniform in [0, 1)."""
        seconds = self._bound * chance
        self._bound = min(self._bound * 2, self._max_seconds)
        return seconds

    def reset(self) -> None:
        """The server was healthy: the next pause is short again."""
        self._bound = FIRST_SECONDS
