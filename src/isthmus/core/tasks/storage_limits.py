"""How much is stored of each owner's tasks, and for how long.

`StorageQuota` counts what is written, which costs an addition. It asks the journal for the real sizes when an owner is
not counted yet, before it refuses anything, and when there seems to be too much; then the owner's oldest ended tasks
are deleted. `Retention` deletes what ended or was abandoned long ago, which does not update the counts: a count may be
too high, never for long too low. An owner is a caller at one protocol; see `record.TaskOwner`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import DOCUMENT_BYTES, Document, Journal, SharedJournal, size_of
from isthmus.core.tasks.live_task import KeyQuotaExceeded, LiveTask, StorageQuotaExceeded
from isthmus.core.tasks.push_delivery import DELIVERY, STATES
from isthmus.core.tasks.record import DEDUP_KEY, KEY_SECONDS, TASK, TaskOwner
from isthmus.model.fault_table import NotWritten
from isthmus.model.tasks import ENDED

log = structlog.get_logger(__name__)

DEFAULT_BYTES = 256 * 1024 * 1024
"""An owner's quota unless configured: hundreds of large results, and no danger to a disk."""

SETTING = "[a2a] keep_bytes"
"""Where the operator sets it."""

BEGIN_SHARE, OPEN_SHARE = 1 / 8, 1 / 4
"""The shares of the quota that unfinished tasks may take: to start another one, and to continue one. Unfinished tasks
are never deleted; results need room beside them."""

LEFT_SHARE = 15 / 16
"""The share that is left after deleting: otherwise the next task would delete again."""

BATCH = 500
"""Documents deleted at once: more would delay other writers."""

DELETABLE: Mapping[str, Collection[str]] = {
    DELIVERY: tuple(state for state in STATES if state != "due"),
    TASK: ENDED,
}
"""The kinds that are counted and the states in which they may be deleted, in this order: of finished deliveries only
the result is stored, and it is never exposed."""

KEY_SHARE = 1 / 2
"""The size of idempotency keys, as a share of the quota and beside it. They expire after a day and are never deleted
earlier: what they stand for would run twice."""

FRESH_SECONDS = 5.0
"""How long the journal's sizes are trusted before they are requested again: that is slow where there is much."""

OWNERS_MAX = 10_000
"""Owners that are counted; the others are counted again when they write."""

SHARED_SECONDS = 1.0
"""How long a measurement counts, where several hubs write to one journal."""

NEAR_SHARE = 0.5
"""The share of a quota from which on it is measured for each task, where several hubs write to one journal."""

OnDeleted: TypeAlias = Callable[[TaskOwner, Iterable[str]], None]


class _Usage:
    """What one owner has stored, and when the journal last confirmed it."""

    __slots__ = ("at", "bytes", "is_refused", "key_bytes", "open_bytes")

    def __init__(self) -> None:
        self.bytes = self.open_bytes = self.key_bytes = 0
        self.at = float("-inf")
        self.is_refused = False


class _Measurement(_Usage):
    """What is written while the journal measures an owner, and a future for those who wait for the result."""

    __slots__ = ("done",)

    def __init__(self, done: asyncio.Future[None]) -> None:
        super().__init__()
        self.done = done


