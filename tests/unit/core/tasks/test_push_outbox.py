"""Due deliveries are sent in order, retried where that helps, and recovered after a crash."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import Document
from isthmus.core.ports import PushReceipt
from isthmus.core.tasks import push_outbox as module
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.live_task import LiveTask
from isthmus.core.tasks.push_delivery import ATTEMPTS_MAX, DELIVERY, Delivery, delivery_of
from isthmus.core.tasks.push_outbox import AT_ONCE_PER_HOST, AWAY_SECONDS, OwnerStatus, PushOutbox, PushRequest
from isthmus.core.tasks.record import PushRecipient, TaskRecord
from isthmus.model.callers import Caller, Grants
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import DONE, call
from tests.unit.core.tasks.doubles import OWNER, HeldJournal, Workshop, draft, turns, until, user_message

YES = PushReceipt(200)
BUSY = PushReceipt(503)
GONE = PushReceipt(410)


class Post:
    """A courier with configured receipts; without one it succeeds."""

    def __init__(self) -> None:
        self.carried: list[tuple[str, str]] = []
        self.marks: list[str] = []
        self.receipts: defaultdict[str, deque[PushReceipt | Exception]] = defaultdict(deque)
        self.held: dict[str, asyncio.Event] = {}

    async def refusal(self, url: str, *, is_trusted: bool) -> str | None:
        return None

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, is_trusted: bool) -> PushReceipt:
        assert is_trusted == ("private" in url)
        self.carried.append((url, body.decode()))
        self.marks.append(headers["mark"])
        if url in self.held:
            await self.held[url].wait()
        receipt = self.receipts[url].popleft() if self.receipts[url] else YES
        if isinstance(receipt, Exception):
            raise receipt
        return receipt

    def to(self, url: str) -> list[str]:
        """What was carried to an address."""
        return [body for where, body in self.carried if where == url]


def write(recipient: PushRecipient, record: TaskRecord, mark: str) -> Sequence[PushRequest]:
    """Two letters of an end, one of anything else."""
    words = [f"{record.id} {record.state}"] + [f"{record.id} over"] * record.is_terminal
    return [PushRequest(recipient.url, {"mark": f"{mark}-{at}"}, word.encode()) for at, word in enumerate(words)]


class Office:
    """An engine with an outbox that has not begun yet. Chance has it that nobody waits between attempts."""

    def __init__(self, shop: Workshop | None = None) -> None:
        self.shop = shop or Workshop()
        self.post = Post()
        self.background = BackgroundTasks()
        self.engine: TaskEngine = self.shop.engine
        self.outbox = PushOutbox(
            self.engine, self.shop.journal, self.post, write, self.background, lambda: self.shop.seconds, lambda: 0.0
        )

    async def begin(self, *urls: str, id: str = "t") -> LiveTask:
        """Begin a task with pushes to this address."""
        made = msgspec.structs.replace(draft(call(), id=id), recipients=tuple(map(recipient, urls)))
        return await self.engine.begin(made)

    def end(self, at: int = -1) -> None:
        """Have a call end."""
        self.shop.sent[at].finish(DONE)

    async def kept(self) -> list[tuple[Document, Delivery]]:
        """All deliveries of the journal, by their number."""
        page = await self.shop.journal.page(DELIVERY, OWNER.key, limit=1_000)
        found = [(each, delivery_of(each)) for each in page.documents]
        return sorted(found, key=lambda each: (each[1].number, each[1].recipient))

    async def until_carried(self, count: int) -> None:
        await until(lambda: len(self.post.carried) >= count)
        await turns()


def recipient(url: str) -> PushRecipient:
    return PushRecipient(f"to {url}", url, "1.0", is_trusted="private" in url)


@asynccontextmanager
async def sending(office: Office | None = None) -> AsyncIterator[Office]:
    """An office whose outbox is at work."""
    office = office or Office()
    office.background.spawn("outbox", office.outbox.run())
    await turns()
    try:
        yield office
    finally:
        office.outbox.close()
        await office.background.aclose()


async def test_every_change_is_sent_once_and_in_order() -> None:
    async with sending() as office:
        await office.begin("http://private/")
        office.end()
        await office.until_carried(3)
        assert office.post.to("http://private/") == ["t submitted", "t completed", "t over"]
        assert len(set(office.post.marks)) == 3
        kept = await office.kept()
        assert [(each.state, len(delivery.attempts), delivery.delivered) for each, delivery in kept] == [
            ("delivered", 1, 1),
            ("delivered", 2, 2),
        ]
        assert (office.outbox._queues, office.outbox._hosts) == ({}, {})


async def test_a_failed_delivery_is_retried_and_later_ones_wait() -> None:
    async with sending() as office:
        office.post.receipts["http://a/"].extend([BUSY, PushReceipt(None, "refused"), YES, YES, BUSY])
        await office.begin("http://a/")
        office.end()
        await office.until_carried(6)
        assert office.post.to("http://a/") == ["t submitted"] * 3 + ["t completed"] + ["t over"] * 2
        assert office.post.marks[0] == office.post.marks[2]
        assert office.post.marks[4] == office.post.marks[5]
        (_, first), (_, last) = await office.kept()
        assert [(each.status, each.reason) for each in first.attempts] == [(503, ""), (None, "refused"), (200, "")]
        assert [each.status for each in last.attempts] == [200, 503, 200]


async def test_a_hopeless_delivery_is_dropped_and_later_ones_are_sent() -> None:
    async with sending() as office:
        office.post.receipts["http://a/"].append(GONE)
        await office.begin("http://a/")
        office.end()
        await office.until_carried(3)
        assert [each.state for each, _ in await office.kept()] == ["failed", "delivered"]


async def test_no_recipient_is_tried_for_ever() -> None:
    async with sending() as office:
        office.post.receipts["http://a/"].extend([BUSY] * 99)
        await office.begin("http://a/")
        await office.until_carried(ATTEMPTS_MAX)
        [(document, delivery)] = await office.kept()
        assert (document.state, len(delivery.attempts)) == ("failed", ATTEMPTS_MAX)
        assert len(office.post.carried) == ATTEMPTS_MAX


async def test_a_recipient_with_retry_after_is_left_alone_until_then() -> None:
    async with sending() as office:
        office.post.receipts["http://a/"].append(PushReceipt(429, retry_after=100.0))
        await office.begin("http://a/")
        await office.until_carried(1)
        [(document, delivery)] = await office.kept()
        assert (document.state, delivery.next) == ("due", office.shop.seconds + 100.0)
        assert len(office.post.carried) == 1
    # The next hub waits no longer, and no shorter.
    after = Office(office.shop)
    async with sending(after):
        assert after.post.carried == []
    office.shop.seconds += 100.0
    async with sending(Office(office.shop)) as later:
        await later.until_carried(1)


async def test_a_hanging_recipient_delays_no_other_and_is_not_crowded() -> None:
    async with sending() as office:
        office.post.held["http://slow/"] = asyncio.Event()
        for number in range(AT_ONCE_PER_HOST + 3):
            await office.begin("http://slow/", "http://quick/", id=f"t{number}")
        await office.until_carried(2 * AT_ONCE_PER_HOST + 3)
        assert len(office.post.to("http://slow/")) == AT_ONCE_PER_HOST
        assert len(office.post.to("http://quick/")) == AT_ONCE_PER_HOST + 3
        office.post.held["http://slow/"].set()
        await office.until_carried(2 * (AT_ONCE_PER_HOST + 3))


async def test_only_so_many_attempts_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    async with sending() as office:
        for number in range(9):
            office.post.held[f"http://{number}/"] = asyncio.Event()
            await office.begin(f"http://{number}/", id=f"t{number}")
        await turns(20)
        assert len(office.post.carried) == 3
        for event in office.post.held.values():
            event.set()
        await office.until_carried(9)


async def test_a_result_is_sent_even_if_the_task_continued_before() -> None:
    office = Office()
    live = await office.begin("http://a/")
    office.end()
    await turns()
    office.engine.reopen(live)
    office.engine.continue_with(live, user_message("again"), call())
    await turns()
    async with sending(office):
        await office.until_carried(4)
        assert office.post.to("http://a/") == ["t submitted", "t completed", "t over", "t working"]


async def test_a_large_end_is_sent_as_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.core.tasks.push_delivery.ENDED_BYTES_MAX", 0)
    async with sending() as office:
        await office.begin("http://a/")
        office.end()
        await office.until_carried(3)
        assert office.post.to("http://a/") == ["t submitted", "t completed", "t over"]


# -- after a crash -----------------------------------------------------------------------------------------------------


async def test_deliveries_due_when_the_hub_ended_are_sent_by_the_next_one() -> None:
    before = Office()
    await before.begin("http://a/")
    before.end()
    await turns()
    assert [each.state for each, _ in await before.kept()] == ["due", "due"]
    async with sending(Office(before.shop)) as office:
        await office.until_carried(3)
        assert office.post.to("http://a/") == ["t submitted", "t completed", "t over"]


async def test_it_goes_on_with_the_letter_that_did_not_arrive() -> None:
    async with sending() as before:
        before.post.receipts["http://a/"].extend([YES, YES, PushReceipt(503, retry_after=9.0)])
        await before.begin("http://a/")
        before.end()
        await before.until_carried(3)
    before.shop.seconds += 9.0
    async with sending(Office(before.shop)) as office:
        await office.until_carried(1)
        assert office.post.carried == [("http://a/", "t over")]
        assert office.post.marks == before.post.marks[2:]


async def test_deliveries_due_while_the_journal_is_read_are_sent() -> None:
    office = Office()
    await office.begin("http://a/")
    async with sending(office):
        office.end()
        await office.until_carried(3)
        assert office.post.to("http://a/") == ["t submitted", "t completed", "t over"]


async def test_deliveries_beyond_the_memory_bound_wait_in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUES_MAX", 4)
    monkeypatch.setattr(module, "READ_AT_ONCE", 2)
    async with sending() as office:
        for number in range(10):
            office.post.held[f"http://{number}/"] = asyncio.Event()
            await office.begin(f"http://{number}/", id=f"t{number}")
        await turns(20)
        assert len(office.outbox._queues) == 4
        for number in range(10):
            office.end(number)
        for event in office.post.held.values():
            event.set()
        await office.until_carried(30)
        for number in range(10):
            words = [f"t{number} submitted", f"t{number} completed", f"t{number} over"]
            assert office.post.to(f"http://{number}/") == words


async def test_many_silent_recipients_of_one_caller_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUES_MAX", 4)
    async with sending() as office:
        urls = [f"http://{number}/" for number in range(6)]
        for url in urls:
            office.post.receipts[url].append(PushReceipt(503, retry_after=3600.0))
        await office.begin(*urls)
        await office.until_carried(4)
        other = Caller("other", "default", Grants(("*",)))
        made = msgspec.structs.replace(draft(call(), caller=other), recipients=(recipient("http://b/"),))
        await office.engine.begin(made)
        await office.until_carried(5)
        assert len(office.post.to("http://b/")) == 1
        assert len(office.outbox._queues) == 4


async def test_missed_deliveries_are_forgotten_once_the_journal_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MISSED_MAX", 2)
    office = Office()
    for number in range(5):
        await office.begin(f"http://{number}/", id=f"t{number}")
    assert len(office.outbox._missed) == 2
    async with sending(office):
        await office.until_carried(5)
        assert office.outbox._missed == []
        assert office.outbox._behind == set()


async def test_deliveries_missed_beyond_the_bound_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MISSED_MAX", 0)
    journal = Blinking()
    office = Office(Workshop(journal))
    journal.listed = asyncio.Event()
    async with sending(office):
        await until(lambda: journal.asked == 1)
        await office.begin("http://a/")
        journal.listed.set()
        await office.until_carried(1)
        assert office.post.to("http://a/") == ["t submitted"]


# -- a journal that cannot be read -------------------------------------------------------------------------------------


class Blinking(MemoryJournal):
    """A journal with a given number of failing reads, whose list waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = {"list": 0, DELIVERY: 0}
        self.asked = 0
        self.listed: asyncio.Event | None = None

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        self._fail("list")
        found = await super().all_in(kind, states, limit=limit, after=after)
        self.asked += 1
        if self.listed is not None:
            await self.listed.wait()
        return found

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        self._fail(kind)
        return await super().read(kind, owner, id)

    def _fail(self, what: str) -> None:
        if self.failures.get(what, 0):
            self.failures[what] -= 1
            raise OSError("the database is starting")


