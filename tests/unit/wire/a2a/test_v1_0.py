"""A2A 1.0 towards callers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from isthmus.model.tasks import ABSENT, DataPart, FilePart, Message, Task, TaskStatus, TextPart
from isthmus.wire.a2a import v1_0
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CancelTask,
    CreatePushConfig,
    DeletePushConfig,
    GetExtendedCard,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    ListTasks,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
    SubscribeToTask,
    TaskPage,
)
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import ASKED, AT, HOOK, ODD, TARGET, TASK, TIME, UPDATES, Json, raw, raws

MESSAGE: dict[str, Json] = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}

WHOLE = Message(
    "m0",
    "user",
    (
        TextPart("hi", "text/plain"),
        DataPart(Raw(b'{"i":1.0,"l":[1.0,2.0]}'), "application/json", Raw(b'{"q":true}')),
        FilePart("dGNr", None, "output.txt", "text/plain"),
        FilePart(None, "https://example.com/x", "x"),
    ),
    Raw(b'{"k":"v"}'),
    ("urn:e",),
    ("t0",),
)
ASKED_FOR: dict[str, Operation] = {
    "send": SendMessage(
        WHOLE,
        "t1",
        "c1",
        waits=False,
        history_length=3,
        output_modes=("text/plain",),
        push=TARGET,
        metadata=Raw(b'{"rm":1.0}'),
    ),
    "direct": SendMessage(Message("m0", "user", (TextPart("direct"),))),
    "stream": SendMessage(Message("m0", "user", (TextPart("go"),)), is_stream=True),
    "subscribe": SubscribeToTask("t1"),
    "get": GetTask("t1", 0),
    "get_nope": GetTask("nope"),
    "list": ListTasks("c1", "working", 1794726526.0, 10, "tok", 0, True),
    "cancel": CancelTask("t1"),
    "set_push": CreatePushConfig("t1", TARGET),
    "get_push": GetPushConfig("t1", "p1"),
    "list_push": ListPushConfigs("t1"),
    "delete_push": DeletePushConfig("t1", "p1"),
}


def sent(**message: Json) -> Operation | A2aProblem:
    return v1_0.DIALECT.read("SendMessage", raws({"message": {**MESSAGE, **message}}))


def refused(method: str, params: dict[str, Json]) -> str:
    """The field that is wrong."""
    problem = v1_0.DIALECT.read(method, raws(params))
    assert isinstance(problem, A2aProblem)
    assert problem.kind == "invalid_params"
    return problem.details["field"]


def written(payload: bytes | Raw) -> Any:
    return json.loads(bytes(payload))


# -- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ASKED_FOR)
def test_the_official_client_is_understood(name: str) -> None:
    request = captured.request("sdk-1.3.0", name)
    assert v1_0.DIALECT.read(request.method, request.params) == ASKED_FOR[name]


def test_there_is_a_reader_for_every_method_and_none_for_others() -> None:
    assert v1_0.DIALECT.read("GetExtendedAgentCard", {}) == GetExtendedCard()
    unknown = v1_0.DIALECT.read("sendMessage", {})
    assert isinstance(unknown, A2aProblem)
    assert unknown.kind == "unknown_method"


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"text": ""}, TextPart("")),
        ({"text": "t", "data": None, "raw": None, "url": None, "metadata": None, "filename": None}, TextPart("t")),
        ({"data": None}, DataPart(Raw(b"null"))),
        ({"data": 1, "mediaType": ""}, DataPart(Raw(b"1"))),
        ({"data": [1, {"a": 2}]}, DataPart(Raw(b'[1, {"a": 2}]'))),
        ({"raw": "dGNr", "unknown": 1}, FilePart("dGNr")),
        (
            {"url": "https://example.com", "filename": "f", "mediaType": "x/y"},
            FilePart(None, "https://example.com", "f", "x/y"),
        ),
    ],
)
def test_the_type_of_a_part_follows_its_member(part: dict[str, Json], expected: object) -> None:
    operation = sent(parts=[part])
    assert isinstance(operation, SendMessage)
    assert operation.message.parts == (expected,)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"messageId": None}, "message.messageId"),
        ({"messageId": ""}, "message.messageId"),
        ({"messageId": "x" * 257}, "message.messageId"),
        ({"role": "user"}, "message.role"),
        ({"role": 1}, "message.role"),
        ({"parts": []}, "message.parts"),
        ({"parts": None}, "message.parts"),
        ({"parts": {}}, "message.parts"),
        ({"parts": [{"text": "a"}, {"text": 7}]}, "message.parts[1].text"),
        ({"parts": [{}]}, "message.parts[0]"),
        ({"parts": [{"text": "a", "url": "b"}]}, "message.parts[0]"),
        ({"parts": [{"kind": "text"}]}, "message.parts[0]"),
        ({"parts": [{"text": "a", "metadata": 7}]}, "message.parts[0]"),
        ({"metadata": []}, "message"),
        ({"contextId": 7}, "message.contextId"),
        ({"taskId": "x" * 257}, "message.taskId"),
        ({"extensions": "urn:x"}, "message.extensions"),
    ],
)
def test_the_invalid_field_of_a_message_is_named(message: dict[str, Json], field: str) -> None:
    assert refused("SendMessage", {"message": {**MESSAGE, **message}}) == field


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("SendMessage", {}, "message"),
        ("SendMessage", {"message": None}, "message"),
        ("SendMessage", {"message": "hi"}, "message"),
        ("SendMessage", {"message": {"role": "ROLE_USER", "parts": []}}, "message.messageId"),
        ("SendMessage", {"message": {"messageId": "m", "role": "ROLE_USER"}}, "message.parts"),
        ("SendMessage", {"message": MESSAGE, "metadata": 1}, "metadata"),
        ("SendMessage", {"message": MESSAGE, "configuration": []}, "configuration"),
        ("SendMessage", {"message": MESSAGE, "configuration": {"historyLength": -1}}, "configuration.historyLength"),
        (
            "SendMessage",
            {"message": MESSAGE, "configuration": {"taskPushNotificationConfig": {}}},
            "configuration.taskPushNotificationConfig.url",
        ),
        (
            "SendMessage",
            {"message": MESSAGE, "configuration": {"taskPushNotificationConfig": {"url": HOOK, "id": "x" * 257}}},
            "id of a push notification config",
        ),
        ("GetTask", {}, "id"),
        ("GetTask", {"id": ""}, "id"),
        ("GetTask", {"id": "t", "historyLength": -5}, "historyLength"),
        ("GetTask", {"id": "t", "historyLength": "3"}, "historyLength"),
        ("ListTasks", {"pageSize": 0}, "pageSize"),
        ("ListTasks", {"pageSize": 101}, "pageSize"),
        ("ListTasks", {"status": "TASK_STATE_RUNNING"}, "status"),
        ("ListTasks", {"statusTimestampAfter": "now"}, "statusTimestampAfter"),
        ("ListTasks", {"includeArtifacts": "true"}, "includeArtifacts"),
        ("CancelTask", {"id": 7}, "id"),
        ("SubscribeToTask", {}, "id"),
        ("CreateTaskPushNotificationConfig", {"taskId": "t"}, "url"),
        ("CreateTaskPushNotificationConfig", {"taskId": "t", "url": ""}, "url"),
        ("CreateTaskPushNotificationConfig", {"url": HOOK}, "taskId"),
        ("GetTaskPushNotificationConfig", {"taskId": "t"}, "id"),
        ("DeleteTaskPushNotificationConfig", {"id": "p"}, "taskId"),
        ("ListTaskPushNotificationConfigs", {}, "taskId"),
    ],
)
def test_the_invalid_parameter_is_named(method: str, params: dict[str, Json], field: str) -> None:
    assert refused(method, params) == field


def test_a_list_asks_for_fifty_of_all_tasks_unless_it_says_otherwise() -> None:
    assert v1_0.DIALECT.read("ListTasks", {}) == ListTasks()
    blank = raws({"contextId": "", "status": "TASK_STATE_UNSPECIFIED", "pageToken": "", "pageSize": None})
    assert v1_0.DIALECT.read("ListTasks", blank) == ListTasks()


def test_a_message_waits_for_the_work_unless_it_says_otherwise() -> None:
    choices: list[tuple[Json, bool]] = [
        ({}, True),
        ({"returnImmediately": False}, True),
        ({"returnImmediately": True}, False),
    ]
    for said, waits in choices:
        operation = v1_0.DIALECT.read("SendMessage", raws({"message": MESSAGE, "configuration": said}))
        assert isinstance(operation, SendMessage)
        assert operation.waits is waits


# -- writing -------------------------------------------------------------------------------------------------------


def test_a_task_is_written_as_the_specification_has_it() -> None:
    assert written(v1_0.DIALECT.write_task(TASK, None)) == {
        "id": "t1",
        "contextId": "c1",
        "status": {
            "state": "TASK_STATE_COMPLETED",
            "timestamp": TIME,
            "message": {
                "messageId": "m2",
                "contextId": "c1",
                "taskId": "t1",
                "role": "ROLE_AGENT",
                "parts": [{"text": "done"}],
            },
        },
        "artifacts": [
            {
                "artifactId": "a1",
                "name": "art",
                "description": "made",
                "parts": [
                    {"text": "hello"},
                    {"data": json.loads(bytes(ODD)), "metadata": {"m": 1}},
                    {"raw": "dGNr", "filename": "output.txt", "mediaType": "text/plain"},
                    {"url": "https://example.com/x", "filename": "x"},
                ],
                "metadata": {"k": 1},
                "extensions": ["urn:x"],
            }
        ],
        "history": [
            {"messageId": "m0", "contextId": "c1", "taskId": "t1", "role": "ROLE_USER", "parts": [{"text": "hi"}]},
            {"messageId": "m1", "contextId": "c1", "taskId": "t1", "role": "ROLE_AGENT", "parts": [{"text": "which?"}]},
        ],
        "metadata": {"tm": [1]},
    }
    assert bytes(ODD) in bytes(v1_0.DIALECT.write_task(TASK, None))


@pytest.mark.parametrize(("length", "shown"), [(None, ["m0", "m1"]), (1, ["m1"]), (9, ["m0", "m1"])])
def test_a_history_is_as_long_as_was_asked_for(length: int | None, shown: list[str]) -> None:
    for payload in v1_0.DIALECT.write_task(TASK, length), v1_0.DIALECT.write_sent(TASK, length):
        task = written(payload).get("task") or written(payload)
        assert [message["messageId"] for message in task["history"]] == shown


def test_a_history_of_no_length_is_left_out_and_so_are_artifacts_that_are_not_there() -> None:
    bare = Task("t", "c", TaskStatus("working", AT), AT)
    assert written(v1_0.DIALECT.write_task(bare, None)).keys() == {"id", "contextId", "status"}
    assert "history" not in written(v1_0.DIALECT.write_task(TASK, 0))
    assert written(v1_0.DIALECT.write_cancelled(bare)) == written(v1_0.DIALECT.write_task(bare, None))


def test_an_answer_is_a_task_or_a_message_under_its_name() -> None:
    assert written(v1_0.DIALECT.write_sent(TASK, None)).keys() == {"task"}
    direct = Message("r", "agent", (TextPart("direct"),), context="c")
    assert written(v1_0.DIALECT.write_sent(direct, None)) == {
        "message": {"messageId": "r", "contextId": "c", "role": "ROLE_AGENT", "parts": [{"text": "direct"}]}
    }


def test_a_stream_has_items_of_four_kinds() -> None:
    items = [written(v1_0.DIALECT.write_update(update)) for update in (*UPDATES, ASKED)]
    assert [list(item) for item in items] == [
        ["task"],
        ["statusUpdate"],
        ["artifactUpdate"],
        ["artifactUpdate"],
        ["statusUpdate"],
        ["message"],
    ]
    assert "append" not in items[2]["artifactUpdate"]
    assert items[3]["artifactUpdate"]["append"] is True
    assert items[3]["artifactUpdate"]["lastChunk"] is True
    assert items[4]["statusUpdate"] == {
        "taskId": "t1",
        "contextId": "c1",
        "status": {"state": "TASK_STATE_COMPLETED", "timestamp": TIME},
    }


def test_a_list_says_all_that_is_required_of_it_and_artifacts_only_if_asked() -> None:
    bare = Task("t", "c", TaskStatus("working", AT), AT)
    page = TaskPage((TASK, bare), 7, "", 2)
    plain = written(v1_0.DIALECT.write_tasks(page, ListTasks(history_length=0)))
    assert (plain["nextPageToken"], plain["pageSize"], plain["totalSize"]) == ("", 2, 7)
    assert [task.keys() & {"artifacts", "history"} for task in plain["tasks"]] == [set(), set()]
    full = written(v1_0.DIALECT.write_tasks(page, ListTasks(has_artifacts=True)))
    assert [len(task["artifacts"]) for task in full["tasks"]] == [1, 0]


def test_places_of_pushes_are_written_flat() -> None:
    place = {
        "url": HOOK,
        "id": "p1",
        "taskId": "t1",
        "token": "tok",
        "authentication": {"scheme": "Bearer", "credentials": "cred"},
    }
    assert written(v1_0.DIALECT.write_push("t1", TARGET)) == place
    assert written(v1_0.DIALECT.write_push("t1", PushConfig(HOOK))) == {"url": HOOK, "taskId": "t1"}
    assert written(v1_0.DIALECT.write_pushes(PushConfigPage("t1", (TARGET,), "next"))) == {
        "configs": [place],
        "nextPageToken": "next",
    }
    assert v1_0.DIALECT.write_deleted() == b"{}"


def test_a_problem_has_its_code() -> None:
    assert v1_0.DIALECT.write_problem(A2aProblem("version_not_supported", "m"))[:2] == (-32009, "m")


def test_a_file_without_content_or_address_is_an_empty_one() -> None:
    task = Task("t", "c", TaskStatus("working", AT, Message("m", "agent", (FilePart(), FilePart("", "u")))), AT)
    message = written(v1_0.DIALECT.write_task(task, None))["status"]["message"]
    assert message["parts"] == [{"raw": ""}, {"raw": ""}]


def test_metadata_is_kept_as_it_was_spelt() -> None:
    operation = v1_0.DIALECT.read("SendMessage", {"message": raw(MESSAGE), "metadata": Raw(b'{"b": 1.0, "a": 1}')})
    assert isinstance(operation, SendMessage)
    assert bytes(operation.metadata) == b'{"b": 1.0, "a": 1}'
    assert operation.message.metadata is ABSENT