class StorageQuota:
    """What each owner has stored. `on_deleted` receives deleted tasks."""

    def __init__(self, journal: Journal, background: BackgroundTasks, on_deleted: OnDeleted) -> None:
        self._journal = journal
        self._is_shared = isinstance(journal, SharedJournal)
        self._background = background
        self._on_deleted = on_deleted
        self.keep_bytes = DEFAULT_BYTES
        """The quota of each owner, as configured now."""
        self.share_of: Callable[[str], int] | None = None
        """What the journal has room for, by the key of an owner, if owners share a limited memory."""
        self._loop = asyncio.get_running_loop()
        self._usages: OrderedDict[TaskOwner, _Usage] = OrderedDict()
        self._measuring: dict[TaskOwner, _Measurement] = {}
        self._freeing: set[TaskOwner] = set()
        """Owners whose old tasks are being deleted."""

    def most(self, owner: TaskOwner) -> int:
        """An owner's present quota."""
        return self.keep_bytes if self.share_of is None else min(self.keep_bytes, self.share_of(owner.key))

    # -- counting ------------------------------------------------------------------------------------------------------

    def count(self, live: LiveTask) -> None:
        """Count a task that is being written."""
        owner, is_terminal = live.record.owner, live.record.state in ENDED
        usage = self._set_task_bytes(live, DOCUMENT_BYTES + live.size_bytes, is_open=not is_terminal)
        if not is_terminal:
            return
        if usage is None:
            self._start_freeing(owner)
        elif usage.bytes > (most := self.most(owner)):
            is_hopeless = usage.open_bytes > most * LEFT_SHARE
            if not (is_hopeless and self._is_fresh(usage)):
                self._start_freeing(owner)

    def uncount(self, live: LiveTask) -> None:
        """Remove a task from the count."""
        self._set_task_bytes(live, 0, is_open=False)

    def _set_task_bytes(self, live: LiveTask, size_bytes: int, *, is_open: bool) -> _Usage | None:
        """Count so much for a task; return the usage of its owner, if that is known."""
        change = size_bytes - live.counted_bytes
        open_change = (size_bytes if is_open else 0) - (live.counted_bytes if live.is_counted_open else 0)
        live.counted_bytes, live.is_counted_open = size_bytes, is_open
        owner = live.record.owner
        if (usage := self._usages.get(owner)) is not None:
            usage.bytes += change
            usage.open_bytes += open_change
        if self._measuring and (measuring := self._measuring.get(owner)) is not None:
            measuring.bytes += change
            measuring.open_bytes += open_change
        return usage

    def count_due(self, owner: TaskOwner, documents: Sequence[Document]) -> None:
        """Count deliveries. They shrink once they are sent, which only the next measurement notices."""
        if documents:
            self._add_due_bytes(owner, sum(map(size_of, documents)))

    def uncount_due(self, owner: TaskOwner, documents: Sequence[Document]) -> None:
        """Remove deliveries that were not written from the count."""
        if documents:
            self._add_due_bytes(owner, -sum(map(size_of, documents)))

    def _add_due_bytes(self, owner: TaskOwner, more_bytes: int) -> None:
        for usage in (self._usages.get(owner), self._measuring.get(owner)):
            if usage is not None:
                usage.bytes += more_bytes
                usage.open_bytes += more_bytes
                usage.at = float("-inf")

    def _is_fresh(self, usage: _Usage) -> bool:
        return self._loop.time() < usage.at + FRESH_SECONDS

    # -- refusing ------------------------------------------------------------------------------------------------------

    async def check(self, owner: TaskOwner, size_bytes: int, share: float = OPEN_SHARE) -> None:
        """Raise `StorageQuotaExceeded` if an unfinished task of this size does not fit; a first task always fits."""
        usage = await self._present(owner)
        if usage is None:
            self._start_freeing(owner)
            return
        most, more_bytes = self.most(owner), DOCUMENT_BYTES + size_bytes
        room_bytes = int(most * share) - more_bytes
        if self._is_shared and usage.open_bytes > room_bytes * NEAR_SHARE:
            with suppress(OSError):
                await self._measure(owner)
        if usage.open_bytes <= room_bytes:
            usage.is_refused = False
            return
        if usage.open_bytes > 0 and not self._is_fresh(usage):
            with suppress(OSError):  # a journal that fails here accepts no task either
                await self._measure(owner)
        was_refused, usage.is_refused = usage.is_refused, 0 < usage.open_bytes > room_bytes
        if not usage.is_refused:
            return
        if not was_refused:
            log.warning("a caller's task storage is full", **_labels(owner), bytes=usage.open_bytes, most=most)
        raise StorageQuotaExceeded(usage.open_bytes, more_bytes, int(most * share), most, SETTING)

    async def reserve_key(self, owner: TaskOwner, document: Document) -> None:
        """Count an idempotency key that is about to be written; raise `KeyQuotaExceeded` if it does not fit."""
        share_bytes = int(self.most(owner) * KEY_SHARE)
        room_bytes = share_bytes - size_of(document)
        usage = await self._present(owner)
        if usage is None:
            self._start_freeing(owner)
        elif (self._is_shared and usage.key_bytes > room_bytes * NEAR_SHARE) or (
            usage.key_bytes > room_bytes and not self._is_fresh(usage)
        ):
            with suppress(OSError):  # see `check`
                await self._measure(owner)
        if usage is not None and usage.key_bytes > room_bytes:
            raise KeyQuotaExceeded(usage.key_bytes, share_bytes, SETTING)
        for each in (usage, self._measuring.get(owner)):
            if each is not None:
                each.key_bytes += size_of(document)

    async def _present(self, owner: TaskOwner) -> _Usage | None:
        """What an owner has stored, as far as it is known; measured first where other hubs write, too."""
        usage = self._usages.get(owner)
        if self._is_shared and (usage is None or self._loop.time() > usage.at + SHARED_SECONDS):
            with suppress(OSError):  # see `check`
                await self._measure(owner)
        return self._usages.get(owner)

    def refusal(self, live: LiveTask, ending_bytes: int) -> NotWritten | None:
        """The fault if a task's outcome of this size is too large to be stored."""
        size_bytes, most = live.size_bytes + ending_bytes, self.most(live.record.owner)
        room_bytes = int(most * (1 - OPEN_SHARE))
        if size_bytes <= room_bytes:
            return None
        owner = _labels(live.record.owner)
        log.warning("a result is too large to be stored", **owner, bytes=size_bytes, most=room_bytes)
        fault = NotWritten(
            f"The tool ran, but its result of {ending_bytes} bytes is not stored: a task may take {room_bytes} of a "
            f"caller's {most} bytes of task storage ({SETTING}). Request less at once, or call the tool directly",
            executed="yes",
        )
        fault.retry_after = None  # it would be as large the next time
        return fault

    # -- making room ---------------------------------------------------------------------------------------------------

    def _start_freeing(self, owner: TaskOwner) -> None:
        """Measure an owner and delete its old tasks if there is too much, in the background."""
        if owner not in self._freeing:
            self._freeing.add(owner)
            with suppress(RuntimeError):  # the hub is closing
                self._background.spawn("room for tasks", self._free(owner))

    async def _free(self, owner: TaskOwner) -> None:
        try:
            # Where owners share one memory, this one's quota grows once others are within theirs.
            others = [each for each, usage in self._usages.items() if usage.bytes > self.most(each) and each != owner]
            for each in (*others, owner):
                await self._measure(each)
                await self._delete_oldest(each)
        except OSError as error:  # the next task tries again
            log.warning("old tasks could not be deleted", **_labels(owner), error=str(error))
        finally:
            self._freeing.discard(owner)

    async def _measure(self, owner: TaskOwner) -> None:
        """Ask the journal what an owner has stored; what is written meanwhile is added."""
        while (measuring := self._measuring.get(owner)) is not None:
            await asyncio.wait({measuring.done})
            if not measuring.done.cancelled():
                return
        since = self._measuring[owner] = _Measurement(self._loop.create_future())
        try:
            found = await self._journal.weigh((*DELETABLE, DEDUP_KEY), owner.key)
        except asyncio.CancelledError:
            since.done.cancel()  # the next waiter measures instead
            raise
        finally:
            del self._measuring[owner]
            if not since.done.cancelled():
                since.done.set_result(None)
        usage = self._usages.setdefault(owner, _Usage())
        self._usages.move_to_end(owner)
        keys = sum(size for (kind, _), size in found.items() if kind == DEDUP_KEY)
        ended = sum(size for (kind, state), size in found.items() if state in DELETABLE.get(kind, ()))
        usage.key_bytes = since.key_bytes + keys
        usage.bytes = since.bytes + sum(found.values()) - keys
        usage.open_bytes = since.open_bytes + sum(found.values()) - keys - ended
        usage.at = self._loop.time()
        if len(self._usages) > OWNERS_MAX:
            self._usages.popitem(last=False)

    async def _delete_oldest(self, owner: TaskOwner) -> None:
        most, tasks, size = self.most(owner), 0, 0
        usage = self._usages.get(owner)
        if usage is None or usage.bytes <= most:
            return
        for kind, states in DELETABLE.items():
            while (excess := usage.bytes - int(most * LEFT_SHARE)) > 0:
                deleted = await self._journal.trim(kind, owner.key, states, bytes=excess, limit=BATCH)
                if not deleted.ids:
                    break
                usage.bytes -= deleted.bytes
                size += deleted.bytes
                if kind == TASK:
                    self._on_deleted(owner, deleted.ids)
                    tasks += len(deleted.ids)
        if size:
            log.info("deleted a caller's oldest tasks", **_labels(owner), tasks=tasks, bytes=size, most=most)


