"""Budgets count sent calls, refuse calls beyond the limit, and are renewed by the wall clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from isthmus.core.access.approval_rules import ApprovalRule, SpentTest
from isthmus.core.access.budget_rules import Budget, Period, period_at
from isthmus.core.audit import Fact
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls import budgets as module
from isthmus.core.calls.approvals import CallApprovals
from isthmus.core.calls.budgets import BUDGET, CallBudgets
from isthmus.core.catalog.sets import SetSettings
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.journal import Document, OnWritten, WriteResult
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Call, Result, Surface
from isthmus.model.fault_table import BudgetExceeded, Lost, NotConnected
from isthmus.model.features import Tool
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from tests.faults.watching import eventually
from tests.unit.core.calls.test_fleet_calls import Lab
from tests.unit.core.doubles import ANYONE, DONE, SERVER, Stage, call, ready, resource, tool

OPERATOR = Caller("boss", "default", Grants(()), is_operator=True)
ANNA = Caller("anna", "research", Grants(("*",)))
BERT = Caller("bert", "research", Grants(("*",)))
EVE = Caller("eve", "sales", Grants(("*",)))
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp()


class StubbornJournal(MemoryJournal):
    """Answers writes with these results first; one that is `unknown` is written all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[WriteResult] = []

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        if not self.results:
            super().write(documents, done, facts)
            return
        result = self.results.pop(0)
        if result == "unknown":
            super().write(documents, lambda _: None, facts)
        asyncio.get_running_loop().call_soon(done, result)


class SharedMemoryJournal(MemoryJournal):
    """One that the hubs of a test share, as nodes share a database; a write waits while `gate` is not set."""

    number: int | None = 1
    is_held = True
    nodes = 1

    def __init__(self) -> None:
        super().__init__()
        self.inherited = asyncio.Event()
        self.on_lost: Callable[[], None] = lambda: None
        self.on_joined: Callable[[int], None] = lambda _: None
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: asyncio.Queue[None] = asyncio.Queue()
        """Has an entry for each write that has begun."""
        self._background = BackgroundTasks()

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        async def write() -> None:
            await self.gate.wait()
            super(SharedMemoryJournal, self).write(documents, done, facts)

        self.asked.put_nowait(None)
        self._background.spawn("write", write())

    async def inherit(self) -> list[Document]:
        return []


class Counted(Stage):
    """A hub with budgets, and a clock that the test moves. Every call is answered at once."""

    def __init__(self, *budgets: Budget, tools: Sequence[Tool] = (), journal: MemoryJournal | None = None) -> None:
        super().__init__(*(tools or (tool("read"), tool("write"))))
        self.time = NOON
        self.recorded: list[tuple[str, dict[str, Any]]] = []
        self.journal = journal or StubbornJournal()
        self.budgets = CallBudgets(
            self.journal,
            BackgroundTasks(),
            lambda event, **about: self.recorded.append((event, about)),
            lambda: self.time,
        )
        self.hub.budgets = self.budgets
        self.budgets.change(budgets)
        self.link.at_once = lambda inflight: inflight.finish(DONE)

    def call(self, name: str = "files.read", caller: Caller = ANYONE) -> BudgetExceeded | None:
        """Make a call; the fault of a refused one."""
        return self.make(call(name, caller=caller))

    def make(self, made: Call) -> BudgetExceeded | None:
        _, listener = self.start(made)
        (end,) = listener.ends
        assert isinstance(end, Result | BudgetExceeded), end
        return end if isinstance(end, BudgetExceeded) else None

    def used(self, budget: str) -> dict[tuple[str, ...], tuple[int, int, float]]:
        """What the counters of a budget have, by the names of their subjects."""
        shown = self.budgets.list(OPERATOR, limit=100, after="").counters
        own = [each for each in shown if each.budget == budget]
        return {tuple(each.subject.values()): (each.calls, each.result_bytes, each.cost) for each in own}