async def test_a_journal_that_cannot_be_read_at_first_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_AGAIN_SECONDS", 0.0)
    journal = Blinking()
    journal.failures["list"] = 3
    office = Office(Workshop(journal))
    await office.begin("http://a/")
    async with sending(office):
        await office.until_carried(1)
        office.end()
        await office.until_carried(3)
        assert office.post.to("http://a/") == ["t submitted", "t completed", "t over"]


async def test_a_delivery_that_cannot_be_read_comes_in_its_turn_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_AGAIN_SECONDS", 0.0)
    journal = Blinking()
    journal.failures[DELIVERY] = 2
    async with sending(Office(Workshop(journal))) as office:
        await office.begin("http://a/")
        office.end()
        await office.until_carried(3)
        assert office.post.to("http://a/") == ["t submitted", "t completed", "t over"]


async def test_one_that_cannot_be_read_keeps_no_other_waiting() -> None:
    office = Office()
    office.shop.journal._write([Document(DELIVERY, OWNER.key, "odd", 1, 0.0, b"odd", "t", "due")])
    await office.begin("http://a/")
    async with sending(office):
        await office.until_carried(1)


# -- deliveries that are no longer wanted ------------------------------------------------------------------------------


async def test_a_removed_recipient_gets_nothing_more() -> None:
    office = Office()
    live = await office.begin("http://a/", "http://b/")
    office.engine.set_recipients(live, (recipient("http://b/"),))
    async with sending(office):
        await office.until_carried(1)
        assert office.post.carried == [("http://b/", "t submitted")]
        assert [each.state for each, _ in await office.kept()] == ["dropped", "delivered"]


