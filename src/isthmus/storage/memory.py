"""A journal in memory, for hubs without state. Their audit log may still be stored elsewhere."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import islice

from isthmus.core.audit import Fact
from isthmus.core.journal import (
    AuditJournal,
    Document,
    DocumentPlace,
    JournalEntry,
    OnWritten,
    Page,
    TrimResult,
    WriteResult,
    place_of,
    size_of,
)
from isthmus.storage.journal_base import fitting_count, page_token, parse_page_token

KEPT_BYTES = 1024 * 1024
"""Limit per kind and owner; beyond it the oldest entries are dropped."""

ENTRY_BYTES = 256
"""Overhead of an entry, besides its content."""

OWNERS_MAX = 1_000

DOCUMENTS_BYTES = 64 * 1024 * 1024
"""Limit of all documents together; beyond it writes are refused until something is deleted."""


class MemoryJournal:
    """Entries in bounded queues, one per kind and owner; documents in one table."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], deque[JournalEntry]] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._documents: dict[tuple[str, str, str], Document] = {}
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()
        """Bytes per owner."""
        self.log: AuditJournal | None = None
        """Stores the audit facts that come with documents; None drops them."""

    # -- documents ---------------------------------------------------------------------------------------------------

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """See `core.journal.Journal`; a write whose facts cannot be logged is undone."""
        before = [self._documents.get(_key(document)) for document in documents] if facts else []
        result = self._write(documents)
        if result == "kept" and facts and self.log is not None:
            self.log.write((), partial(self._on_logged, documents, before, done), facts)
        else:
            asyncio.get_running_loop().call_soon(done, result)

    def _on_logged(
        self, documents: Sequence[Document], before: Sequence[Document | None], done: OnWritten, result: WriteResult
    ) -> None:
        if result != "kept":
            for document, earlier in zip(documents, before, strict=True):
                self._undo(document, earlier)
        done("kept" if result == "kept" else "refused")

    def _undo(self, document: Document, earlier: Document | None) -> None:
        """Restore the earlier document, unless it was changed since."""
        key, ours = _key(document), None if document.body is None else document
        if self._documents.get(key) is not ours:
            return
        self._count(document.owner, _weight(earlier) - _weight(ours))
        self._documents.pop(key, None)
        if earlier is not None:
            self._documents[key] = earlier

    def _write(self, documents: Sequence[Document]) -> WriteResult:
        for document in documents:
            kept = self._documents.get(_key(document))
            # A new document needs a body; a change or a delete needs the version before it.
            is_next = (
                document.version == 1 and document.body is not None
                if kept is None
                else (document.version == kept.version + 1)
            )
            if not is_next:
                return "conflict"
        grown = sum(_weight(document) - _weight(self._documents.get(_key(document))) for document in documents)
        if grown > 0 and self._bytes + grown > DOCUMENTS_BYTES:
            return "refused"
        for document in documents:
            before = self._documents.pop(_key(document), None)
            self._count(document.owner, _weight(document) - _weight(before))
            if document.body is not None:
                self._documents[_key(document)] = document
        return "kept"

    def _delete(self, document: Document) -> None:
        self._count(document.owner, -_weight(self._documents.pop(_key(document))))

    def _count(self, owner: str, more: int) -> None:
        self._bytes += more
        self._bytes_of[owner] += more
        if not self._bytes_of[owner]:
            del self._bytes_of[owner]

    def share_of(self, owner: str) -> int:
        """Quota of one owner: half of what the others leave, so that there is always room for one more."""
        return max(0, DOCUMENTS_BYTES - self._bytes + self._bytes_of[owner]) // 2

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        """See `core.journal.Journal`."""
        return self._documents.get((kind, owner, id))

    async def page(
        self,
        kind: str,
        owner: str,
        *,
        group: str = "",
        states: Collection[str] = (),
        after: float = 0.0,
        limit: int,
        token: str = "",
    ) -> Page:
        """See `core.journal.Journal`."""
        before = parse_page_token(token) if token else (float("inf"), "")
        found = [
            document
            for document in self._documents.values()
            if (document.kind, document.owner) == (kind, owner)
            and document.at > after
            and group in ("", document.group)
            and (not states or document.state in states)
        ]
        found.sort(key=_place, reverse=True)
        rest = [document for document in found if _place(document) < before]
        shown = _some(rest, limit)
        return Page(tuple(shown), len(found), page_token(shown[-1]) if len(rest) > len(shown) else "")

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        """See `core.journal.Journal`."""
        found = self._oldest(kind, states)
        rest = found if after is None else [each for each in found if place_of(each) > place_of(after)]
        return _some(rest, limit)

    async def newest(
        self,
        kind: str,
        states: Collection[str],
        *,
        owners: Collection[str] = (),
        limit: int,
        before: DocumentPlace | None = None,
    ) -> list[Document]:
        """See `core.journal.Journal`."""
        found = (
            each
            for each in self._documents.values()
            if each.kind == kind
            and each.state in states
            and (not owners or each.owner in owners)
            and (before is None or place_of(each) < before)
        )
        return _some(heapq.nlargest(limit, found, key=place_of), limit)

    async def named(self, kind: str, id: str, *, limit: int) -> list[Document]:
        """See `core.journal.Journal`."""
        return [each for each in self._documents.values() if (each.kind, each.id) == (kind, id)][:limit]

    async def prune(self, kind: str, states: Collection[str], *, before: float, limit: int) -> int:
        """See `core.journal.Journal`."""
        found = [each for each in self._oldest(kind, states) if each.at < before][:limit]
        for document in found:
            self._delete(document)
        return len(found)

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        """See `core.journal.Journal`."""
        found: Counter[tuple[str, str]] = Counter()
        for each in self._documents.values():
            if each.owner == owner and each.kind in kinds:
                found[each.kind, each.state] += size_of(each)
        return found

    async def trim(self, kind: str, owner: str, states: Collection[str], *, bytes: int, limit: int) -> TrimResult:
        """See `core.journal.Journal`."""
        ids, taken = [], 0
        for document in [each for each in self._oldest(kind, states) if each.owner == owner][:limit]:
            if taken >= bytes:
                break
            self._delete(document)
            ids.append(document.id)
            taken += size_of(document)
        return TrimResult(tuple(ids), taken)

    def _oldest(self, kind: str, states: Collection[str]) -> list[Document]:
        found = [each for each in self._documents.values() if each.kind == kind and each.state in states]
        return sorted(found, key=place_of)

    async def aclose(self) -> None:
        """Nothing to close."""

    # -- entries -----------------------------------------------------------------------------------------------------

    async def commit(self, entries: Sequence[JournalEntry]) -> None:
        """Store entries; they do not survive the process."""
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

    async def latest(self, kind: str, owner: str, limit: int) -> list[JournalEntry]:
        """The newest entries, oldest first."""
        kept = self._entries.get((kind, owner), deque())
        return list(islice(kept, max(0, len(kept) - limit), None))


def _size_of(entry: JournalEntry) -> int:
    return ENTRY_BYTES + len(memoryview(entry.content))


def _key(document: Document) -> tuple[str, str, str]:
    return document.kind, document.owner, document.id


def _place(document: Document) -> tuple[float, str]:
    return document.at, document.id


def _some(documents: Sequence[Document], limit: int) -> list[Document]:
    some = documents[:limit]
    return list(some[: fitting_count(len(each.body or b"") for each in some)])


def _weight(document: Document | None) -> int:
    return 0 if document is None or document.body is None else ENTRY_BYTES + len(document.body)