async def test_a_hub_without_budgets_has_the_stages_that_it_always_had() -> None:
    stage = Stage()
    before = stage.hub._stages
    stage.hub.budgets = Counted().budgets
    assert stage.hub._stages != before
    stage.hub.budgets = None
    assert stage.hub._stages == before


async def test_a_refusal_says_which_budget_how_much_is_used_and_when_it_is_renewed() -> None:
    stage = Counted(Budget("day", calls=2))
    assert [stage.call(), stage.call()] == [None, None]
    fault = stage.call()
    assert fault is not None
    assert fault.executed == "no"
    assert fault.retry_after == 12 * 3600
    assert fault.message == (
        "The budget day is used up: 2 of 2 calls this day for the caller anyone; it is renewed at"
        " 2026-11-19T00:00:00Z. The tool did not run"
    )
    assert len(stage.link.sent) == 2
    assert stage.call() is not None
    assert [event for event, _ in stage.recorded] == ["budget.exceeded"], "once for each counter and period"
    assert stage.budgets.refusals == {"day": 2}


async def test_it_is_renewed_at_midnight_and_not_before() -> None:
    stage = Counted(Budget("day", calls=1))
    stage.call()
    midnight = NOON + 12 * 3600
    stage.time = midnight - 0.001
    assert stage.call() is not None
    stage.time = midnight
    assert stage.call() is None
    assert stage.call() is not None
    stage.time = midnight - 60  # the clock was set back: nothing is renewed twice
    assert stage.call() is not None


@pytest.mark.parametrize(
    ("period", "at", "ends"),
    [
        ("hour", "2026-11-18T12:59:59", "2026-11-18T13:00:00"),
        ("day", "2028-02-28T23:00:00", "2028-02-29T00:00:00"),
        ("month", "2028-02-01T00:00:00", "2028-03-01T00:00:00"),
        ("month", "2026-12-31T23:59:59", "2027-01-01T00:00:00"),
    ],
)
def test_periods_are_those_of_utc(period: Period, at: str, ends: str) -> None:
    began, over = period_at(period, datetime.fromisoformat(f"{at}+00:00").timestamp())
    assert over == datetime.fromisoformat(f"{ends}+00:00").timestamp()
    assert period_at(period, over)[0] == over
    assert period_at(period, began) == (began, over)


async def test_each_caller_tenant_and_tool_has_its_own_counter_as_the_budget_says() -> None:
    stage = Counted(
        Budget("caller", calls=10),
        Budget("tenant", calls=10, per="tenant"),
        Budget("tool", calls=10, per="tool", tools=("files.write",)),
        Budget("hub", calls=10, per="hub"),
        Budget("sets", calls=10, sets=("some",)),
    )
    for name, caller in (("files.read", ANNA), ("files.write", BERT), ("files.write", EVE)):
        stage.call(name, caller)
    counts = {each: {who: calls for who, (calls, _, _) in stage.used(each).items()} for each in ("caller", "tenant")}
    assert counts["caller"] == {("research", "anna"): 1, ("research", "bert"): 1, ("sales", "eve"): 1}
    assert counts["tenant"] == {("research",): 2, ("sales",): 1}
    assert stage.used("tool")["files.write",][0] == 2
    assert stage.used("hub")[()][0] == 3
    assert stage.used("sets") == {}


async def test_one_caller_that_used_its_budget_costs_no_other() -> None:
    stage = Counted(Budget("anna", calls=0, callers=("anna",)), Budget("sales", calls=1, tenants=("sales",)))
    fault = stage.call(caller=ANNA)
    assert fault is not None
    assert fault.retry_after is None, "it never fits"
    assert stage.call(caller=BERT) is None
    assert stage.call(caller=EVE) is None
    assert stage.call(caller=EVE) is not None


async def test_a_call_needs_room_in_every_budget_and_a_refused_one_is_counted_in_none() -> None:
    stage = Counted(Budget("hour", calls=1, period="hour"), Budget("day", calls=5))
    stage.call()
    fault = stage.call()
    assert fault is not None
    assert fault.retry_after == 3600
    assert stage.used("day")["default", "anyone"][0] == 1
    stage.budgets.change((Budget("hour", calls=1, period="hour"), Budget("day", calls=1)))
    fault = stage.call()
    assert fault is not None
    assert fault.retry_after == 12 * 3600, "the later of the two"


