"""A2A 0.3 over REST: the operations of `v0_3` with the objects of its protobuf in JSON.

A message has `content`, data is nested in another object, states and roles are names of enumerations, and field names
may be in snake_case as well. Routes and errors are in `rest`. Called by the A2A frontend; `client` uses the objects
towards agents.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, TypeVar

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
from isthmus.wire.a2a import v0_3
from isthmus.wire.a2a.objects import (
    ID,
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
    check_object,
    data_as_object,
    data_metadata,
    decoded,
    invalid,
    is_object,
    null_as_absent,
    optional,
    optional_object,
    read_with,
    required,
    restore_data,
)
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CreatePushConfig,
    DialectName,
    ListTasks,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
    TaskPage,
)
from isthmus.wire.jsonrpc import Payload, render

name: DialectName = "0.3"

STATES: Mapping[TaskState, str] = {
    "submitted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELLED",
    "input_required": "TASK_STATE_INPUT_REQUIRED",
    "rejected": "TASK_STATE_REJECTED",
    "auth_required": "TASK_STATE_AUTH_REQUIRED",
}
ROLES: Mapping[Role, str] = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode


# Parts.


class _FileRest(Struct, omit_defaults=True):
    fileWithUri: str | None = None
    fileWithBytes: str | None = None
    mimeType: str | None = None
    name: str | None = None
    file_with_uri: str | None = None
    file_with_bytes: str | None = None
    mime_type: str | None = None


class _DataRest(Struct):
    data: Raw

    def __post_init__(self) -> None:
        if not is_object(self.data):
            raise ValueError("data must be an object")


class PartRest(Struct, omit_defaults=True):
    """A part. Its one content field says what it is."""

    text: str | None = None
    file: _FileRest | None = None
    data: _DataRest | None = None
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")
        if (self.text is not None) + (self.file is not None) + (self.data is not None) != 1:
            raise ValueError("must have one of text, file and data")


def read_part(wire: PartRest) -> Part:
    """Read a part."""
    metadata = null_as_absent(wire.metadata)
    if wire.text is not None:
        return TextPart(wire.text, metadata=metadata)
    if wire.data is not None:
        data, metadata = restore_data(wire.data.data, metadata)
        return DataPart(data, metadata=metadata)
    file = wire.file or _FileRest()
    content = _decode_twice_encoded(file.fileWithBytes or file.file_with_bytes) or None
    url = file.fileWithUri or file.file_with_uri or None
    return FilePart(content, url, file.name or None, file.mimeType or file.mime_type or None, metadata)


def write_part(part: Part) -> PartRest:
    """Write a part."""
    match part:
        case TextPart():
            return PartRest(text=part.text, metadata=part.metadata)
        case DataPart():
            data = _DataRest(data_as_object(part.data))
            return PartRest(data=data, metadata=data_metadata(part.data, part.metadata))
        case FilePart():
            url = part.url if part.content is None else None
            # The official SDK takes the base64 text of a file for its bytes, and so encodes it twice. It reads files
            # that are encoded once only if they are text.
            content = None if url is not None else base64.b64encode((part.content or "").encode()).decode()
            return PartRest(file=_FileRest(url, content, part.media_type, part.name), metadata=part.metadata)


_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def _decode_twice_encoded(content: str | None) -> str | None:
    """A file's base64, whether it is encoded once or twice."""
    try:
        inner = base64.b64decode(content or "", validate=True)
    except (binascii.Error, ValueError):
        return content
    return inner.decode() if inner and _BASE64.fullmatch(inner) else content


# Objects. Protobuf leaves out empty fields, and its readers accept snake_case names: `__post_init__` moves those.


class MessageRest(MessageObject[PartRest], rename={"parts": "content"}, kw_only=True):
    """A message."""

    messageId: str = ""
    role: str = ""
    parts: list[PartRest] | None = None
    message_id: str = ""
    context_id: str | None = None
    task_id: str | None = None

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")
        self.messageId, self.message_id = self.messageId or self.message_id, ""
        self.contextId, self.context_id = self.contextId or self.context_id, None
        self.taskId, self.task_id = self.taskId or self.task_id, None


