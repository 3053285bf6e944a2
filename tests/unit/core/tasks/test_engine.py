"""The engine reports and sends nothing before it is stored, and sends nothing twice."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.journal import Document
from isthmus.core.tasks import engine as engines
from isthmus.core.tasks import live_task as store
from isthmus.core.tasks.engine import TOO_LARGE, TaskEngine, TaskExchange
from isthmus.core.tasks.live_task import LiveTask, Report, TaskExists, TaskNotStored
from isthmus.core.tasks.push_delivery import DELIVERY, delivery_of
from isthmus.core.tasks.record import TASK, PushRecipient, StoredQuestion, TaskRecord, document_of, owner_of, record_of
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Answered, Question, Reply
from isthmus.model.fault_table import Overloaded
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import ANYONE, DONE, PROGRESS, SERVER, call, raw
from tests.unit.core.tasks.doubles import (
    OWNER,
    SECONDS,
    HeldJournal,
    RecordingListener,
    Workshop,
    draft,
    turns,
    until,
    user_message,
)

QUESTION = Question("elicitation/create", raw({"message": "Which?"}))


class Held:
    """A workshop whose journal waits, and a task that is being begun there."""

    def __init__(self) -> None:
        self.journal = HeldJournal()
        self.shop = Workshop(self.journal)
        self.engine = self.shop.engine
        self.beginning = asyncio.ensure_future(self.shop.begin())

    async def begun(self) -> LiveTask:
        await until(lambda: bool(self.journal.waiting))
        self.journal.settle()
        return await self.beginning


def state_of(live: LiveTask) -> str | None:
    """The task's state as callers see it."""
    return None if live.stored is None else live.stored.state


# -- beginning ---------------------------------------------------------------------------------------------------------


async def test_a_call_is_sent_only_once_its_task_is_kept() -> None:
    held = Held()
    await turns()
    assert held.shop.sent == []
    finding = asyncio.ensure_future(held.engine.find(OWNER, held.journal.waiting[0][0][0].id))
    await turns()
    assert not finding.done()
    live = await held.begun()
    assert await finding is live
    assert len(held.shop.sent) == 1
    assert state_of(live) == "working"
    kept = await held.journal.read(TASK, OWNER.key, live.record.id)
    assert kept is not None
    assert record_of(kept).phase == "sent"
    assert kept.state == "working"


async def test_a_task_that_cannot_be_kept_is_not_begun() -> None:
    held = Held()
    await turns()
    id = held.journal.waiting[0][0][0].id
    finding = asyncio.ensure_future(held.engine.find(OWNER, id))
    await turns()
    held.journal.settle("refused")
    with pytest.raises(TaskNotStored):
        await held.beginning
    assert held.shop.sent == []
    assert await finding is None
    assert await held.engine.find(OWNER, id) is None
    assert not held.journal.waiting


@pytest.mark.parametrize("is_kept", [True, False])
async def test_documents_stored_with_a_refused_task_are_removed_too(*, is_kept: bool) -> None:
    journal = HeldJournal()
    shop = Workshop(journal)
    beside = Document("repeat", OWNER.key, "k", 1, 1.0, b"{}")
    beginning = asyncio.ensure_future(shop.engine.begin(draft(call(), besides=(beside,))))
    await until(lambda: bool(journal.waiting))
    journal.settle("unknown", is_kept=is_kept)
    with pytest.raises(TaskNotStored):
        await beginning
    journal.let_go()
    assert await journal.read("repeat", OWNER.key, "k") is None


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_task_of_unknown_storage_is_rolled_back(*, is_kept: bool) -> None:
    held = Held()
    await turns()
    id = held.journal.waiting[0][0][0].id
    held.journal.settle("unknown", is_kept=is_kept)
    with pytest.raises(TaskNotStored):
        await held.beginning
    held.journal.let_go()
    assert await held.journal.read(TASK, OWNER.key, id) is None
    assert held.shop.sent == []


async def test_of_two_tasks_with_one_id_only_the_first_is_begun() -> None:
    shop = Workshop()
    results = await asyncio.gather(shop.begin(id="mine"), shop.begin(id="mine"), return_exceptions=True)
    assert [type(result) for result in results] == [LiveTask, TaskExists]
    with pytest.raises(TaskExists, match="mine"):
        await shop.begin(id="mine")
    assert len(shop.sent) == 1
    # Known by the journal alone:
    with pytest.raises(TaskExists):
        await TaskEngine(shop.stage.hub, shop.journal, shop.now).begin(draft(call(), id="mine"))
    assert len(shop.sent) == 1