@pytest.mark.parametrize(
    ("name", "hints", "cost"),
    [
        ("read", {}, 0.1),
        ("write", {}, 5.0),
        ("delete", {"readOnlyHint": True}, 0.1),  # what the server claims makes nothing cheaper
        ("delete", {"readOnlyHint": False, "destructiveHint": True}, 3.0),
    ],
)
async def test_the_most_specific_pattern_decides_the_cost(name: str, hints: Any, cost: float) -> None:
    costs = (("*", 0.1), ("files.write", 5.0), ("hint:destructive", 3.0), ("hint:read-only", 0.01), ("tag:none", 9.0))
    safe = {"readOnlyHint": False, "destructiveHint": False}
    tools = (tool("read", annotations=safe), tool("write"), tool("delete", annotations=hints))
    stage = Counted(Budget("units", cost=100, costs=costs), tools=tools)
    stage.hub.publish(ready(*tools, rules=ToolRules(is_trusted=not hints.get("readOnlyHint", False))))
    if hints.get("readOnlyHint"):
        cost = 3.0  # an untrusted server's tool may destroy something
    for _ in range(3):
        stage.call(f"files.{name}")
    assert stage.used("units")["default", "anyone"][2] == round(3 * cost, 6)


async def test_a_call_that_costs_more_than_is_left_waits_and_a_cheaper_one_does_not() -> None:
    stage = Counted(Budget("units", cost=6, costs=(("files.write", 4), ("*", 1))))
    assert stage.call("files.write") is None
    fault = stage.call("files.write")
    assert fault is not None
    assert "4 of 6 cost units this day for the caller anyone, and this call costs 4" in fault.message
    assert stage.call("files.read") is None


async def test_the_bytes_of_results_count_when_calls_end() -> None:
    stage = Counted(Budget("bytes", result_bytes=20))
    payload = msgspec.Raw(b'{"content":["0123456789"]}')
    stage.link.at_once = lambda inflight: inflight.finish(Result(payload))
    assert stage.call() is None
    fault = stage.call()
    assert fault is not None
    assert "26 of 20 bytes of results" in fault.message


async def test_a_call_that_provably_did_not_run_is_not_counted() -> None:
    stage = Counted(Budget("day", calls=1))
    stage.link.at_once = None
    inflight, _ = stage.start(call())
    inflight.finish(NotConnected(SERVER, "it is gone"))
    assert stage.used("day")["default", "anyone"][0] == 0
    inflight, _ = stage.start(call())
    inflight.finish(Lost(SERVER, "it broke", executed="unknown"))
    assert stage.used("day")["default", "anyone"][0] == 1
    stage.time += 86_400
    inflight, _ = stage.start(call())
    stage.time += 86_400
    stage.start(call())
    inflight.finish(NotConnected(SERVER, "it is gone"))
    assert stage.used("day")["default", "anyone"][0] == 1, "what is returned belongs to a day that is over"


async def test_a_call_that_is_put_back_or_abandoned_is_not_counted() -> None:
    stage = Counted(Budget("day", calls=1))
    stage.link.at_once = None
    inflight, _ = stage.start(call())
    inflight.link = None
    inflight.abandon()
    assert stage.used("day")["default", "anyone"][0] == 0


async def test_calls_at_the_same_time_cannot_exceed_a_limit_together() -> None:
    stage = Counted(Budget("day", calls=2))
    stage.link.at_once = None
    ends = [stage.start(call())[1].ends for _ in range(4)]
    assert [len(each) for each in ends] == [0, 0, 1, 1]


async def test_an_answer_from_the_cache_costs_nothing() -> None:
    stage = Counted(Budget("day", calls=1))
    stage.hub.publish(ready(tool("read"), rules=ToolRules(cached=("read",), cache_seconds=60)))
    assert [stage.call(), stage.call(), stage.call()] == [None, None, None]
    assert len(stage.link.sent) == 1


