"""Owners have a storage quota."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from isthmus.core.ports import OnWritten, size_of
from isthmus.core.tasks import engine
from isthmus.core.tasks import storage_quota as allowance
from isthmus.core.tasks.live_task import (
    KeyQuotaExceeded,
    StorageQuotaExceeded,
    TaskNotStored,
)
from isthmus.core.tasks.push_delivery import DELIVERY, delivery_document, delivery_of
from isthmus.core.tasks.record import DEDUP_KEY, KEY_SECONDS, TASK, PushRecipient, key_document
from isthmus.core.tasks.storage_quota import DELETABLE
from isthmus.model.calls import Result
from isthmus.model.tasks import ENDED
from isthmus.storage import memory
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import ANYONE, DONE, call, raw
from tests.unit.core.tasks.doubles import OWNER, SECONDS, Workshop, draft, turns, until

MOST = 16_000
"""So 2,000 bytes for tasks that begin: two of them, each with 512 besides its words."""


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
    assert await room.kept() <= MOST * allowance.LEFT_SHARE
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
    monkeypatch.setattr(allowance, "FRESH_SECONDS", 0.0)
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
    monkeypatch.setattr(allowance, "FRESH_SECONDS", 0.0)
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
    monkeypatch.setattr(allowance, "FRESH_SECONDS", 0.0)
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
    keys = [key_document(OWNER, str(number), "digest", "task", room.seconds, None) for number in range(10)]
    fitting = 5_000 // size_of(keys[0])
    for key in keys[:fitting]:
        await room.engine.storage_quota.reserve_key(OWNER, key)
        room.slow._write([key])
    with pytest.raises(KeyQuotaExceeded, match=r"the limit is 5000, half of .* \(\[a2a\] keep_bytes\)"):
        await room.engine.storage_quota.reserve_key(OWNER, keys[fitting])
    assert room.counted == before
    room.seconds += KEY_SECONDS
    await room.journal.prune(DEDUP_KEY, [""], before=room.seconds, limit=1)
    monkeypatch.setattr(allowance, "FRESH_SECONDS", 0.0)
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
    await room.engine.storage_quota.reserve_key(OWNER, key_document(OWNER, "key", "digest", "task", room.seconds, None))
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
    monkeypatch.setattr(allowance, "OWNERS_MAX", 0)
    room = Room()
    await room.ask()
    await turns()
    await room.ask()
    await turns()
    assert room.slow.weighed == 2
    assert not room.engine.storage_quota._usages
