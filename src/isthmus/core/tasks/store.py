"""Which tasks are in memory: those that run, those that were used last, and those whose deletion is not confirmed.

The journal has every task; `core.tasks.engine` writes them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import structlog

from isthmus.core.ports import Document, Journal, WriteResult, size_of
from isthmus.core.tasks.live_task import LiveTask, TaskKey
from isthmus.core.tasks.record import TASK, TaskOwner, TaskRecord, record_of

log = structlog.get_logger(__name__)

CACHED_TASKS_MAX = 1_000
CACHED_BYTES_MAX = 16 * 1024 * 1024
"""The size of the cache of idle tasks; a larger task is not cached."""

RETRY_SECONDS = 1.0
"""How long to wait before a write that the journal refused is tried again."""


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
    """Finds tasks, in memory or in the journal. There is at most one `LiveTask` per task."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
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
            live = LiveTask(record_of(document), is_stored=True)
            live.size_bytes = len(document.body or b"")
            live.counted_bytes, live.is_counted_open = size_of(document), not live.record.is_ended
            self._cache.put(live)
        return live

    def current_record(self, document: Document) -> TaskRecord | None:
        """The newest stored record of a task that was read from the journal; None while it is being deleted."""
        key = (document.owner, document.id)
        if key in self.deletes:
            return None
        live = self._running.get(key)
        return live.stored if live is not None and live.stored is not None else record_of(document)

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
        self._cache.drop_where(lambda record: record.updated < (ended if record.is_ended else waiting))
