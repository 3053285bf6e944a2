"""The gRPC binding's messages: the same JSON goes through them and comes out equal, as far as protobuf can hold it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format as protobuf
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.model.tasks import (
    Artifact,
    DataPart,
    FilePart,
    Message,
    Task,
    TaskArtifactUpdate,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
)
from isthmus.wire.a2a import v1_0
from isthmus.wire.a2a.operations import PROBLEMS, A2aProblem, SendMessage
from isthmus.wire.a2a.protobuf import (
    CLASSES,
    METHODS,
    STATUSES,
    Unwritable,
    read,
    size_max,
    write,
    write_problem,
)

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def packed(kind: str, value: Any) -> bytes:
    """A message of this kind as a client writes it."""
    message = protobuf.Parse(json.dumps(value), CLASSES[kind]())
    return bytes(message.SerializeToString())


def unpacked(kind: str, text: bytes) -> Any:
    return json.loads(protobuf.MessageToJson(CLASSES[kind].FromString(text)))


def data_message(data: Any, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"data": data}]}, **more}


@given(JSON)
def test_data_comes_to_the_dialect_as_it_was_sent(data: Any) -> None:
    members = read("SendMessage", packed("SendMessageRequest", data_message(data)))
    assert not isinstance(members, A2aProblem)
    operation = v1_0.DIALECT.read("SendMessage", members)
    assert isinstance(operation, SendMessage)
    (part,) = operation.message.parts
    assert isinstance(part, DataPart)
    assert json.loads(bytes(part.data)) == data


def test_a_whole_number_stays_one() -> None:
    members = read(
        "SendMessage", packed("SendMessageRequest", data_message({"n": 9007199254740991, "m": -1, "f": 0.5}))
    )
    assert not isinstance(members, A2aProblem)
    data = json.loads(bytes(members["message"]))["parts"][0]["data"]
    assert {key: repr(value) for key, value in data.items()} == {"n": "9007199254740991", "m": "-1", "f": "0.5"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("request_", [b"\xff\xff\xff", b"\x0a\x7f", b"\x0a\x02\xff\xfe"])
def test_bytes_that_are_no_message_are_a_problem(method: str, request_: bytes) -> None:
    received = read(method, request_)
    assert isinstance(received, A2aProblem)
    assert received.kind == "invalid_params"


def test_a_number_that_json_does_not_have_is_a_problem() -> None:
    kind = CLASSES["SendMessageRequest"]()
    kind.message.parts.add().data.number_value = float("nan")
    assert isinstance(read("SendMessage", kind.SerializeToString()), A2aProblem)


@given(st.binary(max_size=60))
def test_no_bytes_make_it_raise(request_: bytes) -> None:
    for method in METHODS:
        read(method, request_)


AGENT = Message("a1", "agent", (TextPart("hi"), FilePart("aGk=", name="a", media_type="b/c"), FilePart(url="x:y")))
TASK = Task(
    "t1",
    "c1",
    TaskStatus("input_required", 1_700_000_000.25, AGENT),
    1.0,
    (Artifact("result", (DataPart(Raw(b'{"a":[1,null]}')),), "name", metadata=Raw(b'{"b":true}')),),
    (AGENT,),
)


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("SendMessage", v1_0.DIALECT.write_sent(TASK, None)),
        ("SendMessage", v1_0.DIALECT.write_sent(AGENT, None)),
        ("GetTask", v1_0.DIALECT.write_task(TASK, None)),
        ("CancelTask", v1_0.DIALECT.write_cancelled(TASK)),
        ("SubscribeToTask", v1_0.DIALECT.write_update(TASK)),
        ("SubscribeToTask", v1_0.DIALECT.write_update(TaskStatusUpdate("t1", "c1", TaskStatus("failed", 5.5)))),
        (
            "SendStreamingMessage",
            v1_0.DIALECT.write_update(TaskArtifactUpdate("t1", "c1", TASK.artifacts[0], is_more=True)),
        ),
        ("DeleteTaskPushNotificationConfig", v1_0.DIALECT.write_deleted()),
    ],
)
def test_documents_of_the_dialect_survive_protobuf(method: str, result: bytes) -> None:
    assert unpacked(METHODS[method][1], write(method, result)) == json.loads(result)


@pytest.mark.parametrize(
    "data", [b"1" + b"0" * 400, b"1" * 400 + b".5", b"1e400", b'{"a":[-1.5E+0400]}', b"[" * 200 + b"]" * 200]
)
def test_values_that_protobuf_cannot_hold_are_reported(data: bytes) -> None:
    sent = v1_0.DIALECT.write_sent(Message("a1", "agent", (DataPart(Raw(data)),)), None)
    with pytest.raises(Unwritable, match="cannot be written in protobuf"):
        write("SendMessage", sent)


def test_text_that_looks_like_a_huge_number_is_written() -> None:
    data = b'{"text":"1e400","small":1e-400,"large":1e300}'
    sent = v1_0.DIALECT.write_sent(Message("a1", "agent", (DataPart(Raw(data)),)), None)
    (part,) = unpacked("SendMessageResponse", write("SendMessage", sent))["message"]["parts"]
    assert part["data"] == {"text": "1e400", "small": 0, "large": 1e300}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda each: st.lists(each, max_size=8) | st.dictionaries(st.text(max_size=2), each, max_size=8),
    max_leaves=40,
)


@given(JSON_VALUES)
def test_json_is_never_longer_in_protobuf_than_is_foretold(value: Any) -> None:
    written = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    message = protobuf.Parse(written, struct_pb2.Value())
    assert len(message.SerializeToString()) <= size_max(written)


def test_the_predicted_size_is_close_to_the_real_one() -> None:
    assert size_max(b'"' + b"x" * 1_000_000 + b'"') < 1_000_100
    assert size_max(json.dumps(list(range(1000))).encode()) < 20_000


def test_the_extended_card_is_written_without_members_of_earlier_generations() -> None:
    scheme = {"httpAuthSecurityScheme": {"scheme": "Bearer"}, "type": "http"}
    card = {"name": "a", "url": "x", "securitySchemes": {"b": scheme}, "capabilities": {"streaming": False}}
    received = unpacked("AgentCard", write("GetExtendedAgentCard", json.dumps(card).encode()))
    assert received == {
        "name": "a",
        "securitySchemes": {"b": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
        "capabilities": {"streaming": False},
    }


@pytest.mark.parametrize("kind", PROBLEMS)
def test_every_problem_has_a_status_and_says_why(kind: Any) -> None:
    code, details = write_problem(A2aProblem(kind, "No", {"field": "a.b", "other": "c"}))
    assert code in STATUSES.values()
    status = CLASSES["Status"].FromString(details)
    assert (status.code, status.message) == (code, "No")
    info = CLASSES["ErrorInfo"].FromString(status.details[0].value)
    assert status.details[0].type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    assert (info.reason, info.domain) == (PROBLEMS[kind].reason, "a2a-protocol.org")
    assert dict(info.metadata) == {"field": "a.b", "other": "c"}
    request = CLASSES["BadRequest"].FromString(status.details[1].value)
    assert [(each.field, each.description) for each in request.field_violations] == [("a.b", "No")]


def test_names_are_those_of_the_specification_s_package() -> None:
    assert CLASSES["Task"].DESCRIPTOR.full_name == "lf.a2a.v1.Task"
    entry = CLASSES["AgentCard"].DESCRIPTOR.fields_by_name["security_schemes"].message_type
    assert entry.full_name == "lf.a2a.v1.AgentCard.SecuritySchemesEntry"
