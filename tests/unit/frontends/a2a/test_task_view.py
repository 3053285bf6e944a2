"""A task as its caller is shown it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.tasks.live_task import Report
from isthmus.core.tasks.record import StoredOutcome, StoredQuestion, TaskOwner, TaskRecord
from isthmus.frontends.a2a.task_view import StoredInstruction, direct_answer, reported, shown
from isthmus.model.calls import LogMessage, Progress
from isthmus.model.names import ServerName
from isthmus.model.tasks import DataPart, Message, TaskState, TextPart
from isthmus.wire.a2a.agentvault import conversation
from tests.unit.core.doubles import raw

SAID = Message("m1", "user", (TextPart("go"),))
DONE = StoredOutcome(raw({"content": [{"type": "text", "text": "hi"}]}))


def record(
    state: TaskState = "completed",
    *,
    origin: str = "1.0",
    brief: StoredInstruction | None = None,
    ending: StoredOutcome | None = DONE,
    asked: StoredQuestion | None = None,
) -> TaskRecord:
    kept = Raw(msgspec.json.encode(brief or StoredInstruction("tool", "files.read")))
    return TaskRecord(
        "t", TaskOwner("a", "b"), "c", origin, state, 1.0, 2.0, said=(SAID,), ending=ending, brief=kept, asked=asked
    )


def test_an_answer_is_an_artifact() -> None:
    task = shown(record())
    assert (task.id, task.context, task.status.state, task.status.at, task.created) == ("t", "c", "completed", 2.0, 1.0)
    assert task.artifacts[0].parts == (TextPart("hi"),)
    assert task.artifacts[0].name == "files.read"
    assert task.status.message is None
    assert task.history == (SAID,)


def test_a_tool_can_have_its_answer_said_without_a_task() -> None:
    content = [{"type": "text", "text": "hi"}]
    said = StoredOutcome(raw({"content": content, "_meta": {"isthmus/answer": "message"}}))
    message = direct_answer(record(ending=said))
    assert message == Message("t-result", "agent", (TextPart("hi"),), context="c")
    assert direct_answer(record("failed", ending=said)) is None
    assert direct_answer(record(ending=said, brief=StoredInstruction("command", "tools/call"))) is None


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"isthmus/answer": "message"},
        {"_meta": {"isthmus/answer": "task"}},
        {"_meta": ["isthmus/answer", "message"]},
    ],
)
def test_other_answers_are_tasks(result: dict[str, object]) -> None:
    assert direct_answer(record(ending=StoredOutcome(raw(result)))) is None
    assert direct_answer(record(ending=None)) is None


def test_to_agentvault_an_answer_is_a_message() -> None:
    task = shown(record(origin="agentvault"))
    assert task.artifacts == ()
    assert [message.role for message in task.history] == ["user", "agent"]
    assert task.history[1].parts == (TextPart("hi"),)


def test_a_failure_says_why_and_has_its_data_where_its_form_has_a_place_for_it() -> None:
    lost = StoredOutcome(reason="lost", message="gone", executed="unknown")
    task = shown(record("failed", ending=lost))
    assert task.artifacts == ()
    assert task.status.message is not None
    assert task.status.message.parts == (TextPart("gone"),)
    assert msgspec.json.decode(task.status.message.metadata) == {"executed": "unknown", "reason": "lost"}
    executed = shown(record("failed", ending=lost, brief=StoredInstruction("execute", "read")))
    assert isinstance(executed.artifacts[0].parts[0], DataPart)


def test_an_error_of_the_server_keeps_its_code_and_its_data() -> None:
    error = StoredOutcome(reason="server_error", message="no", code=-32050, data=raw({"x": [1]}))
    message = shown(record("failed", ending=error)).status.message
    assert message is not None
    told = {"executed": "yes", "reason": "server_error", "code": -32050, "data": {"x": [1]}}
    assert msgspec.json.decode(message.metadata) == told


def test_an_error_of_the_tool_says_that_it_ran() -> None:
    bad = StoredOutcome(raw({"content": [], "isError": True}), is_error=True)
    message = shown(record("failed", ending=bad)).status.message
    assert message is not None
    assert msgspec.json.decode(message.metadata) == {"executed": "yes"}
    refused = StoredOutcome(reason="overloaded", message="busy", executed="no", server=ServerName("files"))
    message = shown(record("rejected", ending=refused)).status.message
    assert message is not None
    assert msgspec.json.decode(message.metadata) == {"executed": "no", "reason": "overloaded", "server": "files"}


@pytest.mark.parametrize("params", [{"message": "Which?"}, {}])
def test_a_question_is_said_to_people_and_to_programs(params: dict[str, str]) -> None:
    asked = StoredQuestion("elicitation/create", raw(params))
    status = shown(record("input_required", ending=None, asked=asked)).status
    assert status.message is not None
    *words, whole = status.message.parts
    assert words == [TextPart(text) for text in params.values()]
    assert isinstance(whole, DataPart)
    assert msgspec.json.decode(whole.data) == {"method": "elicitation/create", "params": params}


def test_who_is_offered_tools_hears_of_them_with_the_state() -> None:
    offer = Message("m2", "agent", (TextPart("Which tool shall be run?"),))
    waiting = replace(record("input_required", ending=None), said=(SAID, offer))
    assert shown(waiting).status.message == offer
    assert shown(replace(waiting, state="working")).status.message is None
    assert conversation(shown(replace(waiting, origin="agentvault"))) == (SAID, offer)


def test_what_is_shown_is_the_same_whenever_it_is_shown() -> None:
    failed = record("failed", ending=StoredOutcome(reason="lost", message="gone"))
    assert shown(failed) == shown(failed)


def test_reports_are_told_with_their_words_first() -> None:
    working = record("working", ending=None)
    told = reported(working, Report(1, 3.0, Progress({"progress": raw(1), "message": raw("step")})))
    assert told.status.message is not None
    assert told.status.message.parts[0] == TextPart("step")
    other = reported(working, Report(2, 3.0, LogMessage("info", {"data": raw("x")})))
    assert other.status.message is not None
    assert len(other.status.message.parts) == 1
    assert other.status.message.id != told.status.message.id
    assert not told.is_last
