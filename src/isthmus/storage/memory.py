"""A journal that lasts as long as the process; for hubs without state."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from isthmus.core.ports.journal import Entry

ENTRIES_MAX = 10_000
"""Entries kept per kind and owner; the oldest go first."""

OWNERS_MAX = 1_000


class MemoryJournal:
    """Entries in bounded queues, one per kind and owner."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], deque[Entry]] = {}

    async def commit(self, entries: Sequence[Entry]) -> None:
        """Keep the entries; nothing survives the process."""
        for entry in entries:
            key = (entry.kind, entry.owner)
            if key not in self._entries and len(self._entries) >= OWNERS_MAX:
                self._entries.pop(next(iter(self._entries)))
            self._entries.setdefault(key, deque(maxlen=ENTRIES_MAX)).append(entry)

    async def latest(self, kind: str, owner: str, limit: int) -> list[Entry]:
        """The newest entries, oldest first."""
        kept = self._entries.get((kind, owner), deque())
        return list(islice(kept, max(0, len(kept) - limit), None))