async def test_a_task_that_another_process_began_meanwhile_is_found() -> None:
    held = Held()
    await turns()
    id = held.journal.waiting[0][0][0].id
    theirs = replace(record_of(held.journal.waiting[0][0][0]), said=(user_message("theirs", "m9"),))
    assert held.journal._write([document_of(theirs)]) == "kept"
    finding = asyncio.ensure_future(held.engine.find(OWNER, id))
    await turns()
    held.journal.settle()
    with pytest.raises(TaskExists):
        await held.beginning
    found = await finding
    assert found is not None
    assert found.stored == theirs


async def test_another_caller_may_use_the_same_id_and_sees_nothing_of_the_first() -> None:
    shop = Workshop()
    other = Caller("other", "default", Grants(("*",)))
    mine = await shop.begin(id="t")
    theirs = await shop.engine.begin(draft(None, caller=other, id="t", state="input_required"))
    assert mine is not theirs
    assert await shop.engine.find(owner_of(other), "t") is theirs
    assert await shop.engine.find(OWNER, "t") is mine
    assert await shop.engine.find(owner_of(Caller("nobody", "default", Grants(()))), "t") is None


async def test_a_call_that_ends_at_once_is_a_task_that_ended() -> None:
    shop = Workshop()
    live = await shop.begin(call("files.unknown"))
    await shop.engine.wait_idle()
    assert state_of(live) == "failed"
    assert live.record.ending is not None
    assert (live.record.ending.reason, live.record.ending.executed) == ("unknown_tool", "no")
    assert shop.sent == []


async def test_a_caller_that_stops_waiting_while_its_task_is_begun_does_not_end_it() -> None:
    held = Held()
    await turns()
    held.beginning.cancel()
    await turns()
    held.journal.let_go()
    assert len(held.shop.sent) == 1


# -- going on ----------------------------------------------------------------------------------------------------------


async def test_a_listener_gets_an_end_when_it_is_stored_and_not_before() -> None:
    held = Held()
    live = await held.begun()
    recorded = RecordingListener(live)
    held.shop.sent[0].finish(DONE)
    await turns()
    assert recorded.records == []
    assert state_of(live) == "working"
    held.journal.settle()
    assert recorded.states == ["completed"]
    assert state_of(live) == "completed"


async def test_an_end_that_the_journal_refuses_is_tried_again_until_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "RETRY_SECONDS", 0.0)
    held = Held()
    live = await held.begun()
    recorded = RecordingListener(live)
    held.shop.sent[0].finish(DONE)
    for _ in range(3):
        await until(lambda: bool(held.journal.waiting))
        held.journal.settle("refused")
    assert recorded.records == []
    await until(lambda: bool(held.journal.waiting))
    held.journal.settle()
    assert recorded.states == ["completed"]
    kept = await held.journal.read(TASK, OWNER.key, live.record.id)
    assert kept is not None
    assert kept.version == 2


@pytest.mark.parametrize("is_kept", [True, False])
async def test_an_end_of_unknown_storage_is_written_again(monkeypatch: pytest.MonkeyPatch, *, is_kept: bool) -> None:
    monkeypatch.setattr(engines, "RETRY_SECONDS", 0.0)
    held = Held()
    live = await held.begun()
    recorded = RecordingListener(live)
    held.shop.sent[0].finish(DONE)
    held.journal.settle("unknown", is_kept=is_kept)
    held.journal.is_held = False
    async with asyncio.timeout(SECONDS):
        await held.engine.wait_idle()
    assert recorded.states == ["completed"]
    kept = await held.journal.read(TASK, OWNER.key, live.record.id)
    assert kept is not None
    assert record_of(kept).state == "completed"


async def waiting() -> tuple[Workshop, HeldJournal, LiveTask]:
    """A task that waits for an instruction; whatever is written from now on is held."""
    journal = HeldJournal()
    shop = Workshop(journal)
    journal.is_held = False
    live = await shop.engine.begin(draft(None, state="input_required"))
    journal.is_held = True
    return shop, journal, live


