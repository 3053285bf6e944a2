"""A journal that lasts as long as the process; for hubs without state."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from isthmus.core.ports.journal import Entry

KEPT_BYTES = 1024 * 1024
"""What is kept per kind and owner; the oldest entries go first."""

ENTRY_BYTES = 256
"""What an entry costs besides its content."""

OWNERS_MAX = 1_000


class MemoryJournal:
    """Entries in bounded queues, one per kind and owner."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], deque[Entry]] = {}
        self._sizes: dict[tuple[str, str], int] = {}

    async def commit(self, entries: Sequence[Entry]) -> None:
        """Keep the entries; nothing survives the process."""
        for entry in entries:
            key = (entry.kind, entry.owner)
            if key not in self._entries and len(self._entries) >= OWNERS_MAX:
                oldest = next(iter(self._entries))
                del self._entries[oldest], self._sizes[oldest]
            kept = self._entries.setdefault(key, deque())
            kept.append(entry)
            self._sizes[key] = self._sizes.get(key, 0) + _size_of(entry)
            while self._sizes[key] > KEPT_BYTES and len(kept) > 1:
                self._sizes[key] -= _size_of(kept.popleft())

    async def latest(self, kind: str, owner: str, limit: int) -> list[Entry]:
        """The newest entries, oldest first."""
        kept = self._entries.get((kind, owner), deque())
        return list(islice(kept, max(0, len(kept) - limit), None))


def _size_of(entry: Entry) -> int:
    return ENTRY_BYTES + len(memoryview(entry.content))