class StatusRest(StatusObject[MessageRest], kw_only=True):
    """The status of a task."""

    state: str = ""
    update: MessageRest | None = None
    """The protobuf name of `message`."""

    def __post_init__(self) -> None:
        self.message, self.update = self.message or self.update, None


class ArtifactRest(ArtifactObject[PartRest], kw_only=True):
    """An artifact."""

    artifactId: str = ""
    artifact_id: str = ""

    def __post_init__(self) -> None:
        self.artifactId, self.artifact_id = self.artifactId or self.artifact_id, ""
        self.name, self.description = self.name or None, self.description or None


class TaskRest(TaskObject[StatusRest, ArtifactRest, MessageRest], kw_only=True):
    """A task."""

    context_id: str = ""

    def __post_init__(self) -> None:
        self.contextId, self.context_id = self.contextId or self.context_id, ""


class StatusUpdateRest(StatusUpdateObject[StatusRest], kw_only=True):
    """A stream event: the task has a new status."""

    taskId: str = ""
    contextId: str = ""
    final: bool = False
    task_id: str = ""
    context_id: str = ""

    def __post_init__(self) -> None:
        self.taskId, self.task_id = self.taskId or self.task_id, ""
        self.contextId, self.context_id = self.contextId or self.context_id, ""


class ArtifactUpdateRest(ArtifactUpdateObject[ArtifactRest], kw_only=True):
    """A stream event: an artifact, or the next chunk of one."""

    taskId: str = ""
    contextId: str = ""
    task_id: str = ""
    context_id: str = ""
    last_chunk: bool | None = None

    def __post_init__(self) -> None:
        self.taskId, self.task_id = self.taskId or self.task_id, ""
        self.contextId, self.context_id = self.contextId or self.context_id, ""
        self.lastChunk, self.last_chunk = self.lastChunk or self.last_chunk, None


class UpdateRest(Struct):
    """The result of `message:send`, or a stream event. It has one of these fields."""

    task: TaskRest | None = None
    message: MessageRest | None = None
    msg: MessageRest | None = None
    """The protobuf name of `message`."""
    statusUpdate: StatusUpdateRest | None = None
    status_update: StatusUpdateRest | None = None
    artifactUpdate: ArtifactUpdateRest | None = None
    artifact_update: ArtifactUpdateRest | None = None


FORM: ObjectForm[PartRest, MessageRest, StatusRest, ArtifactRest, TaskRest] = ObjectForm(
    states=STATES,
    roles=ROLES,
    read_part=read_part,
    write_part=write_part,
    message_type=MessageRest,
    status_type=StatusRest,
    artifact_type=ArtifactRest,
    task_type=TaskRest,
    status_update_type=StatusUpdateRest,
    artifact_update_type=ArtifactUpdateRest,
    parts_name="content",
    has_references=False,
    other_states={"TASK_STATE_CANCELED": "canceled"},
)


def read_update(wire: UpdateRest) -> Update | None:
    """Read a stream event of an agent; None if it is empty."""
    if wire.task is not None:
        return FORM.read_task(wire.task)
    if (message := wire.message or wire.msg) is not None:
        return FORM.read_message(message, is_alone=True)
    if (update := wire.statusUpdate or wire.status_update) is not None:
        status = FORM.read_status(update.status)
        return FORM.read_status_update(update, status, is_last=update.final or status.state in ENDED)
    if (chunk := wire.artifactUpdate or wire.artifact_update) is not None:
        return FORM.read_artifact_update(chunk, is_complete=bool(chunk.lastChunk))
    return None


# Requests.


class _PushAuthenticationRest(Struct):
    schemes: list[str] | None = None
    credentials: str | None = None


class _PushConfigRest(Struct):
    url: Annotated[str, Meta(min_length=1)]
    id: str | None = None
    token: str | None = None
    authentication: _PushAuthenticationRest | None = None


class _CreatePushConfigRest(Struct):
    pushNotificationConfig: _PushConfigRest | None = None
    push_notification_config: _PushConfigRest | None = None


class _NamedPushConfigRest(Struct):
    name: str
    pushNotificationConfig: v0_3.PushConfigV03


