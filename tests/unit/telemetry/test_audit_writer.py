"""How facts reach the journal: gathered, or before anything else happens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from isthmus.core.audit import Fact, LogState, RecordEncoder
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.journal import AuditNotary, Document, OnWritten, WriteResult
from isthmus.core.settings import Limits
from isthmus.core.tasks.engine import TaskEngine, TaskExchange
from isthmus.core.tasks.live_task import NewTask
from isthmus.core.tasks.record import TaskRecord
from isthmus.model.calls import Outcome
from isthmus.model.fault_table import Cancelled, NotWritten, UnknownTool
from isthmus.telemetry import audit_writer as module
from isthmus.telemetry.audit_writer import RECORD_BATCH, Audit
from isthmus.telemetry.call_metrics import CallMetrics
from tests.unit.core.doubles import ANYONE, DONE, SERVER, HeldLink, Listener, call, ready, tool

SCRIBE = RecordEncoder(b"key")


class Held:
    """A journal that answers when the test says so, and remembers what it was given."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Sequence[Document], Sequence[Fact], OnWritten]] = []
        self.kept: list[dict[str, Any]] = []
        self.documents: list[Document] = []
        self._came = asyncio.Event()

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        self.waiting.append((documents, tuple(facts), done))
        self._came.set()

    async def comes(self) -> None:
        """Wait until something is to be written."""
        async with asyncio.timeout(5):
            await self._came.wait()
        self._came.clear()

    def answer(self, verdict: WriteResult = "kept") -> None:
        documents, facts, done = self.waiting.pop(0)
        if verdict == "kept":
            self.kept += [msgspec.json.decode(SCRIBE.record(fact)[1]) for fact in facts]
            self.documents += documents
        done(verdict)

    async def open_log(self, notary: AuditNotary) -> LogState:
        raise NotImplementedError

    async def prune_log(self, *, before: float, limit: int) -> int:
        raise NotImplementedError

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        return None

    @property
    def events(self) -> list[str]:
        return [each["event"] for each in self.kept]


class MessageReceiver(Listener):
    """A caller that gets one outcome at most."""

    @property
    def outcome(self) -> Outcome | None:
        assert len(self.ends) < 2
        return self.ends[0] if self.ends else None


class Bench:
    """A hub with one server and an audit log."""

    def __init__(self, mode: module.Mode) -> None:
        self.journal = Held()
        self.audit = Audit(self.journal, SCRIBE, mode, lambda: 5.0)
        self.counters = CallMetrics()
        self.hub = Hub(Limits(), self.audit.wrap(self.counters))
        self.server_queue = ServerQueue(SERVER, self.hub.limits)
        self.link = HeldLink()
        self.server_queue.attach(self.link)
        self.hub.open_server_queue(self.server_queue, ready(tool()))


# -- batched ---------------------------------------------------------------------------------------------------------


async def test_calls_are_gathered_and_handed_over_together_within_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_SECONDS", 0.001)
    bench = Bench("batched")
    listeners = [MessageReceiver() for _ in range(2 * RECORD_BATCH + 1)]
    for listener in listeners:
        bench.hub.start(call(), listener)
        bench.link.sent[-1].finish(DONE)
    assert all(listener.outcome is DONE for listener in listeners), "nobody waits for the log"
    bench.hub.start(call("no.such"), MessageReceiver())
    await bench.journal.comes()
    bench.journal.answer()
    assert bench.journal.events == ["call"] * (2 * RECORD_BATCH + 2)
    assert [each["executed"] for each in bench.journal.kept[-2:]] == ["yes", "no"]
    assert bench.counters.servers[SERVER].calls == len(listeners)


async def test_a_record_is_handed_over_in_three_quarters_of_the_tenth_of_a_second_that_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest is the disk's. Not timed: it is looked at when the hub means to do so, and that it does."""
    bench, planned = Bench("batched"), list[tuple[float, Callable[[], None]]]()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda seconds, do: planned.append((seconds, do)))
    bench.audit.note("first")
    monkeypatch.undo()
    ((seconds, hand_over),) = planned
    assert 0 < seconds <= 0.075
    assert bench.journal.waiting == []
    hand_over()
    bench.journal.answer()
    assert bench.journal.events == ["first"]


