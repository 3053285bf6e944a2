"""Tasks in memory: the state of one while it runs, what it takes to start one, and the store that finds them.

`LiveTask` only holds state; `core.tasks.engine` changes it. This module imports no other part of the engine, so that
all of them can use it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeAlias, runtime_checkable
from weakref import WeakValueDictionary

import msgspec
import structlog
from msgspec import Raw

from isthmus.core.audit import Fact
from isthmus.core.journal import HERE, Document, Journal, SharedJournal, WriteResult, size_of
from isthmus.core.ports import Exchange
from isthmus.core.tasks.record import (
    TASK,
    PushRecipient,
    StoredOutcome,
    StoredQuestion,
    TaskOwner,
    TaskRecord,
    record_of,
    shown_record,
)
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

    @property
    def last(self) -> Report | None:
        """The newest report."""
        return self._reports[-1][0] if self._reports else None

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


@runtime_checkable
class ResumableWork(Protocol):
    """Work whose progress is stored: after a crash, or when the hub stops, the next hub continues it."""

    def first_documents(self, owner: str, id: str) -> tuple[Document, ...]:
        """What to store with the task, of which this is the owner's key and the id."""

    def start(self, exchange: Exchange) -> RunningWork:
        """See `TaskWork`."""


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
    holder = ""
    """The other node of the cluster that works on it: here it is only shown. Empty if this node may change it."""

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
    retry: asyncio.TimerHandle | None = None
    """Writes it again, after the journal has refused that."""
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


log = structlog.get_logger(__name__)

CACHED_TASKS_MAX = 1_000
CACHED_BYTES_MAX = 16 * 1024 * 1024
"""The size of the cache of idle tasks; a larger task is not cached."""

RETRY_SECONDS = 1.0
"""How long to wait before a write that the journal refused is tried again."""


ELSEWHERE = "elsewhere"
"""The `LiveTask.holder` of a task that another node has taken over, until the journal says which."""


def tombstone(document: Document) -> Document:
    """The document that deletes this one."""
    return msgspec.structs.replace(document, version=document.version + 1, body=None)


def decode_or_log(document: Document) -> TaskRecord | None:
    """Decode a task; one that another version wrote must not prevent the hub from starting."""
    try:
        return record_of(document)
    except msgspec.MsgspecError as error:
        log.error("a stored task cannot be decoded", task=document.id, error=str(error))
        return None


class TaskCache:
    """The idle tasks that were used last."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[TaskKey, LiveTask] = OrderedDict()
        self._bytes = 0

    def put(self, live: LiveTask) -> None:
        """Cache a task, and drop those that were unused for longest.

        Tasks with listeners stay: a copy that is read again later would not notify them.
        """
        self.drop(live.key)
        self._tasks[live.key] = live
        self._bytes += live.size_bytes
        while self._bytes > CACHED_BYTES_MAX or len(self._tasks) > CACHED_TASKS_MAX:
            oldest = next((key for key, each in self._tasks.items() if not each.listeners), None)
            if oldest is None:
                break
            self.drop(oldest)

    def get(self, key: TaskKey) -> LiveTask | None:
        """A cached task."""
        live = self._tasks.get(key)
        if live is not None:
            self._tasks.move_to_end(key)
        return live

    def drop(self, key: TaskKey) -> None:
        """Remove a task from the cache."""
        if (live := self._tasks.pop(key, None)) is not None:
            self._bytes -= live.size_bytes

    def values(self) -> list[LiveTask]:
        """All cached tasks."""
        return list(self._tasks.values())

    def drop_where(self, is_dropped: Callable[[TaskRecord], bool]) -> None:
        """Remove the tasks for which this holds."""
        for key in [key for key, live in self._tasks.items() if is_dropped(live.record)]:
            self.drop(key)


class PendingDeletes:
    """Deletes that the journal has not confirmed. Their tasks are hidden from callers meanwhile."""

    def __init__(self, journal: Journal, on_done: Callable[[], None]) -> None:
        """`on_done` is called whenever one is confirmed."""
        self._journal = journal
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._confirmed: dict[TaskKey, asyncio.Future[None]] = {}

    def __contains__(self, key: TaskKey) -> bool:
        return key in self._confirmed

    def __len__(self) -> int:
        return len(self._confirmed)

    def delete(self, key: TaskKey, documents: Sequence[Document]) -> None:
        """Delete a task's documents in one transaction; retry until the journal confirms."""
        if key not in self._confirmed:
            self._confirmed[key] = self._loop.create_future()
            self._write(key, [tombstone(document) for document in documents])

    def _write(self, key: TaskKey, tombstones: Sequence[Document]) -> None:
        self._journal.write(tombstones, partial(self._on_result, key, tombstones))

    def _on_result(self, key: TaskKey, tombstones: Sequence[Document], result: WriteResult) -> None:
        if result in ("refused", "unknown"):
            self._loop.call_later(RETRY_SECONDS, self._write, key, tombstones)
            return
        # A conflict is success: the documents never existed, or an earlier attempt deleted them.
        self._confirmed.pop(key).set_result(None)
        self._on_done()

    async def wait_deleted(self, key: TaskKey, within: float) -> bool:
        """Wait until a task's delete is confirmed; False if it is not being deleted. Raises `TimeoutError`."""
        confirmed = self._confirmed.get(key)
        if confirmed is None:
            return False
        async with asyncio.timeout(within):
            await asyncio.shield(confirmed)
        return True


