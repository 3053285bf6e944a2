"""A journal that lasts as long as the process."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.core.ports.journal import Entry
from isthmus.storage import memory
from isthmus.storage.memory import MemoryJournal


def entry(content: int, owner: str = "me", kind: str = "chat") -> Entry:
    return Entry(kind, owner, float(content), msgspec.Raw(str(content).encode()))


async def latest(journal: MemoryJournal, limit: int = 10, owner: str = "me", kind: str = "chat") -> list[int]:
    return [int(bytes(kept.content)) for kept in await journal.latest(kind, owner, limit)]


async def test_the_newest_entries_come_back_oldest_first() -> None:
    journal = MemoryJournal()
    await journal.commit([entry(1), entry(2)])
    await journal.commit([entry(3)])
    assert await latest(journal) == [1, 2, 3]
    assert await latest(journal, 2) == [2, 3]
    assert await latest(journal, 0) == []


async def test_owners_and_kinds_are_apart() -> None:
    journal = MemoryJournal()
    await journal.commit([entry(1), entry(2, owner="you"), entry(3, kind="audit")])
    assert await latest(journal) == [1]
    assert await latest(journal, owner="you") == [2]
    assert await latest(journal, owner="nobody") == []


async def test_what_is_kept_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "KEPT_BYTES", 2 * memory.ENTRY_BYTES + 20)
    monkeypatch.setattr(memory, "OWNERS_MAX", 2)
    journal = MemoryJournal()
    await journal.commit([entry(at) for at in range(4)])
    assert await latest(journal) == [2, 3]
    await journal.commit([entry(1, owner="b"), entry(2, owner="b"), entry(1, owner="c")])
    assert [await latest(journal, owner=owner) for owner in ("me", "b", "c")] == [[], [1, 2], [1]]
