"""AgentVault's dialect of A2A, as its clients 0.2.1 and 1.0.0 speak it: its JSON objects, methods and results.

The result of a message is only the id of a task; the client then polls the task or follows it by named events. These
clients silently skip objects that do not fit their models. So the objects here keep to them: data is an object, a file
has an HTTP URL, and every event has a time. Called by the A2A frontend; `streams` frames the events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus.model.tasks import (
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
    ID,
    Members,
    Reader,
    Unreadable,
    check_object,
    check_parts,
    data_as_object,
    format_timestamp_micros,
    invalid,
    is_object,
    null_as_absent,
    optional,
    optional_id,
    read_with,
    required,
)
from isthmus.wire.a2a.operations import (
    PROBLEMS,
    A2aProblem,
    CancelTask,
    DialectName,
    GetTask,
    ListTasks,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
    SubscribeToTask,
    TaskPage,
    plain_error,
)
from isthmus.wire.jsonrpc import Payload

name: DialectName = "agentvault"

STATES: Mapping[TaskState, str] = {
    "submitted": "SUBMITTED",
    "working": "WORKING",
    "input_required": "INPUT_REQUIRED",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "canceled": "CANCELED",
    # It has no names for these.
    "auth_required": "INPUT_REQUIRED",
    "rejected": "FAILED",
}
ROLES: Mapping[Role, str] = {"user": "user", "agent": "assistant"}
ROLE_OF: Mapping[str, Role] = {"user": "user", "assistant": "agent", "system": "user", "tool": "user"}

JSON_TYPE = "application/json"
NULL = Raw(b"null")

_UNDONE = frozenset[TaskState]({"failed", "canceled", "rejected"})
_WEB = re.compile(r"https?://[^\s/?#]\S*")
_URL_LENGTH_MAX = 2083
"""The longest URL that its clients accept."""


class _VaultText(Struct, tag_field="type", tag="text"):
    content: str


class _VaultFile(Struct, tag_field="type", tag="file"):
    url: Annotated[str, Meta(min_length=1)]
    mediaType: str | None = None
    filename: str | None = None


class _VaultData(Struct, tag_field="type", tag="data"):
    content: Raw
    mediaType: str | None = None

    def __post_init__(self) -> None:
        if not is_object(self.content):
            raise ValueError("content must be an object")


_VaultPart: TypeAlias = _VaultText | _VaultFile | _VaultData


class _VaultMessage(Struct):
    role: str
    parts: list[_VaultPart]
    metadata: Raw = NULL

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class _VaultArtifact(Struct):
    id: str
    type: str
    content: Any = None
    url: str | None = None
    mediaType: str | None = None
    metadata: Raw = NULL


class _VaultTask(Struct):
    id: str
    state: str
    createdAt: str
    updatedAt: str
    messages: list[_VaultMessage]
    artifacts: list[_VaultArtifact]
    metadata: Raw = NULL


class _VaultStatusEvent(Struct):
    taskId: str
    state: str
    timestamp: str
    message: str | None


class _VaultMessageEvent(Struct):
    taskId: str
    message: _VaultMessage
    timestamp: str


class _VaultArtifactEvent(Struct):
    taskId: str
    artifact: _VaultArtifact
    timestamp: str


_MESSAGE = msgspec.json.Decoder(_VaultMessage)
_URL = msgspec.json.Decoder(Annotated[str, Meta(min_length=1)])
_encode = msgspec.json.Encoder().encode


# Requests.


def read(method: str, params: Members) -> Operation | A2aProblem:
    """Read a request. The id of its message is empty; the service assigns one."""
    return read_with(_READERS, method, params)


def _read_send(params: Members, *, is_stream: bool) -> SendMessage | SubscribeToTask:
    if is_stream and not null_as_absent(params.get("message", NULL)):
        return SubscribeToTask(required(ID, params, "id"))
    webhook = optional(_URL, params, "webhookUrl")
    wire = required(_MESSAGE, params, "message")
    check_parts(wire.parts, "message.parts")
    if wire.role not in ROLE_OF:
        raise Unreadable(invalid("message.role", f"must be one of {', '.join(ROLE_OF)}"))
    return SendMessage(
        Message("", ROLE_OF[wire.role], tuple(_part_of(part) for part in wire.parts), null_as_absent(wire.metadata)),
        optional_id(params, "id"),
        waits=False,
        is_stream=is_stream,
        push=None if webhook is None else PushConfig(webhook),
    )


def _part_of(wire: _VaultPart) -> Part:
    match wire:
        case _VaultText():
            return TextPart(wire.content)
        case _VaultData():
            return DataPart(wire.content, wire.mediaType)
        case _VaultFile():
            return FilePart(None, wire.url, wire.filename, wire.mediaType)


_READERS: dict[str, Reader] = {
    "tasks/send": partial(_read_send, is_stream=False),
    "tasks/sendSubscribe": partial(_read_send, is_stream=True),
    "tasks/get": lambda params: GetTask(required(ID, params, "id")),
    "tasks/cancel": lambda params: CancelTask(required(ID, params, "id")),
}
METHODS = frozenset(_READERS)


# Results.


def write_sent(sent: Task | Message, history_length: int | None) -> Payload:
    """Write the result of `SendMessage`: the id of the task."""
    return _encode({"id": sent.id})


def write_task(task: Task, history_length: int | None) -> Payload:
    """Write the result of `GetTask`, with all messages."""
    return _encode(_task(task))


def _task(task: Task) -> _VaultTask:
    return _VaultTask(
        task.id,
        STATES[task.status.state],
        format_timestamp_micros(task.created),
        format_timestamp_micros(task.status.at),
        [_message(message) for message in conversation(task)],
        [_artifact(artifact) for artifact in task.artifacts],
        task.metadata or NULL,
    )


def conversation(task: Task) -> tuple[Message, ...]:
    """All messages of a task, including the message of its status, unless the agent's last answer says more."""
    status = task.status
    last = spoken(status)
    before = task.history[-1] if task.history else None
    is_answer = before is not None and before.role == "agent" and "-question-" not in before.id
    if last is None and status.state in _UNDONE and not is_answer:
        last = status.message
    return task.history if last is None or last in task.history[-1:] else (*task.history, last)


