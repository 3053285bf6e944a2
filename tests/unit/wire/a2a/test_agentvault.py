"""AgentVault's dialect towards callers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from isthmus.model.tasks import (
    Artifact,
    DataPart,
    FilePart,
    Message,
    Part,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from isthmus.wire.a2a import agentvault
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CancelTask,
    GetTask,
    PushConfig,
    SendMessage,
    SubscribeToTask,
)
from isthmus.wire.a2a.v1_0 import parse_timestamp
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import ASKED, AT, HOOK, ODD, TASK, UPDATES, Json, raws

MESSAGE: dict[str, Json] = {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
SAID = Message(
    "",
    "user",
    (
        DataPart(
            Raw(b'{"target_mcp_server_id": "fs", "arguments": {"path": "/x"}, "tool_name": "fs.read"}'),
            "application/json",
        ),
        TextPart("hi"),
        FilePart(None, "https://example.com/f", "f.txt", "text/plain"),
    ),
)


def written(payload: bytes | Raw) -> Any:
    return json.loads(bytes(payload))


def agent_message(*parts: Part) -> Message:
    return Message("m9", "agent", parts)


def failed(message: Message | None, *history: Message) -> Task:
    return Task("t", "c", TaskStatus("failed", AT, message), AT, (), history)


# -- reading -------------------------------------------------------------------------------------------------------


def test_the_client_of_0_2_1_is_understood() -> None:
    asked = {
        name: agentvault.DIALECT.read(it.method, it.params)
        for name, it in captured.requests("agentvault-0.2.1").items()
    }
    send = asked["send"]
    assert isinstance(send, SendMessage)
    assert b'"mcp_context"' in bytes(send.message.metadata)
    assert msgspec.structs.replace(send.message, metadata=SAID.metadata) == SAID
    assert (send.task, send.waits, send.push) == (None, False, PushConfig(HOOK))
    go_on = asked["go_on"]
    assert isinstance(go_on, SendMessage)
    assert go_on.task == "t1"
    assert [asked[name] for name in ("subscribe", "get", "cancel")] == [
        SubscribeToTask("t1"),
        GetTask("t1"),
        CancelTask("t1"),
    ]


def test_the_client_of_1_0_0_is_understood() -> None:
    asked = {
        name: agentvault.DIALECT.read(it.method, it.params)
        for name, it in captured.requests("agentvault-1.0.0").items()
    }
    kinds = {name: type(operation).__name__ for name, operation in asked.items()}
    assert kinds == {"send": "SendMessage", "subscribe": "SubscribeToTask", "get": "GetTask"}


@pytest.mark.parametrize(("role", "kept"), [("assistant", "agent"), ("system", "user"), ("tool", "user")])
def test_roles_that_others_do_not_have_are_the_nearest(role: str, kept: str) -> None:
    operation = agentvault.DIALECT.read("tasks/send", raws({"message": {**MESSAGE, "role": role}}))
    assert isinstance(operation, SendMessage)
    assert operation.message.role == kept


def test_a_message_may_be_sent_and_listened_to_at_once() -> None:
    operation = agentvault.DIALECT.read("tasks/sendSubscribe", raws({"id": None, "message": MESSAGE}))
    assert operation == SendMessage(Message("", "user", (TextPart("hi"),)), waits=False, is_stream=True)
    assert agentvault.DIALECT.read("tasks/sendSubscribe", raws({"id": "t", "message": None})) == SubscribeToTask("t")


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("tasks/send", {}, "message"),
        ("tasks/send", {"message": {"role": "user", "parts": []}}, "message.parts"),
        ("tasks/send", {"message": {**MESSAGE, "role": "agent"}}, "message.role"),
        ("tasks/send", {"message": {**MESSAGE, "metadata": 1}}, "message"),
        ("tasks/send", {"message": {"role": "user", "parts": [{"type": "data", "content": "x"}]}}, "message.parts[0]"),
        (
            "tasks/send",
            {"message": {"role": "user", "parts": [{"type": "text", "content": {}}]}},
            "message.parts[0].content",
        ),
        ("tasks/send", {"message": {"role": "user", "parts": [{"type": "file"}]}}, "message.parts[0].url"),
        ("tasks/send", {"message": MESSAGE, "webhookUrl": 7}, "webhookUrl"),
        ("tasks/sendSubscribe", {}, "id"),
        ("tasks/get", {}, "id"),
        ("tasks/cancel", {"id": ""}, "id"),
    ],
)
def test_the_invalid_field_is_named(method: str, params: dict[str, Json], field: str) -> None:
    problem = agentvault.DIALECT.read(method, raws(params))
    assert isinstance(problem, A2aProblem)
    assert (problem.kind, problem.details["field"]) == ("invalid_params", field)


# -- writing -------------------------------------------------------------------------------------------------------


def test_a_message_is_answered_with_an_id_alone() -> None:
    assert written(agentvault.DIALECT.write_sent(TASK, None)) == {"id": "t1"}
    assert written(agentvault.DIALECT.write_cancelled(TASK)) == {"success": True, "message": None}


def test_a_failed_task_is_written_as_the_original_wrote_it() -> None:
    theirs = json.loads(bytes(captured.result("agentvault-0.2.1", "failed")))
    output = DataPart(Raw(msgspec.json.encode(theirs["messages"][0]["parts"][0]["content"])), "application/json")
    event = captured.event("agentvault-0.2.1", "failed_event")
    task = Task(
        theirs["id"],
        "c",
        TaskStatus("failed", parse_timestamp(theirs["updatedAt"]) or 0.0, agent_message(TextPart(event["message"]))),
        parse_timestamp(theirs["createdAt"]) or 0.0,
        (),
        (agent_message(output),),
    )
    assert written(agentvault.DIALECT.write_task(task, 0)) == theirs
    status = TaskStatus("failed", parse_timestamp(event["timestamp"]) or 0.0, task.status.message)
    assert written(agentvault.write_status_event(event["taskId"], status)) == event


def test_a_task_holds_all_that_was_said() -> None:
    task = written(agentvault.DIALECT.write_task(TASK, 0))
    assert [message["role"] for message in task["messages"]] == ["user", "assistant", "assistant"]
    assert task["messages"][0] == {"role": "user", "parts": [{"type": "text", "content": "hi"}], "metadata": None}
    assert task["metadata"] == {"tm": [1]}


def test_words_of_a_failure_are_a_message_only_where_no_answer_says_more() -> None:
    words = agent_message(TextPart("it broke"))
    assert agentvault.conversation(failed(words, ASKED)) == (ASKED, words)
    assert agentvault.conversation(failed(words, ASKED, agent_message(DataPart(ODD)))) == (
        ASKED,
        agent_message(DataPart(ODD)),
    )
    assert agentvault.conversation(failed(agent_message(TextPart("it broke"), DataPart(ODD)), ASKED)) == (
        ASKED,
        agent_message(DataPart(ODD)),
    )
    assert agentvault.conversation(failed(None)) == ()


@pytest.mark.parametrize(
    ("state", "spoken", "words"),
    [("working", 0, "w"), ("input_required", 1, "w"), ("completed", 1, None), ("failed", 0, "w")],
)
def test_a_status_text_is_sent_where_agentvaults_clients_look(state: TaskState, spoken: int, words: str | None) -> None:
    status = TaskStatus(state, AT, agent_message(TextPart("w")))
    message = agentvault.spoken(status)
    assert (0 if message is None else len(message.parts), agentvault.words(status)) == (spoken, words)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (DataPart(Raw(b"[1]")), {"type": "data", "content": {"value": [1]}, "mediaType": "application/json"}),
        (
            FilePart("dGNr", None, "n", "x/y"),
            {
                "type": "data",
                "content": {"filename": "n", "mediaType": "x/y", "bytes": "dGNr"},
                "mediaType": "application/json",
            },
        ),
        (
            FilePart(None, "file:///etc"),
            {"type": "data", "content": {"url": "file:///etc"}, "mediaType": "application/json"},
        ),
        (
            FilePart(None, "https://example.com/x", "x"),
            {"type": "file", "url": "https://example.com/x", "mediaType": None, "filename": "x"},
        ),
    ],
)
def test_parts_are_such_as_its_clients_accept(part: Part, expected: Any) -> None:
    event = written(agentvault.write_message_event("t", agent_message(part), AT))
    assert event == {
        "taskId": "t",
        "message": {"role": "assistant", "parts": [expected], "metadata": None},
        "timestamp": "2026-11-15T07:08:46.993637Z",
    }


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((TextPart("t"),), ("text", "t", None, "text/plain")),
        ((DataPart(Raw(b"[1]")),), ("data", [1], None, "application/json")),
        ((FilePart(None, "https://example.com/x", None, "x/y"),), ("file", None, "https://example.com/x", "x/y")),
        ((FilePart("dGNr", None, None, "x/y"),), ("file", "dGNr", None, "x/y")),
        (
            (FilePart(None, "ftp://x"),),
            (
                "parts",
                [{"type": "data", "content": {"url": "ftp://x"}, "mediaType": "application/json"}],
                None,
                "application/json",
            ),
        ),
        (
            (TextPart("a"), TextPart("b")),
            ("parts", [{"type": "text", "content": "a"}, {"type": "text", "content": "b"}], None, "application/json"),
        ),
    ],
)
def test_an_artifact_has_one_content(parts: tuple[Part, ...], expected: Any) -> None:
    artifact = written(agentvault.write_artifact_event("t", Artifact("a", parts), AT))["artifact"]
    assert (artifact["type"], artifact["content"], artifact["url"], artifact["mediaType"]) == expected


@pytest.mark.parametrize(("state", "word"), [("rejected", "FAILED"), ("auth_required", "INPUT_REQUIRED")])
def test_states_that_it_lacks_are_the_nearest(state: TaskState, word: str) -> None:
    assert written(agentvault.write_status_event("t", TaskStatus(state, AT)))["state"] == word


def test_an_update_alone_is_the_event_that_says_most() -> None:
    events = [
        written(agentvault.DIALECT.write_update(update)) for update in (*UPDATES[:3], agent_message(TextPart("x")))
    ]
    assert [list(event)[1] for event in events] == ["state", "state", "artifact", "message"]


def test_a_problem_has_the_code_that_its_clients_know() -> None:
    assert agentvault.DIALECT.write_problem(A2aProblem("task_not_found", "m")) == (-32001, "m", None)
    assert agentvault.DIALECT.write_problem(A2aProblem("task_not_cancelable", "m"))[0] == -32004
