"""A task in memory: its state while it runs, what it takes to start one, and the objects it talks to.

`LiveTask` only holds state; `core.tasks.engine` changes it. This module imports no other part of the engine, so that
all of them can use it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Raw

from isthmus.core.audit import Fact
from isthmus.core.ports import Document, Exchange, WriteResult
from isthmus.core.tasks.record import PushRecipient, StoredOutcome, StoredQuestion, TaskRecord
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Event, OnReply, Outcome
from isthmus.model.tasks import ABSENT, Message, TaskState

TaskKey: TypeAlias = tuple[str, str]
"""The owner's key and the task's id."""

# -- why a task was not started ----------------------------------------------------------------------------------------


class TaskNotStarted(Exception):
    """No task was created. Not a `Fault`: no call was made."""


class TaskNotStored(TaskNotStarted):
    """The journal could not be written."""

    def __init__(self, message: str = "The task could not be stored, so it was not started; see the hub's log") -> None:
        super().__init__(message)


class MessageQuotaExceeded(TaskNotStored):
    """The caller sent too many messages without an instruction within an hour."""

    def __init__(self, seconds: float) -> None:
        minutes = max(1, round(seconds / 60))
        super().__init__(
            f"Too many messages without an instruction within an hour; name a tool, or retry in {minutes} min"
        )


class StorageQuotaExceeded(TaskNotStored):
    """The caller's unfinished tasks take too much storage."""

    def __init__(self, open_bytes: int, more_bytes: int, room_bytes: int, most: int, setting: str) -> None:
        super().__init__(
            f"Your unfinished tasks take {open_bytes} bytes, and {more_bytes} more would exceed the {room_bytes} that "
            f"they may take of your {most} bytes of task storage ({setting}); wait for some to end, or cancel them"
        )


class KeyQuotaExceeded(TaskNotStored):
    """The caller's idempotency keys take too much storage."""

    def __init__(self, key_bytes: int, room_bytes: int, setting: str) -> None:
        super().__init__(
            f"Your Idempotency-Keys of the last day take {key_bytes} bytes, and the limit is {room_bytes}, half of "
            f"your task storage ({setting}); send the message without a key, or later"
        )


class TaskExists(TaskNotStarted):
    """The caller already has a task with this id."""

    def __init__(self, id: str) -> None:
        super().__init__(f"There is a task {id!r} already")


# -- progress reports --------------------------------------------------------------------------------------------------

REPORTS_MAX = 100
REPORTS_BYTES_MAX = 64 * 1024
"""A task remembers at most this many reports, and this many bytes of them; new listeners miss older ones."""


class Report(msgspec.Struct, frozen=True):
    """A progress or log event of a task's call, with the number and time that all listeners receive."""

    number: int
    at: float
    event: Event


class ReportLog:
    """The newest reports of one task, for listeners that join later. They are never stored."""

    def __init__(self) -> None:
        self.count = 0
        """How many reports there were."""
        self.turn = 0
        """The value of `count` when the caller last sent a message that the task waited for."""
        self._reports: deque[tuple[Report, int]] = deque()
        self._size_bytes = 0

    def note(self, event: Event, at: float) -> Report:
        """Add a report, and drop the oldest beyond the limits."""
        self.count += 1
        report = Report(self.count, at, event)
        size_bytes = sum(len(name) + len(memoryview(value)) for name, value in event.members.items())
        self._reports.append((report, size_bytes))
        self._size_bytes += size_bytes
        while len(self._reports) > REPORTS_MAX or self._size_bytes > REPORTS_BYTES_MAX:
            self._size_bytes -= self._reports.popleft()[1]
        return report

    def begin_turn(self) -> None:
        """The caller sent a message: the answer to it starts here."""
        self.turn = self.count

    def after(self, number: int) -> list[Report]:
        """The remembered reports after this number; all of them if the number never existed."""
        start = number if number <= self.count else 0
        return [report for report, _ in self._reports if report.number > start]

    def clear(self) -> None:
        """Drop all reports."""
        self._reports.clear()
        self._size_bytes = 0


# -- listeners and work ------------------------------------------------------------------------------------------------