async def test_an_earlier_change_that_is_kept_sends_nothing() -> None:
    shop, journal, live = await waiting()
    shop.engine.change(live, said=(*live.record.said, user_message("which?", "m2")))
    shop.engine.continue_with(live, user_message("do it", "m3"), call())
    journal.settle()
    assert shop.sent == []
    journal.settle()
    assert len(shop.sent) == 1


async def test_a_call_that_was_given_up_unsent_is_not_sent_by_the_next_one() -> None:
    shop, journal, live = await waiting()
    shop.engine.continue_with(live, user_message("do it", "m2"), call())
    shop.engine.cancel(live, "no")
    shop.engine.reopen(live)
    shop.engine.continue_with(live, user_message("do that", "m3"), call())
    journal.settle()
    assert shop.sent == []
    journal.settle()
    assert len(shop.sent) == 1


async def test_a_call_that_was_given_up_unsent_is_not_sent_when_its_task_waits_again() -> None:
    shop, journal, live = await waiting()
    shop.engine.continue_with(live, user_message("do it", "m2"), call())
    shop.engine.cancel(live, "no")
    shop.engine.reopen(live)
    shop.engine.change(live, said=(*live.record.said, user_message("which?", "m3")))
    journal.let_go()
    await turns()
    assert shop.sent == []
    assert state_of(live) == "input_required"


async def test_a_reloaded_task_is_not_changed_by_a_holder_of_the_first_one() -> None:
    shop = Workshop()
    old = await shop.engine.begin(draft(None, state="input_required"))
    shop.engine._store._cache.drop(old.key)
    new = await shop.engine.find(OWNER, old.record.id)
    assert new is not None
    assert new is not old
    shop.engine.set_recipients(old, (ANN,))
    shop.engine.change(old, state="canceled")
    await turns()
    assert old.record == new.record
    shop.engine.set_recipients(new, (ANN,))
    await turns()
    found = await shop.engine.find(OWNER, old.record.id)
    assert found is new
    assert new.stored is not None
    assert (new.stored.state, new.stored.recipients) == ("input_required", (ANN,))


async def test_a_task_that_another_process_changed_stays_as_it_is_and_starts_nothing() -> None:
    shop = Workshop()
    live = await shop.engine.begin(draft(None, state="input_required"))
    recorded = RecordingListener(live)
    theirs = replace(live.record, said=(*live.record.said, user_message("theirs", "m9")), version=2)
    assert shop.journal._write([document_of(theirs)]) == "kept"
    shop.engine.continue_with(live, user_message("do it", "m2"), call())
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    assert (shop.sent, recorded.records, live.stored) == ([], [theirs], theirs)
    # It can go on from there.
    shop.engine.continue_with(live, user_message("do it", "m3"), call())
    await turns()
    assert len(shop.sent) == 1


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_task_without_a_call_that_another_process_changed_ends(*, is_answered: bool) -> None:
    shop = Workshop()
    live = await shop.begin() if is_answered else await shop.engine.begin(draft(None, state="input_required"))
    theirs = replace(live.record, state="working", phase="sent", version=2)
    assert shop.journal._write([document_of(theirs)]) == "kept"
    if is_answered:
        shop.sent[0].finish(DONE)
    else:
        shop.engine.continue_with(live, user_message("do it", "m2"), call())
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    kept = await shop.journal.read(TASK, OWNER.key, live.record.id)
    assert kept is not None
    assert record_of(kept) == live.stored
    assert (state_of(live), kept.version) == ("completed" if is_answered else "failed", 3)


async def test_a_task_that_another_process_deleted_has_failed_here() -> None:
    shop = Workshop()
    live = await shop.begin()
    recorded = RecordingListener(live)
    shop.journal._documents.clear()
    shop.sent[0].finish(DONE)
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    assert recorded.states == ["failed"]
    # That is kept nowhere.
    assert state_of(live) == "working"
    assert await shop.engine.find(OWNER, live.record.id) is None


class Forgetful(MemoryJournal):
    """A journal that can be put back to how it was, and cannot be read at first."""

    refusals = 0

    def __init__(self) -> None:
        super().__init__()
        self._copy = dict(self._documents)

    def remember(self) -> None:
        self._copy = dict(self._documents)

    def go_back(self) -> None:
        self._documents = dict(self._copy)

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        if self.refusals:
            self.refusals -= 1
            raise OSError("away")
        return await super().read(kind, owner, id)