async def test_resources_count_and_unlisted_names_share_the_counter_of_their_server() -> None:
    stage = Counted(Budget("each", calls=2, per="tool"))
    stage.hub.publish(ready(resources=[resource("file:///a"), resource("file:///b")]))
    stage.make(call("file:///a", kind="resource"))
    stage.make(call("file:///b", kind="resource"))
    assert stage.used("each") == {("files.*",): (2, 2 * len(memoryview(DONE.payload)), 2.0)}


async def test_a_call_of_a_fleet_counts_once_for_each_member_by_either_name() -> None:
    lab = Lab("m1", "m2", read_only=("*",))
    received = lab.hub.budgets = CallBudgets(MemoryJournal(), BackgroundTasks(), lambda *_, **__: None, lambda: NOON)
    received.change((Budget("fleet", calls=9, tools=("lab.*",)), Budget("member", calls=9, tools=("m1.read",))))
    lab.start("all")
    for name in ("m1", "m2"):
        lab.finish(name)
    lab.start("m2")
    lab.finish("m2")
    shown = received.list(OPERATOR, limit=9, after="").counters
    assert {each.budget: each.calls for each in shown} == {"fleet": 3, "member": 1}


async def test_a_call_of_a_fleet_counts_for_the_set_in_which_it_was_called() -> None:
    lab = Lab("m1", "m2")
    lab.hub.change_sets({"few": SetSettings(("lab.read",))})
    received = lab.hub.budgets = CallBudgets(MemoryJournal(), BackgroundTasks(), lambda *_, **__: None, lambda: NOON)
    received.change((Budget("few", calls=3, per="set", sets=("few",)),))
    lab.start("all", name="read", surface=Surface(set="few"))
    assert [link.sent[-1].call.set for link in lab.links.values()] == ["few", "few"], "records name it too"
    for name in ("m1", "m2"):
        lab.finish(name)
    lab.start("m2", name="read", surface=Surface(set="few"))
    refused = lab.start("m2", name="read", surface=Surface(set="few"))
    assert isinstance(refused.fault, BudgetExceeded)
    lab.start("m1")
    assert len(lab.links["m1"].sent) == 2, "calls outside of the set have room"


async def test_the_members_of_a_fleet_are_one_tool_unless_a_budget_names_one() -> None:
    lab = Lab("m1", "m2")
    received = lab.hub.budgets = CallBudgets(MemoryJournal(), BackgroundTasks(), lambda *_, **__: None, lambda: NOON)
    received.change((Budget("each", calls=3, per="tool"), Budget("member", calls=9, per="tool", tools=("m1.*",))))
    lab.start("all")
    lab.start("m1")
    assert isinstance(lab.start("m2").fault, BudgetExceeded)
    shown = received.list(OPERATOR, limit=9, after="").counters
    assert {(each.budget, each.subject["tool"]): each.calls for each in shown} == {
        ("each", "lab.read"): 3,
        ("member", "m1.read"): 2,
    }


@pytest.mark.parametrize(("spent", "is_held"), [(2.0, True), (3.0, False)])
async def test_a_call_of_all_members_is_held_if_all_of_them_would_spend_too_much(
    spent: float,
    is_held: bool,  # noqa: FBT001
) -> None:
    lab = Lab("m1", "m2", "m3")
    lab.hub.budgets = CallBudgets(MemoryJournal(), BackgroundTasks(), lambda *_, **__: None, lambda: NOON)
    lab.hub.budgets.change((Budget("day", cost=100),))
    approvals = lab.hub.approvals = CallApprovals(MemoryJournal(), lambda: NOON, lambda *_, **__: None)
    approvals.has_operator = True
    approvals.change((ApprovalRule("spent", ("*",), spent=SpentTest("day", spent)),))
    lab.start("all")
    await settled()
    assert [len(link.sent) for link in lab.links.values()] == [0 if is_held else 1] * 3
    for waiting in approvals.list(OPERATOR).approvals:
        assert waiting.tool == "lab.read", "a person decides about the whole"
        await approvals.decide(waiting.id, "allow", OPERATOR, "")
    await settled()
    assert [len(link.sent) for link in lab.links.values()] == [1, 1, 1]
    lab.start("m1")
    await settled()
    assert len(lab.links["m1"].sent) == 1, "one more is too much in either case"


