"""A2A 1.0 in protobuf, for gRPC: the schema, and the conversion from and to the JSON that `v1_0` reads and writes.

The schema is text, not generated code or a compiled descriptor set. Generated code works with one version of the
protobuf runtime only. A descriptor set would be a binary file that nobody can review, and needs `protoc` for each
change; the code that it would replace is the sixty lines below the schema. The classes are in their own descriptor
pool, so that a program can load the official types as well. Needs protobuf, which `isthmus[grpc]` installs.

Numbers in protobuf data are doubles, and keys have no order: whole numbers are exact up to 2**53. Called by the A2A
frontend.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    empty_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
)
from google.protobuf.message import DecodeError
from msgspec import Raw

from isthmus.wire.a2a.operations import A2aProblem
from isthmus.wire.a2a.problems import PROBLEMS, details_1_0
from isthmus.wire.jsonrpc import VALUES_MAX, Payload, is_dense

PACKAGE = "lf.a2a.v1"
SERVICE = f"{PACKAGE}.A2AService"

_ENUMS: Mapping[str, str] = {
    "TaskState": """
        TASK_STATE_UNSPECIFIED TASK_STATE_SUBMITTED TASK_STATE_WORKING TASK_STATE_COMPLETED TASK_STATE_FAILED
        TASK_STATE_CANCELED TASK_STATE_INPUT_REQUIRED TASK_STATE_REJECTED TASK_STATE_AUTH_REQUIRED
    """,
    "Role": "ROLE_UNSPECIFIED ROLE_USER ROLE_AGENT",
}
"""The names of the values, which are numbered from 0."""

_MESSAGES: Mapping[str, str] = {
    "SendMessageConfiguration": """
        repeated string accepted_output_modes = 1
        TaskPushNotificationConfig task_push_notification_config = 2
        optional int32 history_length = 3
        bool return_immediately = 4
    """,
    "Task": """
        string id = 1
        string context_id = 2
        TaskStatus status = 3
        repeated Artifact artifacts = 4
        repeated Message history = 5
        Struct metadata = 6
    """,
    "TaskStatus": """
        TaskState state = 1
        Message message = 2
        Timestamp timestamp = 3
    """,
    "Part": """
        string text = 1 of content
        bytes raw = 2 of content
        string url = 3 of content
        Value data = 4 of content
        Struct metadata = 5
        string filename = 6
        string media_type = 7
    """,
    "Message": """
        string message_id = 1
        string context_id = 2
        string task_id = 3
        Role role = 4
        repeated Part parts = 5
        Struct metadata = 6
        repeated string extensions = 7
        repeated string reference_task_ids = 8
    """,
    "Artifact": """
        string artifact_id = 1
        string name = 2
        string description = 3
        repeated Part parts = 4
        Struct metadata = 5
        repeated string extensions = 6
    """,
    "TaskStatusUpdateEvent": """
        string task_id = 1
        string context_id = 2
        TaskStatus status = 3
        Struct metadata = 4
    """,
    "TaskArtifactUpdateEvent": """
        string task_id = 1
        string context_id = 2
        Artifact artifact = 3
        bool append = 4
        bool last_chunk = 5
        Struct metadata = 6
    """,
    "AuthenticationInfo": """
        string scheme = 1
        string credentials = 2
    """,
    "TaskPushNotificationConfig": """
        string tenant = 1
        string id = 2
        string task_id = 3
        string url = 4
        string token = 5
        AuthenticationInfo authentication = 6
    """,
    # The card.
    "AgentCard": """
        string name = 1
        string description = 2
        repeated AgentInterface supported_interfaces = 3
        AgentProvider provider = 4
        string version = 5
        optional string documentation_url = 6
        AgentCapabilities capabilities = 7
        map<string, SecurityScheme> security_schemes = 8
        repeated SecurityRequirement security_requirements = 9
        repeated string default_input_modes = 10
        repeated string default_output_modes = 11
        repeated AgentSkill skills = 12
        repeated AgentCardSignature signatures = 13
        optional string icon_url = 14
    """,
    "AgentInterface": """
        string url = 1
        string protocol_binding = 2
        string tenant = 3
        string protocol_version = 4
    """,
    "AgentProvider": """
        string url = 1
        string organization = 2
    """,
    "AgentCapabilities": """
        optional bool streaming = 1
        optional bool push_notifications = 2
        repeated AgentExtension extensions = 3
        optional bool extended_agent_card = 4
    """,
    "AgentExtension": """
        string uri = 1
        string description = 2
        bool required = 3
        Struct params = 4
    """,
    "AgentSkill": """
        string id = 1
        string name = 2
        string description = 3
        repeated string tags = 4
        repeated string examples = 5
        repeated string input_modes = 6
        repeated string output_modes = 7
        repeated SecurityRequirement security_requirements = 8
    """,
    "AgentCardSignature": """
        string protected = 1
        string signature = 2
        Struct header = 3
    """,
    "StringList": """
        repeated string list = 1
    """,
    "SecurityRequirement": """
        map<string, StringList> schemes = 1
    """,
    "SecurityScheme": """
        APIKeySecurityScheme api_key_security_scheme = 1 of scheme
        HTTPAuthSecurityScheme http_auth_security_scheme = 2 of scheme
        OAuth2SecurityScheme oauth2_security_scheme = 3 of scheme
        OpenIdConnectSecurityScheme open_id_connect_security_scheme = 4 of scheme
        MutualTlsSecurityScheme mtls_security_scheme = 5 of scheme
    """,
    "APIKeySecurityScheme": """
        string description = 1
        string location = 2
        string name = 3
    """,
    "HTTPAuthSecurityScheme": """
        string description = 1
        string scheme = 2
        string bearer_format = 3
    """,
    "OAuth2SecurityScheme": """
        string description = 1
        OAuthFlows flows = 2
        string oauth2_metadata_url = 3
    """,
    "OpenIdConnectSecurityScheme": """
        string description = 1
        string open_id_connect_url = 2
    """,
    "MutualTlsSecurityScheme": """
        string description = 1
    """,
    "OAuthFlows": """
        AuthorizationCodeOAuthFlow authorization_code = 1 of flow
        ClientCredentialsOAuthFlow client_credentials = 2 of flow
    """,
    "AuthorizationCodeOAuthFlow": """
        string authorization_url = 1
        string token_url = 2
        string refresh_url = 3
        map<string, string> scopes = 4
        bool pkce_required = 5
    """,
    "ClientCredentialsOAuthFlow": """
        string token_url = 1
        string refresh_url = 2
        map<string, string> scopes = 3
    """,
    # Requests and answers.
    "SendMessageRequest": """
        string tenant = 1
        Message message = 2
        SendMessageConfiguration configuration = 3
        Struct metadata = 4
    """,
    "SendMessageResponse": """
        Task task = 1 of payload
        Message message = 2 of payload
    """,
    "StreamResponse": """
        Task task = 1 of payload
        Message message = 2 of payload
        TaskStatusUpdateEvent status_update = 3 of payload
        TaskArtifactUpdateEvent artifact_update = 4 of payload
    """,
    "GetTaskRequest": """
        string tenant = 1
        string id = 2
        optional int32 history_length = 3
    """,
    "ListTasksRequest": """
        string tenant = 1
        string context_id = 2
        TaskState status = 3
        optional int32 page_size = 4
        string page_token = 5
        optional int32 history_length = 6
        Timestamp status_timestamp_after = 7
        optional bool include_artifacts = 8
    """,
    "ListTasksResponse": """
        repeated Task tasks = 1
        string next_page_token = 2
        int32 page_size = 3
        int32 total_size = 4
    """,
    "CancelTaskRequest": """
        string tenant = 1
        string id = 2
        Struct metadata = 3
    """,
    "SubscribeToTaskRequest": """
        string tenant = 1
        string id = 2
    """,
    "GetTaskPushNotificationConfigRequest": """
        string tenant = 1
        string task_id = 2
        string id = 3
    """,
    "DeleteTaskPushNotificationConfigRequest": """
        string tenant = 1
        string task_id = 2
        string id = 3
    """,
    "ListTaskPushNotificationConfigsRequest": """
        string task_id = 1
        int32 page_size = 2
        string page_token = 3
        string tenant = 4
    """,
    "ListTaskPushNotificationConfigsResponse": """
        repeated TaskPushNotificationConfig configs = 1
        string next_page_token = 2
    """,
    "GetExtendedAgentCardRequest": """
        string tenant = 1
    """,
    # What `google.rpc` says an error is, under names of ours: only their bytes are ever seen.
    "Status": """
        int32 code = 1
        string message = 2
        repeated Packed details = 3
    """,
    "Packed": """
        string type_url = 1
        bytes value = 2
    """,
    "ErrorInfo": """
        string reason = 1
        string domain = 2
        map<string, string> metadata = 3
    """,
    "BadRequest": """
        repeated FieldViolation field_violations = 1
    """,
    "FieldViolation": """
        string field = 1
        string description = 2
    """,
}
"""The fields of each, a line each, as a description of protobuf's would have them."""

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