class _SendConfigurationRest(Struct):
    acceptedOutputModes: list[str] | None = None
    accepted_output_modes: list[str] | None = None
    pushNotification: _PushConfigRest | None = None
    push_notification: _PushConfigRest | None = None
    historyLength: Annotated[int, Meta(ge=0)] | None = None
    history_length: Annotated[int, Meta(ge=0)] | None = None
    blocking: bool | None = None


_MESSAGE = msgspec.json.Decoder(MessageRest)
_CONFIGURATION = msgspec.json.Decoder(_SendConfigurationRest)
_CREATE_PUSH_CONFIG = msgspec.json.Decoder(_CreatePushConfigRest)


def read(method: str, params: Members) -> Operation | A2aProblem:
    """Read a request. Requests without a body are the same as in `v0_3`."""
    return read_with(_READERS, method, params) if method in _READERS else v0_3.read(method, params)


def _either(one: _T | None, other: _T | None) -> _T | None:
    return other if one is None else one


def _read_send(params: Members, *, is_stream: bool) -> SendMessage:
    wire = required(_MESSAGE, params, "message")
    # Protobuf leaves out fields that are false: in a configuration, an absent `blocking` is false.
    configuration = optional(_CONFIGURATION, params, "configuration") or _SendConfigurationRest(blocking=True)
    push = _either(configuration.pushNotification, configuration.push_notification)
    modes = _either(configuration.acceptedOutputModes, configuration.accepted_output_modes)
    return SendMessage(
        FORM.read_request_message(wire),
        bounded_id(wire.taskId, "message.taskId"),
        bounded_id(wire.contextId, "message.contextId"),
        waits=configuration.blocking is True,
        is_stream=is_stream,
        history_length=_either(configuration.historyLength, configuration.history_length),
        output_modes=tuple(modes or ()),
        push=None if push is None else _read_push_config(push),
        metadata=optional_object(params, "metadata"),
    )


def _read_push_config(push: _PushConfigRest) -> PushConfig:
    id = bounded_id(push.id, "id of a push notification config") or ""
    auth = push.authentication or _PushAuthenticationRest()
    scheme = auth.schemes[0] if auth.schemes else None
    return PushConfig(push.url, id, push.token or None, scheme, auth.credentials or None)


def _read_create_push(params: Members) -> CreatePushConfig:
    # The specification's route takes the config alone, the route of the official SDK the request around it.
    body: Payload = params["config"] if "config" in params else render(params)
    request = decoded(_CREATE_PUSH_CONFIG, body, "config")
    push = _either(request.pushNotificationConfig, request.push_notification_config)
    if push is None:
        raise Unreadable(invalid("config.pushNotificationConfig", "is required"))
    return CreatePushConfig(required(ID, params, "taskId"), _read_push_config(push))


_READERS: dict[str, Reader] = {
    "message/send": partial(_read_send, is_stream=False),
    "message/stream": partial(_read_send, is_stream=True),
    "tasks/pushNotificationConfig/set": _read_create_push,
}


# Results.


write_sent = FORM.encode_sent
write_task = FORM.encode_task
write_cancelled = FORM.encode_cancelled
write_update = FORM.encode_update


def write_tasks(page: TaskPage, asked: ListTasks) -> Payload:
    """Write a list of tasks. This generation has no route for it."""
    return _encode({"tasks": [FORM.write_task(task, asked.history_length) for task in page.tasks]})


def _named_push_config(task: str, target: PushConfig) -> _NamedPushConfigRest:
    return _NamedPushConfigRest(f"tasks/{task}/pushNotificationConfigs/{target.id}", v0_3.write_push_config(target))


def write_push(task: str, target: PushConfig) -> Payload:
    """Write one push notification config."""
    return _encode(_named_push_config(task, target))


def write_pushes(page: PushConfigPage) -> Payload:
    """Write the result of `ListPushConfigs`."""
    return _encode({"configs": [_named_push_config(page.task, target) for target in page.targets]})


def write_deleted() -> Payload:
    """Write the result of `DeletePushConfig`."""
    return b"{}"


write_problem = v0_3.write_problem
