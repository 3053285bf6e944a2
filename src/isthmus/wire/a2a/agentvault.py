"""AgentVault's dialect of A2A, as its clients 0.2.1 and 1.0.0 speak it, towards callers.

A message is answered with a task's id alone; what comes of it is asked for afterwards, or heard as named events. Its
clients skip what they cannot validate without a word, so what is written here keeps to their models: data is an object,
a file has a web address, every event a time. Called by the face; `streams` frames the events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus.model.conversation import (
    Artifact,
    TaskArtifactUpdate,
    DataPart,
    FilePart,
    Message,
    Part,
    Role,
    TaskStatus,
    TaskStatusUpdate,
    Task,
    TaskState,
    TextPart,
    Update,
)
from isthmus.wire.a2a.operations import (
    CancelTask,
    DialectName,
    GetTask,
    ListTasks,
    Operation,
    A2aProblem,
    PushConfigPage,
    PushConfig,
    SendMessage,
    SubscribeToTask,
    TaskPage,
)
from isthmus.wire.a2a.fields import (
    ID,
    Members,
    Reader,
    Unreadable,
    data_as_object,
    check_object,
    check_parts,
    format_timestamp_micros,
    invalid,
    is_object,
    optional,
    optional_id,
    read_with,
    required,
    null_as_absent,
)
from isthmus.wire.a2a.problems import PROBLEMS, plain_error
from isthmus.wire.jsonrpc import Payload

name: DialectName = "agentvault"

STATES: Mapping[TaskState, str] = {
    "submitted": "SUBMITTED",
    "working": "WORKING",
    "input_required": "INPUT_REQUIRED",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "canceled": "CANCELED",
    # It has no words for these.
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
"""The longest address that its clients take for one."""


class _Text(Struct, tag_field="type", tag="text"):
    content: str


class _File(Struct, tag_field="type", tag="file"):
    url: Annotated[str, Meta(min_length=1)]
    mediaType: str | None = None
    filename: str | None = None


class _Data(Struct, tag_field="type", tag="data"):
    content: Raw
    mediaType: str | None = None

    def __post_init__(self) -> None:
        if not is_object(self.content):
            raise ValueError("content must be an object")


_Part: TypeAlias = _Text | _File | _Data


class _Message(Struct):
    role: str
    parts: list[_Part]
    metadata: Raw = NULL

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class _Artifact(Struct):
    id: str
    type: str
    content: Any = None
    url: str | None = None
    mediaType: str | None = None
    metadata: Raw = NULL


class _Task(Struct):
    id: str
    state: str
    createdAt: str
    updatedAt: str
    messages: list[_Message]
    artifacts: list[_Artifact]
    metadata: Raw = NULL


class _StatusEvent(Struct):
    taskId: str
    state: str
    timestamp: str
    message: str | None


class _MessageEvent(Struct):
    taskId: str
    message: _Message
    timestamp: str


class _ArtifactEvent(Struct):
    taskId: str
    artifact: _Artifact
    timestamp: str


_MESSAGE = msgspec.json.Decoder(_Message)
_URL = msgspec.json.Decoder(Annotated[str, Meta(min_length=1)])
_encode = msgspec.json.Encoder().encode


# What is asked.


def read(method: str, params: Members) -> Operation | A2aProblem:
    """What a request asks for. Messages have no ids; theirs are empty until somebody gives them one."""
    return read_with(_READERS, method, params)


def _read_send(params: Members, *, is_stream: bool) -> SendMessage | SubscribeToTask:
    if is_stream and not null_as_absent(params.get("message", NULL)):
        return SubscribeToTask(required(ID, params, "id"))
    webhook = optional(_URL, params, "webhookUrl")
    return SendMessage(
        _read_message(required(_MESSAGE, params, "message")),
        optional_id(params, "id"),
        waits=False,
        is_stream=is_stream,
        push=None if webhook is None else PushConfig(webhook),
    )


def _read_message(wire: _Message) -> Message:
    check_parts(wire.parts, "message.parts")
    if wire.role not in ROLE_OF:
        raise Unreadable(invalid("message.role", f"must be one of {', '.join(ROLE_OF)}"))
    return Message("", ROLE_OF[wire.role], tuple(_part_of(part) for part in wire.parts), null_as_absent(wire.metadata))


def _part_of(wire: _Part) -> Part:
    match wire:
        case _Text():
            return TextPart(wire.content)
        case _Data():
            return DataPart(wire.content, wire.mediaType)
        case _File():
            return FilePart(None, wire.url, wire.filename, wire.mediaType)


def _read_get(params: Members) -> GetTask:
    return GetTask(required(ID, params, "id"))


def _read_cancel(params: Members) -> CancelTask:
    return CancelTask(required(ID, params, "id"))


_READERS: dict[str, Reader] = {
    "tasks/send": partial(_read_send, is_stream=False),
    "tasks/sendSubscribe": partial(_read_send, is_stream=True),
    "tasks/get": _read_get,
    "tasks/cancel": _read_cancel,
}
METHODS = frozenset(_READERS)


# What is answered.


def write_sent(sent: Task | Message, history_length: int | None) -> Payload:
    """The result of a `SendMessage`: where to ask for what comes of it."""
    return _encode({"id": sent.id})


def write_task(task: Task, history_length: int | None) -> Payload:
    """The result of `GetTask`, with all that was said."""
    return _encode(_task(task))


def _task(task: Task) -> _Task:
    return _Task(
        task.id,
        STATES[task.status.state],
        format_timestamp_micros(task.created),
        format_timestamp_micros(task.status.at),
        [_message(message) for message in conversation(task)],
        [_artifact(artifact) for artifact in task.artifacts],
        task.metadata or NULL,
    )


def conversation(task: Task) -> tuple[Message, ...]:
    """All messages of a task: also the words of its status, unless an answer before them says more."""
    status = task.status
    last = spoken(status)
    if last is None and status.state in _UNDONE and not (task.history and _is_answer(task.history[-1])):
        last = status.message
    return task.history if last is None or last in task.history[-1:] else (*task.history, last)


def _is_answer(message: Message) -> bool:
    """Whether it is what the task came to; a question that nobody answered is not."""
    return message.role == "agent" and "-question-" not in message.id


def spoken(status: TaskStatus) -> Message | None:
    """What of a status is a message of its own here; the words of failures and reports stand in the status."""
    message = status.message
    if message is None or status.state in ("submitted", "working"):
        return None
    if status.state not in _UNDONE:
        return message
    rest = tuple(part for part in message.parts if not isinstance(part, TextPart))
    return msgspec.structs.replace(message, parts=rest) if rest else None


def words(status: TaskStatus) -> str | None:
    """The text that a status carries; one of success carries none."""
    if status.message is None or status.state == "completed":
        return None
    texts = [part.text for part in status.message.parts if isinstance(part, TextPart)]
    return "\n".join(texts) or None


def _message(message: Message) -> _Message:
    return _Message(ROLES[message.role], [_part(part) for part in message.parts], message.metadata or NULL)


def _part(part: Part) -> _Part:
    match part:
        case TextPart():
            return _Text(part.text)
        case DataPart():
            return _Data(data_as_object(part.data), part.media_type or JSON_TYPE)
        case FilePart():
            if part.url is not None and part.content is None and _is_web(part.url):
                return _File(part.url, part.media_type, part.name)
            return _Data(Raw(_encode(_described(part))), JSON_TYPE)


def _is_web(url: str) -> bool:
    return len(url) <= _URL_LENGTH_MAX and _WEB.fullmatch(url) is not None


def _described(file: FilePart) -> dict[str, str]:
    """A file for which its clients have no part: its bytes are here, or its address is none of the web's."""
    told = {"filename": file.name, "mediaType": file.media_type, "bytes": file.content, "url": file.url}
    return {key: value for key, value in told.items() if value is not None}