async def test_a_call_of_all_members_costs_the_sum_in_each_counter() -> None:
    lab = Lab("m1", "m2", "m3")
    budgets = lab.hub.budgets = CallBudgets(MemoryJournal(), BackgroundTasks(), lambda *_, **__: None, lambda: NOON)
    wanted = {
        Budget("dear", cost=99, costs=(("m2.*", 5.0),)): 7.0,
        Budget("some", cost=99, tools=("m1.*", "m3.read")): 2.0,
        Budget("tool", cost=99, per="tool"): 3.0,
        Budget("each", cost=99, per="tool", tools=("m1.*", "m3.*"), costs=(("m3.*", 4.0),)): 4.0,
        Budget("other", cost=99, tools=("files.*",)): 0.0,
    }
    budgets.change(tuple(wanted))
    listener = lab.start("all")
    for name in lab.links:
        lab.finish(name, NotConnected(ServerName(name), "gone"))
    assert listener.ends
    found = {budget.name: budgets.cost_with(lab.hub, lab.inflight, budget.name) for budget in wanted}
    assert found == {budget.name: cost for budget, cost in wanted.items()}


async def test_a_member_whose_call_costs_too_much_meanwhile_is_held_although_its_fleet_was_not() -> None:
    lab = Lab("m1", "m2", at_once=1)
    lab.hub.budgets = CallBudgets(MemoryJournal(), BackgroundTasks(), lambda *_, **__: None, lambda: NOON)
    lab.hub.budgets.change((Budget("day", cost=100),))
    approvals = lab.hub.approvals = CallApprovals(MemoryJournal(), lambda: NOON, lambda *_, **__: None)
    approvals.has_operator = True
    approvals.change((ApprovalRule("spent", ("*",), spent=SpentTest("day", 2)),))
    lab.start("all")
    lab.start("m1")
    lab.links["m1"].sent[0].finish(DONE)
    await settled()
    assert not lab.links["m2"].sent
    assert [each.tool for each in approvals.list(OPERATOR).approvals] == ["m2.read"]


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_call_that_was_approved_and_finds_no_room_keeps_its_approval() -> None:
    stage = Counted(Budget("day", calls=1))
    approvals = CallApprovals(stage.journal, lambda: stage.time, lambda *_, **__: None)
    approvals.has_operator = True
    stage.hub.approvals = approvals
    approvals.change((ApprovalRule("all", ("*",)),))
    _, listener = stage.start(call())
    for _ in range(20):
        await asyncio.sleep(0)
    (waiting,) = approvals.list(OPERATOR).approvals
    stage.budgets.change((Budget("day", calls=0),))
    await approvals.decide(waiting.id, "allow", OPERATOR, "")
    for _ in range(20):
        await asyncio.sleep(0)
    assert isinstance(listener.fault, BudgetExceeded)
    assert stage.call() is not None, "a person is not asked about a call without room"
    assert [(each.id, each.state) for each in approvals.list(OPERATOR).approvals] == [(waiting.id, "allowed")]
    stage.budgets.change((Budget("day", calls=1),))
    _, listener = stage.start(call())
    await asyncio.wait_for(listener.ended.wait(), 5)
    assert listener.ends == [DONE], "nobody is asked again"
    assert approvals.list(OPERATOR).approvals == ()


async def test_a_change_keeps_the_counters_of_a_budget_with_the_same_name_per_and_period() -> None:
    stage = Counted(Budget("a", calls=1), Budget("b", calls=1))
    stage.call()
    stage.budgets.change((Budget("a", calls=2), Budget("b", calls=5, period="hour")))
    assert stage.used("a")["default", "anyone"][0] == 1
    assert stage.used("b") == {}
    stage.budgets.change(())
    stage.budgets.change((Budget("a", calls=1),))
    assert stage.call() is not None, "a budget that was removed for a moment is not renewed by that"