async def test_deliveries_go_to_the_newest_address_of_their_recipient() -> None:
    office = Office()
    live = await office.begin("http://a/")
    office.engine.set_recipients(live, (msgspec.structs.replace(recipient("http://a/"), url="http://new/"),))
    async with sending(office):
        await office.until_carried(1)
        assert office.post.carried == [("http://new/", "t submitted")]


async def test_deliveries_of_a_deleted_task_are_dropped() -> None:
    office = Office()
    live = await office.begin("http://a/")
    office.end()
    await turns()
    await office.shop.journal.prune("task", ("completed",), before=1e12, limit=9)
    office.engine._store._cache.drop(live.key)
    async with sending(office):
        await until(lambda: not office.outbox._queues)
        await turns()
        assert [each.state for each, _ in await office.kept()] == ["dropped", "dropped"]
        assert office.post.carried == []


async def test_a_delivery_that_was_pruned_meanwhile_is_forgotten() -> None:
    async with sending() as office:
        office.post.receipts["http://a/"].append(PushReceipt(503, retry_after=0.01))
        await office.begin("http://a/")
        await office.until_carried(1)
        await office.shop.journal.prune(DELIVERY, ("due",), before=1e12, limit=9)
        await until(lambda: not office.outbox._queues)
        assert len(office.post.carried) == 1


