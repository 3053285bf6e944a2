"""A2A 0.3, and 0.2, towards callers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from isthmus.model.tasks import DataPart, FilePart, Message, Task, TaskStatus, TextPart
from isthmus.wire.a2a import v0_3
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CancelTask,
    CreatePushConfig,
    DeletePushConfig,
    GetExtendedCard,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
    SubscribeToTask,
)
from tests.unit.wire.a2a import captured
from tests.unit.wire.a2a.samples import ASKED, AT, HOOK, ODD, TARGET, TASK, TIME, UPDATES, Json, raws

MESSAGE: dict[str, Json] = {
    "kind": "message",
    "messageId": "m",
    "role": "user",
    "parts": [{"kind": "text", "text": "hi"}],
}
WHOLE = Message(
    "m0",
    "user",
    (
        TextPart("hi"),
        DataPart(Raw(b'{"i":1,"l":[1,2]}'), None, Raw(b'{"q":true}')),
        FilePart("dGNr", None, "output.txt", "text/plain"),
        FilePart(None, "https://example.com/x", "x"),
    ),
    Raw(b'{"k":"v"}'),
    ("urn:e",),
    ("t0",),
)
ASKED_FOR: dict[str, Operation] = {
    "send": SendMessage(
        WHOLE, "t1", "c1", history_length=3, output_modes=("text/plain",), push=TARGET, metadata=Raw(b'{"rm":1}')
    ),
    "direct": SendMessage(Message("m0", "user", (TextPart("direct"),))),
    "stream": SendMessage(Message("m0", "user", (TextPart("go"),)), is_stream=True),
    "subscribe": SubscribeToTask("t1"),
    "get": GetTask("t1", 0),
    "get_nope": GetTask("nope"),
    "cancel": CancelTask("t1"),
    "set_push": CreatePushConfig("t1", TARGET),
    "get_push": GetPushConfig("t1", "p1"),
}


def refused(method: str, params: dict[str, Json]) -> str:
    """The field that is wrong."""
    problem = v0_3.DIALECT.read(method, raws(params))
    assert isinstance(problem, A2aProblem)
    assert problem.kind == "invalid_params"
    return problem.details["field"]


def written(payload: bytes | Raw) -> Any:
    return json.loads(bytes(payload))


# -- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ASKED_FOR)
def test_the_official_client_is_understood(name: str) -> None:
    request = captured.request("sdk-0.3.26", name)
    assert v0_3.DIALECT.read(request.method, request.params) == ASKED_FOR[name]


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("tasks/pushNotificationConfig/get", {"id": "t"}, GetPushConfig("t")),
        ("tasks/pushNotificationConfig/list", {"id": "t"}, ListPushConfigs("t")),
        (
            "tasks/pushNotificationConfig/delete",
            {"id": "t", "pushNotificationConfigId": "p"},
            DeletePushConfig("t", "p"),
        ),
        ("agent/getAuthenticatedExtendedCard", {}, GetExtendedCard()),
    ],
)
def test_methods_that_the_client_lacks_are_understood_too(
    method: str, params: dict[str, Json], expected: Operation
) -> None:
    assert v0_3.DIALECT.read(method, raws(params)) == expected


def test_a_message_may_omit_its_kind_and_have_null_members() -> None:
    bare = {key: value for key, value in MESSAGE.items() if key != "kind"}
    nulls: dict[str, Json] = {"contextId": None, "taskId": None, "metadata": None, "extensions": None}
    operation = v0_3.DIALECT.read("message/send", raws({"message": {**bare, **nulls}, "configuration": None}))
    assert operation == SendMessage(Message("m", "user", (TextPart("hi"),)))


@pytest.mark.parametrize(
    ("configuration", "waits"), [({}, True), ({"blocking": None}, True), ({"blocking": False}, False)]
)
def test_a_message_waits_for_its_result_unless_it_says_otherwise(configuration: Json, *, waits: bool) -> None:
    operation = v0_3.DIALECT.read("message/send", raws({"message": MESSAGE, "configuration": configuration}))
    assert isinstance(operation, SendMessage)
    assert operation.waits is waits


def test_data_that_was_no_object_is_unpacked() -> None:
    part: Json = {"kind": "data", "data": {"value": [1]}, "metadata": {"data_part_compat": True}}
    operation = v0_3.DIALECT.read("message/send", raws({"message": {**MESSAGE, "parts": [part]}}))
    assert isinstance(operation, SendMessage)
    assert operation.message.parts == (DataPart(Raw(b"[1]")),)


WRONG: list[tuple[str, dict[str, Json], str]] = [
    ("message/send", {}, "message"),
    ("message/stream", {"message": 7}, "message"),
    ("message/send", {"message": {**MESSAGE, "kind": "task"}}, "message.kind"),
    ("message/send", {"message": {**MESSAGE, "messageId": ""}}, "message.messageId"),
    ("message/send", {"message": {**MESSAGE, "role": "ROLE_USER"}}, "message.role"),
    ("message/send", {"message": {**MESSAGE, "parts": []}}, "message.parts"),
    ("message/send", {"message": {**MESSAGE, "parts": [{"text": "a"}]}}, "message.parts[0].kind"),
    ("message/send", {"message": {**MESSAGE, "parts": [{"kind": "video"}]}}, "message.parts[0].kind"),
    ("message/send", {"message": {**MESSAGE, "parts": [{"kind": "text"}]}}, "message.parts[0].text"),
    ("message/send", {"message": {**MESSAGE, "parts": [{"kind": "data", "data": []}]}}, "message.parts[0]"),
    ("message/send", {"message": {**MESSAGE, "parts": [{"kind": "file", "file": {}}]}}, "message.parts[0].file"),
    ("message/send", {"message": MESSAGE, "configuration": {"blocking": "yes"}}, "configuration.blocking"),
    ("tasks/get", {}, "id"),
    ("tasks/get", {"id": "t", "historyLength": -1}, "historyLength"),
    ("tasks/cancel", {"id": "t", "metadata": []}, "metadata"),
    ("tasks/resubscribe", {"id": None}, "id"),
    ("tasks/pushNotificationConfig/set", {"taskId": "t"}, "pushNotificationConfig"),
    (
        "tasks/pushNotificationConfig/set",
        {"taskId": "t", "pushNotificationConfig": {}},
        "pushNotificationConfig.url",
    ),
    ("tasks/pushNotificationConfig/delete", {"id": "t"}, "pushNotificationConfigId"),
]


@pytest.mark.parametrize(("method", "params", "field"), WRONG)
def test_the_invalid_field_is_named(method: str, params: dict[str, Json], field: str) -> None:
    assert refused(method, params) == field


# -- writing -------------------------------------------------------------------------------------------------------


def test_everything_says_its_kind() -> None:
    kinds = [written(v0_3.DIALECT.write_update(update))["kind"] for update in (*UPDATES, ASKED)]
    assert kinds == ["task", "status-update", "artifact-update", "artifact-update", "status-update", "message"]
    assert written(v0_3.DIALECT.write_sent(TASK, None))["kind"] == "task"
    assert written(v0_3.DIALECT.write_sent(ASKED, None))["kind"] == "message"
    assert [part["kind"] for part in written(v0_3.DIALECT.write_task(TASK, None))["artifacts"][0]["parts"]] == [
        "text",
        "data",
        "file",
        "file",
    ]


def test_a_task_is_written_as_the_schema_has_it() -> None:
    task = written(v0_3.DIALECT.write_task(TASK, 1))
    assert task["status"] == {
        "state": "completed",
        "timestamp": TIME,
        "message": {
            "kind": "message",
            "messageId": "m2",
            "contextId": "c1",
            "taskId": "t1",
            "role": "agent",
            "parts": [{"kind": "text", "text": "done"}],
        },
    }
    assert [message["messageId"] for message in task["history"]] == ["m1"]
    assert task["artifacts"][0]["parts"][2:] == [
        {"kind": "file", "file": {"bytes": "dGNr", "name": "output.txt", "mimeType": "text/plain"}},
        {"kind": "file", "file": {"uri": "https://example.com/x", "name": "x"}},
    ]
    assert bytes(ODD) in bytes(v0_3.DIALECT.write_task(TASK, None))
    assert "history" not in written(v0_3.DIALECT.write_task(TASK, 0))


@pytest.mark.parametrize(("state", "word"), [("input_required", "input-required"), ("auth_required", "auth-required")])
def test_states_are_written_with_hyphens(state: Any, word: str) -> None:
    assert written(v0_3.DIALECT.write_cancelled(Task("t", "c", TaskStatus(state, AT), AT)))["status"]["state"] == word


def test_the_last_update_says_so() -> None:
    assert [written(v0_3.DIALECT.write_update(UPDATES[place]))["final"] for place in (1, 4)] == [False, True]
    assert written(v0_3.DIALECT.write_update(UPDATES[2]))["lastChunk"] is False


def test_data_that_is_no_object_is_packed_into_one() -> None:
    message = Message("m", "agent", (DataPart(Raw(b"[1]"), metadata=Raw(b'{"a":1}')),))
    assert written(v0_3.DIALECT.write_sent(message, None))["parts"] == [
        {"kind": "data", "data": {"value": [1]}, "metadata": {"a": 1, "data_part_compat": True}}
    ]


def test_places_of_pushes_are_written_with_their_task() -> None:
    config = {
        "url": HOOK,
        "id": "p1",
        "token": "tok",
        "authentication": {"schemes": ["Bearer"], "credentials": "cred"},
    }
    place = {"taskId": "t1", "pushNotificationConfig": config}
    assert written(v0_3.DIALECT.write_push("t1", TARGET)) == place
    assert written(v0_3.DIALECT.write_pushes(PushConfigPage("t1", (TARGET, PushConfig(HOOK))))) == [
        place,
        {"taskId": "t1", "pushNotificationConfig": {"url": HOOK}},
    ]
    assert v0_3.DIALECT.write_deleted() == b"null"


def test_problems_that_it_does_not_know_are_bad_requests() -> None:
    assert v0_3.DIALECT.write_problem(A2aProblem("task_not_found", "m"))[0] == -32001
    assert v0_3.DIALECT.write_problem(A2aProblem("version_not_supported", "m"))[0] == -32600
