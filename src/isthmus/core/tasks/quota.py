"""How much callers may have kept of what there is nothing to do about: words without an instruction, or a wrong one.

Who may call nothing at all can still say something, which is kept for a day. Calls have their own bounds. Time comes
in; the engine asks before such a task is begun. Windows follow one another, so that nothing is remembered for long.
"""

from __future__ import annotations

from isthmus.core.tasks.record import Owner

WINDOW_SECONDS = 3600.0

BYTES_MAX = 64 * 1024 * 1024
"""Of one caller in one window: tens of thousands of questions, and no danger to a disk."""


class Quota:
    """What each caller had kept in the present window."""

    def __init__(self) -> None:
        self._kept: dict[Owner, int] = {}
        self._ends_at = 0.0

    def take(self, owner: Owner, size_bytes: int, now: float) -> float:
        """Count so much more for a caller and return 0, or return the seconds after which there is room for it."""
        if now >= self._ends_at:
            self._kept.clear()
            self._ends_at = now + WINDOW_SECONDS
        kept = self._kept.get(owner, 0)
        if kept and kept + size_bytes > BYTES_MAX:
            return self._ends_at - now
        self._kept[owner] = kept + size_bytes
        return 0.0
