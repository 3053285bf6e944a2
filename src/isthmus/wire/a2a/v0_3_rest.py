"""A2A 0.3 over plain HTTP: the operations of `v0_3` in the JSON form of its protobuf, whose shapes are others.

A message has `content`, data lies in another object, states and roles are names of enumerations, and members may be
spelt with underscores too, as every reader of that form accepts. Routes and errors are in `rest`.
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

from isthmus.model.conversation import (
    ABSENT,
    Artifact,
    ArtifactUpdate,
    Data,
    File,
    Message,
    Part,
    Role,
    Status,
    StatusUpdate,
    Task,
    TaskState,
    Text,
    Update,
)
from isthmus.wire.a2a import v0_3
from isthmus.wire.a2a.operations import (
    DialectName,
    List,
    Operation,
    Problem,
    PushPage,
    PushTarget,
    Send,
    SetPush,
    TaskPage,
)
from isthmus.wire.a2a.parts import (
    ID,
    Members,
    Reader,
    Unreadable,
    as_object,
    bounded_id,
    check_object,
    check_parts,
    decoded,
    invalid,
    is_object,
    latest,
    marked,
    optional,
    optional_object,
    read_by,
    required,
    said,
    timestamp,
    unmarked,
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
ROLE_OF: Mapping[str, Role] = {word: role for role, word in ROLES.items()}

_T = TypeVar("_T")


class _File(Struct, omit_defaults=True):
    fileWithUri: str | None = None
    fileWithBytes: str | None = None
    mimeType: str | None = None
    name: str | None = None
    file_with_uri: str | None = None
    file_with_bytes: str | None = None
    mime_type: str | None = None


class _Data(Struct):
    data: Raw

    def __post_init__(self) -> None:
        if not is_object(self.data):
            raise ValueError("data must be an object")


class _Part(Struct, omit_defaults=True):
    text: str | None = None
    file: _File | None = None
    data: _Data | None = None
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")
        if (self.text is not None) + (self.file is not None) + (self.data is not None) != 1:
            raise ValueError("must have one of text, file and data")


class _Message(Struct, omit_defaults=True):
    messageId: str = ""
    contextId: str | None = None
    taskId: str | None = None
    role: str = ""
    content: list[_Part] | None = None
    metadata: Raw = ABSENT
    extensions: list[str] | None = None
    message_id: str = ""
    context_id: str | None = None
    task_id: str | None = None

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class _Status(Struct, omit_defaults=True):
    state: str
    message: _Message | None = None
    timestamp: str | None = None


class _Artifact(Struct, omit_defaults=True):
    artifactId: str
    parts: list[_Part]
    name: str | None = None
    description: str | None = None
    metadata: Raw = ABSENT
    extensions: list[str] | None = None


class _Task(Struct, omit_defaults=True):
    id: str
    contextId: str
    status: _Status
    artifacts: list[_Artifact] | None = None
    history: list[_Message] | None = None
    metadata: Raw = ABSENT


class _StatusUpdate(Struct, omit_defaults=True):
    taskId: str
    contextId: str
    status: _Status
    final: bool = False
    metadata: Raw = ABSENT


class _ArtifactUpdate(Struct, omit_defaults=True):
    taskId: str
    contextId: str
    artifact: _Artifact
    append: bool = False
    lastChunk: bool = False
    metadata: Raw = ABSENT


class _Authentication(Struct):
    schemes: list[str] | None = None
    credentials: str | None = None


class _Push(Struct):
    url: Annotated[str, Meta(min_length=1)]
    id: str | None = None
    token: str | None = None
    authentication: _Authentication | None = None


class _NamedPush(Struct):
    pushNotificationConfig: _Push | None = None
    push_notification_config: _Push | None = None


class _TaskPush(Struct):
    name: str
    pushNotificationConfig: v0_3.Push


class _Configuration(Struct):
    acceptedOutputModes: list[str] | None = None
    accepted_output_modes: list[str] | None = None
    pushNotification: _Push | None = None
    push_notification: _Push | None = None
    historyLength: Annotated[int, Meta(ge=0)] | None = None
    history_length: Annotated[int, Meta(ge=0)] | None = None
    blocking: bool | None = None


_MESSAGE = msgspec.json.Decoder(_Message)
_PART = msgspec.json.Decoder(_Part)
decode_message = _MESSAGE.decode
decode_part = _PART.decode
"""A message and a part as they are on the wire, for who reads them from the other side; raise as msgspec does."""
_CONFIGURATION = msgspec.json.Decoder(_Configuration)
_NAMED_PUSH = msgspec.json.Decoder(_NamedPush)
_encode = msgspec.json.Encoder().encode


# What is asked.


def read(method: str, params: Members) -> Operation | Problem:
    """What a request asks for; what needs no body is read as in the other binding."""
    return read_by(_READERS, method, params) if method in _READERS else v0_3.read(method, params)


def _either(one: _T | None, other: _T | None) -> _T | None:
    return other if one is None else one


def _read_send(params: Members, *, is_stream: bool) -> Send:
    wire = required(_MESSAGE, params, "message")
    # Protobuf's JSON leaves out what is false: in a configuration, an absent `blocking` is false.
    configuration = optional(_CONFIGURATION, params, "configuration") or _Configuration(blocking=True)
    push = _either(configuration.pushNotification, configuration.push_notification)
    modes = _either(configuration.acceptedOutputModes, configuration.accepted_output_modes)
    return Send(
        _read_message(wire),
        bounded_id(wire.taskId or wire.task_id, "message.taskId"),
        bounded_id(wire.contextId or wire.context_id, "message.contextId"),
        waits=configuration.blocking is True,
        is_stream=is_stream,
        history_length=_either(configuration.historyLength, configuration.history_length),
        output_modes=tuple(modes or ()),
        push=None if push is None else _target_of(push),
        metadata=optional_object(params, "metadata"),
    )


def _read_message(wire: _Message) -> Message:
    id = bounded_id(wire.messageId or wire.message_id, "message.messageId")
    if id is None:
        raise Unreadable(invalid("message.messageId", "is required"))
    if wire.role not in ROLE_OF:
        raise Unreadable(invalid("message.role", f"must be one of {', '.join(ROLE_OF)}"))
    content = wire.content or []
    check_parts(content, "message.content")
    parts = tuple(part_of(part) for part in content)
    return Message(id, ROLE_OF[wire.role], parts, said(wire.metadata), tuple(wire.extensions or ()))


def part_of(wire: _Part) -> Part:
    """A part as it is meant."""
    metadata = said(wire.metadata)
    if wire.text is not None:
        return Text(wire.text, metadata=metadata)
    if wire.data is not None:
        data, metadata = unmarked(wire.data.data, metadata)
        return Data(data, metadata=metadata)
    file = wire.file or _File()
    content = _unpacked(file.fileWithBytes or file.file_with_bytes) or None
    url = file.fileWithUri or file.file_with_uri or None
    return File(content, url, file.name or None, file.mimeType or file.mime_type or None, metadata)


# The official SDK takes the base64 text of a file for its bytes, and so sends and expects it encoded once more: what is
# written otherwise it cannot read, unless the file is text.

_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def _packed(content: str) -> str:
    return base64.b64encode(content.encode()).decode()


def _unpacked(content: str | None) -> str | None:
    """A file's base64, once more encoded or not."""
    try:
        inner = base64.b64decode(content or "", validate=True)
    except (binascii.Error, ValueError):
        return content
    return inner.decode() if inner and _BASE64.fullmatch(inner) else content