async def test_long_arguments_are_digested_on_another_thread_and_recorded_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH_SECONDS", 0.001)
    threads: dict[int, int] = {}

    class Encoder(RecordEncoder):
        def digest(self, data: Any) -> str:
            threads[len(memoryview(data))] = threading.get_ident()
            return super().digest(data)

    bench = Bench("batched")
    bench.audit._encoder = Encoder(b"key")
    calls = [call(arguments=arguments) for arguments in ({"a": 1}, {"text": "x" * 1_000_000}, {"b": 2})]
    for each in calls:
        bench.hub.start(each, MessageReceiver())
        bench.link.sent[-1].finish(DONE)
    await bench.journal.comes()
    bench.journal.answer()
    assert [each["arguments"] for each in bench.journal.kept] == [SCRIBE.digest(each.arguments) for each in calls]
    sizes = [len(memoryview(each.arguments)) for each in calls]
    assert threads[sizes[1]] != threads[sizes[0]] == threading.get_ident()


async def test_a_log_that_closes_while_a_digest_is_computed_has_each_record_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH_SECONDS", 0.0)
    computing, may_end = threading.Event(), threading.Event()

    class Encoder(RecordEncoder):
        def digest(self, data: Any) -> str:
            if threading.current_thread() is not threading.main_thread():
                computing.set()
                assert may_end.wait(10)
            return super().digest(data)

    bench = Bench("batched")
    bench.audit._encoder = Encoder(b"key")
    bench.hub.start(call(arguments={"text": "x" * 1_000_000}), MessageReceiver())
    bench.link.sent[-1].finish(DONE)
    assert await asyncio.to_thread(computing.wait, 10)
    closing = asyncio.ensure_future(bench.audit.aclose())
    await bench.journal.comes()
    bench.journal.answer()
    await closing
    may_end.set()
    await asyncio.to_thread(bench.audit._digests.shutdown)  # the late digest has reached the loop
    assert bench.journal.events == ["call"]
    assert bench.journal.waiting == []


async def test_refused_records_are_written_later_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    bench = Bench("batched")
    bench.audit.note("first")
    bench.audit.flush()
    await bench.journal.comes()
    bench.journal.answer("refused")
    bench.audit.note("second")
    await bench.journal.comes()
    bench.audit.flush()
    while bench.journal.waiting:
        bench.journal.answer()
    assert bench.journal.events == ["first", "second"]


async def test_of_too_many_the_oldest_are_given_up_and_the_log_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_MAX", 3)
    bench = Bench("batched")
    for number in range(5):
        bench.audit.note(f"event {number}")
    bench.audit.flush()
    bench.journal.answer("refused")
    await bench.audit.aclose(0.001)
    while bench.journal.waiting:
        bench.journal.answer()
    assert bench.journal.events == ["audit.lost", "event 2", "event 3", "event 4"]
    assert bench.journal.kept[0]["records"] == 2
    assert bench.audit.lost == 0


async def test_a_journal_that_is_slow_is_not_given_more_than_it_can_hold() -> None:
    bench = Bench("batched")
    for number in range(10):
        bench.audit.note(f"event {number}")
        bench.audit.flush()
    assert len(bench.journal.waiting) == module.IN_HAND_MAX
    while bench.journal.waiting:
        bench.journal.answer()
    assert bench.journal.events == [f"event {number}" for number in range(10)]


async def test_rejected_callers_make_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REJECTED_SECONDS", 0.001)
    bench = Bench("batched")
    for _ in range(1000):
        bench.audit.count_rejected("rest", 401)
    bench.audit.count_rejected("mcp", 403)
    await bench.journal.comes()
    bench.journal.answer()
    received = [(each["event"], each["frontend"], each["status"], each["count"]) for each in bench.journal.kept]
    assert received == [("caller.refused", "rest", 401, 1000), ("caller.refused", "mcp", 403, 1)]


# -- strict ----------------------------------------------------------------------------------------------------------


async def test_a_call_is_sent_once_it_is_recorded_and_answered_once_its_end_is() -> None:
    bench, listener = Bench("strict"), MessageReceiver()
    inflight = bench.hub.start(call(), listener)
    assert bench.link.sent == []
    assert bench.hub.running() == 1
    bench.journal.answer()
    assert [each.call.name for each in bench.link.sent] == [call().name]
    assert inflight.finish(DONE)
    assert (listener.outcome, inflight.outcome, bench.server_queue.running, bench.hub.running()) == (None, None, 0, 1)
    assert not inflight.finish(UnknownTool("later")), "it ends once"
    inflight.cancel("too late for that")
    bench.journal.answer()
    assert listener.outcome is inflight.outcome is DONE
    begun, ended = bench.journal.kept
    assert (begun["event"], ended["event"], begun["id"]) == ("call.begun", "call", ended["id"])
    assert bench.hub.running() == 0


