"""Calls wait until a person allows exactly them, and an allowed call runs once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from isthmus.core.access.approval_rules import ApprovalRule, ArgumentTest
from isthmus.core.admin_ports import ApprovalAlreadyDecided, ApprovalVerdict
from isthmus.core.audit import Fact
from isthmus.core.calls import approvals as module
from isthmus.core.calls.approvals import APPROVAL, EACH_MAX, SCHEMA_BYTES_MAX, CallApprovals, lacking_arguments
from isthmus.core.catalog.sets import SetChange, SetSettings
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.journal import Document, OnWritten, WriteResult
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Answered, Call, Question, Result, Surface
from isthmus.model.fault_table import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalPending,
    BadArguments,
    Cancelled,
    Executed,
    Fault,
    Lost,
    NotWritten,
    TimedOut,
    TooManyApprovals,
    UnknownTool,
)
from isthmus.model.features import Tool
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import ANYONE, DONE, SERVER, HeldLink, Listener, Stage, call, ready, tool

OPERATOR = Caller("boss", "default", Grants(()), is_operator=True)
OTHER = Caller("other", "default", Grants(("*",)))
ALL = ApprovalRule("all", ("*",))
PAY = {"amount": 5}
ASKABLE = frozenset({"elicitation", "elicitation.form"})


class FailingJournal(MemoryJournal):
    """Answers writes with these results first."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[WriteResult] = []

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        if self.results:
            asyncio.get_running_loop().call_soon(done, self.results.pop(0))
        else:
            super().write(documents, done, facts)