# -- defects -----------------------------------------------------------------------------------------------------------


async def test_a_courier_that_breaks_costs_its_own_delivery_and_no_place_in_the_queue() -> None:
    async with sending() as office:
        for number in range(AT_ONCE_PER_HOST + 1):
            office.post.receipts["http://a/"].append(ValueError("a defect"))
            await office.begin("http://a/", id=f"broken{number}")
        await office.until_carried(AT_ONCE_PER_HOST + 1)
        await office.begin("http://a/", id="next")
        await office.until_carried(AT_ONCE_PER_HOST + 2)
        states = [each.state for each, _ in await office.kept()]
        assert sorted(states) == ["delivered"] + ["due"] * (AT_ONCE_PER_HOST + 1)


async def test_after_a_defect_the_delivery_is_retried_and_later_ones_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BROKEN_SECONDS", 0.0)
    async with sending() as office:
        office.post.receipts["http://a/"].append(ValueError("a defect"))
        await office.begin("http://a/")
        office.end()
        await office.until_carried(4)
        assert office.post.to("http://a/") == ["t submitted", "t submitted", "t completed", "t over"]


async def test_an_unrecorded_delivery_does_not_stop_the_outbox() -> None:
    journal = HeldJournal()
    journal.is_held = False
    async with sending(Office(Workshop(journal))) as office:
        office.post.held["http://a/"] = asyncio.Event()
        await office.begin("http://a/")
        await office.until_carried(1)
        journal.is_held = True
        office.post.held["http://a/"].set()
        await until(lambda: len(journal.waiting) == 1)
        journal.settle("refused")
        journal.let_go()
        office.end()
        await office.until_carried(3)
        assert office.post.to("http://a/") == ["t submitted", "t completed", "t over"]


