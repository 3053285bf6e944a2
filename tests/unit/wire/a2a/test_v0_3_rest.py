"""A2A 0.3 over plain HTTP."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from msgspec import Raw

from isthmus.model.tasks import DataPart, FilePart, Message, Task, TaskStatus, TextPart
from isthmus.wire.a2a import v0_3_rest
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CancelTask,
    CreatePushConfig,
    GetTask,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
)
from tests.unit.wire.a2a.samples import ASKED, AT, HOOK, ODD, TARGET, TASK, TIME, UPDATES, Json, raws

MESSAGE: dict[str, Json] = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}


def read(method: str, params: dict[str, Json]) -> Operation | A2aProblem:
    return v0_3_rest.DIALECT.read(method, raws(params))


def part_of(part: dict[str, Json]) -> object:
    operation = read("message/send", {"message": {**MESSAGE, "content": [part]}})
    assert isinstance(operation, SendMessage)
    return operation.message.parts[0]


def written(payload: bytes | Raw) -> Any:
    return json.loads(bytes(payload))


# -- reading -------------------------------------------------------------------------------------------------------


def test_members_may_be_spelt_as_in_json_or_as_in_the_protobuf() -> None:
    camel: dict[str, Json] = {
        "message": {**MESSAGE, "contextId": "c", "taskId": "t"},
        "configuration": {
            "historyLength": 2,
            "acceptedOutputModes": ["a"],
            "blocking": True,
            "pushNotification": {"url": HOOK, "id": "p1", "token": "tok", "authentication": {}},
        },
    }
    snake: dict[str, Json] = {
        "message": {
            "message_id": "m",
            "context_id": "c",
            "task_id": "t",
            "role": "ROLE_USER",
            "content": [{"text": "hi"}],
        },
        "configuration": {
            "history_length": 2,
            "accepted_output_modes": ["a"],
            "blocking": True,
            "push_notification": {"url": HOOK, "id": "p1", "token": "tok", "authentication": {}},
        },
    }
    expected = SendMessage(
        Message("m", "user", (TextPart("hi"),)),
        "t",
        "c",
        history_length=2,
        output_modes=("a",),
        push=PushConfig(HOOK, "p1", "tok"),
    )
    assert read("message/send", camel) == expected
    assert read("message/send", snake) == expected


@pytest.mark.parametrize(("configuration", "waits"), [(None, True), ({}, False), ({"blocking": True}, True)])
def test_a_configuration_that_leaves_out_blocking_says_false(configuration: Json, *, waits: bool) -> None:
    operation = read("message/send", {"message": MESSAGE, "configuration": configuration})
    assert isinstance(operation, SendMessage)
    assert operation.waits is waits


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"text": "t", "metadata": {"a": 1}}, TextPart("t", metadata=Raw(b'{"a": 1}'))),
        ({"data": {"data": {"a": 1}}}, DataPart(Raw(b'{"a": 1}'))),
        ({"file": {"fileWithUri": "u", "mimeType": "x/y", "name": "n"}}, FilePart(None, "u", "n", "x/y")),
        (
            {"file": {"file_with_uri": "", "file_with_bytes": "dGNr", "mime_type": "x/y"}},
            FilePart("dGNr", None, None, "x/y"),
        ),
        ({"file": {"fileWithBytes": "ZEdOcg=="}}, FilePart("dGNr")),
        ({"file": {"fileWithBytes": "/w=="}}, FilePart("/w==")),
        ({"file": {"fileWithBytes": "not base64"}}, FilePart("not base64")),
    ],
)
def test_parts_are_those_of_the_protobuf(part: dict[str, Json], expected: object) -> None:
    assert part_of(part) == expected


WRONG: list[tuple[str, dict[str, Json], str]] = [
    ("message/send", {}, "message"),
    ("message/send", {"message": {**MESSAGE, "messageId": ""}}, "message.messageId"),
    ("message/send", {"message": {**MESSAGE, "role": "user"}}, "message.role"),
    ("message/send", {"message": {**MESSAGE, "content": None}}, "message.content"),
    ("message/send", {"message": {**MESSAGE, "content": [{}]}}, "message.content[0]"),
    ("message/send", {"message": {**MESSAGE, "content": [{"data": {"data": 1}}]}}, "message.content[0].data"),
    ("message/send", {"message": {**MESSAGE, "content": [{"text": "a", "metadata": 1}]}}, "message.content[0]"),
    ("tasks/pushNotificationConfig/set", {"taskId": "t", "config": {}}, "config.pushNotificationConfig"),
    ("tasks/pushNotificationConfig/set", {"taskId": "t", "config": 7}, "config"),
    ("tasks/get", {}, "id"),
]


@pytest.mark.parametrize(("method", "params", "field"), WRONG)
def test_the_invalid_field_is_named(method: str, params: dict[str, Json], field: str) -> None:
    problem = read(method, params)
    assert isinstance(problem, A2aProblem)
    assert (problem.kind, problem.details["field"]) == ("invalid_params", field)


def test_requests_without_a_body_are_read_as_over_json_rpc() -> None:
    assert read("tasks/get", {"id": "t", "historyLength": 1}) == GetTask("t", 1)
    assert read("tasks/cancel", {"id": "t", "name": "tasks/t"}) == CancelTask("t")


@pytest.mark.parametrize(
    "params",
    [
        {"config": {"name": "n", "pushNotificationConfig": {"url": HOOK, "id": "p1"}}},
        {"config": {"push_notification_config": {"url": HOOK, "id": "p1"}}, "config_id": "p1"},
        {"name": "n", "pushNotificationConfig": {"url": HOOK, "id": "p1"}},
    ],
)
def test_a_place_is_found_with_or_without_the_request_around_it(params: dict[str, Json]) -> None:
    assert read("tasks/pushNotificationConfig/set", {**params, "taskId": "t"}) == CreatePushConfig(
        "t", PushConfig(HOOK, "p1")
    )


# -- writing -------------------------------------------------------------------------------------------------------


def test_a_task_is_written_as_the_protobuf_has_it() -> None:
    task = written(v0_3_rest.DIALECT.write_task(TASK, 1))
    assert task["status"] == {
        "state": "TASK_STATE_COMPLETED",
        "timestamp": TIME,
        "message": {
            "messageId": "m2",
            "contextId": "c1",
            "taskId": "t1",
            "role": "ROLE_AGENT",
            "content": [{"text": "done"}],
        },
    }
    assert [message["messageId"] for message in task["history"]] == ["m1"]
    encoded = base64.b64encode(b"dGNr").decode()
    assert task["artifacts"][0]["parts"][1:] == [
        {"data": {"data": json.loads(bytes(ODD))}, "metadata": {"m": 1}},
        {"file": {"fileWithBytes": encoded, "mimeType": "text/plain", "name": "output.txt"}},
        {"file": {"fileWithUri": "https://example.com/x", "name": "x"}},
    ]


def test_cancelled_has_two_l_here() -> None:
    gone = Task("t", "c", TaskStatus("canceled", AT), AT)
    assert written(v0_3_rest.DIALECT.write_cancelled(gone))["status"]["state"] == "TASK_STATE_CANCELLED"


def test_answers_and_items_stand_under_their_names() -> None:
    assert written(v0_3_rest.DIALECT.write_sent(TASK, 0)).keys() == {"task"}
    assert written(v0_3_rest.DIALECT.write_sent(ASKED, 0)).keys() == {"message"}
    items = [written(v0_3_rest.DIALECT.write_update(update)) for update in (*UPDATES, ASKED)]
    assert [next(iter(item)) for item in items] == [
        "task",
        "statusUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "statusUpdate",
        "message",
    ]
    assert items[3]["artifactUpdate"]["append"] is True
    assert items[4]["statusUpdate"]["final"] is True


def test_places_of_pushes_have_the_names_of_resources() -> None:
    place = written(v0_3_rest.DIALECT.write_push("t1", TARGET))
    assert place["name"] == "tasks/t1/pushNotificationConfigs/p1"
    assert place["pushNotificationConfig"]["authentication"] == {"schemes": ["Bearer"], "credentials": "cred"}
    assert written(v0_3_rest.DIALECT.write_pushes(PushConfigPage("t1", (TARGET,)))) == {"configs": [place]}
    assert v0_3_rest.DIALECT.write_deleted() == b"{}"


def test_the_rest_is_as_in_the_other_binding() -> None:
    assert v0_3_rest.DIALECT.write_problem(A2aProblem("task_not_found", "m"))[0] == -32001