@pytest.mark.parametrize("refusals", [0, 2])
async def test_an_answer_is_stored_by_a_journal_that_lost_the_earlier_version(
    monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    monkeypatch.setattr(engines, "RETRY_SECONDS", 0.0)
    journal = Forgetful()
    shop = Workshop(journal)
    live = await shop.begin()
    recorded = RecordingListener(live)
    journal.remember()
    shop.sent[0].ask(QUESTION, lambda _: None)
    await turns()
    shop.engine.answer(live, None, Answered(raw({})))
    await turns()
    journal.go_back()
    journal.refusals = refusals
    shop.sent[0].finish(DONE)
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    assert recorded.states == ["input_required", "working", "completed"]
    kept = await journal.read(TASK, OWNER.key, live.record.id)
    assert kept is not None
    assert (kept.version, record_of(kept)) == (2, live.stored)
    assert state_of(live) == "completed"


async def test_changes_during_a_write_are_written_next() -> None:
    held = Held()
    live = await held.begun()
    recorded = RecordingListener(live)
    TaskExchange(held.shop.engine, live).ask(QUESTION, lambda _: None)
    held.shop.sent[0].cancel("enough")
    await turns()
    assert len(held.journal.waiting) == 1
    assert held.journal.settle() == "kept"
    assert recorded.states == ["input_required"]
    assert held.journal.settle() == "kept"
    assert recorded.states == ["input_required", "canceled"]
    assert [record.version for record in recorded.records] == [2, 3]


Fate = Literal["kept", "refused", "unknown and kept", "unknown and lost"]


@given(
    st.lists(st.sampled_from(["kept", "refused", "unknown and kept", "unknown and lost"]), max_size=12),
    st.lists(st.integers(0, 12), max_size=4),
)
def test_however_badly_the_journal_writes_it_ends_up_with_the_newest_record(
    fates: list[Fate], changes: list[int]
) -> None:
    async def run() -> None:
        held = Held()
        live = await held.begun()
        recorded = RecordingListener(live)
        for turn, fate in enumerate(fates):
            for number in range(changes.count(turn)):
                held.engine.change(live, asked=StoredQuestion(f"{turn}.{number}", Raw(b"{}")))
            await turns(3)
            if held.journal.waiting:
                received: Literal["kept", "refused"] = "kept" if fate == "kept" else "refused"
                held.journal.settle("unknown" if "unknown" in fate else received, is_kept=fate == "unknown and kept")
        held.engine.change(live, state="completed", phase="over")
        held.journal.let_go()
        async with asyncio.timeout(SECONDS):
            await held.engine.wait_idle()
        document = await held.journal.read(TASK, OWNER.key, live.record.id)
        assert document is not None
        assert record_of(document) == live.record == live.stored == recorded.records[-1]
        versions = [record.version for record in recorded.records]
        assert versions == sorted(set(versions))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "RETRY_SECONDS", 0.0)
        asyncio.run(run())


async def test_a_task_that_has_ended_does_not_change() -> None:
    shop = Workshop()
    live = await shop.begin()
    shop.sent[0].finish(DONE)
    await shop.engine.wait_idle()
    before = live.record
    shop.engine.change(live, state="working")
    assert live.record is before
    assert not shop.engine.cancel(live, "too late")


async def test_overload_rejects_a_task_and_a_lost_server_fails_it() -> None:
    shop = Workshop()
    live = await shop.begin()
    shop.sent[0].finish(Overloaded(SERVER, 64, 256))
    await shop.engine.wait_idle()
    assert live.record.state == "rejected"
    assert live.record.ending is not None
    assert live.record.ending.server == SERVER


async def test_reports_reach_listeners_and_a_failing_one_costs_only_itself() -> None:
    shop = Workshop()
    live = await shop.begin()

    class Broken(RecordingListener):
        def task_changed(self, record: TaskRecord) -> None:
            raise RuntimeError(f"broken by {record.state}")

        def task_reported(self, record: TaskRecord, noted: Report) -> None:
            raise RuntimeError(f"broken by {noted} of {record.id}")

    broken, recorded = Broken(live), RecordingListener(live)
    shop.sent[0].emit(PROGRESS)
    shop.sent[0].finish(DONE)
    await shop.engine.wait_idle()
    assert recorded.events == [PROGRESS]
    assert recorded.states == ["completed"]
    assert broken.records == []


