"""What nodes tell each other, over buses that lose messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from types import SimpleNamespace
from typing import cast

import pytest

from isthmus.app import cluster as module
from isthmus.app.cluster import SharedApprovals
from isthmus.app.hub import RunningHub
from isthmus.cluster.bus import Bus, BusState, Subscriber
from isthmus.core.access.approval_rules import ApprovalRule
from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import Document
from isthmus.model.fault_table import ApprovalDenied
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.calls.test_approvals import OPERATOR, PAY, Held, fault_of
from tests.unit.core.doubles import DONE, call
from tests.unit.upstream.dialin.scene import until


class DeafBus:
    """A node that is cut off from the others: it loses whatever it sends."""

    def __init__(self) -> None:
        self.state = BusState(is_connected=False, since=0.0)
        self.change: Callable[[BusState], None] = lambda _state: None

    def publish(self, topic: str, payload: bytes) -> None: ...

    def subscribe(self, topic: str, receive: Subscriber) -> None: ...

    def on_state_changed(self, changed: Callable[[BusState], None]) -> None:
        self.change = changed


class CountingJournal(MemoryJournal):
    """Counts how often all are read, and fails as often as it should."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = self.failures = 0

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        self.readings += 1
        if self.failures:
            self.failures -= 1
            raise OSError("the database is away")
        return await super().all_in(kind, states, limit=limit, after=after)


@pytest.fixture
async def background(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BackgroundTasks]:
    monkeypatch.setattr(module, "APPROVALS_SECONDS", 0.001)
    tasks = BackgroundTasks("test")
    yield tasks
    await tasks.aclose()


def shared(background: BackgroundTasks, stage: Held) -> DeafBus:
    bus = DeafBus()
    running = SimpleNamespace(approvals=stage.approvals, background=background)
    SharedApprovals(cast("Bus", bus), cast("RunningHub", running))
    return bus


async def test_a_decision_of_a_node_that_is_cut_off_counts_at_the_others(background: BackgroundTasks) -> None:
    journal = CountingJournal()
    a, b = Held(journal=journal), Held(journal=journal)
    shared(background, a)
    shared(background, b)
    id, listener = await a.ask()
    await until(lambda: b.approvals.get(OPERATOR, id) is not None)
    journal.failures = 3
    await b.decide(id, "allow_hour")
    await until(lambda: len(a.link.sent) == 1)
    a.link.sent[0].finish(DONE)
    assert listener.ends == [DONE]
    await b.decide(id, "deny")
    await until(lambda: [each.state for each in a.approvals.list(OPERATOR).approvals] == ["denied"])
    _, refused = a.start(call(arguments=PAY))
    fault_of(refused, ApprovalDenied)


async def test_a_node_without_rules_and_approvals_reads_only_when_it_has_joined(background: BackgroundTasks) -> None:
    journal = CountingJournal()
    stage, other = Held(journal=journal), Held(journal=journal)
    stage.approvals.change(())
    bus = shared(background, stage)
    shared(background, Held(journal=(clock := CountingJournal())))
    await until(lambda: clock.readings > 3)
    assert journal.readings == 0
    bus.change(BusState(is_connected=True, since=0.0))
    await until(lambda: journal.readings > 0)
    before = journal.readings
    id, _ = await other.ask()
    stage.approvals.change((ApprovalRule("all", ("*",)),))
    await until(lambda: stage.approvals.get(OPERATOR, id) is not None)
    assert journal.readings > before