class TaskStore:
    """Finds tasks, in memory or in the journal. There is at most one `LiveTask` per task.

    In a cluster, only tasks that this node holds are cached. All others, ended ones included, may be changed by another
    node at any time, and are read for each request.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._is_shared = isinstance(journal, SharedJournal)
        self._shown: WeakValueDictionary[TaskKey, LiveTask] = WeakValueDictionary()
        """Tasks that this node does not hold, while a caller follows them."""
        self.on_news: Callable[[LiveTask], None] = lambda _live: None
        """Called when the journal has a newer record of such a task."""
        self._running: dict[TaskKey, LiveTask] = {}
        """Tasks with a call, or with a write that has not finished."""
        self._cache = TaskCache()
        self.deletes = PendingDeletes(journal, self._check_idle)
        self._idle = asyncio.Event()
        self._idle.set()

    # -- finding -------------------------------------------------------------------------------------------------------

    def get(self, key: TaskKey) -> LiveTask | None:
        """A task that is in memory."""
        return self._running.get(key) or self._cache.get(key)

    def running(self) -> list[LiveTask]:
        """Tasks with a call, or with a write that has not finished."""
        return list(self._running.values())

    async def load(self, key: TaskKey) -> LiveTask | None:
        """A task, from memory or from the journal; None while it is being deleted."""
        live = self.get(key)
        if live is not None:
            return live
        document = None if key in self.deletes else await self._journal.read(TASK, *key)
        # Another caller may have loaded it meanwhile: both must get the same object.
        live = self.get(key)
        if live is None and document is not None and key not in self.deletes:
            if self._is_shared and document.holder != HERE:
                return self.view_of(document)
            live = self.adopt(record_of(document))
            live.size_bytes = len(document.body or b"")
            live.counted_bytes, live.is_counted_open = size_of(document), not live.record.is_terminal
            self._cache.put(live)
        return live

    def view_of(self, document: Document) -> LiveTask:
        """A task that this node does not hold, as the journal has it now."""
        key, is_news = (document.owner, document.id), False
        if (live := self._shown.get(key)) is None:
            live = self._shown[key] = LiveTask(shown_record(document), is_stored=True)
        elif document.version > live.record.version:
            live.record = live.stored = shown_record(document)
            is_news = True
        live.holder = document.holder if document.is_elsewhere else ""
        live.size_bytes = len(document.body or b"")
        live.counted_bytes, live.is_counted_open = size_of(document), not live.record.is_terminal
        if is_news:  # the reader wakes all callers that wait for news
            self.on_news(live)
        return live

    def followed(self) -> list[LiveTask]:
        """Tasks that this node does not hold and that a caller follows."""
        return list(self._shown.values())

    def adopt(self, record: TaskRecord) -> LiveTask:
        """A task that this node holds from now on; those who looked at it before see its changes."""
        live = self._shown.pop((record.owner.key, record.id), None) or LiveTask(record, is_stored=True)
        live.record = live.stored = record
        live.holder = ""
        return live

    def give_up(self, live: LiveTask) -> None:
        """Another node holds this task now."""
        self.remove(live)
        self._cache.drop(live.key)
        live.holder = live.holder or ELSEWHERE
        self._shown[live.key] = live

    def give_up_idle(self) -> None:
        """Other nodes hold all tasks of the cache now."""
        for live in self._cache.values():
            self.give_up(live)

    def current_record(self, document: Document) -> TaskRecord | None:
        """The newest stored record of a task that was read from the journal; None while it is being deleted."""
        key = (document.owner, document.id)
        if key in self.deletes:
            return None
        live = self._running.get(key)
        return live.stored if live is not None and live.stored is not None else shown_record(document)

    # -- running and idle ----------------------------------------------------------------------------------------------

    def set_running(self, live: LiveTask) -> None:
        """Count a task as running."""
        if self._running.get(live.key) is not live:
            self._cache.drop(live.key)
            self._running[live.key] = live
            self._idle.clear()

    def set_idle(self, live: LiveTask) -> None:
        """Move a task to the cache."""
        self.remove(live)
        if self._is_shared and live.record.is_terminal:
            self._shown[live.key] = live
        else:
            self._cache.put(live)

    def remove(self, live: LiveTask) -> None:
        """Count a task as not running, without caching it."""
        if self._running.get(live.key) is live:
            del self._running[live.key]
        self._check_idle()

    def delete(self, key: TaskKey, documents: Sequence[Document]) -> None:
        """Delete a task's documents; see `PendingDeletes`."""
        self._idle.clear()
        self.deletes.delete(key, documents)

    def _check_idle(self) -> None:
        if not self._running and not self.deletes:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no task runs, all changes are stored and all deletes are confirmed."""
        await self._idle.wait()

    # -- the cache -----------------------------------------------------------------------------------------------------

    def uncache(self, owner: TaskOwner, ids: Iterable[str]) -> None:
        """Drop these tasks from the cache, because the journal deleted them."""
        for id in ids:
            self._cache.drop((owner.key, id))

    def uncache_before(self, ended: float, waiting: float) -> None:
        """Drop from the cache what ended before `ended`, or has waited for its caller since before `waiting`."""
        self._cache.drop_where(lambda record: record.updated < (ended if record.is_terminal else waiting))
