"""A2A 1.0: its JSON objects, its methods, and the results that the hub writes.

JSON-RPC and HTTP+JSON use the same objects; `rest` maps verbs and paths to the methods here, and `protobuf` converts
them for gRPC. They follow the JSON form of protobuf: no empty fields, states and roles as names of enumerations.
Called by the A2A frontend; `client` uses the objects towards agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus.model.tasks import (
    ABSENT,
    ENDED,
    DataPart,
    FilePart,
    Part,
    Role,
    TaskState,
    TextPart,
    Update,
)
from isthmus.wire.a2a.objects import (
    COUNT,
    FLAG,
    ID,
    STRING,
    ArtifactObject,
    ArtifactUpdateObject,
    Members,
    MessageObject,
    ObjectForm,
    Reader,
    StatusObject,
    StatusUpdateObject,
    TaskObject,
    Unreadable,
    bounded_id,
    camel_members,
    check_object,
    invalid,
    is_null,
    null_as_absent,
    optional,
    optional_id,
    optional_object,
    parse_timestamp,
    read_cancel_task,
    read_get_task,
    read_subscribe,
    read_with,
    required,
)
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CreatePushConfig,
    DeletePushConfig,
    DialectName,
    GetExtendedCard,
    GetPushConfig,
    ListPushConfigs,
    ListTasks,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
    TaskPage,
    error_1_0,
)
from isthmus.wire.jsonrpc import Payload

name: DialectName = "1.0"

PAGE_SIZE_MAX = 100
PAGE_SIZE = 50

STATES: Mapping[TaskState, str] = {
    "submitted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELED",
    "input_required": "TASK_STATE_INPUT_REQUIRED",
    "rejected": "TASK_STATE_REJECTED",
    "auth_required": "TASK_STATE_AUTH_REQUIRED",
}
UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
"""The protobuf name for no state."""
ROLES: Mapping[Role, str] = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}

_encode = msgspec.json.Encoder().encode


# Objects.


class PartV10(Struct, omit_defaults=True):
    """A part. Its one content field says what it is: text, bytes of a file, URL of a file, or JSON."""

    text: str | None = None
    raw: str | None = None
    url: str | None = None
    data: Raw = ABSENT
    filename: str | None = None
    mediaType: str | None = None
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        if self.metadata:
            check_object(self.metadata, "metadata")
        given = 3 - (self.text, self.raw, self.url).count(None)
        if given and self.data and is_null(self.data):
            self.data = ABSENT  # null is data only if there is no other content
        if given + bool(self.data) != 1:
            raise ValueError("must have one of text, raw, url and data")


MessageV10: TypeAlias = MessageObject[PartV10]
StatusV10: TypeAlias = StatusObject[MessageV10]
ArtifactV10: TypeAlias = ArtifactObject[PartV10]
TaskV10: TypeAlias = TaskObject[StatusV10, ArtifactV10, MessageV10]
StatusUpdateV10: TypeAlias = StatusUpdateObject[StatusV10]
ArtifactUpdateV10: TypeAlias = ArtifactUpdateObject[ArtifactV10]


class UpdateV10(Struct, omit_defaults=True):
    """The result of `SendMessage`, or a stream event. It has one of these fields."""

    task: TaskV10 | None = None
    message: MessageV10 | None = None
    statusUpdate: StatusUpdateV10 | None = None
    artifactUpdate: ArtifactUpdateV10 | None = None


def read_part(wire: PartV10) -> Part:
    """Read a part."""
    metadata = null_as_absent(wire.metadata)
    if wire.text is not None:
        return TextPart(wire.text, wire.mediaType or None, metadata)
    if wire.data:
        return DataPart(wire.data, wire.mediaType or None, metadata)
    return FilePart(wire.raw, wire.url, wire.filename or None, wire.mediaType or None, metadata)


def write_part(part: Part) -> PartV10:
    """Write a part."""
    match part:
        case TextPart():
            return PartV10(text=part.text, mediaType=part.media_type, metadata=part.metadata)
        case DataPart():
            return PartV10(data=part.data, mediaType=part.media_type, metadata=part.metadata)
        case FilePart():
            url = part.url if part.content is None else None
            raw = None if url is not None else part.content or ""
            return PartV10(None, raw, url, ABSENT, part.name, part.media_type, part.metadata)


FORM: ObjectForm[PartV10, MessageV10, StatusV10, ArtifactV10, TaskV10] = ObjectForm(
    states=STATES,
    roles=ROLES,
    read_part=read_part,
    write_part=write_part,
    message_type=MessageObject,
    status_type=StatusObject,
    artifact_type=ArtifactObject,
    task_type=TaskObject,
    status_update_type=StatusUpdateObject,
    artifact_update_type=ArtifactUpdateObject,
    has_final=False,
)


def read_update(wire: UpdateV10) -> Update | None:
    """Read a stream event of an agent; None if it is empty."""
    if wire.task is not None:
        return FORM.read_task(wire.task)
    if wire.message is not None:
        return FORM.read_message(wire.message, is_alone=True)
    if wire.statusUpdate is not None:
        # There is no `final` field: the update of an ended task is the last one.
        status = FORM.read_status(wire.statusUpdate.status)
        return FORM.read_status_update(wire.statusUpdate, status, is_last=status.state in ENDED)
    if wire.artifactUpdate is not None:
        return FORM.read_artifact_update(wire.artifactUpdate, is_complete=bool(wire.artifactUpdate.lastChunk))
    return None


# Requests.


class _PushAuthenticationV10(Struct, omit_defaults=True):
    scheme: str
    credentials: str | None = None


class _PushConfigV10(Struct, omit_defaults=True):
    url: Annotated[str, Meta(min_length=1)]
    id: str | None = None
    taskId: str | None = None
    token: str | None = None
    authentication: _PushAuthenticationV10 | None = None


class _SendConfigurationV10(Struct):
    acceptedOutputModes: list[str] | None = None
    taskPushNotificationConfig: _PushConfigV10 | None = None
    historyLength: Annotated[int, Meta(ge=0)] | None = None
    returnImmediately: bool | None = None


_MESSAGE: msgspec.json.Decoder[MessageV10] = msgspec.json.Decoder(MessageV10)
_CONFIGURATION = msgspec.json.Decoder(_SendConfigurationV10)
_AUTHENTICATION = msgspec.json.Decoder(_PushAuthenticationV10)
_URL = msgspec.json.Decoder(Annotated[str, Meta(min_length=1)])
_PAGE_SIZE = msgspec.json.Decoder(Annotated[int, Meta(ge=1, le=PAGE_SIZE_MAX)])


def read(method: str, params: Members) -> Operation | A2aProblem:
    """Read a request."""
    return read_with(_READERS, method, camel_members(params))


def _read_send(params: Members, *, is_stream: bool) -> SendMessage:
    wire = required(_MESSAGE, params, "message")
    configuration = optional(_CONFIGURATION, params, "configuration") or _SendConfigurationV10()
    push = configuration.taskPushNotificationConfig
    return SendMessage(
        FORM.read_request_message(wire),
        bounded_id(wire.taskId, "message.taskId"),
        bounded_id(wire.contextId, "message.contextId"),
        waits=not configuration.returnImmediately,
        is_stream=is_stream,
        history_length=configuration.historyLength,
        output_modes=tuple(configuration.acceptedOutputModes or ()),
        push=None if push is None else _read_push_config(push),
        metadata=optional_object(params, "metadata"),
    )


def _read_push_config(push: _PushConfigV10) -> PushConfig:
    id = bounded_id(push.id, "id of a push notification config") or ""
    auth = push.authentication or _PushAuthenticationV10("")
    return PushConfig(push.url, id, push.token or None, auth.scheme or None, auth.credentials or None)


def _read_list_tasks(params: Members) -> ListTasks:
    state = optional(STRING, params, "status") or UNSPECIFIED
    if state != UNSPECIFIED and state not in FORM.state_of:
        raise Unreadable(invalid("status", f"must be one of {', '.join(FORM.state_of)}"))
    after = optional(STRING, params, "statusTimestampAfter")
    if after is not None and parse_timestamp(after) is None:
        raise Unreadable(invalid("statusTimestampAfter", "must be a timestamp like 2026-01-31T12:00:00Z"))
    return ListTasks(
        optional_id(params, "contextId"),
        FORM.state_of.get(state),
        parse_timestamp(after),
        optional(_PAGE_SIZE, params, "pageSize") or PAGE_SIZE,
        optional(STRING, params, "pageToken") or "",
        optional(COUNT, params, "historyLength"),
        optional(FLAG, params, "includeArtifacts") or False,
    )


def _read_create_push(params: Members) -> CreatePushConfig:
    task = required(ID, params, "taskId")
    auth = optional(_AUTHENTICATION, params, "authentication")
    token = optional(STRING, params, "token")
    push = _PushConfigV10(required(_URL, params, "url"), optional_id(params, "id"), task, token, auth)
    return CreatePushConfig(task, _read_push_config(push))


_READERS: dict[str, Reader] = {
    "SendMessage": partial(_read_send, is_stream=False),
    "SendStreamingMessage": partial(_read_send, is_stream=True),
    "GetTask": read_get_task,
    "ListTasks": _read_list_tasks,
    "CancelTask": read_cancel_task,
    "SubscribeToTask": read_subscribe,
    "CreateTaskPushNotificationConfig": _read_create_push,
    "GetTaskPushNotificationConfig": lambda params: GetPushConfig(
        required(ID, params, "taskId"), required(ID, params, "id")
    ),
    "ListTaskPushNotificationConfigs": lambda params: ListPushConfigs(
        required(ID, params, "taskId"),
        optional(COUNT, params, "pageSize") or PAGE_SIZE,
        optional(STRING, params, "pageToken") or "",
    ),
    "DeleteTaskPushNotificationConfig": lambda params: DeletePushConfig(
        required(ID, params, "taskId"), required(ID, params, "id")
    ),
    "GetExtendedAgentCard": lambda params: GetExtendedCard(),
}
METHODS = frozenset(_READERS)


# Results.


class _TaskPageV10(Struct):
    tasks: list[TaskV10]
    nextPageToken: str
    pageSize: int
    totalSize: int


class _PushConfigPageV10(Struct, omit_defaults=True):
    configs: list[_PushConfigV10]
    nextPageToken: str = ""


write_sent = FORM.encode_sent
write_task = FORM.encode_task
write_cancelled = FORM.encode_cancelled
write_update = FORM.encode_update


def write_tasks(page: TaskPage, asked: ListTasks) -> Payload:
    """Write the result of `ListTasks`. If artifacts were requested, an empty list is written, too."""
    with_artifacts = asked.has_artifacts
    tasks = [FORM.write_task(task, asked.history_length, with_empty_artifacts=with_artifacts) for task in page.tasks]
    if not with_artifacts:
        for task in tasks:
            task.artifacts = None
    return _encode(_TaskPageV10(tasks, page.next_token, page.page_size, page.total))


def write_push(task: str, target: PushConfig) -> Payload:
    """Write one push notification config."""
    return _encode(_write_push_config(task, target))


def _write_push_config(task: str, target: PushConfig) -> _PushConfigV10:
    auth = None if target.scheme is None else _PushAuthenticationV10(target.scheme, target.credentials)
    return _PushConfigV10(target.url, target.id or None, task, target.token, auth)


def write_pushes(page: PushConfigPage) -> Payload:
    """Write the result of `ListPushConfigs`."""
    configs = [_write_push_config(page.task, target) for target in page.targets]
    return _encode(_PushConfigPageV10(configs, page.next_token))


def write_deleted() -> Payload:
    """Write the result of `DeletePushConfig`."""
    return b"{}"


def write_problem(problem: A2aProblem) -> tuple[int, str, Payload | None]:
    """Code, message and data of a JSON-RPC error."""
    return error_1_0(problem)
