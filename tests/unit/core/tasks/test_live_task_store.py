"""Idle tasks are cached, and a deleted task is hidden until the journal confirms."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from isthmus.core.journal import Document, WriteResult
from isthmus.core.tasks import engine as engines
from isthmus.core.tasks import live_task as store
from isthmus.core.tasks.live_task import LiveTask, Report, TaskCache, TaskNotStored
from isthmus.core.tasks.push_delivery import DELIVERY, deliveries_of
from isthmus.core.tasks.record import TASK, PushRecipient, TaskOwner, TaskRecord, document_of
from tests.unit.core.doubles import call
from tests.unit.core.tasks.doubles import OWNER, SECONDS, HeldJournal, Workshop, draft, turns, until


class IdleListener:
    """Listens to no end."""

    def task_changed(self, record: TaskRecord) -> None:
        pass

    def task_reported(self, record: TaskRecord, noted: Report) -> None:
        pass


def resting(number: int, size_bytes: int = 1) -> LiveTask:

    live = LiveTask(TaskRecord(f"t{number}", TaskOwner("a", "b"), "c", "1.0", "input_required", 1.0, float(number)))
    live.size_bytes = size_bytes
    return live


async def test_the_least_recently_read_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CACHED_TASKS_MAX", 2)
    tasks, lives = TaskCache(), [resting(number) for number in range(3)]
    for live in lives[:2]:
        tasks.put(live)
    assert tasks.get(lives[0].key) is lives[0]
    tasks.put(lives[2])
    assert [tasks.get(live.key) for live in lives] == [lives[0], None, lives[2]]


async def test_a_reader_of_another_nodes_task_finds_the_news_for_all_waiters() -> None:
    workshop, received = Workshop(), list[str]()
    tasks = workshop.engine._store
    replace = msgspec.structs.replace
    record = replace(resting(1).record, state="working", version=1)
    live = tasks.view_of(replace(document_of(record), holder="7"))
    ear = IdleListener()
    ear.task_changed = lambda record: received.append(record.state)  # type: ignore[method-assign]
    live.listeners[ear] = None
    done = document_of(replace(record, state="completed", version=2))
    assert tasks.view_of(done) is tasks.view_of(done) is live
    assert received == ["completed"]


async def test_the_task_cache_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CACHED_BYTES_MAX", 10)
    tasks, lives = TaskCache(), [resting(number, 6) for number in range(2)]
    for live in lives:
        tasks.put(live)
    assert [tasks.get(live.key) for live in lives] == [None, lives[1]]
    large = resting(3, 11)
    tasks.put(large)
    assert tasks.get(large.key) is None


async def test_a_task_with_a_listener_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CACHED_TASKS_MAX", 1)
    tasks, lives = TaskCache(), [resting(number) for number in range(3)]
    lives[0].listeners[IdleListener()] = None
    for live in lives:
        tasks.put(live)
    assert tasks.get(lives[0].key) is lives[0]
    lives[0].listeners.clear()
    tasks.put(lives[2])
    assert [tasks.get(live.key) for live in lives] == [None, None, lives[2]]


async def test_tasks_pruned_in_the_journal_leave_the_cache() -> None:
    tasks, lives = TaskCache(), [resting(number) for number in range(3)]
    for live in lives:
        tasks.put(live)
    tasks.drop_where(lambda record: record.updated < 2.0)
    assert [tasks.get(live.key) for live in lives] == [None, None, lives[2]]


BESIDE = Document("repeat", OWNER.key, "k", 1, 1.0, b"{}")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(store, "RETRY_SECONDS", 0.0)


async def refused(*, is_kept: bool = True) -> tuple[Workshop, HeldJournal]:
    """A workshop with a task that was not begun, though it may be kept; that it is taken away is being written."""
    journal = HeldJournal()
    shop = Workshop(journal)
    beginning = asyncio.ensure_future(shop.engine.begin(draft(call(), id="t", besides=(BESIDE,))))
    await until(lambda: bool(journal.waiting))
    journal.settle("unknown", is_kept=is_kept)
    with pytest.raises(TaskNotStored):
        await beginning
    return shop, journal


@pytest.mark.parametrize("verdict", ["refused", "unknown"])
@pytest.mark.parametrize("is_kept", [True, False])
async def test_it_is_taken_away_until_the_journal_has_done_so(*, verdict: WriteResult, is_kept: bool) -> None:
    shop, journal = await refused(is_kept=is_kept)
    for _ in range(3):
        await until(lambda: bool(journal.waiting))
        journal.settle(verdict)
    await until(lambda: bool(journal.waiting))
    journal.settle()
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    await turns()
    assert (journal._documents, len(journal.waiting)) == ({}, 0)


async def test_an_unconfirmed_delete_that_succeeded_is_done() -> None:
    shop, journal = await refused()
    journal.settle("unknown", is_kept=True)
    journal.is_held = False
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    assert journal._documents == {}


async def test_until_then_no_search_finds_it_and_no_list_has_it() -> None:
    shop, journal = await refused()
    document = await journal.read(TASK, OWNER.key, "t")
    assert document is not None
    assert await shop.engine.find(OWNER, "t") is None
    assert shop.engine.current_record(document) is None
    journal.let_go()
    assert await shop.engine.find(OWNER, "t") is None
    assert shop.sent == []


async def test_an_earlier_search_does_not_find_it_either() -> None:
    journal = HeldJournal()
    shop = Workshop(journal)
    journal.is_held = False
    live = await shop.engine.begin(draft(None, id="t", state="input_required"))
    shop.engine._store._cache.drop(live.key)
    journal.is_held = True
    finding = asyncio.ensure_future(shop.engine._store.load(live.key))
    shop.engine.discard(live)
    assert await finding is None
    journal.let_go()


async def test_the_hub_waits_for_it_at_its_end() -> None:
    shop, journal = await refused()
    idle = asyncio.ensure_future(shop.engine.wait_idle())
    await turns()
    assert not idle.done()
    journal.settle()
    await idle


@pytest.mark.parametrize("is_kept", [True, False])
async def test_another_of_the_same_id_is_begun_after_that(*, is_kept: bool) -> None:
    shop, journal = await refused(is_kept=is_kept)
    again = asyncio.ensure_future(shop.begin(id="t"))
    await turns()
    assert len(journal.waiting) == 1
    journal.settle("refused")
    await until(lambda: bool(journal.waiting))
    journal.let_go()
    live = await again
    await turns()
    assert await shop.engine.find(OWNER, "t") is live
    assert await journal.read(TASK, OWNER.key, "t") is not None
    assert len(shop.sent) == 1


async def test_a_wait_that_takes_too_long_has_begun_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "STORE_SECONDS", 0.0)
    shop, journal = await refused()
    with pytest.raises(TaskNotStored):
        await shop.begin(id="t")
    with pytest.raises(TimeoutError):
        await shop.engine.wait_deleted(OWNER, "t")
    journal.let_go()
    assert not await shop.engine.wait_deleted(OWNER, "t")
    assert shop.sent == []


async def test_a_discarded_task_is_hidden_at_once_and_deleted_with_retries() -> None:
    journal = HeldJournal()
    shop = Workshop(journal)
    journal.is_held = False
    live = await shop.engine.begin(draft(None, id="t", state="input_required"))
    journal.is_held = True
    shop.engine.discard(live)
    shop.engine.discard(live)
    assert len(journal.waiting) == 1
    journal.settle("refused")
    assert await shop.engine.find(OWNER, "t") is None
    journal.is_held = False
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    assert journal._documents == {}


async def test_a_due_delivery_of_a_discarded_task_keeps_no_task() -> None:
    journal = HeldJournal()
    shop = Workshop(journal)
    received = PushRecipient("a", "https://hook.example.com/", "1.0")
    wanted = draft(call(), id="t")
    beginning = asyncio.ensure_future(shop.engine.begin(msgspec.structs.replace(wanted, recipients=(received,))))
    await until(lambda: bool(journal.waiting))
    (due,) = deliveries_of(shop.engine._store._running[(OWNER.key, "t")].record)
    journal.settle("unknown", is_kept=True)
    # The outbox has read it in the meantime.
    assert journal._write([msgspec.structs.replace(due, version=2, state="dropped")]) == "kept"
    with pytest.raises(TaskNotStored):
        await beginning
    journal.let_go()
    assert [document.kind for document in journal._documents.values()] == [DELIVERY]
