"""A journal that lasts as long as the process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from isthmus.core.audit import AuditEvent, Fact
from isthmus.core.journal import Document, JournalEntry, OnWritten, WriteResult
from isthmus.storage import memory
from isthmus.storage.memory import MemoryJournal


def entry(content: int, owner: str = "me", kind: str = "chat") -> JournalEntry:
    return JournalEntry(kind, owner, float(content), msgspec.Raw(str(content).encode()))


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


async def test_the_memory_journal_is_bounded_and_drops_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "KEPT_BYTES", 2 * memory.ENTRY_BYTES + 20)
    monkeypatch.setattr(memory, "OWNERS_MAX", 2)
    journal = MemoryJournal()
    await journal.commit([entry(at) for at in range(4)])
    assert await latest(journal) == [2, 3]
    await journal.commit([entry(1, owner="b"), entry(2, owner="b"), entry(1, owner="c")])
    assert [await latest(journal, owner=owner) for owner in ("me", "b", "c")] == [[], [1, 2], [1]]


# -- beside a log ----------------------------------------------------------------------------------------------------


class Log:
    """A log that says of each write what the test wants it to."""

    def __init__(self, verdict: WriteResult) -> None:
        self.verdict = verdict
        self.facts: list[Fact] = []

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        assert not documents
        self.facts += facts
        asyncio.get_running_loop().call_soon(done, self.verdict)


async def written(journal: MemoryJournal, document: Document, *facts: Fact) -> WriteResult:
    done: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    journal.write((document,), done.set_result, facts)
    return await done


NOTED = AuditEvent(1.0, "call.begun", {})


def document(version: int, body: bytes | None = b"{}") -> Document:
    return Document("task", "me", "a", version, 1.0, body)


async def test_a_document_with_a_fact_is_stored_once_the_log_has_the_fact() -> None:
    journal = MemoryJournal()
    assert await written(journal, document(1), NOTED) == "kept", "without a log, facts go nowhere"
    log: Any = Log("kept")
    journal.log = log
    assert await written(journal, document(2), NOTED) == "kept"
    assert await written(journal, document(2), NOTED) == "conflict"
    assert await written(journal, document(3)) == "kept"
    assert log.facts == [NOTED], "documents that are not stored leave no fact in the log"


@pytest.mark.parametrize("verdict", ["refused", "unknown"])
@pytest.mark.parametrize("body", [b"longer than before", None])
async def test_a_document_is_not_stored_if_the_log_refuses_its_fact(verdict: WriteResult, body: bytes | None) -> None:
    journal = MemoryJournal()
    await written(journal, document(1))
    size = journal._bytes
    log: Any = Log(verdict)
    journal.log = log
    assert await written(journal, document(2, body), NOTED) == "refused"
    assert await journal.read("task", "me", "a") == document(1)
    assert journal._bytes == size
    other = Document("task", "me", "b", 1, 1.0, b"{}")
    assert await written(journal, other, NOTED) == "refused"
    assert await journal.read("task", "me", "b") is None


async def test_a_later_change_is_not_rolled_back() -> None:
    journal = MemoryJournal()
    log: Any = Log("refused")
    journal.log = log
    refused = asyncio.ensure_future(written(journal, document(1), NOTED))
    await asyncio.sleep(0)
    journal._write((document(2),))
    assert await refused == "refused"
    assert await journal.read("task", "me", "a") == document(2)
