"""The stored record of a task, and which outcomes ask the user to log in."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.core.tasks.record import (
    CallPhase,
    PendingCall,
    StoredOutcome,
    StoredQuestion,
    TaskOwner,
    TaskRecord,
    document_of,
    is_login,
    login_question,
    owner_of,
    record_of,
    restored_outcome,
    state_after,
    stored_outcome,
)
from isthmus.model.callers import Grants
from isthmus.model.calls import Call, Outcome, Result
from isthmus.model.fault_table import (
    BadArguments,
    Bug,
    Cancelled,
    Draining,
    Fault,
    Lost,
    NotConnected,
    Overloaded,
    ServerError,
    TimedOut,
    UnknownTool,
)
from isthmus.model.names import ServerName
from isthmus.model.tasks import DataPart, FilePart, Message, TaskState, TextPart
from tests.unit.core.doubles import ANYONE, SERVER, raw

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
).map(raw)
TEXTS = st.text(max_size=10)


def message(id: str, text: str, value: Raw) -> Message:
    return Message(id, "user", (TextPart(text), DataPart(value), FilePart(url=text)), metadata=value, references=(id,))


@pytest.mark.parametrize(
    "fault",
    [
        BadArguments("files.read", "no path"),
        Cancelled("enough", executed="unknown", server=SERVER),
        ServerError(SERVER, -32099, "not today", raw({"why": 1})),
        ServerError(SERVER, -32099, "not today"),
        TimedOut(SERVER, 3.0, executed="unknown"),
        Overloaded(SERVER, 1, 2),
        Bug("f00"),
    ],
)
def test_a_fault_comes_back_from_its_ending(fault: Fault) -> None:
    outcome = restored_outcome(stored_outcome(fault))
    assert isinstance(outcome, Fault)
    assert type(outcome) is type(fault)
    assert (outcome.message, outcome.executed, outcome.server) == (fault.message, fault.executed, fault.server)
    assert outcome.retry_after == fault.retry_after
    if isinstance(fault, ServerError) and isinstance(outcome, ServerError):
        assert (outcome.code, outcome.data) == (fault.code, fault.data)


def test_the_words_of_another_hub_come_back_with_its_error() -> None:
    fault = ServerError(SERVER, -32602, "Resource not found: x", raw({"uri": "x"}))
    fault.executed, fault.reason, fault.approval = "no", "unknown_resource", "ap_1"
    outcome = restored_outcome(stored_outcome(fault))
    assert isinstance(outcome, ServerError)
    assert (outcome.code, outcome.data) == (fault.code, fault.data)
    assert (outcome.executed, outcome.reason, outcome.approval) == ("no", "unknown_resource", "ap_1")


def test_so_does_a_result() -> None:
    for result in (Result(raw({"content": []})), Result(raw({"isError": True}), is_error=True)):
        assert restored_outcome(stored_outcome(result)) == result


def test_an_ending_of_another_version_is_a_loss() -> None:
    outcome = restored_outcome(StoredOutcome(reason="of tomorrow", message="told then", executed="unknown"))
    assert isinstance(outcome, Lost)
    assert (outcome.message, outcome.executed) == ("told then", "unknown")


def test_a_frontend_can_keep_its_callers_tasks_apart() -> None:
    owners = [owner_of(ANYONE), owner_of(ANYONE, "mcp"), TaskOwner("default\nanyone", "mcp")]
    assert [owner.key for owner in owners[:2]] == ["default\nanyone", "default\nanyone\nmcp"]
    assert owners[0] != owners[1]


@given(TEXTS, TEXTS, JSON)
def test_a_record_is_kept_to_the_letter(id: str, text: str, value: Raw) -> None:
    record = TaskRecord(
        id,
        TaskOwner(text, id),
        text,
        "1.0",
        "failed",
        1.5,
        2.25,
        7,
        (message(id, text, value),),
        "over",
        StoredQuestion(text, value),
        StoredOutcome(value, is_error=True, message=text, server=ServerName("files"), code=-32000, data=value),
        value,
        value,
    )
    assert record_of(document_of(record)) == record


@pytest.mark.parametrize(
    ("state", "phase", "kept"),
    [
        ("submitted", "sent", "working"),
        ("submitted", "idle", "submitted"),
        ("input_required", "sent", "input_required"),
        ("completed", "over", "completed"),
    ],
)
def test_a_task_whose_call_was_sent_is_listed_as_being_worked_on(state: TaskState, phase: CallPhase, kept: str) -> None:
    record = TaskRecord("t", TaskOwner("tenant", "me"), "talk", "1.0", state, 1.0, 2.0, phase=phase)
    document = document_of(record)
    assert (document.state, document.group, document.at, document.owner) == (kept, "talk", 2.0, "tenant\nme")
    assert record_of(document).state == state


def test_owners_of_two_tenants_are_never_the_same() -> None:
    assert TaskOwner("a", "b").key != TaskOwner("ab", "").key


def test_a_document_that_is_no_record_is_an_error() -> None:
    record = TaskRecord("t", TaskOwner("tenant", "me"), "talk", "1.0", "working", 1.0, 2.0)
    broken = msgspec.structs.replace(document_of(record), body=b'{"id":1}')
    with pytest.raises(msgspec.MsgspecError):
        record_of(broken)


def test_a_result_is_kept_whole_and_an_error_of_the_tool_fails_the_task() -> None:
    assert stored_outcome(Result(raw({"content": []}))) == StoredOutcome(raw({"content": []}))
    assert state_after(Result(raw({}))) == "completed"
    bad = Result(raw({"isError": True}), is_error=True)
    assert stored_outcome(bad).is_error
    assert state_after(bad) == "failed"


@pytest.mark.parametrize(
    ("fault", "state", "executed"),
    [
        (UnknownTool("x"), "failed", "no"),
        (Cancelled("enough", executed="unknown"), "canceled", "unknown"),
        (NotConnected(SERVER, "gone"), "failed", "no"),
        (TimedOut(SERVER, 3.0, executed="unknown"), "failed", "unknown"),
        (Draining(), "rejected", "no"),
        (Bug("abc"), "failed", "unknown"),
    ],
)
def test_a_fault_says_whether_the_tool_ran(fault: Fault, state: TaskState, executed: str) -> None:
    ending = stored_outcome(fault)
    assert (ending.reason, ending.message, ending.executed) == (fault.reason, fault.message, executed)
    assert not ending.result
    assert state_after(fault) == state


def test_a_server_s_own_error_is_kept_with_its_code_and_data() -> None:
    ending = stored_outcome(ServerError(SERVER, -32050, "no", raw({"why": 1})))
    assert (ending.code, ending.message, ending.data, ending.executed) == (-32050, "no", raw({"why": 1}), "yes")


BANK = ServerName("bank")
VISIT = {"mode": "url", "message": "Log in", "url": "https://bank.example/in", "elicitationId": "e1"}


def required(*elicitations: Any) -> ServerError:
    return ServerError(BANK, -32042, "Log in first", raw({"elicitations": elicitations}))


def test_a_server_that_names_an_address_has_it_asked_as_it_wrote_it() -> None:
    assert login_question(required(VISIT)) == StoredQuestion("elicitation/create", raw(VISIT))


def test_all_of_several_addresses_are_notified() -> None:
    asked = login_question(required(VISIT, {**VISIT, "url": "https://other.example", "message": "And there"}))
    assert asked is not None
    params = json.loads(bytes(asked.params))
    assert (params["mode"], params["url"]) == ("url", "https://bank.example/in")
    assert params["message"] == "Log in\nAnd there https://other.example"
    assert len(params["elicitations"]) == 2
    assert is_login(asked)


def test_a_server_that_turned_the_hub_away_and_says_where_to_log_in_is_asked_about() -> None:
    asked = login_question(NotConnected(BANK, "HTTP 401", status=401, login="https://bank.example/.well-known/x"))
    assert asked is not None
    assert json.loads(bytes(asked.params))["url"] == "https://bank.example/.well-known/x"
    assert is_login(asked)


@pytest.mark.parametrize(
    "outcome",
    [
        Result(raw({})),
        NotConnected(BANK, "HTTP 401", status=401),
        ServerError(BANK, -32042, "no data"),
        ServerError(BANK, -32042, "odd data", raw([1])),
        ServerError(BANK, -32000, "another", raw({"elicitations": [VISIT]})),
        required(),
        required({"mode": "form", "message": "Who?"}, {"mode": "url"}, 5),
    ],
)
def test_other_outcomes_are_no_login_questions(outcome: Outcome) -> None:
    assert login_question(outcome) is None


@pytest.mark.parametrize(
    "asked",
    [
        StoredQuestion("sampling/createMessage", raw(VISIT)),
        StoredQuestion("elicitation/create", raw({"message": "Who?"})),
        StoredQuestion("elicitation/create", raw({"mode": "form", "url": "https://x"})),
        StoredQuestion("elicitation/create", raw([])),
    ],
)
def test_other_questions_are_no_login(asked: StoredQuestion) -> None:
    assert not is_login(asked)


def test_a_stored_call_keeps_client_capabilities_under_their_earlier_name() -> None:
    call = msgspec.json.decode(
        b'{"id":"c","caller":{"name":"a","tenant":"t","grants":{"allow":[],"deny":[]}},"surface":{"server":null},'
        b'"name":"s.t","arguments":{},"profile":["elicitation"]}',
        type=Call,
        strict=False,
    )
    assert call.client_caps == {"elicitation"}
    assert msgspec.json.decode(msgspec.json.encode(call))["profile"] == ["elicitation"]


def test_a_stored_call_keeps_its_frontend_under_the_name_of_earlier_versions() -> None:
    stored = (
        b'{"call":{"caller":{"name":"a","tenant":"t","grants":{"allow":[],"deny":[]},'
        b'"faces":[["sse",{"allow":["files"],"deny":[]}]],"face":"sse"},'
        b'"surface":{"server":null},"name":"s.t","arguments":{},"face":"a2a"},'
        b'"server":"s","agent":null,"name":"t","since":1.0}'
    )
    pending = msgspec.json.decode(stored, type=PendingCall)
    caller = pending.call.caller
    assert (pending.call.frontend, caller.frontend) == ("a2a", "sse")
    assert caller.frontends == (("sse", Grants(("files",))),)
    written = msgspec.json.decode(msgspec.json.encode(pending))["call"]
    assert (written["face"], written["caller"]["face"], written["caller"]["faces"][0][0]) == ("a2a", "sse", "sse")