async def test_a_closed_outbox_begins_no_deliveries() -> None:
    async with sending() as office:
        office.post.receipts["http://a/"].append(PushReceipt(503, retry_after=100.0))
        await office.begin("http://a/")
        await office.until_carried(1)
        [server_queue] = office.outbox._queues.values()
        timer = server_queue.timer
        office.outbox.close()
        assert timer is not None
        assert timer.cancelled()
        await office.begin("http://b/", id="later")
        await turns(20)
        assert len(office.post.carried) == 1


async def test_a_gone_recipient_gets_nothing_and_an_unknown_one_gets_it_later() -> None:
    async with sending() as office:
        server_statuses: dict[str, OwnerStatus] = {"mine": "gone", "theirs": "away"}
        office.outbox.check_owner = lambda owner, key: server_statuses[key] if owner == OWNER else "known"
        named = [msgspec.structs.replace(recipient(f"http://{key}/"), key=key) for key in server_statuses]
        await office.engine.begin(msgspec.structs.replace(draft(call(), id="t"), recipients=tuple(named)))
        await until(
            lambda: {server_queue.timer is not None for server_queue in office.outbox._queues.values()} == {True}
        )
        assert office.post.carried == []
        assert [(each.state, delivery.attempts) for each, delivery in await office.kept()] == [
            ("dropped", ()),
            ("due", ()),
        ]
        (server_queue,) = office.outbox._queues.values()
        server_statuses["theirs"] = "known"
        assert server_queue.timer is not None
        assert server_queue.timer.when() - asyncio.get_running_loop().time() > AWAY_SECONDS / 2
        server_queue.timer.cancel()
        office.outbox._set_ready(server_queue)
        await office.until_carried(1)
        assert office.post.to("http://theirs/") == ["t submitted"]


async def test_a_key_that_is_revoked_between_two_letters_ends_them() -> None:
    async with sending() as office:
        await office.begin("http://a/")
        await office.until_carried(1)
        answers: deque[OwnerStatus] = deque(["known", "gone"])
        office.outbox.check_owner = lambda _owner, _key: answers.popleft()
        office.end()
        await until(lambda: not answers and not office.outbox._queues)
        assert office.post.to("http://a/") == ["t submitted", "t completed"]
        assert [each.state for each, _ in await office.kept()] == ["delivered", "dropped"]