def _artifact(artifact: Artifact) -> _Artifact:
    metadata = artifact.metadata or NULL
    match artifact.parts:
        case (TextPart(text=text, media_type=media_type),):
            return _Artifact(artifact.id, "text", text, None, media_type or "text/plain", metadata)
        case (DataPart(data=data, media_type=media_type),):
            return _Artifact(artifact.id, "data", data, None, media_type or JSON_TYPE, metadata)
        case (FilePart(content=None, url=str(url)) as file,) if _is_web(url):
            return _Artifact(artifact.id, "file", None, url, file.media_type, metadata)
        case (FilePart(content=str(content)) as file,):
            return _Artifact(artifact.id, "file", content, None, file.media_type, metadata)
        case parts:
            return _Artifact(artifact.id, "parts", [_part(part) for part in parts], None, JSON_TYPE, metadata)


def write_cancelled(task: Task) -> Payload:
    """The result of `CancelTask`."""
    return b'{"success":true,"message":null}'


# Events.


def write_status_event(task: str, status: TaskStatus) -> bytes:
    """The data of a `task_status`."""
    return _encode(_StatusEvent(task, STATES[status.state], format_timestamp_micros(status.at), words(status)))


def write_message_event(task: str, message: Message, at: float) -> bytes:
    """The data of a `task_message`."""
    return _encode(_MessageEvent(task, _message(message), format_timestamp_micros(at)))


def write_artifact_event(task: str, artifact: Artifact, at: float) -> bytes:
    """The data of a `task_artifact`."""
    return _encode(_ArtifactEvent(task, _artifact(artifact), format_timestamp_micros(at)))


def write_update(update: Update) -> Payload:
    """The data of the one event that says most of an update (`streams` tells all of it)."""
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


# What its clients have no methods for.


def write_tasks(page: TaskPage, asked: ListTasks) -> Payload:
    """A list of tasks."""
    return _encode([_task(task) for task in page.tasks])


def write_push(task: str, target: PushConfig) -> Payload:
    """One place where updates are sent, in the words in which it was given."""
    return _encode({"id": task, "webhookUrl": target.url})


def write_pushes(page: PushConfigPage) -> Payload:
    """All of them."""
    return _encode([{"id": page.task, "webhookUrl": target.url} for target in page.targets])


def write_deleted() -> Payload:
    """What is left of one that was deleted."""
    return b"null"


def write_problem(problem: A2aProblem) -> tuple[int, str, Payload | None]:
    """Code, message and data of an error."""
    return plain_error(PROBLEMS[problem.kind].code_agentvault, problem)
