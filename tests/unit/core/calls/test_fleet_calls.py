"""Calls of fleets whose members fail, ask, report, or are too many for one turn of the loop."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from isthmus.core.access.approval_rules import ApprovalRule, ArgumentTest
from isthmus.core.access.budget_rules import Budget
from isthmus.core.access.tenants import Tenants, TenantSettings
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.approvals import CallApprovals
from isthmus.core.calls.budgets import CallBudgets
from isthmus.core.calls.fleet_calls import Fleets
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.fleets import FleetSettings
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.tool_rules import NO_TOOL_RULES, ToolRules
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Answered, LogMessage, Outcome, Progress, Question, Reply, Result
from isthmus.model.fault_table import Fault, Lost
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import DONE, HeldLink, Listener, Notes, call, raw, ready, tool

LAB = ServerName("lab")
OPERATOR = Caller("boss", "default", Grants(()), is_operator=True)
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
SECONDS = 5.0


class Lab:
    """A hub with a fleet of held links."""

    def __init__(self, *names: str, limits: Limits | None = None, **settings: Any) -> None:
        self.hub = Hub(limits or Limits(), Notes())
        self.links: dict[str, HeldLink] = {}
        self.fleets = Fleets(self.hub)
        self.fleets.change({LAB: FleetSettings(("m*",), **settings)})
        for name in names:
            self.add(name)

    def add(self, name: str, *, is_connected: bool = True, rules: ToolRules = NO_TOOL_RULES) -> None:
        queue = ServerQueue(ServerName(name), self.hub.limits)
        if is_connected:
            self.links[name] = HeldLink()
            queue.attach(self.links[name])
        status = ready(tool("read", name, inputSchema=SCHEMA), server=name, rules=rules)
        absent = ServerStatus(ServerName(name), "retrying", "it is broken", is_settled=True)
        self.hub.open_server_queue(queue, status if is_connected else absent)

    def start(self, member: str | None = None, name: str = "lab.read", **options: Any) -> Listener:
        listener = Listener()
        arguments = {} if member is None else {"fleet_member": member}
        self.inflight = self.hub.start(call(name, arguments, **options), listener)
        return listener

    def finish(self, name: str, outcome: Outcome = DONE) -> None:
        """End the last call of a member."""
        self.links[name].sent[-1].finish(outcome)


def rows_of(listener: Listener) -> dict[str, Any]:
    (result,) = listener.ends
    assert isinstance(result, Result), result
    return {row["member"]: row for row in json.loads(bytes(result.payload))["structuredContent"]["members"]}


async def test_without_a_good_answer_any_returns_the_answer_of_each_member() -> None:
    lab = Lab("m1", "m2", read_only=("*",))
    listener = lab.start("any")
    lab.finish("m1", Result(raw({"content": [{"type": "text", "text": "no"}], "isError": True}), is_error=True))
    assert not listener.ends
    lab.finish("m2", Lost(ServerName("m2"), "gone", executed="unknown"))
    assert {name: row["executed"] for name, row in rows_of(listener).items()} == {"m1": "yes", "m2": "unknown"}
    assert isinstance(listener.ends[0], Result)
    assert listener.ends[0].is_error


async def test_failures_of_one_member_do_not_stop_the_fleet() -> None:
    lab = Lab("m1", "m2")
    for _ in range(20):
        lab.start("m1")
        if lab.links["m1"].sent and not lab.links["m1"].sent[-1].is_done:
            lab.finish("m1", Lost(ServerName("m1"), "gone", executed="unknown"))
    assert lab.start("m1").fault.reason == "breaker_open"
    listener = lab.start()
    lab.finish("m2")
    assert isinstance(listener.ends[0], Result), "the least busy one has a closed breaker"


async def test_the_callers_own_timeout_leaves_time_for_partial_results() -> None:
    lab = Lab("m1", "m2", deadline=60)
    listener = lab.start("all", timeout=0.5)
    lab.finish("m1")
    await asyncio.wait_for(listener.ended.wait(), SECONDS)
    assert {name: row["executed"] for name, row in rows_of(listener).items()} == {"m1": "yes", "m2": "unknown"}


async def test_a_late_answer_after_the_deadline_changes_nothing() -> None:
    lab = Lab("m1", deadline=0.05)
    listener = lab.start("all")
    await asyncio.wait_for(listener.ended.wait(), SECONDS)
    lab.finish("m1")
    assert rows_of(listener)["m1"]["error"]["reason"] == "timed_out"
    assert lab.hub.running() == 0


@pytest.mark.parametrize(("has_left", "executed"), [(True, "unknown"), (False, "no")])
@pytest.mark.parametrize("member", ["m1", "all"])
async def test_a_cancelled_call_is_cancelled_at_its_members(member: str, has_left: bool, executed: str) -> None:  # noqa: FBT001
    lab = Lab("m1")
    lab.links["m1"].has_left = has_left
    listener = lab.start(member)
    lab.inflight.cancel("no longer needed")
    assert [reason for _, reason in lab.links["m1"].withdrawn] == ["no longer needed"]
    assert (listener.fault.reason, listener.fault.executed) == ("cancelled", executed)
    assert lab.hub.running() == 0


async def test_a_member_that_was_never_connected_has_its_row() -> None:
    lab = Lab("m1")
    lab.add("m2", is_connected=False)
    listener = lab.start("all")
    lab.finish("m1")
    row = rows_of(listener)["m2"]
    assert (row["ok"], row["executed"], row["error"]["reason"]) == (False, "no", "not_connected")
    assert lab.start("m2").fault.reason == "not_connected"


async def test_many_members_are_called_in_several_turns_of_the_loop() -> None:
    lab = Lab(*(f"m{number}" for number in range(200)), at_once=256)
    for link in lab.links.values():
        link.at_once = lambda inflight: inflight.finish(DONE)
    listener = lab.start("all")
    assert not listener.ends
    await asyncio.wait_for(listener.ended.wait(), SECONDS)
    assert sum(row["ok"] for row in rows_of(listener).values()) == 200


async def test_at_most_so_many_members_are_called_at_once() -> None:
    lab = Lab("m1", "m2", "m3", at_once=2)
    lab.start("all")
    assert [len(link.sent) for link in lab.links.values()] == [1, 1, 0]
    lab.finish("m2")
    assert [len(link.sent) for link in lab.links.values()] == [1, 1, 1]


async def test_lines_of_a_log_name_the_member() -> None:
    lab = Lab("m1")
    listener = lab.start("all")
    lab.links["m1"].sent[0].emit(LogMessage("info", {"data": raw("x"), "logger": raw("db")}))
    lab.links["m1"].sent[0].emit(LogMessage("info", {"data": raw("y")}))
    loggers = [json.loads(bytes(event.members["logger"])) for event in listener.events if isinstance(event, LogMessage)]
    assert loggers == ["m1/db", "m1"]


async def test_progress_of_any_member_never_falls() -> None:
    lab = Lab("m1", "m2", read_only=("*",))
    listener = lab.start("any")
    for name, done in (("m1", 3), ("m2", 1), ("m2", 4)):
        lab.links[name].sent[0].emit(Progress({"progress": raw(done), "total": raw(5), "message": raw("at work")}))
    said = [{key: json.loads(bytes(value)) for key, value in each.members.items()} for each in listener.events]
    assert said == [
        {"progress": 0.6, "total": 1, "message": "m1: at work"},
        {"progress": 0.8, "total": 1, "message": "m2: at work"},
    ]


async def test_a_question_of_one_member_is_answered_or_retracted() -> None:
    lab = Lab("m1")
    listener = lab.start("m1")
    replies: list[Reply] = []
    inner = lab.links["m1"].sent[0]
    asked = inner.ask(Question("elicitation/create", raw({})), replies.append)
    assert asked is not None
    asked.retract()
    inner.ask(Question("elicitation/create", raw({})), replies.append)
    (_, first), (_, second) = listener.asked
    first(Answered(raw({"late": True})))
    second(Answered(raw({"ok": True})))
    assert replies == [Answered(raw({"ok": True}))]


async def test_a_policy_of_the_operator_may_refuse_a_member() -> None:
    lab = Lab()
    lab.hub.custom_policy = lambda _caller, server, _tool: server != "m2"
    for name in ("m1", "m2"):
        lab.add(name)
    listener = lab.start("all")
    lab.finish("m1")
    assert list(rows_of(listener)) == ["m1"]
    assert lab.start("m2").fault.reason == "bad_arguments"


async def test_members_that_the_caller_is_denied_are_not_listed() -> None:
    lab = Lab("m1", "m2", "m3")
    lab.add("m4", is_connected=False)
    careful = Caller("careful", "default", Grants(("lab.*",), ("m2.*", "m4.read")))
    listed = lab.start(name="lab.fleet_members", caller=careful).ends[0]
    assert isinstance(listed, Result)
    found = json.loads(bytes(listed.payload))["structuredContent"]
    assert ([row["id"] for row in found["members"]], found["total"]) == (["m1", "m3"], 2)


@pytest.mark.parametrize("member", ["m1", "all"])
async def test_a_result_from_the_cache_was_not_executed(member: str) -> None:
    lab = Lab()
    lab.add("m1", rules=ToolRules(cached=("read",), cache_seconds=60))
    lab.start(member)
    lab.finish("m1")
    first = lab.inflight
    assert first.was_sent
    listener = lab.start(member)
    assert len(lab.links["m1"].sent) == 1
    assert not lab.inflight.was_sent, "what the audit log says of the caller's call"
    if member == "all":
        assert rows_of(listener)["m1"]["executed"] == "no"


async def test_a_call_that_no_member_ran_leaves_its_approval() -> None:
    lab = Lab("m1", "m2")
    approvals = lab.hub.approvals = CallApprovals(MemoryJournal(), time.time, lambda *_, **__: None)
    approvals.has_operator = True
    approvals.change((ApprovalRule("fleet", ("lab.*",)),))
    budgets = lab.hub.budgets = CallBudgets(MemoryJournal(), BackgroundTasks(), lambda *_, **__: None)
    budgets.change((Budget("none", calls=0),))
    listener = lab.start("all")
    await settled()
    (waiting,) = approvals.list(OPERATOR).approvals
    await approvals.decide(waiting.id, "allow", OPERATOR, "")
    await settled()
    assert [row["executed"] for row in rows_of(listener).values()] == ["no", "no"]
    assert not lab.inflight.was_sent
    budgets.change(())
    lab.start("all")
    await settled()
    assert [len(link.sent) for link in lab.links.values()] == [1, 1], "nobody is asked again"


async def test_a_call_is_approved_once_also_if_members_lack_an_argument_of_the_rule() -> None:
    lab = Lab("m1", "m2")
    approvals = lab.hub.approvals = CallApprovals(MemoryJournal(), time.time, lambda *_, **__: None)
    approvals.has_operator = True
    everywhere = ArgumentTest(("fleet_member",), "equals", "all")
    approvals.change((ApprovalRule("everywhere", ("lab.*", "m1.*", "m2.*"), arguments=(everywhere,)),))
    lab.start("all")
    await settled()
    (waiting,) = approvals.list(OPERATOR).approvals
    await approvals.decide(waiting.id, "allow", OPERATOR, "")
    await settled()
    assert [len(link.sent) for link in lab.links.values()] == [1, 1], "nobody is asked again"


async def test_a_member_waiting_for_approval_at_the_deadline_names_the_approval() -> None:
    lab = Lab("m1", "m2", deadline=0.05)
    approvals = lab.hub.approvals = CallApprovals(MemoryJournal(), time.time, lambda *_, **__: None)
    approvals.has_operator = True
    approvals.change((ApprovalRule("careful", ("m2.*",)),))
    listener = lab.start("all")
    lab.finish("m1")
    await asyncio.wait_for(listener.ended.wait(), SECONDS)
    (waiting,) = approvals.list(OPERATOR).approvals
    row = rows_of(listener)["m2"]
    assert (row["executed"], row["error"]["reason"], row["error"]["approval"]) == ("no", "approval_pending", waiting.id)
    assert "Call this member alone" in row["error"]["message"]
    await approvals.decide(waiting.id, "allow", OPERATOR, "")
    lab.start("m2")
    await settled()
    assert len(lab.links["m2"].sent) == 1


async def test_a_call_of_a_fleet_takes_one_place_of_its_tenant() -> None:
    lab = Lab("m1", "m2", limits=Limits(tenant_calls=2))
    lab.hub.tenants.configure(Tenants({"one": TenantSettings()}), {"one", "two"})
    caller = Caller("anyone", "one", Grants(("*",)))
    lab.start("m1", caller=caller)
    lab.start("m2", caller=caller)
    assert [len(link.sent) for link in lab.links.values()] == [1, 1]
    assert lab.start("m1", caller=caller).fault.reason == "too_many_calls"
    for name in ("m1", "m2"):
        lab.finish(name)
    lab.start("all", caller=caller)
    assert [len(link.sent) for link in lab.links.values()] == [2, 2]


async def settled() -> None:
    """Let the journal in memory and what follows from it finish."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_result_that_is_not_an_object_is_passed_on() -> None:
    lab = Lab("m1")
    listener = lab.start("m1")
    bare = Result(raw(7), is_bare=True)
    lab.finish("m1", bare)
    assert listener.ends == [bare]


async def test_a_fleet_with_the_name_of_a_server_is_left_out() -> None:
    lab = Lab("m1")
    lab.fleets.change({ServerName("m1"): FleetSettings(("m*",))})
    listener = lab.start()
    assert isinstance(listener.ends[0], Fault)
    assert "m1" not in lab.fleets
    assert "m1" in lab.hub.server_queues