class Held(Stage):
    """A hub that holds calls, with a clock that the test moves."""

    def __init__(
        self,
        *rules: ApprovalRule,
        tools: Sequence[Tool] = (),
        journal: MemoryJournal | None = None,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(*(tools or (tool("read"), tool("write"))), limits=limits)
        self.time = 1_000_000.0
        self.recorded: list[tuple[str, Mapping[str, Any]]] = []
        self.journal = journal or FailingJournal()
        self.approvals = CallApprovals(self.journal, lambda: self.time, self._record)
        self.approvals.has_operator = True
        self.hub.approvals = self.approvals
        self.approvals.change(rules or (ALL,))

    def _record(self, event: str, **about: Any) -> None:
        self.recorded.append((event, about))

    @property
    def events(self) -> list[str]:
        """The events of the audit log, in order."""
        return [event.removeprefix("approval.") for event, _ in self.recorded]

    async def ask(self, made: Call | None = None) -> tuple[str, Listener]:
        """Make a call that waits, and return the id of its approval."""
        self.time += 0.001  # the list is in the order of requests
        _, listener = self.start(made or call(arguments=PAY))
        await settled()
        assert not listener.ends, listener.ends
        return self.approvals.list(OPERATOR, state="pending", limit=100, after="").approvals[-1].id, listener

    async def decide(self, id: str, verdict: ApprovalVerdict = "allow", reason: str = "") -> None:
        assert await self.approvals.decide(id, verdict, OPERATOR, reason) is not None
        await settled()

    def sent(self) -> list[Any]:
        """The arguments of the calls that reached the link."""
        return [json.loads(bytes(inflight.call.arguments)) for inflight in self.link.sent]


async def settled() -> None:
    """Let the journal in memory and what follows from it finish."""
    for _ in range(20):
        await asyncio.sleep(0)


def fault_of(listener: Listener, kind: type[Fault]) -> Fault:
    assert isinstance(listener.fault, kind), listener.fault
    assert listener.fault.executed == "no"
    return listener.fault


async def test_a_hub_without_rules_has_the_stages_that_it_always_had() -> None:
    stage = Stage()
    before = stage.hub._stages
    stage.hub.approvals = Held().approvals
    assert stage.hub._stages != before
    stage.hub.approvals = None
    assert stage.hub._stages == before


async def test_a_held_call_is_sent_once_it_is_allowed() -> None:
    stage = Held()
    id, listener = await stage.ask()
    assert stage.link.sent == []
    await stage.decide(id)
    assert stage.sent() == [PAY]
    stage.link.sent[0].finish(DONE)
    assert listener.ends == [DONE]
    assert stage.events == ["requested", "allowed", "used"]


async def test_a_request_shows_tool_arguments_caller_and_set_and_the_audit_log_no_arguments() -> None:
    stage = Held()
    id, _ = await stage.ask()
    shown = stage.approvals.get(OPERATOR, id)
    assert shown is not None
    assert (shown.tool, shown.caller, shown.set, shown.rule, shown.state) == (
        "files.read",
        "anyone",
        None,
        "all",
        "pending",
    )
    assert json.loads(bytes(shown.arguments)) == PAY
    assert "amount" not in str(stage.recorded)


async def test_at_its_deadline_the_call_fails_and_the_same_call_works_after_the_decision() -> None:
    stage = Held()
    _, listener = stage.start(call(arguments=PAY, timeout=0.05))
    await asyncio.wait_for(listener.ended.wait(), 5)
    fault = fault_of(listener, ApprovalPending)
    assert fault.approval is not None
    assert fault.approval in fault.message
    await stage.decide(fault.approval)
    assert stage.link.sent == []
    stage.start(call(arguments={"amount": 5.0}))
    await settled()
    assert stage.sent() == [{"amount": 5.0}]


async def test_a_single_approval_is_used_once() -> None:
    stage = Held()
    id, _ = await stage.ask()
    await stage.decide(id)
    again, _ = await stage.ask()
    assert again != id
    assert len(stage.link.sent) == 1


class Nodes:
    """Two hubs on one journal. What one changes the other reads when the test says so."""

    def __init__(self) -> None:
        journal = FailingJournal()
        self.journal = journal
        self.a, self.b = Held(journal=journal), Held(journal=journal)
        self.changed: dict[Held, dict[str, str]] = {}
        for stage in (self.a, self.b):
            self.changed[stage] = {}
            stage.approvals.on_changed = lambda owner, id, stage=stage: self.changed[stage].__setitem__(id, owner)

    async def exchange(self, *ids: str) -> None:
        """Let each read what the other has changed: these approvals, or all."""
        for stage, other in ((self.a, self.b), (self.b, self.a)):
            for id, owner in list(self.changed[stage].items()):
                if not ids or id in ids:
                    del self.changed[stage][id]
                    await other.approvals.refresh(owner, id)
        await settled()


@pytest.mark.parametrize("at_first", [True, False])
@pytest.mark.parametrize("know_each_other", [True, False])
async def test_equal_calls_that_wait_at_two_hubs_are_denied_together(*, at_first: bool, know_each_other: bool) -> None:
    nodes = Nodes()
    first, listener = await nodes.a.ask()
    second, other = await nodes.b.ask()
    assert first != second
    if know_each_other:
        await nodes.exchange()
    await (nodes.a.decide(first, "deny") if at_first else nodes.b.decide(second, "deny"))
    await nodes.exchange()
    await nodes.exchange()
    fault_of(listener, ApprovalDenied)
    fault_of(other, ApprovalDenied)
    for stage in (nodes.a, nodes.b):
        assert stage.approvals.waiting == 0, "nobody is asked again"
        _, later = stage.start(call(arguments=PAY))
        fault_of(later, ApprovalDenied)


async def test_of_equal_calls_that_wait_at_two_hubs_the_allowed_one_is_sent() -> None:
    nodes = Nodes()
    first, _ = await nodes.a.ask()
    second, other = await nodes.b.ask()
    await nodes.exchange()
    await nodes.b.decide(second)
    await nodes.exchange()
    assert (len(nodes.a.link.sent), len(nodes.b.link.sent)) == (0, 1)
    nodes.b.link.sent[0].finish(DONE)
    assert other.ends == [DONE]
    assert [each.id for each in nodes.a.approvals.list(OPERATOR, state="pending").approvals] == [first]
    await nodes.a.decide(first)
    assert len(nodes.a.link.sent) == 1


async def test_a_request_that_another_hub_decides_while_it_is_stored_is_decided() -> None:
    nodes = Nodes()
    first, _ = await nodes.a.ask()
    await nodes.a.decide(first, "deny")
    _, listener = nodes.b.start(call(arguments=PAY))
    (owner,) = nodes.changed[nodes.a].values()
    await nodes.b.approvals.refresh(owner, first)  # the journal answers later
    await settled()
    fault_of(listener, ApprovalDenied)
    assert nodes.b.approvals.waiting == 0


async def test_rereading_finds_decisions_and_revocations_of_another_hub() -> None:
    nodes = Nodes()
    id, _ = await nodes.a.ask()
    await nodes.b.approvals.reread()
    await nodes.b.decide(id, "allow_hour")
    assert nodes.a.link.sent == [], "the message was lost"
    await nodes.a.approvals.reread()
    await settled()
    assert len(nodes.a.link.sent) == 1
    await nodes.b.decide(id, "deny")
    nodes.a.start(call(arguments=PAY))
    assert len(nodes.a.link.sent) == 2, "for an hour"
    await nodes.a.approvals.reread()
    _, listener = nodes.a.start(call(arguments=PAY))
    fault_of(listener, ApprovalDenied)


async def test_rereading_asks_again_for_an_approval_used_by_another_hub() -> None:
    nodes = Nodes()
    id, _ = await nodes.a.ask()
    await nodes.b.approvals.reread()
    _, other = await nodes.b.ask()
    await nodes.b.decide(id)
    nodes.b.link.sent[0].finish(DONE)
    assert other.ends == [DONE]
    await nodes.a.approvals.reread()
    await settled()
    (waiting,) = nodes.a.approvals.list(OPERATOR, state="pending").approvals
    assert (waiting.id != id, nodes.a.link.sent) == (True, [])


class SlowJournal(FailingJournal):
    """Answers what it read when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_read = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        found = await super().all_in(kind, states, limit=limit, after=after)
        self.has_read.set()
        await self.may_answer.wait()
        return found


async def test_an_approval_used_during_a_reread_stays_used() -> None:
    stage = Held(journal=(journal := SlowJournal()))
    _, listener = stage.start(call(arguments=PAY, timeout=0.05))
    await asyncio.wait_for(listener.ended.wait(), 5)
    id = fault_of(listener, ApprovalPending).approval
    assert id is not None
    await stage.decide(id)
    reading = asyncio.create_task(stage.approvals.reread())
    await journal.has_read.wait()
    stage.start(call(arguments=PAY))
    await settled()
    assert stage.sent() == [PAY]
    journal.may_answer.set()
    await reading
    assert len(stage.approvals) == 0


async def test_an_approval_requested_during_a_reread_stays() -> None:
    stage = Held(journal=(journal := SlowJournal()))
    reading = asyncio.create_task(stage.approvals.reread())
    await journal.has_read.wait()
    id, _ = await stage.ask()
    journal.may_answer.set()
    await reading
    await stage.decide(id)
    assert stage.sent() == [PAY]


async def test_an_approval_of_another_version_is_reported_once() -> None:
    stage = Held()
    document = Document(APPROVAL, "default\nanyone", "ap_1", 1, stage.time, b'{"kind":"new"}', state="pending")
    stage.journal.write((document,), lambda _: None)
    await settled()
    with capture_logs() as lines:
        for _ in range(3):
            await stage.approvals.reread()
    assert [line["event"] for line in lines] == ["a stored approval cannot be decoded"]


async def test_of_two_equal_calls_that_wait_one_is_sent_and_the_other_asks_again() -> None:
    stage = Held()
    id, _ = await stage.ask()
    same, _ = await stage.ask()
    assert same == id
    await stage.decide(id)
    assert len(stage.link.sent) == 1
    assert stage.approvals.list(OPERATOR, state="pending").total == 1


async def test_the_same_call_may_be_allowed_for_an_hour() -> None:
    stage = Held()
    id, _ = await stage.ask()
    await stage.decide(id, "allow_hour")
    stage.time += 3599
    stage.start(call(arguments=PAY))
    assert len(stage.link.sent) == 2
    stage.time += 2
    stage.start(call(arguments=PAY))
    await settled()
    assert len(stage.link.sent) == 2
    assert stage.events == ["requested", "allowed", "used", "used", "expired", "requested"]


@pytest.mark.parametrize(
    "other",
    [
        call(arguments={"amount": 6}),
        call(arguments={**PAY, "to": None}),
        call("files.write", arguments=PAY),
        call(arguments=PAY, caller=OTHER),
        call(arguments=PAY, caller=Caller("anyone", "elsewhere", Grants(("*",)))),
    ],
    ids=["argument", "more", "tool", "caller", "tenant"],
)
async def test_a_decision_serves_no_other_call(other: Call) -> None:
    stage = Held()
    id, _ = await stage.ask()
    await stage.decide(id, "allow_hour")
    assert len(stage.link.sent) == 1
    again, _ = await stage.ask(other)
    assert again != id
    assert len(stage.link.sent) == 1


async def test_a_changed_definition_voids_a_decision() -> None:
    stage = Held()
    _, listener = stage.start(call(arguments=PAY, timeout=0.05))
    await asyncio.wait_for(listener.ended.wait(), 5)
    id = fault_of(listener, ApprovalPending).approval
    assert id is not None
    await stage.decide(id, "allow_hour")
    stage.hub.publish(ready(tool("read", description="Reads and deletes."), tool("write")))
    again, _ = await stage.ask()
    assert again != id
    assert stage.link.sent == []


async def test_a_definition_that_changes_while_a_call_waits_voids_the_decision_too() -> None:
    stage = Held()
    id, _ = await stage.ask()
    stage.hub.publish(ready(tool("read", description="Reads and deletes."), tool("write")))
    await stage.decide(id)
    assert stage.link.sent == []
    assert stage.approvals.list(OPERATOR, state="pending").total == 1


async def test_a_tool_that_is_gone_when_the_call_is_allowed_is_unknown() -> None:
    stage = Held()
    id, listener = await stage.ask()
    stage.hub.publish(ready(tool("write")))
    await stage.decide(id)
    fault_of(listener, UnknownTool)


async def test_a_denial_has_its_reason_also_for_the_same_call_later() -> None:
    stage = Held()
    id, listener = await stage.ask()
    await stage.decide(id, "deny", "not on Fridays")
    assert "an operator denied it: not on Fridays" in fault_of(listener, ApprovalDenied).message
    _, later = stage.start(call(arguments=PAY))
    assert fault_of(later, ApprovalDenied).approval == id
    stage.time += 3601
    again, _ = await stage.ask()
    assert again != id
    assert stage.events == ["requested", "denied", "requested"]


async def test_an_undecided_request_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.01)
    stage = Held()
    id, listener = await stage.ask()
    stage.time += 3601
    with pytest.raises(ApprovalAlreadyDecided):
        await stage.approvals.decide(id, "allow", OPERATOR, "")
    await asyncio.wait_for(listener.ended.wait(), 5)
    fault_of(listener, ApprovalExpired)
    assert stage.approvals.get(OPERATOR, id) is None
    assert stage.events == ["requested", "expired"]


async def test_an_expired_decision_serves_nothing_even_before_it_is_swept() -> None:
    stage = Held()
    _, listener = stage.start(call(arguments=PAY, timeout=0.05))
    await asyncio.wait_for(listener.ended.wait(), 5)
    id = fault_of(listener, ApprovalPending).approval
    assert id is not None
    await stage.decide(id)
    stage.time += 3601
    again, _ = await stage.ask()
    assert again != id
    assert stage.link.sent == []


async def test_no_request_is_decided_twice() -> None:
    stage = Held()
    id, _ = await stage.ask()
    first, second = await asyncio.gather(
        stage.approvals.decide(id, "deny", OPERATOR, ""),
        stage.approvals.decide(id, "allow", OPERATOR, ""),
        return_exceptions=True,
    )
    assert not isinstance(first, BaseException)
    assert isinstance(second, ApprovalAlreadyDecided)
    assert await stage.approvals.decide("ap_0", "allow", OPERATOR, "") is None


@pytest.mark.parametrize("verdict", ["allow", "allow_hour"])
async def test_a_denial_is_taken_back_only_by_an_operator_who_says_so(verdict: ApprovalVerdict) -> None:
    stage = Held()
    id, denied = await stage.ask()
    await stage.decide(id, "deny")
    fault_of(denied, ApprovalDenied)
    with pytest.raises(ApprovalAlreadyDecided, match=f"isthmus approvals allow {id} --override"):
        await stage.decide(id, verdict)
    assert await stage.approvals.decide(id, verdict, OPERATOR, "", overrides=True) is not None
    assert stage.sent() == []
    stage.start(call(arguments=PAY))
    await settled()
    assert stage.sent() == [PAY]
    assert stage.events == ["requested", "denied", "allowed", "used"]


async def test_a_caller_sees_its_own_requests_and_an_operator_all() -> None:
    stage = Held()
    id, _ = await stage.ask()
    await stage.ask(call(arguments=PAY, caller=OTHER))
    assert [each.id for each in stage.approvals.list(ANYONE).approvals] == [id]
    assert stage.approvals.get(ANYONE, id) is not None
    assert stage.approvals.get(OTHER, id) is None
    assert stage.approvals.list(OPERATOR).total == 2


async def test_only_operators_learn_the_name_of_the_decider() -> None:
    stage = Held()
    id, _ = await stage.ask()
    await stage.decide(id, "deny", "no")
    for viewer, who in ((OPERATOR, "boss"), (ANYONE, None)):
        shown = stage.approvals.get(viewer, id)
        assert shown is not None
        assert (shown.decided_by, shown.reason) == (who, "no")


async def test_a_callers_decision_does_not_count_where_an_operator_must_decide() -> None:
    stage = Held(ApprovalRule("mine", ("*",), by="caller"))
    _, listener = await stage.ask(asking())
    listener.asked[0][1](answer("accept", decision="hour"))
    await settled()
    stage.approvals.change((ALL,))
    await stage.ask(asking())
    assert len(stage.link.sent) == 1


async def test_a_list_has_pages() -> None:
    stage = Held()
    ids = []
    for number in range(5):
        ids.append((await stage.ask(call(arguments={"n": number})))[0])
        stage.time += 1
    first = stage.approvals.list(OPERATOR, limit=2)
    assert first.next is not None
    second = stage.approvals.list(OPERATOR, limit=2, after=first.next)
    assert second.next is not None
    last = stage.approvals.list(OPERATOR, limit=2, after=second.next)
    assert [each.id for page in (first, second, last) for each in page.approvals] == ids
    assert (first.total, last.next) == (5, None)
    for wrong in ({"after": "x"}, {"state": "lost"}):
        with pytest.raises(ValueError, match=r"cursor is invalid|state must be"):
            stage.approvals.list(OPERATOR, **wrong)  # type: ignore[arg-type]  # words of the line above


async def test_one_caller_may_have_so_many_requests_and_others_are_not_affected() -> None:
    stage = Held()
    for number in range(EACH_MAX):
        stage.start(call(arguments={"n": number}))
    await settled()
    _, listener = stage.start(call(arguments={"n": -1}))
    assert f"anyone has {EACH_MAX}" in fault_of(listener, TooManyApprovals).message
    await stage.ask(call(arguments=PAY, caller=OTHER))


async def test_the_store_is_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Held()
    monkeypatch.setattr(module, "ALL_MAX", 1)
    await stage.ask()
    _, listener = stage.start(call(arguments=PAY, caller=OTHER))
    assert "the hub has 1" in fault_of(listener, TooManyApprovals).message


async def test_old_denials_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EACH_MAX", 3)
    stage = Held()
    for number in range(5):
        await stage.decide((await stage.ask(call(arguments={"n": number})))[0], "deny")
    assert len(stage.approvals) == 3


async def test_arguments_that_no_person_can_review_are_refused() -> None:
    stage = Held()
    for text in (b'{"a":1,"a":2}', b'{"a":"' + b"x" * 70_000 + b'"}'):
        _, listener = stage.start(msgspec.structs.replace(call(), arguments=msgspec.Raw(text)))
        assert "a person must approve this call" in fault_of(listener, BadArguments).message


# -- rules -------------------------------------------------------------------------------------------------------------


async def test_the_first_rule_that_matches_decides() -> None:
    small = ApprovalRule("small", ("files.read",), arguments=(ArgumentTest(("amount",), "below", 10),), approve=False)
    stage = Held(small, ALL)
    stage.start(call(arguments={"amount": 9}))
    assert stage.sent() == [{"amount": 9}]
    await stage.ask(call(arguments={"amount": 10}))
    await stage.ask(call("files.write", arguments={"amount": 9}))
    turned = Held(ALL, small)
    await turned.ask(call(arguments={"amount": 9}))


async def test_a_rule_may_be_about_some_callers() -> None:
    stage = Held(ApprovalRule("some", ("*",), callers=("other",)))
    stage.start(call(arguments=PAY))
    assert len(stage.link.sent) == 1
    await stage.ask(call(arguments=PAY, caller=OTHER))


HINTS: list[tuple[dict[str, Any] | None, bool]] = [
    (None, True),
    ({}, True),
    ({"destructiveHint": True}, True),
    ({"destructiveHint": False}, False),
    ({"destructiveHint": "no"}, True),
    ({"readOnlyHint": True}, False),
    ({"readOnlyHint": True, "destructiveHint": True}, False),
    ({"readOnlyHint": False}, True),
]


@pytest.mark.parametrize(("annotations", "is_held"), HINTS)
async def test_missing_hints_count_as_the_specification_says(
    annotations: dict[str, Any] | None, *, is_held: bool
) -> None:
    made = tool("read") if annotations is None else tool("read", annotations=annotations)
    stage = Held(ApprovalRule("destructive", destructive=True), tools=(made,))
    stage.start(call())
    await settled()
    assert (len(stage.link.sent), len(stage.approvals)) == ((0, 1) if is_held else (1, 0))


async def test_a_server_cannot_exempt_its_own_tools() -> None:
    lying = tool("read", annotations={"readOnlyHint": True})
    exempt = ApprovalRule("reading", ("hint:read-only",), approve=False)
    stage = Held(exempt, ALL, tools=(lying,))
    await stage.ask(call())
    stage.hub.publish(ready(lying, rules=ToolRules(is_trusted=True)))
    stage.start(call())
    assert len(stage.link.sent) == 1


async def test_a_method_that_may_reach_any_tool_is_held_by_a_rule_about_one() -> None:
    stage = Held(ApprovalRule("one", ("files.write",), arguments=(ArgumentTest(("amount",), "above", 10),)))
    stage.hub.publish(ready(is_unlisted=True))
    stage.start(call("files.read"))
    assert len(stage.link.sent) == 1
    await stage.ask(call("files.tools/call", {"name": "write"}))


def pays(name: str = "read") -> Tool:
    """A tool with the argument `amount`."""
    return tool(name, inputSchema={"type": "object", "properties": {"amount": {"type": "number"}}})


def above(*paths: str) -> tuple[ArgumentTest, ...]:
    return tuple(ArgumentTest(tuple(path.split(".")), "above", 10) for path in paths)


@pytest.mark.parametrize("pattern", ["files.read", "files.*", "files"])
async def test_a_mistyped_argument_of_a_rule_that_names_its_tools_holds_every_call(pattern: str) -> None:
    stage = Held(ApprovalRule("one", (pattern,), arguments=above("amuont")), tools=(pays(), pays("write")))
    id, _ = await stage.ask(call(arguments=PAY))
    shown = stage.approvals.get(OPERATOR, id)
    assert shown is not None
    assert shown.why == "the rule names an argument that the tool does not have: amuont"
    await stage.decide(id)
    assert stage.sent() == [PAY]


async def test_the_other_arguments_of_a_rule_with_a_mistyped_one_still_count() -> None:
    stage = Held(ApprovalRule("one", ("files.read",), arguments=above("amuont", "amount")), tools=(pays(),))
    stage.start(call(arguments=PAY))
    assert stage.sent() == [PAY]
    await stage.ask(call(arguments={"amount": 11}))


@pytest.mark.parametrize(
    "rule",
    [
        ApprovalRule("one", ("*",), arguments=above("amuont")),  # of all tools some may not have it
        ApprovalRule("one", ("files.*",), arguments=above("other")),  # another tool of the server has it
        ApprovalRule("one", ("files.read",), arguments=above("amount")),
    ],
)
async def test_an_argument_that_a_call_leaves_out_holds_no_call(rule: ApprovalRule) -> None:
    other = tool("write", inputSchema={"properties": {"other": {}}})
    stage = Held(rule, tools=(pays(), other))
    stage.start(call(arguments=PAY))
    assert stage.sent() == [PAY]


async def test_lists_that_are_too_long_to_be_read_at_once_may_have_every_argument() -> None:
    dense = tool("dense", inputSchema={"type": "object", "properties": {}, "examples": [[[]]] * SCHEMA_BYTES_MAX})
    for pattern in ("files.*", "*"):
        rule = ApprovalRule("one", (pattern,), arguments=above("amuont"))
        stage = Held(rule, tools=(pays(), dense))
        stage.start(call(arguments=PAY))
        assert stage.sent() == [PAY]
        assert list(lacking_arguments(rule, stage.hub.snapshot)) == []


async def test_a_mistyped_argument_of_an_exemption_exempts_nothing() -> None:
    mistyped = ArgumentTest(("amuont",), "below", 10)
    stage = Held(ApprovalRule("small", ("files.read",), arguments=(mistyped,), approve=False), ALL, tools=(pays(),))
    await stage.ask(call(arguments=PAY))


async def test_arguments_that_no_tool_has_are_found_in_the_lists() -> None:
    stage = Held(tools=(pays(), pays("write")))

    def found(*tools: str, destructive: bool = False, approve: bool = True, path: str = "amuont") -> list[str]:
        rule = ApprovalRule("r", tools, destructive, above("amount", path), approve=approve)
        return [f"{tools}: {effect}" for _, tools, effect in lacking_arguments(rule, stage.hub.snapshot)]

    assert found("files.read") == ["files.read: the rule holds every call of it"]
    assert found("files.*", "files.write") == [
        "files.*: the rule holds every call of it",
        "files.write: the rule holds every call of it",
    ]
    assert found("files.read", approve=False) == ["files.read: the rule exempts nothing"]
    assert found("*") == ["*: the rule holds nothing"]
    assert found(destructive=True) == ["any destructive tool: the rule holds nothing"]
    assert found("*", path="amount") == found("gone.read") == found("files.gone") == []


async def test_other_rules_apply_to_calls_that_wait() -> None:
    stage = Held()
    _, listener = await stage.ask()
    stage.approvals.change((ApprovalRule("other", ("files.write",)),))
    assert stage.sent() == [PAY]
    assert not listener.ends


async def test_arguments_that_the_hub_adds_are_named_and_not_shown() -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "number"}, "token": {"type": "string"}}}
    stage = Held(tools=(tool("read", inputSchema=schema),))
    fixed = SetChange(fixed={"token": "very-secret"})
    stage.hub.change_sets({"dev": SetSettings(tools=("*",), tool={"files.read": fixed})})
    made = call("read", PAY, surface=Surface(set="dev"))
    id, _ = await stage.ask(made)
    shown = stage.approvals.get(OPERATOR, id)
    assert shown is not None
    assert (shown.added, shown.set, json.loads(bytes(shown.arguments))) == (("token",), "dev", PAY)
    stored = await stage.journal.all_in(APPROVAL, ("pending",), limit=10)
    assert b"very-secret" not in b"".join(each.body or b"" for each in stored)
    await stage.decide(id)
    assert stage.sent() == [{**PAY, "token": "very-secret"}]


async def test_another_fixed_argument_makes_it_another_call() -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "number"}, "to": {"type": "string"}}}
    stage = Held(tools=(tool("read", inputSchema=schema),))

    def fix(to: str) -> None:
        stage.hub.change_sets({"dev": SetSettings(tools=("*",), tool={"files.read": SetChange(fixed={"to": to})})})

    fix("ann")
    made = call("read", PAY, surface=Surface(set="dev"))
    id, _ = await stage.ask(made)
    fix("bob")
    await stage.decide(id)
    assert stage.link.sent == []


async def test_a_decision_about_a_server_that_dialled_in_serves_no_server_of_another_agent() -> None:
    stage = Held()
    stage.hub.publish(msgspec.structs.replace(ready(tool("read")), agent="one"))
    id, _ = await stage.ask()
    stage.hub.publish(msgspec.structs.replace(ready(tool("read")), agent="two"))
    await stage.decide(id)
    assert stage.link.sent == []


# -- deadlines, cancelling, shutting down ------------------------------------------------------------------------------


async def test_the_wait_counts_towards_the_callers_own_timeout() -> None:
    stage = Held()
    inflight, listener = stage.start(call(arguments=PAY, timeout=0.4))
    await settled()
    await asyncio.sleep(0.2)
    await stage.decide(stage.approvals.list(OPERATOR).approvals[0].id)
    assert stage.link.sent == [inflight]
    assert 0 < inflight.timeout < 0.3
    await asyncio.wait_for(listener.ended.wait(), 5)
    assert isinstance(listener.fault, TimedOut)


async def held_for_long(stage: Held, made: Call) -> tuple[str, Listener]:
    """The request of a task's call that has waited for longer than an ordinary call may."""
    id, listener = await stage.ask(msgspec.structs.replace(made, lasts=True))
    _, ordinary = stage.start(msgspec.structs.replace(made, arguments=msgspec.Raw(b"{}")))
    await asyncio.wait_for(ordinary.ended.wait(), 5)
    fault_of(ordinary, ApprovalPending)
    return id, listener


BRIEF = Limits(call_seconds=0.5, hard_seconds=0.5)


async def test_a_task_waits_until_its_request_expires_and_no_longer() -> None:
    stage = Held(limits=BRIEF)
    _, listener = await held_for_long(stage, call(arguments=PAY, timeout=0.1))
    assert listener.ends == []
    stage.time += 3601
    stage.start(call(arguments=PAY))
    fault_of(listener, ApprovalExpired)


async def test_the_time_of_a_task_starts_when_it_is_allowed() -> None:
    stage = Held(limits=BRIEF)
    id, _ = await held_for_long(stage, call(arguments=PAY))
    await stage.decide(id)
    assert stage.sent() == [PAY]
    assert stage.link.sent[0].ask(Question("roots/list", msgspec.Raw(b"{}")), lambda _: None) is not None


async def test_a_task_whose_caller_leaves_the_decision_to_the_operator_waits_as_long_for_that() -> None:
    stage = Held(ApprovalRule("mine", ("*",), by="caller"), limits=BRIEF)
    _, listener = stage.start(msgspec.structs.replace(asking(), lasts=True, timeout=0.1))
    await settled()
    listener.asked[0][1](answer("cancel"))
    _, ordinary = stage.start(call(arguments={"amount": 6}))
    await asyncio.wait_for(ordinary.ended.wait(), 5)
    assert listener.ends == []


async def test_a_cancelled_call_leaves_its_request_and_never_runs() -> None:
    stage = Held()
    inflight, listener = stage.start(call(arguments=PAY))
    await settled()
    inflight.cancel("enough")
    fault_of(listener, Cancelled)
    await stage.decide(stage.approvals.list(OPERATOR).approvals[0].id)
    assert stage.link.sent == []


async def test_calls_of_a_removed_caller_are_cancelled() -> None:
    stage = Held()
    _, listener = await stage.ask()
    stage.approvals.retain(lambda caller: caller == OTHER)
    fault_of(listener, Cancelled)


async def test_a_hub_that_shuts_down_ends_the_wait() -> None:
    stage = Held()
    _, listener = await stage.ask()
    stage.approvals.stop_waiting()
    fault_of(listener, ApprovalPending)
    assert len(stage.approvals) == 1


async def test_waiting_calls_that_are_over_are_not_kept() -> None:
    stage = Held()
    for _ in range(50):
        inflight, _ = stage.start(call(arguments=PAY))
        await settled()
        inflight.cancel("enough")
    (entry,) = stage.approvals._entries.values()
    assert len(entry.waiting) == 1


async def test_without_an_operator_a_call_is_denied_at_once() -> None:
    stage = Held()
    stage.approvals.has_operator = False
    _, listener = stage.start(call(arguments=PAY))
    assert "only `isthmus serve` has operators" in fault_of(listener, ApprovalDenied).message


# -- the journal -------------------------------------------------------------------------------------------------------


async def test_requests_and_decisions_survive_the_hub() -> None:
    journal = MemoryJournal()
    first = Held(journal=journal)
    pending, _ = await first.ask()
    allowed, _ = await first.ask(call("files.write", PAY))
    for inflight in first.hub.deadlines.pending():
        inflight.cancel("the hub ends")
    await first.decide(allowed)
    second = Held(journal=journal)
    await second.approvals.load()
    assert {each.id: each.state for each in second.approvals.list(OPERATOR).approvals} == {
        pending: "pending",
        allowed: "allowed",
    }
    second.start(call("files.write", PAY))
    await settled()
    assert second.sent() == [PAY]
    third = Held(journal=journal)
    await third.approvals.load()
    assert [each.id for each in third.approvals.list(OPERATOR).approvals] == [pending]


async def test_of_two_hubs_with_one_journal_only_one_can_use_a_decision() -> None:
    journal = MemoryJournal()
    first = Held(journal=journal)
    _, listener = first.start(call(arguments=PAY, timeout=0.05))
    await asyncio.wait_for(listener.ended.wait(), 5)
    await first.decide(first.approvals.list(OPERATOR).approvals[0].id)
    second = Held(journal=journal)
    await second.approvals.load()
    first.start(call(arguments=PAY))
    await settled()
    _, late = second.start(call(arguments=PAY))
    await settled()
    assert len(first.link.sent) == 1
    # The other one waits for a decision of its own.
    assert not late.ended.is_set()
    assert len(second.approvals.list(OPERATOR).approvals) == 1
    assert second.link.sent == []


@pytest.mark.parametrize("result", ["refused", "unknown", "conflict"])
async def test_a_request_that_cannot_be_stored_is_not_shown(result: WriteResult) -> None:
    journal = FailingJournal()
    stage = Held(journal=journal)
    journal.results = [result]
    _, listener = stage.start(call(arguments=PAY))
    await settled()
    fault_of(listener, NotWritten)
    assert len(stage.approvals) == 0
    await stage.ask()


async def test_a_decision_that_cannot_be_stored_does_not_count() -> None:
    journal = FailingJournal()
    stage = Held(journal=journal)
    id, _ = await stage.ask()
    journal.results = ["refused"]
    with pytest.raises(OSError, match="could not be stored"):
        await stage.approvals.decide(id, "allow", OPERATOR, "")
    await settled()
    assert stage.link.sent == []
    await stage.decide(id)
    assert len(stage.link.sent) == 1


@pytest.mark.parametrize(("result", "is_left"), [("refused", True), ("unknown", False)])
async def test_a_use_that_cannot_be_stored_sends_nothing(result: WriteResult, *, is_left: bool) -> None:
    journal = FailingJournal()
    stage = Held(journal=journal)
    id, listener = await stage.ask()
    journal.results = []
    write = journal.write

    def fail_second(
        documents: Sequence[Document], done: Callable[[WriteResult], None], facts: Sequence[Fact] = ()
    ) -> None:
        if documents[0].body is None:
            asyncio.get_running_loop().call_soon(done, result)
        else:
            write(documents, done, facts)

    journal.write = fail_second  # type: ignore[method-assign]  # a journal that fails at one moment
    await stage.decide(id)
    fault_of(listener, NotWritten)
    assert stage.link.sent == []
    assert (stage.approvals.get(OPERATOR, id) is not None) is is_left


async def test_a_document_of_another_version_does_not_stop_the_hub() -> None:
    journal = MemoryJournal()
    document = Document(APPROVAL, "default\nanyone", "ap_1", 1, 1.0, b'{"new": 1}', state="pending")
    done: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    journal.write((document,), done.set_result)
    assert await done == "kept"
    stage = Held(journal=journal)
    await stage.approvals.load()
    assert len(stage.approvals) == 0


# -- asking the caller -------------------------------------------------------------------------------------------------


def asking(arguments: Mapping[str, Any] = PAY) -> Call:
    return call(arguments=arguments, client_caps=ASKABLE)


def answer(action: str, **content: Any) -> Answered:
    return Answered(msgspec.Raw(json.dumps({"action": action, "content": content}).encode()))


async def test_a_caller_that_can_be_asked_decides_if_the_rule_says_so() -> None:
    stage = Held(ApprovalRule("mine", ("*",), by="caller"))
    _, listener = await stage.ask(asking())
    ((question, reply),) = listener.asked
    params = json.loads(bytes(question.params))
    assert question.method == "elicitation/create"
    assert '{"amount": 5}' in params["message"]
    assert params["requestedSchema"]["properties"]["decision"]["enum"] == ["once", "hour", "deny"]
    reply(answer("accept", decision="once"))
    await settled()
    assert stage.sent() == [PAY]
    assert stage.recorded[1][1]["by"] == "anyone (the caller)"


async def test_a_caller_is_shown_the_whole_arguments_on_one_line_without_invisible_characters() -> None:
    stage = Held(ApprovalRule("mine", ("*",), by="caller"))
    given = {"to": "Ann\u202e\u200b\u2028\U000e0041e\u200cve", "amount": 5}
    sent = msgspec.Raw(json.dumps(given, ensure_ascii=False, indent=40).encode())
    _, listener = await stage.ask(msgspec.structs.replace(asking(), arguments=sent))
    message = json.loads(bytes(listener.asked[0][0].params))["message"]
    head, line = message.split("\n")
    assert head.endswith("Arguments:")
    assert line.isascii()
    assert json.loads(line) == given
    listener.asked[0][1](answer("accept", decision="once"))
    await settled()
    assert stage.sent() == [given]


@pytest.mark.parametrize("given", [answer("decline"), answer("accept", decision="deny", reason="no")])
async def test_a_caller_may_deny(given: Answered) -> None:
    stage = Held(ApprovalRule("mine", ("*",), by="caller"))
    _, listener = await stage.ask(asking())
    listener.asked[0][1](given)
    await settled()
    assert "anyone (the caller) denied it" in fault_of(listener, ApprovalDenied).message


@pytest.mark.parametrize(
    "given", [answer("cancel"), answer("accept"), answer("accept", decision="always"), Answered(msgspec.Raw(b"[]"))]
)
async def test_an_answer_without_a_decision_leaves_it_to_the_operator(given: Answered) -> None:
    stage = Held(ApprovalRule("mine", ("*",), by="caller"))
    id, listener = await stage.ask(asking())
    listener.asked[0][1](given)
    await settled()
    assert stage.link.sent == []
    await stage.decide(id)
    assert len(stage.link.sent) == 1


async def test_by_default_a_caller_is_not_asked() -> None:
    stage = Held()
    _, listener = await stage.ask(asking())
    assert listener.asked == []


async def test_a_caller_that_cannot_be_asked_waits_for_the_operator() -> None:
    stage = Held(ApprovalRule("mine", ("*",), by="caller"))
    for caps in (frozenset[str](), frozenset({"elicitation", "elicitation.url"})):
        _, listener = await stage.ask(call(arguments=PAY, client_caps=caps))
        assert listener.asked == []


# -- questions of servers ----------------------------------------------------------------------------------------------

ASKS = Result(msgspec.Raw(b'{"resultType":"input_required"}'), asked_by=ServerName("files"))


async def test_answers_to_a_question_of_the_server_need_no_second_approval() -> None:
    stage = Held()
    first = call(arguments=PAY, comes_back=True)
    id, listener = await stage.ask(first)
    await stage.decide(id)
    stage.link.sent[0].finish(ASKS)
    assert listener.ends == [ASKS]
    answered = msgspec.structs.replace(first, extra={"inputResponses": msgspec.Raw(b"{}")})
    stage.start(answered)
    assert len(stage.link.sent) == 2
    stage.link.sent[1].finish(DONE)
    await stage.ask(answered)
    assert len(stage.link.sent) == 2


@pytest.mark.parametrize(("executed", "is_allowed"), [("no", True), ("unknown", False)])
async def test_a_call_that_provably_did_not_run_may_be_made_again(executed: Executed, *, is_allowed: bool) -> None:
    stage = Held()
    id, _ = await stage.ask()
    await stage.decide(id)
    stage.link.sent[0].finish(Lost(SERVER, "gone", executed=executed))
    stage.start(call(arguments=PAY))
    await settled()
    assert len(stage.link.sent) == (2 if is_allowed else 1)
    if is_allowed:
        stage.link.sent[1].finish(DONE)
        await stage.ask()
        assert len(stage.link.sent) == 2


async def test_a_request_that_another_hub_has_just_stored_can_be_decided() -> None:
    stage = Held()
    id, _ = await stage.ask()
    other = Held(journal=stage.journal)
    assert await other.approvals.decide(id, "allow", OPERATOR, "") is None
    other.approvals.look_again = other.approvals.reread
    assert await other.approvals.decide(id, "allow", OPERATOR, "") is not None
    await stage.approvals.reread()
    await settled()
    assert stage.sent() == [PAY]


async def test_a_decision_that_cannot_be_stored_again_is_asked_for_again() -> None:
    stage = Held()
    id, _ = await stage.ask()
    await stage.decide(id)
    assert isinstance(stage.journal, FailingJournal)
    stage.journal.results = ["refused"]
    stage.link.sent[0].finish(Lost(SERVER, "gone", executed="no"))
    again, _ = await stage.ask()
    assert again != id
    assert len(stage.link.sent) == 1


async def test_a_call_that_did_not_run_is_listed_as_allowed_and_can_be_denied() -> None:
    stage = Held()
    id, _ = await stage.ask()
    await stage.decide(id)
    stage.link.sent[0].finish(Lost(SERVER, "gone", executed="no"))
    await settled()
    for viewer in (OPERATOR, ANYONE):
        shown = stage.approvals.get(viewer, id)
        assert shown is not None
        assert [(each.id, each.state) for each in stage.approvals.list(viewer).approvals] == [(id, "allowed")]
    assert stage.approvals.get(OTHER, id) is None
    assert stage.approvals.list(OTHER).approvals == ()
    with pytest.raises(ApprovalAlreadyDecided):
        await stage.approvals.decide(id, "allow", OPERATOR, "")
    await stage.decide(id, "deny", "changed my mind")
    _, listener = stage.start(call(arguments=PAY))
    assert "changed my mind" in fault_of(listener, ApprovalDenied).message
    assert len(stage.link.sent) == 1
    assert stage.events == ["requested", "allowed", "used", "denied"]


async def test_an_approval_can_be_denied_until_it_is_used() -> None:
    stage = Held()
    _, listener = stage.start(call(arguments=PAY, timeout=0.05))
    await asyncio.wait_for(listener.ended.wait(), 5)
    id = fault_of(listener, ApprovalPending).approval
    assert id is not None
    await stage.decide(id, "allow_hour")
    await stage.decide(id, "deny", "no more")
    _, listener = stage.start(call(arguments=PAY))
    assert "no more" in fault_of(listener, ApprovalDenied).message
    assert stage.link.sent == []


async def test_a_call_that_is_cancelled_while_its_use_is_stored_leaves_the_decision() -> None:
    stage = Held()
    _, listener = stage.start(call(arguments=PAY, timeout=0.05))
    await asyncio.wait_for(listener.ended.wait(), 5)
    id = fault_of(listener, ApprovalPending).approval
    assert id is not None
    await stage.decide(id)
    inflight, _ = stage.start(call(arguments=PAY))
    inflight.cancel("enough")
    await settled()
    assert stage.link.sent == []
    stage.start(call(arguments=PAY))
    await settled()
    assert stage.sent() == [PAY]
    assert stage.events == ["requested", "allowed", "used"]


async def test_a_call_that_did_not_run_may_not_be_made_after_its_time() -> None:
    stage = Held()
    id, _ = await stage.ask()
    await stage.decide(id)
    stage.link.sent[0].finish(Lost(SERVER, "gone", executed="no"))
    stage.time += 3601
    await stage.ask()
    assert len(stage.link.sent) == 1


async def test_a_new_call_is_not_taken_for_the_answers_of_another() -> None:
    stage = Held()
    first = call(arguments=PAY, comes_back=True)
    id, _ = await stage.ask(first)
    await stage.decide(id)
    stage.link.sent[0].finish(ASKS)
    again, _ = await stage.ask(first)
    assert again != id
    stage.start(msgspec.structs.replace(first, extra={"inputResponses": msgspec.Raw(b"{}")}))
    assert len(stage.link.sent) == 2


class Showing(Listener):
    """An exchange that shows what its call waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Question | None] = []

    def held(self, notice: Question) -> None:
        self.shown.append(notice)

    def released(self) -> None:
        self.shown.append(None)


async def test_an_exchange_may_show_the_pending_approval() -> None:
    stage, showing = Held(), Showing()
    stage.hub.start(call(arguments=PAY), showing)
    await settled()
    ((notice),) = showing.shown
    assert notice is not None
    id = json.loads(bytes(notice.params))["approval"]
    await stage.decide(id)
    assert showing.shown == [notice, None]
    assert isinstance(stage.link, HeldLink)
    assert len(stage.link.sent) == 1
