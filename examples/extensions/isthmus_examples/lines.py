"""isthmus.storage: tasks in a file of JSON lines, which is read back at the start.

Short rather than good: the file only grows, and each write waits for the disk on the hub's own thread. What it shows is
what a journal promises. `kept` is said when it will survive, `unknown` when nobody can know; the hub relies on both.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from isthmus.core.audit import Fact
from isthmus.core.journal import Document, DocumentPlace, JournalEntry, OnWritten, Page, TrimResult, WriteResult
from isthmus.storage.memory import MemoryJournal


class Line(msgspec.Struct, omit_defaults=True):
    """What was written at once."""

    documents: tuple[Document, ...] = ()
    entries: tuple[JournalEntry, ...] = ()


def opener(settings: Mapping[str, object]) -> Callable[[str], Awaitable[LinesJournal]]:
    """What is told the address under `[storage] url`: here `lines:PATH`."""

    async def open_journal(url: str) -> LinesJournal:
        journal = LinesJournal(Path(url.removeprefix("lines:")))
        await journal.read_back()
        return journal

    return open_journal


class LinesJournal:
    """See `isthmus.core.journal.ClosableJournal`; what is asked is answered from memory."""

    def __init__(self, file: Path) -> None:
        self._memory = MemoryJournal()
        self._file = open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b")  # noqa: SIM115

    async def read_back(self) -> None:
        """Take up what the hub before this one wrote; half a line at the end was told to nobody, and is cut off."""
        self._file.seek(0)
        whole = 0
        for text in self._file:
            if not text.endswith(b"\n"):
                break
            line = msgspec.json.decode(text, type=Line)
            self._memory.write(line.documents, lambda _: None)
            await self._memory.commit(line.entries)
            whole += len(text)
        self._file.truncate(whole)  # else the next line would go on where this one broke off

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """Keep all of these or none; `facts` are for an audit log, which this journal has not."""

        def keep(verdict: WriteResult) -> None:
            done(self._append(Line(documents=tuple(documents))) if verdict == "kept" else verdict)

        self._memory.write(documents, keep)

    def _append(self, line: Line) -> WriteResult:
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            return "unknown"
        return "kept"

    async def commit(self, entries: Sequence[JournalEntry]) -> None:
        """Keep entries."""
        if self._append(Line(entries=tuple(entries))) != "kept":
            raise OSError("the file of lines cannot be written")
        await self._memory.commit(entries)

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        """What is kept under an id."""
        return await self._memory.read(kind, owner, id)

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
        """One owner's documents, the newest first."""
        return await self._memory.page(kind, owner, group=group, states=states, after=after, limit=limit, token=token)

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        """Every owner's documents in one of these states, the oldest first."""
        return await self._memory.all_in(kind, states, limit=limit, after=after)

    async def newest(
        self,
        kind: str,
        states: Collection[str],
        *,
        owners: Collection[str] = (),
        limit: int,
        before: DocumentPlace | None = None,
    ) -> list[Document]:
        """The same, the newest first, and of these owners if any are named."""
        return await self._memory.newest(kind, states, owners=owners, limit=limit, before=before)

    async def named(self, kind: str, id: str, *, limit: int) -> list[Document]:
        """Every owner's documents that have this id."""
        return await self._memory.named(kind, id, limit=limit)

    async def prune(self, kind: str, states: Collection[str], *, before: float, limit: int) -> int:
        """Forget old ones; they come back with the next start, and are forgotten again."""
        return await self._memory.prune(kind, states, before=before, limit=limit)

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        """How much one owner's documents take, by their kinds and states."""
        return await self._memory.weigh(kinds, owner)

    async def trim(self, kind: str, owner: str, states: Collection[str], *, bytes: int, limit: int) -> TrimResult:
        """Forget one owner's oldest; they too come back with the next start, and are forgotten again."""
        return await self._memory.trim(kind, owner, states, bytes=bytes, limit=limit)

    async def latest(self, kind: str, owner: str, limit: int) -> list[JournalEntry]:
        """The newest entries of one kind and owner."""
        return await self._memory.latest(kind, owner, limit)

    async def aclose(self) -> None:
        """Let the file go."""
        self._file.close()