def _labels(owner: TaskOwner) -> dict[str, str]:
    return {"caller": owner.name, "tenant": owner.tenant}


# -- retention ---------------------------------------------------------------------------------------------------------

RETENTION_SECONDS = (1.0, 3600.0)
"""The shortest and the longest pause of `Retention`; in between, it is as long as ended tasks are stored."""

UNANSWERED: tuple[str, ...] = ("input_required", "auth_required")
UNANSWERED_SECONDS = 8 * 24 * 3600.0
"""The shortest time that a task waits for its caller's next message, or for an operator: a day longer than a question
of a running call may stay open, or a request for approval."""


def pause_seconds(keep: float) -> float:
    """How long `Retention` pauses if ended tasks are stored for `keep` seconds."""
    least, most = RETENTION_SECONDS
    return min(most, max(least, keep))


class Retention:
    """Deletes tasks that ended long ago, their deliveries, and expired idempotency keys, again and again.

    `keep` returns how long ended tasks are stored now; `on_pruned` receives the times before which ended and
    unanswered tasks were deleted. A short time is exceeded by up to once its length.
    """

    def __init__(
        self,
        journal: Journal,
        now: Callable[[], float],
        keep: Callable[[], float],
        on_pruned: Callable[[float, float], None],
    ) -> None:
        self._journal = journal
        self._now = now
        self._keep = keep
        self._on_pruned = on_pruned
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.prune()
            except OSError as error:
                log.warning("old tasks could not be deleted", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    pause_seconds(self._keep())
                ):  # not `wait_for`: on 3.11 it can swallow a cancellation
                    await self._wake.wait()
            self._wake.clear()

    def look_again(self) -> None:
        """Prune now: `keep` may have changed."""
        self._wake.set()

    async def prune(self) -> int:
        """Delete what is old; return how many documents."""
        now = self._now()
        ended, waiting = now - self._keep(), now - max(self._keep(), UNANSWERED_SECONDS)
        count = await self._prune_all(TASK, ENDED, ended)
        count += await self._prune_all(TASK, UNANSWERED, waiting)
        self._on_pruned(ended, waiting)
        count += await self._prune_all(DELIVERY, STATES, ended)
        return count + await self._prune_all(DEDUP_KEY, ("",), now - KEY_SECONDS)

    async def _prune_all(self, kind: str, states: Collection[str], before: float) -> int:
        count = 0
        while deleted := await self._journal.prune(kind, states, before=before, limit=BATCH):
            count += deleted
        return count
