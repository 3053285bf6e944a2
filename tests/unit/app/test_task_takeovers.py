"""What a node does with what nodes that are gone have left, when the database refuses writes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import pytest

from isthmus.app import task_takeovers as module
from isthmus.app.task_takeovers import FREE, OWNED, PLACED, Takeovers
from isthmus.core.audit import Fact
from isthmus.core.journal import Document, OnWritten, SharedJournal, WriteResult
from tests.unit.core.tasks.doubles import SECONDS, HeldJournal, Workshop

LEFT = Document(PLACED, "", "quick/0", 1, 0.0, b"a", state=OWNED)
"""Says that a node which is gone runs a program."""


class LeftJournal(HeldJournal):
    """A shared journal with a document to inherit. Each write has the next of the test's results, or succeeds."""

    def __init__(self, *results: WriteResult) -> None:
        super().__init__()
        self._write([LEFT])
        self.results = deque(results)
        self.inherited = asyncio.Event()
        self.inherited.set()
        self.written = asyncio.Event()
        """Set after the last write, which is the first that is done or finds a conflict."""
        self.is_claimed_soon = False
        """Another node takes the program as soon as it is free."""

    async def inherit(self) -> list[Document]:
        given = [LEFT] if self.inherited.is_set() else []
        self.inherited.clear()
        return given

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        self.waiting.append((documents, done))
        if self.results:
            self.settle(self.results.popleft(), is_kept=self.is_claimed_soon)
            if self.is_claimed_soon:
                self._write([msgspec.structs.replace(LEFT, version=3, body=b"b")])
        else:
            self.settle()
            self.written.set()


@asynccontextmanager
async def taking_over(journal: LeftJournal, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    takeovers = Takeovers(cast("SharedJournal", journal), Workshop(journal).engine, lambda _: None)
    running = asyncio.ensure_future(takeovers.run())
    yield
    running.cancel()


async def test_the_program_of_a_dead_node_is_freed_although_writes_were_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = LeftJournal("refused", "unknown")
    async with asyncio.timeout(SECONDS), taking_over(journal, monkeypatch):
        await journal.written.wait()
    found = await journal.read(PLACED, "", LEFT.id)
    assert found is not None
    assert (found.state, found.version) == (FREE, 2)


async def test_a_program_that_another_node_has_taken_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = LeftJournal("unknown")
    journal.is_claimed_soon = True
    async with asyncio.timeout(SECONDS), taking_over(journal, monkeypatch):
        await journal.written.wait()
    found = await journal.read(PLACED, "", LEFT.id)
    assert found is not None
    assert (found.state, found.version, found.body) == (OWNED, 3, b"b")
