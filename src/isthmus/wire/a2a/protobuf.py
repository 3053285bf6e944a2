"""A2A 1.0 in protobuf, for gRPC: converts requests to the JSON of `v1_0` and its results back. Called by the frontend.

The schema is `a2a.txtpb`, a file descriptor in protobuf's text format: generated code works with one version of the
protobuf runtime only, and a compiled descriptor set cannot be reviewed. The classes are in their own descriptor pool,
so that a program can load the official types as well. Needs protobuf, which `isthmus[grpc]` installs.

Numbers in protobuf data are doubles, and keys have no order: whole numbers are exact up to 2**53.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    empty_pb2,
    json_format,
    message_factory,
    struct_pb2,
    text_format,
    timestamp_pb2,
)
from google.protobuf.message import DecodeError
from msgspec import Raw

from isthmus.wire.a2a.operations import PROBLEMS, A2aProblem, details_1_0
from isthmus.wire.jsonrpc import VALUES_MAX, Payload, is_dense

PACKAGE = "lf.a2a.v1"
SERVICE = f"{PACKAGE}.A2AService"

METHODS: Mapping[str, tuple[str, str]] = {
    "SendMessage": ("SendMessageRequest", "SendMessageResponse"),
    "SendStreamingMessage": ("SendMessageRequest", "StreamResponse"),
    "GetTask": ("GetTaskRequest", "Task"),
    "ListTasks": ("ListTasksRequest", "ListTasksResponse"),
    "CancelTask": ("CancelTaskRequest", "Task"),
    "SubscribeToTask": ("SubscribeToTaskRequest", "StreamResponse"),
    "CreateTaskPushNotificationConfig": ("TaskPushNotificationConfig", "TaskPushNotificationConfig"),
    "GetTaskPushNotificationConfig": ("GetTaskPushNotificationConfigRequest", "TaskPushNotificationConfig"),
    "ListTaskPushNotificationConfigs": (
        "ListTaskPushNotificationConfigsRequest",
        "ListTaskPushNotificationConfigsResponse",
    ),
    "DeleteTaskPushNotificationConfig": ("DeleteTaskPushNotificationConfigRequest", "Empty"),
    "GetExtendedAgentCard": ("GetExtendedAgentCardRequest", "AgentCard"),
}
"""The request and the response of each method."""

STREAMS = frozenset({"SendStreamingMessage", "SubscribeToTask"})


def _load_classes() -> dict[str, Any]:
    """The message classes of the schema, by their names without the package."""
    schema = files("isthmus.wire.a2a").joinpath("a2a.txtpb").read_text(encoding="utf-8")
    file = text_format.Parse(schema, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    for known in (struct_pb2, timestamp_pb2, empty_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    names = [f"{PACKAGE}.{message.name}" for message in file.message_type]
    types = [pool.FindMessageTypeByName(name) for name in (*names, "google.protobuf.Empty")]
    return {each.name: message_factory.GetMessageClass(each) for each in types}


CLASSES: Mapping[str, Any] = _load_classes()
"""The class of each message."""

Members: TypeAlias = dict[str, Raw]

STATUSES: Mapping[str, int] = {
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "FAILED_PRECONDITION": 9,
    "INTERNAL": 13,
}
"""The numbers of the gRPC statuses in `PROBLEMS`."""

WHOLE_MAX = 2.0**53
"""Doubles hold every whole number up to here."""


VALUE_BYTES = 12
"""Bytes of a value beside its text: a number takes 9, and a nested value has tags and lengths."""


class Unwritable(ValueError):
    """JSON that protobuf cannot represent: it is nested too deeply, or has a number too large for a double."""


def read(method: str, request: bytes) -> Members | A2aProblem:
    """Convert a request to the parameters of the same JSON-RPC request."""
    kind, _ = METHODS[method]
    try:
        members = json_format.MessageToDict(CLASSES[kind].FromString(request))
        written = {name: msgspec.json.encode(_whole(value)) for name, value in members.items()}
    except (DecodeError, json_format.Error, ValueError, RecursionError) as error:
        return A2aProblem("invalid_params", f"the request is not a {kind}: {str(error)[:200]}")
    if any(is_dense(text, VALUES_MAX) for text in written.values()):
        return A2aProblem("invalid_params", f"the request has over {VALUES_MAX} values: send less at once, or one text")
    return {name: Raw(text) for name, text in written.items()}


def _whole(value: Any) -> Any:
    """Turn whole floats into ints, because strict servers do not accept `1.0` as an integer."""
    if isinstance(value, float):
        return int(value) if abs(value) <= WHOLE_MAX and value.is_integer() else value
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


def write(method: str, result: Payload) -> bytes:
    """Convert a method's result, or one event of its stream.

    Raises:
        Unwritable: protobuf cannot represent it.
    """
    _, kind = METHODS[method]
    message = CLASSES[kind]()
    try:
        _check_numbers(bytes(result))
        # Only the merged card has unknown fields.
        json_format.Parse(bytes(result), message, ignore_unknown_fields=True)
        written: bytes = message.SerializeToString()
        # Not every version of protobuf refuses to write deeply nested messages, but all refuse to read them.
        message.ParseFromString(written)
    except (DecodeError, json_format.Error, ValueError, OverflowError, RecursionError) as error:
        raise Unwritable(f"the result cannot be written in protobuf: {str(error)[:200]}") from error
    return written


PIECE_BYTES = 64 * 1024
OVERLAP_BYTES = 310
"""Pieces overlap, because a number may cross the end of a piece."""

_LARGE_NUMBER = re.compile(rb"[0-9](?:[eE]\+?[0-9]{3}|[0-9]{308})")
"""Matches every number too large for a double, and some texts."""


def _check_numbers(text: bytes) -> None:
    """Raise ValueError for a number that protobuf would read as Infinity."""
    # In pieces: a search holds the interpreter until it ends, and this runs on a thread beside the event loop.
    starts = range(0, len(text), PIECE_BYTES)
    if any(_LARGE_NUMBER.search(text, at, at + PIECE_BYTES + OVERLAP_BYTES) is not None for at in starts):
        json.loads(text, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large for a double")
    return value


def size_max(data: Payload) -> int:
    """An upper bound for the size of JSON in protobuf, without the cost of converting it."""
    text = bytes(data)
    return len(text) + VALUE_BYTES * (1 + text.count(b",") + text.count(b"[") + text.count(b"{"))


def write_problem(problem: A2aProblem) -> tuple[int, bytes]:
    """The gRPC status number of a problem, and its `google.rpc.Status`."""
    code = STATUSES[PROBLEMS[problem.kind].status]
    details = []
    for detail in details_1_0(problem):
        members = {key: value for key, value in detail.items() if key != "@type"}
        kind = "BadRequest" if "fieldViolations" in members else "ErrorInfo"
        packed = json_format.ParseDict(members, CLASSES[kind]()).SerializeToString()
        details.append(CLASSES["Packed"](type_url=detail["@type"], value=packed))
    status = CLASSES["Status"](code=code, message=problem.message, details=details)
    return code, status.SerializeToString()
