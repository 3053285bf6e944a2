"""A2A 0.1 over JSON-RPC: its JSON objects, its methods, and the results that the hub writes.

Callers name their tasks themselves, and messages have no ids. Called by the A2A frontend.
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
    WAITING,
    Artifact,
    DataPart,
    FilePart,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdate,
    TaskState,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
    Update,
)
from isthmus.wire.a2a.objects import (
    COUNT,
    ID,
    Members,
    Reader,
    Unreadable,
    check_object,
    check_parts,
    data_as_object,
    data_metadata,
    format_timestamp,
    invalid,
    last_messages,
    null_as_absent,
    optional,
    optional_id,
    optional_object,
    read_cancel_task,
    read_subscribe,
    read_with,
    required,
)
from isthmus.wire.a2a.operations import (
    PROBLEMS,
    A2aProblem,
    CreatePushConfig,
    DialectName,
    GetPushConfig,
    GetTask,
    ListTasks,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
    TaskPage,
    plain_error,
)
from isthmus.wire.a2a.v0_3 import DataObject, FileObject, TextObject, read_part, write_file_content
from isthmus.wire.jsonrpc import Payload

name: DialectName = "0.1"

STATES: Mapping[TaskState, str] = {
    "submitted": "submitted",
    "working": "working",
    "input_required": "input-required",
    "completed": "completed",
    "failed": "failed",
    "canceled": "canceled",
    # States of later generations, mapped to those that make a client do the same.
    "auth_required": "input-required",
    "rejected": "failed",
}
ROLES: tuple[Role, ...] = ("user", "agent")

_encode = msgspec.json.Encoder().encode


# Objects.


class TextV01(TextObject, tag_field="type", tag="text"):
    """A text part of 0.1."""


class FileV01(FileObject, tag_field="type", tag="file"):
    """A file part of 0.1."""


class DataV01(DataObject, tag_field="type", tag="data"):
    """A data part of 0.1."""


_PartV01: TypeAlias = TextV01 | FileV01 | DataV01


class _MessageV01(Struct, omit_defaults=True):
    role: str
    parts: list[_PartV01]
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class _ArtifactV01(Struct, omit_defaults=True):
    parts: list[_PartV01]
    index: int
    name: str | None = None
    description: str | None = None
    append: bool | None = None
    lastChunk: bool | None = None
    metadata: Raw = ABSENT


class _StatusV01(Struct, omit_defaults=True):
    state: str
    message: _MessageV01 | None = None
    timestamp: str | None = None


class _TaskV01(Struct, omit_defaults=True):
    id: str
    sessionId: str
    status: _StatusV01
    history: list[_MessageV01]
    artifacts: list[_ArtifactV01] | None = None
    metadata: Raw = ABSENT


class _StatusUpdateV01(Struct, omit_defaults=True):
    id: str
    status: _StatusV01
    final: bool
    metadata: Raw = ABSENT


class _ArtifactUpdateV01(Struct, omit_defaults=True):
    id: str
    artifact: _ArtifactV01
    metadata: Raw = ABSENT


class _PushAuthenticationV01(Struct, omit_defaults=True):
    schemes: list[str] | None = None
    credentials: str | None = None


class _PushConfigV01(Struct, omit_defaults=True):
    url: Annotated[str, Meta(min_length=1)]
    token: str | None = None
    authentication: _PushAuthenticationV01 | None = None


class _TaskPushConfigV01(Struct):
    id: str
    pushNotificationConfig: _PushConfigV01


# Requests.

_MESSAGE = msgspec.json.Decoder(_MessageV01)
_MODES = msgspec.json.Decoder(list[str])
_PUSH_CONFIG = msgspec.json.Decoder(_PushConfigV01)


def read(method: str, params: Members) -> Operation | A2aProblem:
    """Read a request. The id of its message is empty; the service assigns one."""
    return read_with(_READERS, method, params)


def _read_send(params: Members, *, is_stream: bool) -> SendMessage:
    push = optional(_PUSH_CONFIG, params, "pushNotification")
    modes: list[str] | None = optional(_MODES, params, "acceptedOutputModes")
    wire = required(_MESSAGE, params, "message")
    check_parts(wire.parts, "message.parts")
    role = next((role for role in ROLES if role == wire.role), None)
    if role is None:
        raise Unreadable(invalid("message.role", f"must be one of {', '.join(ROLES)}"))
    return SendMessage(
        Message("", role, tuple([read_part(part) for part in wire.parts]), null_as_absent(wire.metadata)),
        required(ID, params, "id"),
        optional_id(params, "sessionId"),
        is_stream=is_stream,
        # By default there is no history: the first server of this generation had no other default.
        history_length=optional(COUNT, params, "historyLength") or 0,
        output_modes=tuple(modes or ()),
        push=None if push is None else _read_push_config(push),
        metadata=optional_object(params, "metadata"),
    )


def _read_push_config(push: _PushConfigV01) -> PushConfig:
    auth = push.authentication or _PushAuthenticationV01()
    scheme = auth.schemes[0] if auth.schemes else None
    return PushConfig(push.url, "", push.token or None, scheme, auth.credentials or None)


_READERS: dict[str, Reader] = {
    "tasks/send": partial(_read_send, is_stream=False),
    "tasks/sendSubscribe": partial(_read_send, is_stream=True),
    "tasks/get": lambda params: GetTask(required(ID, params, "id"), optional(COUNT, params, "historyLength") or 0),
    "tasks/cancel": read_cancel_task,
    "tasks/resubscribe": read_subscribe,
    "tasks/pushNotification/set": lambda params: CreatePushConfig(
        required(ID, params, "id"), _read_push_config(required(_PUSH_CONFIG, params, "pushNotificationConfig"))
    ),
    "tasks/pushNotification/get": lambda params: GetPushConfig(required(ID, params, "id")),
}
METHODS = frozenset(_READERS)


# Results.


def write_sent(sent: Task | Message, history_length: int | None) -> Payload:
    """Write the result of `SendMessage`. It is always a task: a message alone becomes a completed one."""
    if isinstance(sent, Message):
        sent = Task(sent.id, sent.context or "", TaskStatus("completed", 0.0, sent), 0.0)
    return write_task(sent, history_length)


def write_task(task: Task, history_length: int | None) -> Payload:
    """Write the result of `GetTask`, which is also the body of a push notification."""
    return _encode(_task(task, history_length))


def _task(task: Task, history_length: int | None) -> _TaskV01:
    return _TaskV01(
        task.id,
        task.context,
        _status(task.status),
        [_message(message) for message in last_messages(task.history, history_length or 0)],
        [_artifact(artifact, index) for index, artifact in enumerate(task.artifacts)] or None,
        task.metadata,
    )


def _status(status: TaskStatus) -> _StatusV01:
    message = None if status.message is None else _message(status.message)
    return _StatusV01(STATES[status.state], message, format_timestamp(status.at))


def _message(message: Message) -> _MessageV01:
    return _MessageV01(message.role, [_part(part) for part in message.parts], message.metadata)


def _part(part: Part) -> _PartV01:
    match part:
        case TextPart():
            return TextV01(part.text, part.metadata)
        case DataPart():
            return DataV01(data_as_object(part.data), data_metadata(part.data, part.metadata))
        case FilePart():
            return FileV01(write_file_content(part), part.metadata)


def _artifact(artifact: Artifact, index: int) -> _ArtifactV01:
    parts = [_part(part) for part in artifact.parts]
    return _ArtifactV01(parts, index, artifact.name, artifact.description, metadata=artifact.metadata)


def write_cancelled(task: Task) -> Payload:
    """Write the result of `CancelTask`."""
    return write_task(task, None)


def split_task(update: Update) -> tuple[Update, ...]:
    """The stream events of a task, because its streams have no event for a whole task: its artifacts and its status."""
    if not isinstance(update, Task):
        return (update,)
    artifacts = [
        TaskArtifactUpdate(update.id, update.context, artifact, index=index)
        for index, artifact in enumerate(update.artifacts)
    ]
    return (*artifacts, TaskStatusUpdate(update.id, update.context, update.status, _is_last(update)))


def _is_last(task: Task) -> bool:
    """Whether the stream ends after this state of the task."""
    return task.status.state in ENDED or task.status.state in WAITING


def write_update(update: Update) -> Payload:
    """Write a stream event. For a whole task it is only the status; see `split_task`."""
    match update:
        case Task():
            return _encode(_StatusUpdateV01(update.id, _status(update.status), _is_last(update)))
        case Message():
            return _encode(_StatusUpdateV01(update.id, _status(TaskStatus("completed", 0.0, update)), True))
        case TaskStatusUpdate():
            return _encode(_StatusUpdateV01(update.task, _status(update.status), update.is_last, update.metadata))
        case TaskArtifactUpdate():
            artifact = _artifact(update.artifact, update.index)
            artifact.append, artifact.lastChunk = update.is_more, update.is_complete
            return _encode(_ArtifactUpdateV01(update.task, artifact, update.metadata))


def write_tasks(page: TaskPage, asked: ListTasks) -> Payload:
    """Write a list of tasks. This generation has no method for it."""
    return _encode([_task(task, asked.history_length) for task in page.tasks])


def _push_config(task: str, target: PushConfig) -> _TaskPushConfigV01:
    auth = None if target.scheme is None else _PushAuthenticationV01([target.scheme], target.credentials)
    return _TaskPushConfigV01(task, _PushConfigV01(target.url, target.token, auth))


def write_push(task: str, target: PushConfig) -> Payload:
    """Write one push notification config."""
    return _encode(_push_config(task, target))


def write_pushes(page: PushConfigPage) -> Payload:
    """Write all push notification configs of a task. This generation has no method for it."""
    return _encode([_push_config(page.task, target) for target in page.targets])


def write_deleted() -> Payload:
    """Write the result of `DeletePushConfig`."""
    return b"null"


def write_problem(problem: A2aProblem) -> tuple[int, str, Payload | None]:
    """Code, message and data of a JSON-RPC error."""
    return plain_error(PROBLEMS[problem.kind].code_0_1, problem)