# -- questions ---------------------------------------------------------------------------------------------------------


async def test_a_question_makes_the_task_wait_and_the_next_message_answers_it() -> None:
    shop = Workshop()
    live = await shop.begin()
    recorded = RecordingListener(live)
    replies: list[Reply] = []
    shop.sent[0].ask(QUESTION, replies.append)
    await turns()
    assert live.stored is not None
    assert live.stored.asked == StoredQuestion(QUESTION.method, QUESTION.params, 1)
    assert shop.engine.answer(live, user_message("this one", "m2"), Answered(raw({"action": "accept"})))
    assert not shop.engine.answer(live, user_message("again", "m3"), Answered(raw({})))
    shop.sent[0].finish(DONE)
    await shop.engine.wait_idle()
    assert replies == [Answered(raw({"action": "accept"}))]
    assert recorded.states == ["input_required", "working", "completed"]
    assert [message.id for message in live.record.said] == ["m1", "m2"]


async def test_of_two_questions_at_once_the_second_is_asked_after_the_first() -> None:
    shop = Workshop()
    live = await shop.begin()
    replies: dict[str, Reply] = {}
    shop.sent[0].ask(QUESTION, partial(replies.__setitem__, "first"))
    shop.sent[0].ask(Question("roots/list", raw({})), partial(replies.__setitem__, "second"))
    one, other = Answered(raw({"one": 1})), Answered(raw({"other": 2}))
    assert [asked.number for asked in live.record.besides] == [2]
    assert shop.engine.answer(live, None, one)
    assert [asked.number for asked in live.record.besides] == []
    assert live.record.state == "input_required"
    assert live.record.asked == StoredQuestion("roots/list", raw({}), 2)
    assert shop.engine.answer(live, None, other)
    assert_working(live)
    assert replies == {"first": one, "second": other}
    assert [message.id for message in live.record.said] == ["m1"]


async def test_of_several_questions_any_can_be_answered() -> None:
    shop = Workshop()
    live = await shop.begin()
    replies: dict[int, Reply] = {}
    for number in (1, 2, 3):
        shop.sent[0].ask(QUESTION, partial(replies.__setitem__, number))
    for number in (2, 1, 3):
        assert shop.engine.answer_question(live, number, Answered(raw(number)))
        assert not shop.engine.answer_question(live, number, Answered(raw("again")))
    assert replies == {number: Answered(raw(number)) for number in (1, 2, 3)}
    assert_working(live)


async def test_a_task_asks_only_so_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.core.tasks.engine.QUESTIONS_BYTES_MAX", 20)
    shop = Workshop()
    live = await shop.begin()
    replies: list[Reply] = []
    shop.sent[0].ask(Question("roots/list", raw("x" * 20)), replies.append)
    assert (replies, live.record.asked) == ([TOO_LARGE], None)


async def test_a_call_that_runs_already_is_handed_over_to_its_task() -> None:
    shop = Workshop()
    inflight, listener = shop.stage.start()
    live = await shop.engine.begin(replace(draft(None, state="working"), is_running=True, realm="mcp"))
    shop.engine.attach_call(live, inflight)
    assert (live.record.phase, live.record.owner.realm) == ("sent", "mcp")
    inflight.finish(DONE)
    await shop.engine.wait_idle()
    assert (live.record.state, listener.ends) == ("completed", [])
    assert await shop.engine.find(live.record.owner, live.record.id) is live
    assert await shop.engine.find(OWNER, live.record.id) is None


async def test_a_discarded_task_is_stored_nowhere() -> None:
    shop = Workshop()
    live = await shop.engine.begin(replace(draft(None, state="working"), is_running=True))
    shop.engine.discard(live)
    await turns()
    await shop.engine.wait_idle()
    assert await shop.engine.find(OWNER, live.record.id) is None
    assert (await shop.journal.page(TASK, OWNER.key, limit=10)).total == 0