def spoken(status: TaskStatus) -> Message | None:
    """The part of a status message that is sent as a message. The text of failures and reports is in the status."""
    message = status.message
    if message is None or status.state in ("submitted", "working"):
        return None
    if status.state not in _UNDONE:
        return message
    rest = tuple(part for part in message.parts if not isinstance(part, TextPart))
    return msgspec.structs.replace(message, parts=rest) if rest else None


def words(status: TaskStatus) -> str | None:
    """The text of a status; None for a completed task."""
    if status.message is None or status.state == "completed":
        return None
    texts = [part.text for part in status.message.parts if isinstance(part, TextPart)]
    return "\n".join(texts) or None


def _message(message: Message) -> _VaultMessage:
    return _VaultMessage(ROLES[message.role], [_part(part) for part in message.parts], message.metadata or NULL)


def _part(part: Part) -> _VaultPart:
    match part:
        case TextPart():
            return _VaultText(part.text)
        case DataPart():
            return _VaultData(data_as_object(part.data), part.media_type or JSON_TYPE)
        case FilePart():
            if part.url is not None and part.content is None and _is_web(part.url):
                return _VaultFile(part.url, part.media_type, part.name)
            # These clients have no part for bytes or for URLs that are not HTTP.
            members = {"filename": part.name, "mediaType": part.media_type, "bytes": part.content, "url": part.url}
            given = {key: value for key, value in members.items() if value is not None}
            return _VaultData(Raw(_encode(given)), JSON_TYPE)


def _is_web(url: str) -> bool:
    return len(url) <= _URL_LENGTH_MAX and _WEB.fullmatch(url) is not None


def _artifact(artifact: Artifact) -> _VaultArtifact:
    metadata = artifact.metadata or NULL
    match artifact.parts:
        case (TextPart(text=text, media_type=media_type),):
            return _VaultArtifact(artifact.id, "text", text, None, media_type or "text/plain", metadata)
        case (DataPart(data=data, media_type=media_type),):
            return _VaultArtifact(artifact.id, "data", data, None, media_type or JSON_TYPE, metadata)
        case (FilePart(content=None, url=str(url)) as file,) if _is_web(url):
            return _VaultArtifact(artifact.id, "file", None, url, file.media_type, metadata)
        case (FilePart(content=str(content)) as file,):
            return _VaultArtifact(artifact.id, "file", content, None, file.media_type, metadata)
        case parts:
            return _VaultArtifact(artifact.id, "parts", [_part(part) for part in parts], None, JSON_TYPE, metadata)


def write_cancelled(task: Task) -> Payload:
    """Write the result of `CancelTask`."""
    return b'{"success":true,"message":null}'


# Events.


def write_status_event(task: str, status: TaskStatus) -> bytes:
    """The data of a `task_status`."""
    return _encode(_VaultStatusEvent(task, STATES[status.state], format_timestamp_micros(status.at), words(status)))


def write_message_event(task: str, message: Message, at: float) -> bytes:
    """The data of a `task_message`."""
    return _encode(_VaultMessageEvent(task, _message(message), format_timestamp_micros(at)))


def write_artifact_event(task: str, artifact: Artifact, at: float) -> bytes:
    """The data of a `task_artifact`."""
    return _encode(_VaultArtifactEvent(task, _artifact(artifact), format_timestamp_micros(at)))


def write_update(update: Update) -> Payload:
    """The data of the most important event of an update; `streams` writes all of its events."""
    match update:
        case Task():
            return write_status_event(update.id, update.status)
        case Message():
            return write_message_event(update.id, update, 0.0)
        case TaskStatusUpdate():
            return write_status_event(update.task, update.status)
        case TaskArtifactUpdate():
            return write_artifact_event(update.task, update.artifact, update.at)


def write_error_event(problem: A2aProblem) -> bytes:
    """The data of an `error`."""
    return _encode({"error": problem.kind, "message": problem.message})


# Results of operations that its clients do not have.


def write_tasks(page: TaskPage, asked: ListTasks) -> Payload:
    """Write a list of tasks."""
    return _encode([_task(task) for task in page.tasks])


def write_push(task: str, target: PushConfig) -> Payload:
    """Write one push notification config."""
    return _encode({"id": task, "webhookUrl": target.url})


def write_pushes(page: PushConfigPage) -> Payload:
    """Write all push notification configs of a task."""
    return _encode([{"id": page.task, "webhookUrl": target.url} for target in page.targets])


def write_deleted() -> Payload:
    """Write the result of `DeletePushConfig`."""
    return b"null"


def write_problem(problem: A2aProblem) -> tuple[int, str, Payload | None]:
    """Code, message and data of a JSON-RPC error."""
    return plain_error(PROBLEMS[problem.kind].code_agentvault, problem)
