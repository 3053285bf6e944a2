"""A2A 0.1 towards callers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from isthmus.model.tasks import (
    Artifact,
    DataPart,
    FilePart,
    Message,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
)
from isthmus.wire.a2a import v0_1
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CancelTask,
    CreatePushConfig,
    GetPushConfig,
    GetTask,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
    SubscribeToTask,
)
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import ASKED, AT, HOOK, ODD, TASK, TIME, UPDATES, Json, raws

MESSAGE: dict[str, Json] = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
INSTRUCTION = DataPart(Raw(b'{"target_mcp_server_id":"fs","tool_name":"readFile","arguments":{"path":"/x"}}'))
SAID = SendMessage(Message("", "user", (INSTRUCTION,)), "task-1", "sess-1", history_length=0, output_modes=("text",))
ASKED_FOR: dict[str, Operation] = {
    "send": SAID,
    "stream": SendMessage(
        SAID.message, SAID.task, SAID.context, is_stream=True, history_length=0, output_modes=("text",)
    ),
    "get": GetTask("task-1", 10),
    "cancel": CancelTask("task-1"),
}


def written(payload: bytes | Raw) -> Any:
    return json.loads(bytes(payload))


# -- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ASKED_FOR)
def test_the_first_client_is_understood_with_all_its_nulls(name: str) -> None:
    request = captured.request("samples-0.1", name)
    assert v0_1.DIALECT.read(request.method, request.params) == ASKED_FOR[name]


def test_files_come_by_their_bytes_or_by_their_address() -> None:
    parts: Json = [
        {"type": "file", "file": {"name": "n", "mimeType": None, "bytes": "dGNr", "uri": None}, "metadata": None},
        {"type": "file", "file": {"uri": "https://example.com/x", "mimeType": "x/y"}},
    ]
    operation = v0_1.DIALECT.read("tasks/send", raws({"id": "t", "message": {"role": "agent", "parts": parts}}))
    expected = (FilePart("dGNr", None, "n"), FilePart(None, "https://example.com/x", None, "x/y"))
    assert operation == SendMessage(Message("", "agent", expected), "t", history_length=0)


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("tasks/resubscribe", {"id": "t", "historyLength": None}, SubscribeToTask("t")),
        ("tasks/get", {"id": "t"}, GetTask("t", 0)),
        ("tasks/pushNotification/get", {"id": "t"}, GetPushConfig("t")),
        (
            "tasks/pushNotification/set",
            {
                "id": "t",
                "pushNotificationConfig": {"url": HOOK, "token": None, "authentication": {"schemes": ["Bearer"]}},
            },
            CreatePushConfig("t", PushConfig(HOOK, scheme="Bearer")),
        ),
        (
            "tasks/send",
            {"id": "t", "message": MESSAGE, "pushNotification": {"url": HOOK, "authentication": None}},
            SendMessage(Message("", "user", (TextPart("hi"),)), "t", history_length=0, push=PushConfig(HOOK)),
        ),
    ],
)
def test_the_other_methods_are_understood(method: str, params: dict[str, Json], expected: Operation) -> None:
    assert v0_1.DIALECT.read(method, raws(params)) == expected


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("tasks/send", {}, "message"),
        ("tasks/send", {"message": MESSAGE}, "id"),
        ("tasks/send", {"id": "t", "message": {"role": "user", "parts": []}}, "message.parts"),
        ("tasks/send", {"id": "t", "message": {**MESSAGE, "role": "system"}}, "message.role"),
        ("tasks/send", {"id": "t", "message": {**MESSAGE, "metadata": 1}}, "message"),
        (
            "tasks/send",
            {"id": "t", "message": {"role": "user", "parts": [{"type": "data", "data": 1}]}},
            "message.parts[0]",
        ),
        ("tasks/send", {"id": "t", "message": {"role": "user", "parts": [{"type": "x"}]}}, "message.parts[0].type"),
        ("tasks/send", {"id": "t", "message": MESSAGE, "sessionId": 7}, "sessionId"),
        ("tasks/send", {"id": "t", "message": MESSAGE, "historyLength": -1}, "historyLength"),
        (
            "tasks/send",
            {"id": "t", "message": {"role": "user", "parts": [{"type": "file", "file": {}}]}},
            "message.parts[0].file",
        ),
        ("tasks/get", {"id": 7}, "id"),
        (
            "tasks/pushNotification/set",
            {"id": "t", "pushNotificationConfig": {"url": ""}},
            "pushNotificationConfig.url",
        ),
    ],
)
def test_the_invalid_field_is_named(method: str, params: dict[str, Json], field: str) -> None:
    problem = v0_1.DIALECT.read(method, raws(params))
    assert isinstance(problem, A2aProblem)
    assert (problem.kind, problem.details["field"]) == ("invalid_params", field)


# -- writing -------------------------------------------------------------------------------------------------------


def test_a_task_is_written_as_the_first_server_wrote_it() -> None:
    task = Task(
        "task-1",
        "sess-1",
        TaskStatus("completed", AT),
        AT,
        (Artifact("a", (DataPart(Raw(b'{"success":true}')),)),),
        (ASKED,),
    )
    ours = written(v0_1.DIALECT.write_sent(task, None))
    theirs = json.loads(bytes(captured.result("samples-0.1", "send")))
    theirs["status"]["timestamp"] = TIME  # it named no zone
    assert ours == theirs


def test_a_stream_is_written_as_the_first_server_wrote_it() -> None:
    artifact = Artifact("a", (TextPart("hello"),))
    updates = (
        TaskStatusUpdate("t3", "s", TaskStatus("working", AT)),
        *v0_1.split_task(Task("t3", "s", TaskStatus("completed", AT), AT, (artifact,))),
    )
    ours = [written(v0_1.DIALECT.write_update(update)) for update in updates]
    theirs = [json.loads(bytes(item)) for item in captured.stream("samples-0.1", "stream")]
    for item in theirs:
        if "status" in item:
            item["status"]["timestamp"] = TIME
    assert ours[1]["artifact"].pop("lastChunk") is True
    assert ours == theirs


def test_a_history_is_sent_only_on_request_and_is_else_empty() -> None:
    assert written(v0_1.DIALECT.write_task(TASK, None))["history"] == []
    assert written(v0_1.DIALECT.write_task(TASK, 1))["history"] == [
        {"role": "agent", "parts": [{"type": "text", "text": "which?"}]}
    ]


def test_parts_and_artifacts_have_their_first_shapes() -> None:
    task = written(v0_1.DIALECT.write_cancelled(TASK))
    (artifact,) = task["artifacts"]
    assert (artifact["index"], artifact["name"], artifact["metadata"]) == (0, "art", {"k": 1})
    assert artifact["parts"][2:] == [
        {"type": "file", "file": {"name": "output.txt", "mimeType": "text/plain", "bytes": "dGNr"}},
        {"type": "file", "file": {"name": "x", "uri": "https://example.com/x"}},
    ]
    assert bytes(ODD) in bytes(v0_1.DIALECT.write_task(TASK, None))
    assert task["status"]["message"]["role"] == "agent"


@pytest.mark.parametrize(
    ("state", "word"),
    [("rejected", "failed"), ("auth_required", "input-required"), ("input_required", "input-required")],
)
def test_later_states_are_sent_in_words_of_this_version(state: TaskState, word: str) -> None:
    assert written(v0_1.DIALECT.write_task(Task("t", "s", TaskStatus(state, AT), AT), None))["status"]["state"] == word


def test_a_whole_task_in_a_stream_is_its_artifacts_and_then_how_it_stands() -> None:
    unfolded = v0_1.split_task(TASK)
    assert [list(written(v0_1.DIALECT.write_update(update)))[1] for update in unfolded] == ["artifact", "status"]
    assert written(v0_1.DIALECT.write_update(unfolded[-1]))["final"] is True
    assert v0_1.split_task(UPDATES[1]) == (UPDATES[1],)
    assert written(v0_1.DIALECT.write_update(TASK))["final"] is True


@pytest.mark.parametrize("state", ["input_required", "auth_required", "working"])
def test_a_stream_of_a_task_that_waits_for_its_caller_says_that_nothing_follows(state: TaskState) -> None:
    waiting = Task("t3", "s", TaskStatus(state, AT), AT)
    assert written(v0_1.DIALECT.write_update(v0_1.split_task(waiting)[-1]))["final"] is (state != "working")
    assert written(v0_1.DIALECT.write_update(waiting))["final"] is (state != "working")


def test_chunks_say_that_they_follow() -> None:
    assert written(v0_1.DIALECT.write_update(UPDATES[3]))["artifact"]["append"] is True
    assert written(v0_1.DIALECT.write_update(UPDATES[2]))["artifact"]["lastChunk"] is False


def test_a_message_alone_is_a_task_that_has_ended() -> None:
    direct = Message("r", "agent", (TextPart("direct"),), context="s")
    task = written(v0_1.DIALECT.write_sent(direct, None))
    assert (task["id"], task["sessionId"], task["status"]["state"]) == ("r", "s", "completed")
    assert written(v0_1.DIALECT.write_update(direct))["final"] is True


def test_places_of_pushes_are_known_by_their_task() -> None:
    place = {"id": "t", "pushNotificationConfig": {"url": HOOK, "authentication": {"schemes": ["Bearer"]}}}
    target = PushConfig(HOOK, scheme="Bearer")
    assert written(v0_1.DIALECT.write_push("t", target)) == place
    assert written(v0_1.DIALECT.write_pushes(PushConfigPage("t", (target,)))) == [place]
    assert v0_1.DIALECT.write_deleted() == b"null"


def test_a_problem_has_its_details() -> None:
    assert v0_1.DIALECT.write_problem(A2aProblem("task_not_cancelable", "m", {"a": "b"})) == (-32002, "m", b'{"a":"b"}')