async def test_a_listener_from_the_beginning_gets_everything() -> None:
    shop = Workshop()
    shop.link.at_once = lambda inflight: inflight.finish(DONE)
    recorded = RecordingListener(LiveTask(record_of_nothing()))
    await shop.engine.begin(replace(draft(call()), listeners=(recorded,)))
    await shop.engine.wait_idle()
    assert recorded.states == ["submitted", "completed"]


def record_of_nothing() -> TaskRecord:
    return TaskRecord("none", OWNER, "", "1.0", "working", 1.0, 1.0)


async def test_a_retracted_question_is_replaced_by_the_next_one() -> None:
    shop = Workshop()
    live = await shop.begin()
    replies: list[Reply] = []
    asked = [shop.sent[0].ask(QUESTION, replies.append) for _ in range(3)]
    assert asked[1] is not None
    asked[1].retract()
    assert live.record.asked == StoredQuestion(QUESTION.method, QUESTION.params, 1)
    assert asked[0] is not None
    asked[0].retract()
    assert live.record.asked == StoredQuestion(QUESTION.method, QUESTION.params, 3)
    assert asked[2] is not None
    asked[2].retract()
    assert_working(live)
    assert replies == []


def assert_working(live: LiveTask) -> None:
    assert (live.record.state, live.record.asked) == ("working", None)


async def test_a_task_whose_call_ended_waits_for_no_answer() -> None:
    shop = Workshop()
    live = await shop.begin()
    shop.sent[0].ask(QUESTION, lambda _: None)
    shop.sent[0].finish(DONE)
    assert not shop.engine.answer(live, user_message("late", "m2"), Answered(raw({})))
    assert live.record.asked is None


# -- giving up ---------------------------------------------------------------------------------------------------------


async def test_a_running_task_is_cancelled_at_its_server_and_so_kept() -> None:
    shop = Workshop()
    live = await shop.begin()
    assert shop.engine.cancel(live, "not wanted")
    assert [inflight for inflight, _ in shop.link.withdrawn] == shop.sent
    await shop.engine.wait_idle()
    assert state_of(live) == "canceled"


async def test_a_task_without_a_call_is_cancelled_too() -> None:
    shop = Workshop()
    live = await shop.engine.begin(draft(None, state="input_required"))
    assert shop.engine.cancel(live, "not wanted")
    await shop.engine.wait_idle()
    assert state_of(live) == "canceled"


async def test_when_the_hub_shuts_down_waits_for_callers_end() -> None:
    shop = Workshop()
    asking, working = await shop.begin(), await shop.begin()
    shop.sent[0].ask(QUESTION, lambda _: None)
    shop.engine.cancel_unanswered("the hub is shutting down")
    await turns()
    assert asking.record.state == "canceled"
    assert working.record.state == "working"


# -- a call that comes later -------------------------------------------------------------------------------------------


async def test_a_later_call_is_sent_only_once_that_is_kept() -> None:
    held = Held()
    held.journal.is_held = False
    live = await held.engine.begin(draft(None, state="input_required"))
    held.journal.is_held = True
    held.engine.continue_with(live, user_message("do it", "m2"), call())
    await turns()
    sent = len(held.shop.sent)
    held.journal.settle()
    assert len(held.shop.sent) == sent + 1
    assert live.stored is not None
    assert (live.stored.state, live.stored.phase) == ("working", "sent")


async def test_a_later_call_that_is_given_up_before_that_is_kept_is_never_sent() -> None:
    held = Held()
    held.journal.is_held = False
    live = await held.engine.begin(draft(None, state="input_required"))
    held.journal.is_held = True
    sent = len(held.shop.sent)
    held.engine.continue_with(live, user_message("do it", "m2"), call())
    assert held.engine.cancel(live, "no, do not")
    held.journal.let_go()
    await turns()
    assert len(held.shop.sent) == sent
    assert state_of(live) == "canceled"


# -- finding -----------------------------------------------------------------------------------------------------------


async def test_a_task_is_found_whether_it_is_in_mind_or_only_in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CACHED_TASKS_MAX", 2)
    shop = Workshop()
    tasks = [await shop.engine.begin(draft(None, state="input_required", id=f"t{at}")) for at in range(4)]
    assert await shop.engine.find(OWNER, "t3") is tasks[3]
    found, same = await asyncio.gather(shop.engine.find(OWNER, "t0"), shop.engine.find(OWNER, "t0"))
    assert found is same
    assert found is not None
    assert found is not tasks[0]
    assert found.record == tasks[0].record
    assert await shop.engine.find(OWNER, "t9") is None


