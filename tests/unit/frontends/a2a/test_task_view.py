"""A task as its caller is shown it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.tasks.record import Asked, Ending, Owner, Record
from isthmus.core.tasks.reports import Noted
from isthmus.frontends.a2a.answers import Brief
from isthmus.frontends.a2a.shown import direct_answer, reported, shown
from isthmus.model.conversation import Data, Message, TaskState, Text
from isthmus.model.events import Log, Progress
from isthmus.model.names import ServerName
from isthmus.wire.a2a.agentvault import conversation
from tests.unit.core.doubles import raw

SAID = Message("m1", "user", (Text("go"),))
DONE = Ending(raw({"content": [{"type": "text", "text": "hi"}]}))


def record(
    state: TaskState = "completed",
    *,
    origin: str = "1.0",
    brief: Brief | None = None,
    ending: Ending | None = DONE,
    asked: Asked | None = None,
) -> Record:
    kept = Raw(msgspec.json.encode(brief or Brief("tool", "files.read")))
    return Record(
        "t", Owner("a", "b"), "c", origin, state, 1.0, 2.0, said=(SAID,), ending=ending, brief=kept, asked=asked
    )


def test_an_answer_is_an_artifact() -> None:
    task = shown(record())
    assert (task.id, task.context, task.status.state, task.status.at, task.created) == ("t", "c", "completed", 2.0, 1.0)
    assert task.artifacts[0].parts == (Text("hi"),)
    assert task.artifacts[0].name == "files.read"
    assert task.status.message is None
    assert task.history == (SAID,)


def test_a_tool_can_have_its_answer_said_without_a_task() -> None:
    content = [{"type": "text", "text": "hi"}]
    said = Ending(raw({"content": content, "_meta": {"isthmus/answer": "message"}}))
    message = direct_answer(record(ending=said))
    assert message == Message("t-result", "agent", (Text("hi"),), context="c")
    assert direct_answer(record("failed", ending=said)) is None
    assert direct_answer(record(ending=said, brief=Brief("command", "tools/call"))) is None


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
    assert direct_answer(record(ending=Ending(raw(result)))) is None
    assert direct_answer(record(ending=None)) is None


def test_to_agentvault_an_answer_is_a_message() -> None:
    task = shown(record(origin="agentvault"))
    assert task.artifacts == ()
    assert [message.role for message in task.history] == ["user", "agent"]
    assert task.history[1].parts == (Text("hi"),)


def test_a_failure_says_why_and_has_its_data_where_its_form_has_a_place_for_it() -> None:
    lost = Ending(reason="lost", message="gone", executed="unknown")
    task = shown(record("failed", ending=lost))
    assert task.artifacts == ()
    assert task.status.message is not None
    assert task.status.message.parts == (Text("gone"),)
    assert msgspec.json.decode(task.status.message.metadata) == {"executed": "unknown", "reason": "lost"}
    executed = shown(record("failed", ending=lost, brief=Brief("execute", "read")))
    assert isinstance(executed.artifacts[0].parts[0], Data)


def test_an_error_of_the_server_keeps_its_code_and_its_data() -> None:
    error = Ending(reason="server_error", message="no", code=-32050, data=raw({"x": [1]}))
    message = shown(record("failed", ending=error)).status.message
    assert message is not None
    told = {"executed": "yes", "reason": "server_error", "code": -32050, "data": {"x": [1]}}
    assert msgspec.json.decode(message.metadata) == told


def test_an_error_of_the_tool_says_that_it_ran() -> None:
    bad = Ending(raw({"content": [], "isError": True}), is_error=True)
    message = shown(record("failed", ending=bad)).status.message
    assert message is not None
    assert msgspec.json.decode(message.metadata) == {"executed": "yes"}
    refused = Ending(reason="overloaded", message="busy", executed="no", server=ServerName("files"))
    message = shown(record("rejected", ending=refused)).status.message
    assert message is not None
    assert msgspec.json.decode(message.metadata) == {"executed": "no", "reason": "overloaded", "server": "files"}


@pytest.mark.parametrize("params", [{"message": "Which?"}, {}])
def test_a_question_is_said_to_people_and_to_programs(params: dict[str, str]) -> None:
    asked = Asked("elicitation/create", raw(params))
    status = shown(record("input_required", ending=None, asked=asked)).status
    assert status.message is not None
    *words, whole = status.message.parts
    assert words == [Text(text) for text in params.values()]
    assert isinstance(whole, Data)
    assert msgspec.json.decode(whole.data) == {"method": "elicitation/create", "params": params}


def test_who_is_offered_tools_hears_of_them_with_the_state() -> None:
    offer = Message("m2", "agent", (Text("Which tool shall be run?"),))
    waiting = replace(record("input_required", ending=None), said=(SAID, offer))
    assert shown(waiting).status.message == offer
    assert shown(replace(waiting, state="working")).status.message is None
    assert conversation(shown(replace(waiting, origin="agentvault"))) == (SAID, offer)


def test_what_is_shown_is_the_same_whenever_it_is_shown() -> None:
    failed = record("failed", ending=Ending(reason="lost", message="gone"))
    assert shown(failed) == shown(failed)


def test_reports_are_told_with_their_words_first() -> None:
    working = record("working", ending=None)
    told = reported(working, Noted(1, 3.0, Progress({"progress": raw(1), "message": raw("step")})))
    assert told.status.message is not None
    assert told.status.message.parts[0] == Text("step")
    other = reported(working, Noted(2, 3.0, Log("info", {"data": raw("x")})))
    assert other.status.message is not None
    assert len(other.status.message.parts) == 1
    assert other.status.message.id != told.status.message.id
    assert not told.is_last
