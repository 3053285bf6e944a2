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
from isthmus.wire.a2a.operations import (
    PROBLEMS,
    A2aProblem,
    CancelTask,
    GetTask,
    PushConfig,
    SendMessage,
    SubscribeToTask,
    plain_error,
)
from isthmus.wire.a2a.v1_0 import (
    ID,
    Dialect,
    Members,
    Reader,
    check_object,
    data_as_object,
    encode,
    format_timestamp_micros,
    is_object,
    null_as_absent,
    optional,
    optional_id,
    required,
)
from isthmus.wire.jsonrpc import Payload

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


_URL = msgspec.json.Decoder(Annotated[str, Meta(min_length=1)])


class AgentVaultDialect(Dialect):
    """AgentVault's requests and results. It has no methods for push notification configs."""

    name = "agentvault"
    states: Mapping[TaskState, str] = {
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
    roles: Mapping[Role, str] = {"user": "user", "agent": "assistant"}
    message_decoder = msgspec.json.Decoder(_VaultMessage)
    has_snake_case = False

    def __init__(self) -> None:
        super().__init__()
        self.role_of |= {"system": "user", "tool": "user"}

    def make_readers(self) -> Mapping[str, Reader]:
        """The reader of each method."""
        return {
            "tasks/send": partial(self.read_send, is_stream=False),
            "tasks/sendSubscribe": partial(self.read_send, is_stream=True),
            "tasks/get": lambda params: GetTask(required(ID, params, "id")),
            "tasks/cancel": lambda params: CancelTask(required(ID, params, "id")),
        }

    def read_send(self, params: Members, *, is_stream: bool) -> SendMessage | SubscribeToTask:
        """Read a message. Its id is empty; the service assigns one."""
        if is_stream and not null_as_absent(params.get("message", NULL)):
            return SubscribeToTask(required(ID, params, "id"))
        webhook = optional(_URL, params, "webhookUrl")
        wire = required(self.message_decoder, params, "message")
        self.check_message(wire)
        parts = tuple(self.read_part(part) for part in wire.parts)
        return SendMessage(
            Message("", self.role_of[wire.role], parts, null_as_absent(wire.metadata)),
            optional_id(params, "id"),
            waits=False,
            is_stream=is_stream,
            push=None if webhook is None else PushConfig(webhook),
        )

    def read_part(self, wire: _VaultPart) -> Part:
        """Read a part."""
        match wire:
            case _VaultText():
                return TextPart(wire.content)
            case _VaultData():
                return DataPart(wire.content, wire.mediaType)
            case _VaultFile():
                return FilePart(None, wire.url, wire.filename, wire.mediaType)

    def write_sent(self, sent: Task | Message, history_length: int | None) -> Payload:
        """The result of `SendMessage`: the id of the task."""
        return encode({"id": sent.id})

    def write_task(self, task: Task, history_length: int | None) -> Payload:
        """The result of `GetTask`, with all messages."""
        return encode(
            _VaultTask(
                task.id,
                self.states[task.status.state],
                format_timestamp_micros(task.created),
                format_timestamp_micros(task.status.at),
                [_message(message) for message in conversation(task)],
                [_artifact(artifact) for artifact in task.artifacts],
                task.metadata or NULL,
            )
        )

    def write_cancelled(self, task: Task) -> Payload:
        """The result of `CancelTask`."""
        return b'{"success":true,"message":null}'

    def write_update(self, update: Update) -> Payload:
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

    def write_problem(self, problem: A2aProblem) -> tuple[int, str, Payload | None]:
        """Code, message and data of a JSON-RPC error."""
        return plain_error(PROBLEMS[problem.kind].code_agentvault, problem)


DIALECT = AgentVaultDialect()

# What a task says, in the order in which its clients show it.


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
    return _VaultMessage(DIALECT.roles[message.role], [_part(part) for part in message.parts], message.metadata or NULL)


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
            return _VaultData(Raw(encode(given)), JSON_TYPE)


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


# Events.


def write_status_event(task: str, status: TaskStatus) -> bytes:
    """The data of a `task_status`."""
    return encode(
        _VaultStatusEvent(task, DIALECT.states[status.state], format_timestamp_micros(status.at), words(status))
    )


def write_message_event(task: str, message: Message, at: float) -> bytes:
    """The data of a `task_message`."""
    return encode(_VaultMessageEvent(task, _message(message), format_timestamp_micros(at)))


def write_artifact_event(task: str, artifact: Artifact, at: float) -> bytes:
    """The data of a `task_artifact`."""
    return encode(_VaultArtifactEvent(task, _artifact(artifact), format_timestamp_micros(at)))


def write_error_event(problem: A2aProblem) -> bytes:
    """The data of an `error`."""
    return encode({"error": problem.kind, "message": problem.message})