async def test_cached_tasks_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CACHED_BYTES_MAX", 10_000)
    shop = Workshop()
    large = draft(None, state="input_required", metadata=raw("x" * 6_000))
    first, second = await shop.engine.begin(large), await shop.engine.begin(large)
    assert await shop.engine.find(OWNER, second.record.id) is second
    assert await shop.engine.find(OWNER, first.record.id) is not first
    assert shop.engine._store._cache._bytes <= 10_000


async def test_a_running_task_is_never_out_of_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CACHED_TASKS_MAX", 1)
    shop = Workshop()
    running = [await shop.begin() for _ in range(5)]
    assert [await shop.engine.find(OWNER, live.record.id) for live in running] == running


async def test_a_listed_task_stands_as_it_does_by_now() -> None:
    shop = Workshop()
    live = await shop.begin()
    document = await shop.journal.read(TASK, OWNER.key, live.record.id)
    assert document is not None
    assert record_of(document).state == "submitted"
    newest = shop.engine.current_record(document)
    assert newest is not None
    assert newest.state == "working"


# -- after a crash -----------------------------------------------------------------------------------------------------


async def test_after_a_crash_sent_tasks_have_failed_and_unsent_ones_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "RECOVERED_AT_ONCE", 2)
    shop = Workshop()
    sent = [await shop.begin() for _ in range(5)]
    done = await shop.begin()
    shop.sent[-1].finish(DONE)
    asked = await shop.begin()
    shop.sent[-1].ask(QUESTION, lambda _: None)
    waiting = await shop.engine.begin(draft(None, state="input_required"))
    await turns()
    runs = len(shop.sent)

    after = TaskEngine(shop.stage.hub, shop.journal, shop.now)
    lost = await after.recover()

    assert {each.id for each in lost} == {live.record.id for live in (*sent, asked)}
    assert len(shop.sent) == runs
    for live in (*sent, asked):
        found = await after.find(OWNER, live.record.id)
        assert found is not None
        assert found.stored is not None
        assert found.stored.state == "failed"
        assert found.stored.asked is None
        assert found.stored.ending is not None
        assert (found.stored.ending.executed, found.stored.ending.reason) == ("unknown", "lost")
    still = [await after.find(OWNER, live.record.id) for live in (done, waiting)]
    assert [live and live.record.state for live in still] == ["completed", "input_required"]
    assert await TaskEngine(shop.stage.hub, shop.journal, shop.now).recover() == []


async def test_a_task_that_cannot_be_read_does_not_keep_the_others_from_being_recovered() -> None:
    shop = Workshop()
    live = await shop.begin()
    shop.journal._write([Document(TASK, OWNER.key, "odd", 1, 1.0, b"{}", state="working")])
    lost = await TaskEngine(shop.stage.hub, shop.journal, shop.now).recover()
    assert [each.id for each in lost] == [live.record.id]


async def test_a_task_that_waited_over_a_crash_can_go_on() -> None:
    shop = Workshop()
    waiting = await shop.engine.begin(draft(None, state="input_required"))
    after = TaskEngine(shop.stage.hub, shop.journal, shop.now)
    await after.recover()
    live = await after.find(owner_of(ANYONE), waiting.record.id)
    assert live is not None
    after.continue_with(live, user_message("do it", "m2"), call())
    await turns()
    shop.sent[0].finish(DONE)
    await after.wait_idle()
    assert state_of(live) == "completed"


async def test_a_journal_that_refuses_after_a_crash_does_not_keep_the_hub_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "RECOVERED_SECONDS", 0.01)
    held = Held()
    live = await held.begun()
    after = TaskEngine(held.shop.stage.hub, held.journal, held.shop.now)
    async with asyncio.timeout(SECONDS):
        assert [each.id for each in await after.recover()] == [live.record.id]
    held.journal.let_go()
    found = await after.find(OWNER, live.record.id)
    assert found is not None
    assert state_of(found) == "failed"