@pytest.mark.parametrize("verdict", ["refused", "unknown"])
async def test_a_call_whose_record_cannot_be_written_is_not_sent(verdict: WriteResult) -> None:
    bench, listener = Bench("strict"), MessageReceiver()
    bench.hub.start(call(), listener)
    bench.journal.answer(verdict)
    bench.journal.answer(verdict)
    assert isinstance(listener.outcome, NotWritten)
    assert (listener.outcome.executed, bench.link.sent, bench.server_queue.running) == ("no", [], 0)


async def test_an_end_that_cannot_be_recorded_is_answered_only_as_executed() -> None:
    bench, listener = Bench("strict"), MessageReceiver()
    inflight = bench.hub.start(call(), listener)
    bench.journal.answer()
    inflight.finish(DONE)
    bench.journal.answer("refused")
    assert isinstance(listener.outcome, NotWritten)
    assert listener.outcome.executed == "yes"
    bench.audit.flush()
    bench.journal.answer()
    begun, ended = bench.journal.kept
    assert (ended["event"], ended["id"], ended["outcome"]) == ("call", begun["id"], "result"), "it is written later"


async def test_a_call_that_ends_while_it_is_being_written_is_not_sent() -> None:
    bench, listener = Bench("strict"), MessageReceiver()
    inflight = bench.hub.start(call(), listener)
    inflight.cancel("the caller left")
    bench.journal.answer()
    assert bench.link.sent == []
    bench.journal.answer()
    assert isinstance(listener.outcome, Cancelled)
    assert listener.outcome.executed == "no"


async def test_a_server_that_was_removed_meanwhile_is_not_called() -> None:
    bench, listener = Bench("strict"), MessageReceiver()
    bench.hub.start(call(), listener)
    bench.hub.close_server_queue(SERVER)
    bench.journal.answer()
    bench.journal.answer()
    assert bench.link.sent == []
    assert getattr(listener.outcome, "reason", None) == "not_connected"


async def test_a_refusal_is_recorded_before_it_is_answered() -> None:
    bench, listener = Bench("strict"), MessageReceiver()
    bench.hub.start(call("no.such"), listener)
    assert listener.outcome is None
    bench.journal.answer()
    assert isinstance(listener.outcome, UnknownTool)


class Following:
    """A follower of a task."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def task_changed(self, record: TaskRecord) -> None:
        self.states.append(record.state)

    def task_reported(self, record: TaskRecord, noted: object) -> None: ...


async def test_a_task_writes_both_in_its_own_commits() -> None:
    bench, following = Bench("strict"), Following()
    engine = TaskEngine(bench.hub, bench.journal, lambda: 5.0)  # type: ignore[arg-type]  # all that is needed here
    draft = NewTask(ANYONE, "c", "m", (), call=call(), listeners=(following,))
    beginning = asyncio.ensure_future(engine.begin(draft))
    await asyncio.sleep(0)
    assert bench.link.sent == []
    bench.journal.answer()
    live = await beginning
    assert len(bench.link.sent) == 1
    bench.link.sent[0].finish(DONE)
    assert following.states[-1] == "working"
    documents, facts, _ = bench.journal.waiting[0]
    assert (len(documents), len(facts)) == (1, 1)
    bench.journal.answer("refused")
    await asyncio.sleep(0)
    engine._write(live)
    bench.journal.answer()
    assert following.states[-1] == "completed"
    assert [(each["event"], each["id"]) for each in bench.journal.kept] == [
        ("call.begun", live.record.id),
        ("call", live.record.id),
    ]


async def test_the_record_of_a_refused_call_does_not_count_for_the_next() -> None:
    bench = Bench("strict")
    engine = TaskEngine(bench.hub, bench.journal, lambda: 5.0)  # type: ignore[arg-type]  # all that is needed here
    beginning = asyncio.ensure_future(engine.begin(NewTask(ANYONE, "c", "m", (), call=call("no.such"))))
    await asyncio.sleep(0)
    bench.journal.answer()
    live = await beginning
    assert bench.journal.events == ["call"]
    bench.hub.start(call(), TaskExchange(engine, live))
    assert bench.link.sent == [], "the next one is written down first"
