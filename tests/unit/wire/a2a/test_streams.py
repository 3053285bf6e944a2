"""Updates as events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from isthmus.model.tasks import (
    Artifact,
    DataPart,
    Message,
    Task,
    TaskArtifactUpdate,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
    Update,
)
from isthmus.wire.a2a import agentvault, rest, streams, v0_1, v0_3, v1_0
from isthmus.wire.a2a.operations import A2aProblem
from isthmus.wire.a2a.v1_0 import Dialect
from isthmus.wire.sse import SseDecoder, SseEvent
from tests.unit.wire.a2a.samples import ASKED, AT, TASK, UPDATES

ENDED = A2aProblem("unsupported_operation", "it has ended")


def events(stream: bytes) -> list[tuple[str, Any]]:
    found = SseDecoder().feed(stream)
    return [(event.event, json.loads(event.data)) for event in found if isinstance(event, SseEvent)]


def written_events(stream: streams.UpdateStream, *updates: Update) -> list[tuple[str, Any]]:
    return events(b"".join(stream.write(update) for update in updates))


@pytest.mark.parametrize("dialect", [v1_0.DIALECT, v0_3.DIALECT, v0_1.DIALECT])
def test_over_json_rpc_every_item_answers_the_request(dialect: Dialect) -> None:
    stream = streams.rpc_stream(dialect, b'"r1"', "t1")
    items = written_events(stream, *UPDATES)
    assert len(items) == len(UPDATES)
    assert {(name, item["jsonrpc"], item["id"]) for name, item in items} == {("message", "2.0", "r1")}
    ((name, failure),) = events(stream.fail(ENDED))
    assert (name, failure["id"], failure["error"]["code"]) == ("message", "r1", -32004)


def test_the_first_generation_gets_a_whole_task_in_pieces() -> None:
    items = written_events(streams.rpc_stream(v0_1.DIALECT, b"1", "t1"), TASK)
    assert [list(item["result"])[1] for _, item in items] == ["artifact", "status"]


@pytest.mark.parametrize("binding", [rest.V1_0, rest.V0_3])
def test_over_plain_http_items_are_bare(binding: rest.Binding) -> None:
    stream = streams.RestStream(binding)
    assert [next(iter(item)) for _, item in written_events(stream, *UPDATES)] == [
        "task",
        "statusUpdate",
        "artifactUpdate",
        "artifactUpdate",
        "statusUpdate",
    ]
    ((name, body),) = events(stream.fail(ENDED))
    assert name == "error"
    assert "error" in body


def test_a_line_break_in_a_callers_json_does_not_end_an_event() -> None:
    odd = Message("m", "agent", (DataPart(Raw(b'{"a":\n\n1}')),))
    for stream in (
        streams.rpc_stream(v1_0.DIALECT, b"1", "t"),
        streams.rpc_stream(agentvault.DIALECT, b"1", "t"),
        streams.RestStream(rest.V1_0),
    ):
        assert len(written_events(stream, odd)) == 1


@pytest.mark.parametrize("update", UPDATES)
def test_since_0_3_every_event_says_where_it_is(update: Update) -> None:
    for stream, place in (
        (streams.rpc_stream(v1_0.DIALECT, b"1", "t"), "3.14"),
        (streams.rpc_stream(v0_3.DIALECT, b"1", "t"), "3.14"),
        (streams.RestStream(rest.V0_3), "3.14"),
        (streams.rpc_stream(v0_1.DIALECT, b"1", "t"), None),
        (streams.rpc_stream(agentvault.DIALECT, b"1", "t"), None),
    ):
        found = SseDecoder().feed(stream.write(update, "3.14"))
        assert found
        assert {event.id for event in found if isinstance(event, SseEvent)} == {place}


# -- AgentVault ----------------------------------------------------------------------------------------------------


def vault() -> streams.UpdateStream:
    return streams.rpc_stream(agentvault.DIALECT, b'"r1"', "t1")


def answered() -> Task:
    answer = Message("t1-result", "agent", (DataPart(Raw(b'{"success":true}')),))
    return Task("t1", "c1", TaskStatus("completed", AT), AT, (), (ASKED, answer))


def test_a_late_follower_gets_the_answer_and_then_its_end() -> None:
    message, status = written_events(vault(), answered())
    assert message[0] == "task_message"
    assert message[1]["message"]["parts"][0]["content"] == {"success": True}
    assert message[1]["timestamp"] == "2026-11-15T07:08:46.993637Z"
    assert (status[0], status[1]["state"]) == ("task_status", "COMPLETED")


def test_nothing_is_sent_twice_however_often_the_task_is_shown() -> None:
    stream = vault()
    working = Task("t1", "c1", TaskStatus("working", AT), AT, (), (ASKED,))
    first = written_events(stream, working)
    assert [name for name, _ in first] == ["task_status"]
    assert [name for name, _ in written_events(stream, answered())] == ["task_message", "task_status"]
    assert [name for name, _ in written_events(stream, answered())] == ["task_status"]
    made = Task("t1", "c1", TaskStatus("completed", AT), AT, (Artifact("a", (TextPart("x"),)),))
    assert [name for name, _ in written_events(stream, made)] == ["task_artifact", "task_status"]
    assert [name for name, _ in written_events(stream, made)] == ["task_status"]


def test_a_question_is_a_message_and_a_status_and_a_report_is_a_status() -> None:
    question = Message("q", "agent", (TextPart("which?"),))
    asked = TaskStatusUpdate("t1", "c1", TaskStatus("input_required", AT, question))
    report = TaskStatusUpdate("t1", "c1", TaskStatus("working", AT, Message("p", "agent", (TextPart("half"),))))
    items = written_events(vault(), report, asked)
    assert [name for name, _ in items] == ["task_status", "task_message", "task_status"]
    assert [item["message"] for name, item in items if name == "task_status"] == ["half", "which?"]


def test_artifacts_and_messages_have_the_time_at_which_something_last_happened() -> None:
    stream = vault()
    items = written_events(
        stream,
        TaskArtifactUpdate("t1", "c1", Artifact("a", (TextPart("x"),)), at=1.0),
        Message("m", "agent", (TextPart("x"),)),
        Message("", "agent", (TextPart("x"),)),
        Message("", "agent", (TextPart("x"),)),
    )
    assert [name for name, _ in items] == ["task_artifact", "task_message", "task_message", "task_message"]
    assert {item["timestamp"] for _, item in items} == {"1970-01-01T00:00:01.000000Z"}
    assert {item["taskId"] for _, item in items} == {"t1"}


def test_a_failed_stream_makes_its_client_raise() -> None:
    assert events(vault().fail(ENDED)) == [("error", {"error": "unsupported_operation", "message": "it has ended"})]