def _target_of(push: _Push) -> PushTarget:
    id = bounded_id(push.id, "id of a push notification config") or ""
    proof = push.authentication or _Authentication()
    scheme = proof.schemes[0] if proof.schemes else None
    return PushTarget(push.url, id, push.token or None, scheme, proof.credentials or None)


def _read_set_push(params: Members) -> SetPush:
    # The specification's route takes the configuration alone, the official SDK's the request around it.
    body: Payload = params["config"] if "config" in params else render(params)
    named = decoded(_NAMED_PUSH, body, "config")
    push = _either(named.pushNotificationConfig, named.push_notification_config)
    if push is None:
        raise Unreadable(invalid("config.pushNotificationConfig", "is required"))
    return SetPush(required(ID, params, "taskId"), _target_of(push))


_READERS: dict[str, Reader] = {
    "message/send": partial(_read_send, is_stream=False),
    "message/stream": partial(_read_send, is_stream=True),
    "tasks/pushNotificationConfig/set": _read_set_push,
}


# What is answered.


def write_sent(sent: Task | Message, history_length: int | None) -> Payload:
    """The result of a `Send` that is answered whole."""
    if isinstance(sent, Message):
        return _encode({"message": _message(sent, sent.context, None)})
    return _encode({"task": _task(sent, history_length)})


