"""How much of each owner's tasks is kept, and of what is sent of them: for new ones, the oldest that ended make room.

What is kept is counted when it is written, which costs an addition. The journal is asked what there really is where
that is not known yet, before anything is refused, and when it seems to be too much. `Retention` takes away what is old,
of which nothing is counted here: a count may be too high, never for long too low.

An owner is a caller at one protocol; see `record.Owner`. The engine counts and asks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports.journal import DOCUMENT_BYTES, Document, Journal, size_of
from isthmus.core.tasks.draft import TooManyKeys, TooMuchKept
from isthmus.core.tasks.pushes import DELIVERY, STATES
from isthmus.core.tasks.record import TASK, Owner
from isthmus.core.tasks.repeats import REPEAT
from isthmus.model.conversation import ENDED
from isthmus.model.faults import NotWritten

if TYPE_CHECKING:
    from isthmus.core.tasks.live import Live

log = structlog.get_logger(__name__)

BYTES = 256 * 1024 * 1024
"""What an owner may have kept unless somebody says otherwise: hundreds of large results, and no danger to a disk."""

SETTING = "[a2a] keep_bytes"
"""Where an operator says so."""

BEGIN_SHARE, OPEN_SHARE = 1 / 8, 1 / 4
"""How much of it may be of tasks that have not ended, for another to begin, and for one of them to go on. Nothing takes
these away; what ends finds room beside them."""

LEFT_SHARE = 15 / 16
"""How much is left when room was made: else it would have to be made again for the next task."""

BATCH = 500
"""What is taken away at once: more would keep those waiting who write."""

OVER: Mapping[str, Collection[str]] = {DELIVERY: tuple(state for state in STATES if state != "due"), TASK: ENDED}
"""What is counted, and in which states it may be taken away, in this order: of what was sent only how that went is
kept, which nobody is told."""

KEY_SHARE = 1 / 2
"""How much may be kept besides of keys by which messages are done once. They go after a day, and not before: what they
stand for would be done twice."""

AGAIN_SECONDS = 5.0
"""How long what the journal said last holds for who is refused: to ask takes it long where there is much."""

OWNERS_MAX = 10_000
"""Owners that are counted; what others have is asked again when they write."""

Forget: TypeAlias = Callable[[Owner, Iterable[str]], None]


class _Count:
    """What one owner has, and since when that is sure."""

    __slots__ = ("at", "bytes", "is_refused", "key_bytes", "open_bytes")

    def __init__(self) -> None:
        self.bytes = self.open_bytes = self.key_bytes = 0
        self.at = float("-inf")
        self.is_refused = False

    def add(self, live: Live, size_bytes: int, *, is_open: bool) -> None:
        """A task takes so much from now on, instead of what it took before."""
        self.bytes += size_bytes - live.counted_bytes
        self.open_bytes += (size_bytes if is_open else 0) - (live.counted_bytes if live.is_counted_open else 0)


class _Weighing(_Count):
    """What is written while the journal says how much there is, and those who wait for that."""

    __slots__ = ("done",)

    def __init__(self, done: asyncio.Future[None]) -> None:
        super().__init__()
        self.done = done


class Allowance:
    """What each owner has kept. `most` says how much that may be now, `forget` is told of what is gone."""

    def __init__(
        self, journal: Journal, background: BackgroundTasks, most: Callable[[Owner], int], forget: Forget
    ) -> None:
        self._journal = journal
        self._background = background
        self.most = most
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._counts: OrderedDict[Owner, _Count] = OrderedDict()
        self._weighing: dict[Owner, _Weighing] = {}
        self._looking: set[Owner] = set()
        """Those for whom room is being made."""

    # -- counting ----------------------------------------------------------------------------------------------------

    def count(self, live: Live) -> None:
        """Note how much a task takes that is being written."""
        self._note(live, DOCUMENT_BYTES + live.size_bytes, is_open=not live.record.is_ended)
        if live.record.is_ended and self._is_too_much(live.record.owner):
            self._look(live.record.owner)

    def count_due(self, owner: Owner, documents: Sequence[Document]) -> None:
        """Note what is written to be sent. Once it was it takes less, which is not seen before it is weighed again."""
        self._note_due(owner, sum(size_of(each) for each in documents))

    def uncount_due(self, owner: Owner, documents: Sequence[Document]) -> None:
        """Note that this was not written."""
        self._note_due(owner, -sum(size_of(each) for each in documents))

    def _note_due(self, owner: Owner, more_bytes: int) -> None:
        if not more_bytes:
            return
        for count in (self._counts.get(owner), self._weighing.get(owner)):
            if count is not None:
                count.bytes += more_bytes
                count.open_bytes += more_bytes
                count.at = float("-inf")

    def uncount(self, live: Live) -> None:
        """Note that a task takes nothing any more."""
        self._note(live, 0, is_open=False)

    def _note(self, live: Live, size_bytes: int, *, is_open: bool) -> None:
        owner = live.record.owner
        for count in (self._counts.get(owner), self._weighing.get(owner)):
            if count is not None:
                count.add(live, size_bytes, is_open=is_open)
        live.counted_bytes, live.is_counted_open = size_bytes, is_open

    def _is_too_much(self, owner: Owner) -> bool:
        """Whether there may be too much, and something may be done about it."""
        count, most = self._counts.get(owner), self.most(owner)
        if count is None:
            return True
        is_hopeless = count.open_bytes > most * LEFT_SHARE
        return count.bytes > most and not (is_hopeless and self._is_sure(count))

    def _is_sure(self, count: _Count) -> bool:
        return self._loop.time() < count.at + AGAIN_SECONDS

    # -- refusing ----------------------------------------------------------------------------------------------------

    async def check(self, owner: Owner, size_bytes: int, share: float = OPEN_SHARE) -> None:
        """Raise `TooMuchKept` if there is no room for so much more that has not ended; one task always has it."""
        most, more_bytes = self.most(owner), DOCUMENT_BYTES + size_bytes
        room_bytes = int(most * share) - more_bytes
        count = self._counts.get(owner)
        if count is None:
            self._look(owner)
            return
        if 0 < count.open_bytes > room_bytes and not self._is_sure(count):
            with suppress(OSError):  # a journal that cannot be asked takes no task either
                await self._weigh(owner)
        was_refused, count.is_refused = count.is_refused, 0 < count.open_bytes > room_bytes
        if not count.is_refused:
            return
        if not was_refused:
            log.warning("a caller's tasks may keep no more", **_named(owner), bytes=count.open_bytes, most=most)
        raise TooMuchKept(count.open_bytes, more_bytes, int(most * share), most, SETTING)

    async def take_key(self, owner: Owner, document: Document) -> None:
        """Count a key that is about to be written; raise `TooManyKeys` if there is no room for it."""
        share_bytes = int(self.most(owner) * KEY_SHARE)
        room_bytes = share_bytes - size_of(document)
        count = self._counts.get(owner)
        if count is None:
            self._look(owner)
        elif count.key_bytes > room_bytes and not self._is_sure(count):
            with suppress(OSError):  # see `check`
                await self._weigh(owner)
        if count is not None and count.key_bytes > room_bytes:
            raise TooManyKeys(count.key_bytes, share_bytes, SETTING)
        for each in (count, self._weighing.get(owner)):
            if each is not None:
                each.key_bytes += size_of(document)

    def refusal(self, live: Live, ending_bytes: int) -> NotWritten | None:
        """Why how a task ended is not kept with it, which takes so much; None if it is."""
        size_bytes, most = live.size_bytes + ending_bytes, self.most(live.record.owner)
        room_bytes = int(most * (1 - OPEN_SHARE))
        if size_bytes <= room_bytes:
            return None
        log.warning("a result is too large to be kept", **_named(live.record.owner), bytes=size_bytes, most=room_bytes)
        fault = NotWritten(
            f"The tool ran, but its result of {ending_bytes} bytes is not kept: a task has room for {room_bytes} of "
            f"the {most} bytes that are kept of a caller's tasks ({SETTING}). Ask for less at once, or call the tool "
            "directly",
            executed="yes",
        )
        fault.retry_after = None  # it would be as large the next time
        return fault

    # -- making room -------------------------------------------------------------------------------------------------

    def _look(self, owner: Owner) -> None:
        """See what an owner has, and make room if that is too much; soon, since nobody waits for it."""
        if owner not in self._looking:
            self._looking.add(owner)
            with suppress(RuntimeError):  # the crew is closed, with the hub
                self._background.spawn("room for tasks", self._make_room(owner))

    async def _make_room(self, owner: Owner) -> None:
        try:
            # Where they share one memory, there is more for this one once others have no more than they may.
            others = [each for each, count in self._counts.items() if count.bytes > self.most(each) and each != owner]
            for each in (*others, owner):
                await self._weigh(each)
                await self._trim(each)
        except OSError as error:  # it is looked again with the next task
            log.warning("room for tasks could not be made", **_named(owner), error=str(error))
        finally:
            self._looking.discard(owner)

    async def _weigh(self, owner: Owner) -> None:
        """Ask the journal what an owner has; what is written after that is added."""
        while (under_way := self._weighing.get(owner)) is not None:
            await asyncio.wait({under_way.done})
            if not under_way.done.cancelled():
                return
        since = self._weighing[owner] = _Weighing(self._loop.create_future())
        try:
            found = await self._journal.weigh((*OVER, REPEAT), owner.key)
        except asyncio.CancelledError:
            since.done.cancel()  # the next of those who wait asks in its place
            raise
        finally:
            del self._weighing[owner]
            if not since.done.cancelled():
                since.done.set_result(None)
        count = self._counts.setdefault(owner, _Count())
        self._counts.move_to_end(owner)
        keys = sum(size for (kind, _), size in found.items() if kind == REPEAT)
        over = sum(size for (kind, state), size in found.items() if state in OVER.get(kind, ()))
        count.key_bytes = since.key_bytes + keys
        count.bytes = since.bytes + sum(found.values()) - keys
        count.open_bytes = since.open_bytes + sum(found.values()) - keys - over
        count.at = self._loop.time()
        if len(self._counts) > OWNERS_MAX:
            self._counts.popitem(last=False)

    async def _trim(self, owner: Owner) -> None:
        most, tasks, size = self.most(owner), 0, 0
        count = self._counts.get(owner)
        if count is None or count.bytes <= most:
            return
        for kind, states in OVER.items():
            while (excess := count.bytes - int(most * LEFT_SHARE)) > 0:
                taken = await self._journal.trim(kind, owner.key, states, bytes=excess, limit=BATCH)
                if not taken.ids:
                    break
                count.bytes -= taken.bytes
                size += taken.bytes
                if kind == TASK:
                    self._forget(owner, taken.ids)
                    tasks += len(taken.ids)
        if size:
            made = {"tasks": tasks, "bytes": size, "most": most}
            log.info("a caller's oldest tasks made room for new ones", **_named(owner), **made)


def _named(owner: Owner) -> dict[str, str]:
    return {"caller": owner.name, "tenant": owner.tenant}