async def test_counters_survive_and_those_of_a_period_that_is_over_do_not() -> None:
    first = Counted(Budget("hour", calls=9, period="hour"), Budget("day", calls=9, cost=9))
    first.call()
    await first.budgets.flush()
    first.call()
    assert await first.budgets.flush()
    second = Counted(*first.budgets.budgets, journal=first.journal)
    second.time = NOON + 3600
    await second.budgets.load()
    assert second.used("hour") == {}
    assert second.used("day") == first.used("day")
    second.call()
    assert await second.budgets.flush()
    stored = await second.journal.all_in(BUDGET, ("counted",), limit=10)
    assert [json.loads(each.body or b"")["calls"] for each in stored] == [1, 3]


@pytest.mark.parametrize("result", ["refused", "unknown", "conflict"])
async def test_a_write_that_fails_is_repeated_with_all_that_was_counted(result: WriteResult) -> None:
    journal = StubbornJournal()
    stage = Counted(Budget("day", calls=9), journal=journal)
    stage.call()
    journal.results = [result]
    # After a conflict it is tried again at once, with what another hub has counted.
    assert await stage.budgets.flush() == (result == "conflict")
    stage.call()
    assert await stage.budgets.flush()
    (stored,) = await journal.all_in(BUDGET, ("counted",), limit=10)
    assert json.loads(stored.body or b"")["calls"] == 2


async def test_a_stored_counter_that_cannot_be_read_stops_nothing() -> None:
    journal = MemoryJournal()
    journal.write([Document(BUDGET, "budgets", "x", 1, NOON * 2, b"[]", state="counted")], lambda _: None)
    stage = Counted(Budget("day", calls=1), journal=journal)
    await stage.budgets.load()
    assert stage.call() is None


async def test_the_writer_writes_by_itself_and_removes_counters_that_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.01)
    stage = Counted(Budget("day", calls=9))

    async def stored(count: int) -> None:
        async def is_so() -> bool:
            return len(await stage.journal.all_in(BUDGET, ("counted",), limit=10)) == count

        await eventually(is_so, f"{count} counters are stored")

    stage.call()
    await stored(1)
    stage.time += 86_400
    await stored(0)
    await eventually(lambda: stage.budgets.counts() == {"day": 0}, "the counter is removed")
    assert stage.call() is None
    await stored(1)


async def test_more_counters_than_the_hub_can_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTERS_MAX", 1)
    stage = Counted(Budget("day", calls=9))
    assert stage.call(caller=ANNA) is None
    fault = stage.call(caller=BERT)
    assert fault is not None
    assert "1 counters of budgets" in fault.message
    assert stage.call(caller=ANNA) is None


async def test_a_caller_sees_its_own_counters_and_operators_all_page_by_page() -> None:
    stage = Counted(
        Budget("day", calls=9, callers=("anna", "bert")),
        Budget("all", calls=9, per="tenant"),
        Budget("hub", calls=9, per="hub"),
    )
    stage.call(caller=ANNA)
    stage.call(caller=EVE)
    own = stage.budgets.list(BERT, limit=10, after="")
    assert [(each.name, each.callers) for each in own.budgets] == [("day", None), ("all", None), ("hub", None)]
    assert [(each.budget, each.subject, each.calls) for each in own.counters] == [
        ("day", {"tenant": "research", "caller": "bert"}, 0),
        ("all", {"tenant": "research"}, 1),
    ]
    seen, after = [], ""
    while True:
        page = stage.budgets.list(OPERATOR, limit=2, after=after)
        seen += [each.budget for each in page.counters]
        if page.next is None:
            break
        after = page.next
    assert seen == ["day", "all", "hub", "all"]
    assert page.total == 4
    with pytest.raises(ValueError, match="cursor is invalid"):
        stage.budgets.list(OPERATOR, limit=2, after="x")


