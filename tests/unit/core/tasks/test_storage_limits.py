"""Owners have a storage quota, and old tasks are deleted, with their documents."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from isthmus.core.access.approval_rules import EXPIRES_SECONDS_MAX
from isthmus.core.calls.running_call import TASK_QUESTION_SECONDS
from isthmus.core.journal import Document, OnWritten, size_of
from isthmus.core.tasks import engine, storage_limits
from isthmus.core.tasks.live_task import (
    KeyQuotaExceeded,
    StorageQuotaExceeded,
    TaskNotStored,
)
from isthmus.core.tasks.push_delivery import DELIVERY, STATES, delivery_document, delivery_of
from isthmus.core.tasks.record import DEDUP_KEY, KEY_SECONDS, TASK, PushRecipient
from isthmus.core.tasks.storage_limits import DELETABLE, UNANSWERED_SECONDS, Retention
from isthmus.model.calls import Result
from isthmus.model.tasks import ENDED
from isthmus.storage import memory
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import ANYONE, DONE, call, raw
from tests.unit.core.tasks.doubles import OWNER, SECONDS, Workshop, draft, turns, until

MOST = 16_000
"""So 2,000 bytes for tasks that begin: two of them, each with 512 besides its words."""


def key_of(room: Room, name: str) -> Document:
    """The document of an idempotency key."""
    return Document(DEDUP_KEY, OWNER.key, name, 1, room.seconds, b'{"digest":"digest","task":"task"}')


class Slow(MemoryJournal):
    """A journal that counts how often it weighs, and can be held up or broken while it does."""

    def __init__(self) -> None:
        super().__init__()
        self.weighed = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_broken = False
        self.refuses = False

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        self.weighed += 1
        found = await super().weigh(kinds, owner)
        await self.may_answer.wait()
        if self.is_broken:
            raise OSError("no")
        return found

    def write(self, documents: Any, done: OnWritten, facts: Any = ()) -> None:
        if self.refuses:
            asyncio.get_running_loop().call_soon(done, "refused")
        else:
            super().write(documents, done, facts)


class Room(Workshop):
    """A workshop whose engine keeps little."""

    def __init__(self) -> None:
        self.slow = Slow()
        super().__init__(self.slow)
        self.engine.storage_quota.keep_bytes = MOST

    async def ask(self) -> None:
        """Begin a task that waits for its caller."""
        async with asyncio.timeout(SECONDS):
            await self.engine.begin(draft(None, state="input_required"))

    async def fill(self) -> int:
        """Begin such tasks until one is refused; return how many were accepted."""
        for begun in range(100):
            try:
                await self.ask()
            except StorageQuotaExceeded:
                return begun
            await turns()
        raise AssertionError("all of it was taken")

    async def end(self, id: str) -> None:
        """A task that has run."""
        await self.begin(id=id)
        self.sent[-1].finish(DONE)
        await until(lambda: not self.engine._store._running)

    async def kept(self) -> int:
        """What the journal has of tasks that have ended."""
        found = await self.journal.weigh([TASK], OWNER.key)
        return sum(size for (_, state), size in found.items() if state in ENDED)

    @property
    def counted(self) -> tuple[int, int]:
        count = self.engine.storage_quota._usages[OWNER]
        return count.bytes, count.open_bytes

    async def weighed(self) -> tuple[int, int]:
        """What there really is."""
        found = await self.journal.weigh(DELETABLE, OWNER.key)
        return sum(found.values()), sum(size for (kind, state), size in found.items() if state not in DELETABLE[kind])


async def test_the_quota_counts_the_stored_bytes() -> None:
    room = Room()
    room.engine.storage_quota.keep_bytes = 10 * MOST
    await room.end("one")
    await room.ask()
    await room.begin(id="two")
    room.engine.cancel(await room.begin(id="three"), "enough")
    await turns()
    assert room.counted == await room.weighed()
    found = await room.engine.find(OWNER, "one")
    assert found is not None
    room.engine.discard(found)
    await turns()
    assert room.counted == await room.weighed()
    assert room.slow.weighed == 3, "once by the engine"


async def test_writes_during_weighing_are_counted_once() -> None:
    room = Room()
    room.slow.may_answer.clear()
    await room.begin(id="one")
    await turns()
    assert room.slow.weighed == 1
    await room.begin(id="two")
    room.sent[0].finish(DONE)
    await turns()
    room.slow.may_answer.set()
    await turns()
    assert room.counted == await room.weighed()


async def test_refused_writes_are_not_counted() -> None:
    room = Room()
    await room.ask()
    await turns()
    before = room.counted
    room.slow.refuses = True
    with pytest.raises(TaskNotStored):
        await room.ask()
    assert room.counted == before


async def test_deliveries_are_counted_once_despite_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "RETRY_SECONDS", 0.0)
    room = Room()
    room.engine.storage_quota.keep_bytes = 100 * MOST
    received = msgspec.structs.replace(
        draft(call(), id="told"), recipients=(PushRecipient("1", "https://a.example", "1.0"),)
    )
    await room.end("first")
    room.slow.refuses = True
    with pytest.raises(TaskNotStored):
        await room.engine.begin(received)
    room.slow.refuses = False
    await room.engine.begin(received)
    room.slow.refuses = True
    room.sent[-1].finish(DONE)
    await turns(50)
    room.slow.refuses = False
    await until(lambda: not room.engine._store._running)
    assert room.counted == await room.weighed()


async def test_room_is_made_with_some_to_spare_and_a_task_in_mind_is_forgotten_too() -> None:
    room = Room()
    number = 0
    while (await room.weighed())[0] <= MOST - 2_000:
        await room.end(str(number))
        number += 1
    assert await room.engine.find(OWNER, "0") is not None
    while await room.engine.find(OWNER, "0") is not None:
        await room.end(str(number))
        await turns(20)
        number += 1
        assert number < 100
    assert await room.kept() <= MOST * storage_limits.LEFT_SHARE
    assert await room.engine.find(OWNER, str(number - 1)) is not None


async def test_due_deliveries_count_and_sent_ones_are_deleted_before_tasks() -> None:
    room = Room()
    room.engine.storage_quota.keep_bytes = 100 * MOST
    recipients = tuple(PushRecipient(str(number), f"https://a.example/{number}", "1.0") for number in range(3))
    await room.end("first")
    await room.engine.begin(msgspec.structs.replace(draft(call(), id="told"), recipients=recipients))
    room.sent[-1].finish(DONE)
    await until(lambda: not room.engine._store._running)
    assert room.counted == await room.weighed()
    for each in await room.journal.all_in(DELIVERY, ["due"], limit=9):
        assert room.slow._write([delivery_document(each, delivery_of(each), "delivered")]) == "kept"
    room.engine.storage_quota.keep_bytes = (await room.weighed())[0]
    await room.end("last")
    await turns(20)
    assert await room.engine.find(OWNER, "first") is not None
    assert len(await room.journal.all_in(DELIVERY, ["delivered"], limit=9)) < 6


async def test_after_a_refusal_the_journal_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    begun = await room.fill()
    assert begun > 1
    weighed = room.slow.weighed
    assert await room.fill() == 0
    assert room.slow.weighed == weighed, "what it said holds for a while"
    await room.journal.prune(TASK, ["input_required"], before=room.seconds + 1, limit=1)
    monkeypatch.setattr(storage_limits, "FRESH_SECONDS", 0.0)
    assert await room.fill() == 1


async def test_a_quota_refusal_names_the_used_and_the_requested_bytes() -> None:
    room = Room()
    begun = await room.fill()
    (_, kept), each = room.counted, room.counted[1] // begun
    with pytest.raises(
        StorageQuotaExceeded, match=rf"take {kept} bytes, and {each} more would exceed the 2000 .* 16000"
    ):
        await room.ask()


async def test_no_caller_is_refused_because_another_left_during_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = Room()
    await room.fill()
    await room.journal.prune(TASK, ["input_required"], before=room.seconds + 1, limit=1)
    monkeypatch.setattr(storage_limits, "FRESH_SECONDS", 0.0)
    weighed = room.slow.weighed
    room.slow.may_answer.clear()
    first, second = asyncio.create_task(room.ask()), asyncio.create_task(room.ask())
    await turns()
    assert room.slow.weighed == weighed + 1, "one asks for both"
    first.cancel()
    room.slow.may_answer.set()
    await second
    assert first.cancelled()


async def test_room_that_was_not_made_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_limits, "FRESH_SECONDS", 0.0)
    room = Room()
    room.engine.storage_quota.keep_bytes = 10 * MOST
    await room.begin(id="one")
    await room.begin(id="two")
    await room.begin(id="three")
    room.engine.storage_quota.keep_bytes = 800
    with capture_logs() as received:
        for running in room.sent[:2]:
            running.finish(DONE)
            await turns(20)
        await room.engine.storage_quota._free(OWNER)
    made = [line["tasks"] for line in received if line["event"].startswith("deleted a caller's oldest tasks")]
    assert made == [1, 1]


async def test_keys_have_room_of_their_own_and_are_refused_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    room.engine.storage_quota.keep_bytes = 10_000
    await room.end("one")
    before = room.counted
    keys = [key_of(room, str(number)) for number in range(10)]
    fitting = 5_000 // size_of(keys[0])
    for key in keys[:fitting]:
        await room.engine.storage_quota.reserve_key(OWNER, key)
        room.slow._write([key])
    with pytest.raises(KeyQuotaExceeded, match=r"the limit is 5000, half of .* \(\[a2a\] keep_bytes\)"):
        await room.engine.storage_quota.reserve_key(OWNER, keys[fitting])
    assert room.counted == before
    room.seconds += KEY_SECONDS
    await room.journal.prune(DEDUP_KEY, [""], before=room.seconds, limit=1)
    monkeypatch.setattr(storage_limits, "FRESH_SECONDS", 0.0)
    await room.engine.storage_quota.reserve_key(OWNER, keys[-1])


async def test_a_result_that_has_no_room_fails_its_task_and_is_not_worth_another_try() -> None:
    room = Room()
    live = await room.begin()
    room.sent[0].finish(Result(raw({"text": "x" * MOST})))
    await until(lambda: not room.engine._store._running)
    assert live.record.state == "failed"
    ending = live.record.ending
    assert ending is not None
    assert (ending.reason, ending.executed, ending.retry_after) == ("not_written", "yes", None)
    assert "12000 of a caller's 16000 bytes" in ending.message


async def test_the_first_key_of_a_caller_is_taken_while_the_journal_is_asked() -> None:
    room = Room()
    await room.engine.storage_quota.reserve_key(OWNER, key_of(room, "key"))
    await turns()
    assert room.slow.weighed == 1


async def test_another_caller_with_tasks_is_not_refused_for_it() -> None:
    room = Room()
    await room.fill()
    other = draft(None, state="input_required")
    async with asyncio.timeout(SECONDS):
        await room.engine.begin(type(other)(other.caller, "talk", "1.0", other.said, "input_required", realm="mcp"))


async def test_a_journal_that_cannot_weigh_refuses_no_caller_and_is_asked_again() -> None:
    room = Room()
    room.slow.is_broken = True
    await room.end("one")
    await turns()
    room.slow.is_broken = False
    await room.end("two")
    await turns()
    assert room.counted == await room.weighed()


async def test_a_lowered_quota_applies_to_stored_tasks() -> None:
    room = Room()
    for number in range(5):
        await room.end(str(number))
    room.engine.storage_quota.keep_bytes = 2_000
    await room.end("last")
    await turns(20)
    assert await room.kept() <= 2_000
    assert await room.engine.find(OWNER, "last") is not None


async def test_a_memory_that_would_be_full_takes_tasks_on_and_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "DOCUMENTS_BYTES", 20_000)
    room = Room()
    room.engine.storage_quota.keep_bytes = memory.DOCUMENTS_BYTES // 2
    for number in range(100):
        await room.end(str(number))
        await turns(20)


async def test_a_memory_that_many_share_takes_tasks_of_each_on_and_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "DOCUMENTS_BYTES", 50_000)
    room = Room()
    room.engine.storage_quota.share_of = room.journal.share_of
    for number in range(400):
        caller = msgspec.structs.replace(ANYONE, name=f"caller {number // 50}")
        async with asyncio.timeout(SECONDS):
            await room.engine.begin(draft(call(caller=caller), caller=caller))
        room.sent[-1].finish(DONE)
        await turns(20)


async def test_of_many_owners_the_earliest_are_asked_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_limits, "OWNERS_MAX", 0)
    room = Room()
    await room.ask()
    await turns()
    await room.ask()
    await turns()
    assert room.slow.weighed == 2
    assert not room.engine.storage_quota._usages


class Tidy:
    """A workshop with one task of each kind, and who tidies it up."""

    def __init__(self) -> None:
        self.shop = Workshop()
        self.keep = 100.0
        self.retention = Retention(self.shop.journal, self.shop.now, lambda: self.keep, self.shop.engine.forget_before)

    async def fill(self) -> None:
        engine = self.shop.engine
        await self.shop.begin(id="ended")
        self.shop.sent[0].finish(DONE)
        await self.shop.begin(id="running")
        await engine.begin(draft(None, state="input_required", id="waiting"))
        self.shop.journal._write([Document(DEDUP_KEY, OWNER.key, "key", 1, self.shop.seconds, b"{}")])
        await turns()

    async def left(self) -> set[str]:
        """The ids of what the engine finds."""
        ids = ("ended", "running", "waiting")
        return {id for id in ids if await self.shop.engine.find(OWNER, id) is not None}


async def test_ended_tasks_go_when_their_time_is_over() -> None:
    tidy = Tidy()
    await tidy.fill()
    assert await tidy.retention.prune() == 0
    assert await tidy.left() == {"ended", "running", "waiting"}
    tidy.shop.seconds += tidy.keep
    assert await tidy.retention.prune() == 1
    assert await tidy.left() == {"running", "waiting"}


async def test_abandoned_tasks_are_deleted_when_no_person_can_be_asked_any_more() -> None:
    tidy = Tidy()
    await tidy.fill()
    tidy.shop.seconds += UNANSWERED_SECONDS
    await tidy.retention.prune()
    assert await tidy.left() == {"running"}
    assert await tidy.shop.journal.read(DEDUP_KEY, OWNER.key, "key") is None


@pytest.mark.parametrize("seconds", [TASK_QUESTION_SECONDS, EXPIRES_SECONDS_MAX])
async def test_a_task_is_stored_for_as_long_as_a_person_may_be_asked(seconds: float) -> None:
    tidy = Tidy()
    await tidy.fill()
    tidy.shop.seconds += seconds
    await tidy.retention.prune()
    assert await tidy.left() == {"running", "waiting"}


async def test_deliveries_are_deleted_with_their_tasks() -> None:
    tidy = Tidy()
    at = tidy.shop.seconds
    for number, state in enumerate(STATES):
        tidy.shop.journal._write([Document(DELIVERY, OWNER.key, str(number), 1, at, b"{}", "t", state)])
    assert await tidy.retention.prune() == 0
    tidy.shop.seconds += tidy.keep
    assert await tidy.retention.prune() == len(STATES)


async def test_keys_hold_for_a_day_however_short_tasks_are_kept() -> None:
    tidy = Tidy()
    await tidy.fill()
    tidy.shop.seconds += KEY_SECONDS - 60.0
    await tidy.retention.prune()
    assert await tidy.shop.journal.read(DEDUP_KEY, OWNER.key, "key") is not None


async def test_how_long_tasks_are_kept_may_change() -> None:
    tidy = Tidy()
    await tidy.fill()
    tidy.keep = 0.5
    assert await tidy.retention.prune() == 1


async def test_it_looks_again_and_again_in_small_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_limits, "RETENTION_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(storage_limits, "BATCH", 2)
    tidy = Tidy()
    bites: list[int] = []
    prune = tidy.shop.journal.prune

    async def counted(*given: Any, **more: Any) -> int:
        bites.append(await prune(*given, **more))
        return bites[-1]

    monkeypatch.setattr(tidy.shop.journal, "prune", counted)
    for number in range(5):
        await tidy.shop.begin(id=f"t{number}")
        tidy.shop.sent[-1].finish(DONE)
    await turns()
    running = asyncio.ensure_future(tidy.retention.run())
    await turns()
    tidy.shop.seconds += tidy.keep * 2
    async with asyncio.timeout(SECONDS):
        while (await tidy.shop.journal.page("task", OWNER.key, limit=9)).total:
            await turns()
    running.cancel()
    assert [bite for bite in bites if bite] == [2, 2, 1]


async def test_a_journal_that_refuses_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_limits, "RETENTION_SECONDS", (0.0, 0.0))
    tidy = Tidy()
    tries = 0
    done = asyncio.Event()

    async def refuse(*_: object, **__: object) -> int:
        nonlocal tries
        tries += 1
        if tries > 2:
            done.set()
        raise OSError("no room")

    monkeypatch.setattr(tidy.shop.journal, "prune", refuse)
    running = asyncio.ensure_future(tidy.retention.run())
    async with asyncio.timeout(SECONDS):
        await done.wait()
    running.cancel()


@pytest.mark.parametrize(("keep", "pause"), [(0.0, 1.0), (2.0, 2.0), (86_400.0, 3600.0)])
def test_it_looks_as_often_as_tasks_are_kept_but_neither_all_the_time_nor_never(keep: float, pause: float) -> None:
    assert storage_limits.pause_seconds(keep) == pause


async def test_it_looks_at_once_on_request() -> None:
    tidy = Tidy()
    await tidy.fill()
    running = asyncio.ensure_future(tidy.retention.run())
    await turns()
    tidy.keep = 0.5
    assert await tidy.left() == {"ended", "running", "waiting"}
    tidy.retention.look_again()
    async with asyncio.timeout(SECONDS):
        while "ended" in await tidy.left():
            await turns()
    running.cancel()