def write_task(task: Task, history_length: int | None) -> Payload:
    """The result of `Get`."""
    return _encode(_task(task, history_length))


def write_cancelled(task: Task) -> Payload:
    """The result of `Cancel`."""
    return _encode(_task(task, None))


def _task(task: Task, history_length: int | None) -> _Task:
    history = [_message(message, task.context, task.id) for message in latest(task.history, history_length)]
    return _Task(
        task.id,
        task.context,
        _status(task.status, task.context, task.id),
        [_artifact(artifact) for artifact in task.artifacts] or None,
        history or None,
        task.metadata,
    )


def _status(status: Status, context: str, task: str) -> _Status:
    message = None if status.message is None else _message(status.message, context, task)
    return _Status(STATES[status.state], message, timestamp(status.at))


def write_message(message: Message, context: str | None, task: str | None) -> Payload:
    """A message alone."""
    return _encode(_message(message, context, task))


def _message(message: Message, context: str | None, task: str | None) -> _Message:
    content = [_part(part) for part in message.parts]
    extensions = list(message.extensions) or None
    return _Message(message.id, context or None, task, ROLES[message.role], content, message.metadata, extensions)


def _part(part: Part) -> _Part:
    match part:
        case Text():
            return _Part(text=part.text, metadata=part.metadata)
        case Data():
            return _Part(data=_Data(as_object(part.data)), metadata=marked(part.data, part.metadata))
        case File():
            url = part.url if part.content is None else None
            content = None if url is not None else _packed(part.content or "")
            return _Part(file=_File(url, content, part.media_type, part.name), metadata=part.metadata)


def _artifact(artifact: Artifact) -> _Artifact:
    return _Artifact(
        artifact.id,
        [_part(part) for part in artifact.parts],
        artifact.name,
        artifact.description,
        artifact.metadata,
        list(artifact.extensions) or None,
    )


def write_update(update: Update) -> Payload:
    """One item of a stream."""
    match update:
        case Task() | Message():
            return write_sent(update, None)
        case StatusUpdate():
            status = _status(update.status, update.context, update.task)
            written = _StatusUpdate(update.task, update.context, status, update.is_last, update.metadata)
            return _encode({"statusUpdate": written})
        case ArtifactUpdate():
            artifact = _artifact(update.artifact)
            piece = _ArtifactUpdate(
                update.task, update.context, artifact, update.is_more, update.is_complete, update.metadata
            )
            return _encode({"artifactUpdate": piece})


def write_tasks(page: TaskPage, asked: List) -> Payload:
    """A list of tasks, for which this generation has no route."""
    return _encode({"tasks": [_task(task, asked.history_length) for task in page.tasks]})


def _named(task: str, target: PushTarget) -> _TaskPush:
    return _TaskPush(f"tasks/{task}/pushNotificationConfigs/{target.id}", v0_3.push_of(target))


def write_push(task: str, target: PushTarget) -> Payload:
    """One place where updates are sent."""
    return _encode(_named(task, target))


def write_pushes(page: PushPage) -> Payload:
    """All of them."""
    return _encode({"configs": [_named(page.task, target) for target in page.targets]})


def write_deleted() -> Payload:
    """What is left of one that was deleted."""
    return b"{}"


def write_problem(problem: Problem) -> tuple[int, str, Payload | None]:
    """Code, message and data of an error."""
    return v0_3.write_problem(problem)