async def test_nor_for_longer_the_more_there_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "RECOVERED_AT_ONCE", 1)
    monkeypatch.setattr(engines, "RECOVERED_SECONDS", 0.5)
    journal = HeldJournal()
    journal.is_held = False
    shop = Workshop(journal)
    shop.stage.server_queue.max_calls = 200
    for _ in range(40):
        await shop.begin()
    journal.is_held = True
    after = TaskEngine(shop.stage.hub, journal, shop.now)
    # Waiting for each by itself would take twenty seconds.
    async with asyncio.timeout(10.0):
        assert len(await after.recover()) == 40
    journal.let_go()


# -- recipients of pushes ---------------------------------------------------------------------------------------------


ANN = PushRecipient("ann", "https://ann.example/", "1.0")


async def due(shop: Workshop) -> list[int]:
    """The numbers of the changes with a pending notification."""
    found = await shop.journal.all_in(DELIVERY, ("due",), limit=99)
    return sorted(delivery_of(document).number for document in found)


async def test_deliveries_are_stored_atomically_with_their_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "RETRY_SECONDS", 0.0)
    journal = HeldJournal()
    shop = Workshop(journal)
    received: list[int] = []
    shop.engine.on_due = lambda documents: received.extend(delivery_of(document).number for document in documents)
    beginning = asyncio.ensure_future(shop.engine.begin(replace(draft(call(), id="t"), recipients=(ANN,))))
    await turns()
    assert (await due(shop), received) == ([], [])
    journal.settle()
    await beginning
    assert (await due(shop), received) == ([1], [1])
    shop.sent[0].finish(DONE)
    journal.settle("refused")
    await until(lambda: bool(journal.waiting))
    assert (await due(shop), received) == ([1], [1])
    journal.settle()
    assert (await due(shop), received) == ([1, 2], [1, 2])


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_delivery_of_unknown_storage_is_sent_at_least_once(
    monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    monkeypatch.setattr(engines, "RETRY_SECONDS", 0.0)
    journal = HeldJournal()
    journal.is_held = False
    shop = Workshop(journal)
    await shop.engine.begin(replace(draft(call(), id="t"), recipients=(ANN,)))
    journal.is_held = True
    shop.sent[0].finish(DONE)
    journal.settle("unknown", is_kept=is_kept)
    journal.let_go()
    await shop.engine.wait_idle()
    assert (await due(shop))[-1] == (3 if is_kept else 2)


async def test_a_task_that_is_not_begun_has_nothing_to_send() -> None:
    journal = HeldJournal()
    shop = Workshop(journal)
    beginning = asyncio.ensure_future(shop.engine.begin(replace(draft(call(), id="t"), recipients=(ANN,))))
    await turns()
    journal.settle("unknown", is_kept=True)
    journal.let_go()
    with pytest.raises(TaskNotStored):
        await beginning
    assert await due(shop) == []


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_recipients_may_change_at_any_time_and_that_is_not_notified(*, is_terminal: bool) -> None:
    shop = Workshop()
    live = await shop.begin(id="t")
    if is_terminal:
        shop.sent[0].finish(DONE)
        await turns()
    recorded, updated = RecordingListener(live), live.record.updated
    shop.engine.set_recipients(live, (ANN,))
    await shop.engine.wait_stored(live)
    assert live.stored is not None
    assert (live.stored.recipients, live.stored.updated) == ((ANN,), updated)
    assert (recorded.records, await due(shop)) == ([], [])
    document = await shop.journal.read(TASK, OWNER.key, "t")
    assert document is not None
    assert record_of(document) == live.stored


async def test_a_recipient_added_during_a_write_gets_the_next_change() -> None:
    journal = HeldJournal()
    journal.is_held = False
    shop = Workshop(journal)
    live = await shop.engine.begin(draft(None, state="input_required", id="t"))
    journal.is_held = True
    shop.engine.continue_with(live, user_message("go"), call())
    shop.engine.set_recipients(live, (ANN,))
    journal.let_go()
    await shop.engine.wait_stored(live)
    assert await due(shop) == []
    shop.sent[0].finish(DONE)
    await turns()
    assert len(await due(shop)) == 1


async def test_tasks_whose_call_was_lost_in_a_crash_are_reported() -> None:
    shop = Workshop()
    await shop.engine.begin(replace(draft(call(), id="t"), recipients=(ANN,)))
    after = TaskEngine(shop.stage.hub, shop.journal, shop.now)
    await after.recover()
    assert await due(shop) == [1, 2]