_WELL_KNOWN = (struct_pb2, timestamp_pb2, empty_pb2)
_LINE = re.compile(r"(?:(optional|repeated) )?(?:map<string, (\w+)>|(\w+)) (\w+) = (\d+)(?: of (\w+))?")

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
}


def _file() -> Any:
    needed = [each.DESCRIPTOR.name for each in _WELL_KNOWN]
    file = descriptor_pb2.FileDescriptorProto(
        name="isthmus/a2a.proto", package=PACKAGE, syntax="proto3", dependency=needed
    )
    for name, words in _ENUMS.items():
        values = [{"name": word, "number": number} for number, word in enumerate(words.split())]
        file.enum_type.add(name=name, value=[descriptor_pb2.EnumValueDescriptorProto(**value) for value in values])
    for name, lines in _MESSAGES.items():
        _describe(file.message_type.add(name=name), lines)
    return file


def _describe(message: Any, lines: str) -> None:
    for line in lines.strip().splitlines():
        found = _LINE.fullmatch(line.strip())
        assert found is not None, f"{line!r} is not a field"
        label, mapped, kind, name, number, choice = found.groups()
        kind = kind or _map_entry(message, name, mapped)
        field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if label == "repeated" or mapped:
            field.label = _Field.LABEL_REPEATED
        field.proto3_optional = label == "optional"
        _type(field, kind)
        if choice or label == "optional":
            field.oneof_index = _choice(message, choice or f"_{name}")


def _map_entry(message: Any, name: str, mapped: str) -> str:
    """Describe a map, which in protobuf is a repeated message of keys and values."""
    entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _describe(entry, f"string key = 1\n{mapped} value = 2")
    return f"{message.name}.{entry.name}"


def _type(field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in _ENUMS else _Field.TYPE_MESSAGE
        field.type_name = f".{full_name(kind)}"


def _choice(message: Any, name: str) -> int:
    """The index of a `oneof` in its message."""
    names = [each.name for each in message.oneof_decl]
    if name not in names:
        message.oneof_decl.add(name=name)
        return len(names)
    return names.index(name)


def full_name(kind: str) -> str:
    """The full name of a message, with its package."""
    is_known = any(kind in each.DESCRIPTOR.message_types_by_name for each in _WELL_KNOWN)
    return f"google.protobuf.{kind}" if is_known else f"{PACKAGE}.{kind}"


def _classes() -> Iterator[tuple[str, Any]]:
    pool = descriptor_pool.DescriptorPool()
    for each in _WELL_KNOWN:
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(_file().SerializeToString())
    for name in (*_MESSAGES, "Empty"):
        yield name, message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name(name)))


CLASSES: Mapping[str, Any] = dict(_classes())
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
