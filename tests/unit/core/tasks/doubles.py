"""Doubles around the task engine: a journal that waits, a listener that records."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Raw

from isthmus.core.audit import Fact
from isthmus.core.calls.running_call import InFlight
from isthmus.core.journal import Document, OnWritten, WriteResult
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.live_task import LiveTask, NewTask, Report
from isthmus.core.tasks.record import TaskOwner, TaskRecord, owner_of
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Event
from isthmus.model.tasks import ABSENT, Message, TaskState, TextPart
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import ANYONE, Stage, call

SECONDS = 30.0
"""Longer than anything here takes: who waits for so long has found a hang."""

OWNER: TaskOwner = owner_of(ANYONE)


class HeldJournal(MemoryJournal):
    """A journal that writes when the test says so, and as badly as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[tuple[Sequence[Document], OnWritten]] = deque()
        self.is_held = True

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        if self.is_held:
            self.waiting.append((documents, done))
        else:
            super().write(documents, done)

    def settle(self, verdict: WriteResult = "kept", *, is_kept: bool = False) -> WriteResult:
        """Do what was asked first; `unknown` may be written or not."""
        documents, done = self.waiting.popleft()
        received = self._write(documents) if verdict == "kept" or is_kept else verdict
        done(verdict if verdict == "unknown" else received)
        return received

    def let_go(self) -> None:
        """Write everything from now on, and what waits."""
        self.is_held = False
        while self.waiting:
            self.settle()


class RecordingListener:
    """A listener that records every change."""

    def __init__(self, live: LiveTask) -> None:
        self.records: list[TaskRecord] = []
        self.events: list[Event] = []
        live.listeners[self] = None

    def task_changed(self, record: TaskRecord) -> None:
        self.records.append(record)

    def task_reported(self, record: TaskRecord, noted: Report) -> None:
        self.events.append(noted.event)

    @property
    def states(self) -> list[TaskState]:
        """The states of the task, in order."""
        return [record.state for record in self.records]


class Workshop:
    """An engine, a hub whose one server holds its calls, and a journal; time goes by a second with every look."""

    def __init__(self, journal: MemoryJournal | None = None) -> None:
        self.stage = Stage()
        self.link = self.stage.link
        self.journal = journal or MemoryJournal()
        self.seconds = 1_000.0
        self.engine = TaskEngine(self.stage.hub, self.journal, self.now)

    def now(self) -> float:
        self.seconds += 1.0
        return self.seconds

    @property
    def sent(self) -> list[InFlight]:
        """What reached the server."""
        return self.link.sent

    async def begin(self, asked: Call | None = None, *, id: str = "") -> LiveTask:
        """Begin a task that calls the server's tool."""
        async with asyncio.timeout(SECONDS):
            return await self.engine.begin(draft(asked or call(), id=id))


def draft(
    asked: Call | None,
    *,
    caller: Caller = ANYONE,
    state: TaskState = "submitted",
    id: str = "",
    metadata: Raw = ABSENT,
    besides: tuple[Document, ...] = (),
) -> NewTask:
    """A task to be made; without a call it waits for its caller."""
    return NewTask(
        caller, "talk", "1.0", (user_message("begin"),), state, asked, metadata=metadata, id=id, besides=besides
    )


def user_message(text: str, id: str = "m1") -> Message:
    """A message of the caller's."""
    return Message(id, "user", (TextPart(text, metadata=Raw(b"{}")),))


async def turns(count: int = 5) -> None:
    """Let the loop do what it has to."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop go round until something holds."""
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - there is no event for what a journal does not say
            await asyncio.sleep(0)