class TaskListener(Protocol):
    """Receives the changes of a task. Methods are called from the loop and must not wait."""

    def task_changed(self, record: TaskRecord) -> None:
        """The task changed, and the change is stored."""

    def task_reported(self, record: TaskRecord, report: Report) -> None:
        """The task's call reported something, which is not stored."""


@runtime_checkable
class ShutdownListener(Protocol):
    """A listener with a caller that waits for the task's end."""

    def left(self) -> None:
        """The hub stops before the task's call was sent; the next hub will send it."""


class RunningWork(Protocol):
    """Work that has started: a call in flight, or a `TaskWork`."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""

    def cancel(self, why: str) -> None:
        """Cancel it."""


class TaskWork(Protocol):
    """The work of a task that is more than one call, such as connecting to a server first."""

    def start(self, exchange: Exchange) -> RunningWork:
        """Start; `exchange.end` is called exactly once, perhaps before this returns."""


class NewTask(msgspec.Struct, frozen=True):
    """A task to start. Without a call it waits for the next message, or has already ended."""

    caller: Caller
    context: str
    origin: str
    said: tuple[Message, ...]
    state: TaskState = "submitted"
    call: Call | TaskWork | None = None
    ending: StoredOutcome | None = None
    brief: Raw = ABSENT
    metadata: Raw = ABSENT
    id: str = ""
    besides: tuple[Document, ...] = ()
    """Documents to store in the same transaction."""
    recipients: tuple[PushRecipient, ...] = ()
    """Where changes are pushed to."""
    realm: str = ""
    """See `TaskOwner.realm`."""
    listeners: tuple[TaskListener, ...] = ()
    """Listeners that must not miss anything."""
    is_running: bool = False
    """Its call is already running and is attached once the task is stored (`TaskEngine.attach_call`)."""
    waits_for_login: bool = False
    """See `LiveTask.waits_for_login`."""


# -- the task ----------------------------------------------------------------------------------------------------------


class LiveTask:
    """A task in memory: its newest record, its running call and its listeners."""

    # Its call.
    call: Call | None = None
    """The call of this turn while it runs; None for a `TaskWork` or a call that a frontend started."""
    inflight: RunningWork | None = None
    send: Callable[[], None] | None = None
    """Sends the call, or starts the work, once it is stored that it may have been sent."""
    writing_send: Callable[[], None] | None = None
    """The `send` that the record being written stands for."""
    is_starting = False
    """The call is being queued: its changes are written with the next record."""
    waits_for_login = False
    """If its server requires a login first, the task waits for that instead of failing."""
    is_left = False
    """The previous hub left it unsent: it may wait for its server for its whole timeout."""

    # Questions of its server.
    reply: OnReply | None = None
    """Receives the answer to the open question."""
    asked = 0
    """How many questions there were."""

    # Its record in the journal.
    begun: asyncio.Future[WriteResult] | None = None
    """The result of the first write, until it is there."""
    is_writing = False
    is_stale = False
    """The record changed while it was being written."""
    is_unsure = False
    """An earlier write had the result `unknown`."""
    is_news = False
    """The next write contains something that listeners receive."""
    size_bytes = 0
    counted_bytes = 0
    is_counted_open = False
    """What `StorageQuota` has counted for it."""

    def __init__(self, record: TaskRecord, *, is_stored: bool = False) -> None:
        self.record = record
        """The newest record, which may not be stored yet."""
        self.stored: TaskRecord | None = record if is_stored else None
        """The newest stored record: the only one that callers may see."""
        self.key: TaskKey = (record.owner.key, record.id)
        self.listeners: dict[TaskListener, None] = {}
        self.reports = ReportLog()
        self.since = record.created
        """When this turn began."""
        self.questions: list[tuple[StoredQuestion, OnReply]] = []
        """Further open questions, asked next."""
        self.wakes: list[asyncio.Future[None]] = []
        """Callers that wait for the current write."""
        self.notes: list[Fact] = []
        """Audit facts to write with the next record."""
        self.noting: list[Fact] = []
        """Audit facts in the record being written."""

    @property
    def open_questions(self) -> tuple[StoredQuestion, ...]:
        """The questions after the first."""
        return tuple(asked for asked, _ in self.questions)
