"""What is kept of a task comes back as it was, and every way a call can end has a state."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.core.tasks.record import (
    Asked,
    Ending,
    Owner,
    Phase,
    Record,
    document_of,
    ending_of,
    outcome_of,
    owner_of,
    record_of,
    state_after,
)
from isthmus.model.conversation import Data, File, Message, TaskState, Text
from isthmus.model.faults import (
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
from isthmus.model.outcomes import Result
from tests.unit.core.doubles import ANYONE, SERVER, raw

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
).map(raw)
TEXTS = st.text(max_size=10)


def message(id: str, text: str, value: Raw) -> Message:
    return Message(id, "user", (Text(text), Data(value), File(url=text)), metadata=value, references=(id,))


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
    outcome = outcome_of(ending_of(fault))
    assert isinstance(outcome, Fault)
    assert type(outcome) is type(fault)
    assert (outcome.message, outcome.executed, outcome.server) == (fault.message, fault.executed, fault.server)
    assert outcome.retry_after == fault.retry_after
    if isinstance(fault, ServerError) and isinstance(outcome, ServerError):
        assert (outcome.code, outcome.data) == (fault.code, fault.data)


def test_so_does_a_result() -> None:
    for result in (Result(raw({"content": []})), Result(raw({"isError": True}), is_error=True)):
        assert outcome_of(ending_of(result)) == result


def test_an_ending_of_another_version_is_a_loss() -> None:
    outcome = outcome_of(Ending(reason="of tomorrow", message="told then", executed="unknown"))
    assert isinstance(outcome, Lost)
    assert (outcome.message, outcome.executed) == ("told then", "unknown")


def test_a_face_can_keep_its_callers_tasks_apart() -> None:
    owners = [owner_of(ANYONE), owner_of(ANYONE, "mcp"), Owner("default\nanyone", "mcp")]
    assert [owner.key for owner in owners[:2]] == ["default\nanyone", "default\nanyone\nmcp"]
    assert owners[0] != owners[1]


@given(TEXTS, TEXTS, JSON)
def test_a_record_is_kept_to_the_letter(id: str, text: str, value: Raw) -> None:
    record = Record(
        id,
        Owner(text, id),
        text,
        "1.0",
        "failed",
        1.5,
        2.25,
        7,
        (message(id, text, value),),
        "over",
        Asked(text, value),
        Ending(value, is_error=True, message=text, server=ServerName("files"), code=-32000, data=value),
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
def test_a_task_whose_call_was_sent_is_listed_as_being_worked_on(state: TaskState, phase: Phase, kept: str) -> None:
    record = Record("t", Owner("tenant", "me"), "talk", "1.0", state, 1.0, 2.0, phase=phase)
    document = document_of(record)
    assert (document.state, document.group, document.at, document.owner) == (kept, "talk", 2.0, "tenant\nme")
    assert record_of(document).state == state


def test_owners_of_two_tenants_are_never_the_same() -> None:
    assert Owner("a", "b").key != Owner("ab", "").key


def test_a_document_that_is_no_record_is_an_error() -> None:
    record = Record("t", Owner("tenant", "me"), "talk", "1.0", "working", 1.0, 2.0)
    broken = msgspec.structs.replace(document_of(record), body=b'{"id":1}')
    with pytest.raises(msgspec.MsgspecError):
        record_of(broken)


def test_a_result_is_kept_whole_and_an_error_of_the_tool_fails_the_task() -> None:
    assert ending_of(Result(raw({"content": []}))) == Ending(raw({"content": []}))
    assert state_after(Result(raw({}))) == "completed"
    bad = Result(raw({"isError": True}), is_error=True)
    assert ending_of(bad).is_error
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
    ending = ending_of(fault)
    assert (ending.reason, ending.message, ending.executed) == (fault.reason, fault.message, executed)
    assert not ending.result
    assert state_after(fault) == state


def test_a_server_s_own_error_is_kept_with_its_code_and_data() -> None:
    ending = ending_of(ServerError(SERVER, -32050, "no", raw({"why": 1})))
    assert (ending.code, ending.message, ending.data, ending.executed) == (-32050, "no", raw({"why": 1}), "yes")