async def test_two_nodes_with_one_journal_add_up_their_counts() -> None:
    journal, budget = MemoryJournal(), Budget("calls", per="caller", period="day", calls=100)
    nodes = [Counted(budget, journal=journal) for _ in range(3)]
    for turn in range(1, 6):
        for node in nodes[:2]:
            node.call()
            while not await node.budgets.flush():
                pass
        # The first one learns of the other's call when it counts the next one.
        counted = [sum(calls for calls, _, _ in node.used("calls").values()) for node in nodes[:2]]
        assert counted == [2 * turn - 1, 2 * turn]
    await nodes[2].budgets.load()
    assert [calls for calls, _, _ in nodes[2].used("calls").values()] == [10]


@pytest.mark.parametrize("nodes", [1, 5, 20])
async def test_nodes_together_count_no_more_than_a_twentieth_of_a_limit_ahead_of_the_journal(nodes: int) -> None:
    journal, budget = SharedMemoryJournal(), Budget("calls", per="hub", period="day", calls=1000)
    journal.nodes = nodes
    journal.gate.clear()  # the journal learns of nothing
    ahead = 0
    for _ in range(nodes):
        node = Counted(budget, journal=journal)
        while node.start(call("files.read"))[1].ends:
            ahead += 1
    assert nodes <= ahead <= min(nodes * 10, 50)
    journal.gate.set()


async def test_a_call_that_waits_is_refused_when_another_node_says_that_it_has_used_the_budget_up() -> None:
    journal, budget = SharedMemoryJournal(), Budget("calls", per="caller", period="day", calls=1)
    one, other = (Counted(budget, journal=journal) for _ in range(2))
    written: list[Document] = []
    one.budgets.on_written = written.extend
    first = one.start(call("files.read"))[1]
    await eventually(lambda: bool(first.ends), "the first call has run")
    second = other.start(call("files.read"))[1]
    assert not second.ends
    other.budgets.receive(written)  # so its own write meets no conflict
    await eventually(lambda: bool(second.ends), "the second call has ended")
    assert [type(end) for end in (*first.ends, *second.ends)] == [Result, BudgetExceeded]
    assert await other.budgets.flush()
    assert [calls for calls, _, _ in other.used("calls").values()] == [1]


async def test_costs_of_two_nodes_fill_a_budget_exactly() -> None:
    journal = SharedMemoryJournal()
    # As binary fractions, 1.1 and 2.2 make more than 3.3.
    budget = Budget("costs", per="caller", period="day", cost=3.3, costs=(("files.read", 1.1), ("files.write", 2.2)))
    one, other = (Counted(budget, journal=journal) for _ in range(2))
    first = one.start(call("files.read"))[1]
    await eventually(lambda: bool(first.ends), "the first call has run")
    second = other.start(call("files.write"))[1]
    await eventually(lambda: bool(second.ends), "the second call has run")
    assert [type(end) for end in (*first.ends, *second.ends)] == [Result, Result]
    assert [cost for _, _, cost in other.used("costs").values()] == [3.3]
    third = other.start(call("files.read"))[1]
    await eventually(lambda: bool(third.ends), "the third call is refused")
    assert [type(end) for end in third.ends] == [BudgetExceeded]


async def test_a_call_that_comes_during_a_write_is_refused_when_another_node_has_used_the_budget_up() -> None:
    journal = SharedMemoryJournal()
    budgets = [
        Budget(name, per="caller", period="day", calls=1, tools=(f"files.{name}",)) for name in ("read", "write")
    ]
    one, other = (Counted(*budgets, journal=journal) for _ in range(2))
    written: list[Document] = []
    one.budgets.on_written = written.extend
    first = one.start(call("files.read"))[1]
    await eventually(lambda: bool(first.ends), "the first call has run")
    while not journal.asked.empty():
        journal.asked.get_nowait()
    journal.gate.clear()
    beside = other.start(call("files.write"))[1]
    await journal.asked.get()
    second = other.start(call("files.read"))[1]
    other.budgets.receive(written)
    journal.gate.set()
    await eventually(lambda: bool(beside.ends and second.ends), "both calls have ended")
    assert [type(end) for end in (*beside.ends, *second.ends)] == [Result, BudgetExceeded]
