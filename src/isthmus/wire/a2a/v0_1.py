"""A2A 0.1 towards callers: they name their tasks, wait for them, and fill what they do not say with null.

Messages have no ids here, and artifacts only places. Called by the face.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus.model.conversation import (
    ABSENT,
    ENDED,
    WAITING,
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
    GetPushConfig,
    ListTasks,
    Operation,
    A2aProblem,
    PushConfigPage,
    PushConfig,
    SendMessage,
    CreatePushConfig,
    SubscribeToTask,
    TaskPage,
)
from isthmus.wire.a2a.fields import (
    COUNT,
    ID,
    Members,
    Reader,
    Unreadable,
    data_as_object,
    check_object,
    check_parts,
    invalid,
    is_object,
    last_messages,
    data_metadata,
    optional,
    optional_id,
    optional_object,
    read_with,
    required,
    null_as_absent,
    format_timestamp,
    restore_data,
)
from isthmus.wire.a2a.problems import PROBLEMS, plain_error
from isthmus.wire.jsonrpc import Payload

name: DialectName = "0.1"

STATES: Mapping[TaskState, str] = {
    "submitted": "submitted",
    "working": "working",
    "input_required": "input-required",
    "completed": "completed",
    "failed": "failed",
    "canceled": "canceled",
    # Words that came later, by what a client has to do about them.
    "auth_required": "input-required",
    "rejected": "failed",
}
ROLES: tuple[Role, ...] = ("user", "agent")


class _Text(Struct, tag_field="type", tag="text", omit_defaults=True):
    text: str
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class _FileContent(Struct, omit_defaults=True):
    name: str | None = None
    mimeType: str | None = None
    bytes: str | None = None
    uri: str | None = None

    def __post_init__(self) -> None:
        if self.bytes is None and self.uri is None:
            raise ValueError("must have bytes or a uri")


class _File(Struct, tag_field="type", tag="file", omit_defaults=True):
    file: _FileContent
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class _Data(Struct, tag_field="type", tag="data", omit_defaults=True):
    data: Raw
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")
        if not is_object(self.data):
            raise ValueError("data must be an object")


_Part: TypeAlias = _Text | _File | _Data


class _Message(Struct, omit_defaults=True):
    role: str
    parts: list[_Part]
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class _Status(Struct, omit_defaults=True):
    state: str
    message: _Message | None = None
    format_timestamp: str | None = None


class _Artifact(Struct, omit_defaults=True):
    parts: list[_Part]
    index: int
    name: str | None = None
    description: str | None = None
    append: bool | None = None
    lastChunk: bool | None = None
    metadata: Raw = ABSENT


class _Task(Struct, omit_defaults=True):
    id: str
    sessionId: str
    status: _Status
    history: list[_Message]
    artifacts: list[_Artifact] | None = None
    metadata: Raw = ABSENT


class _StatusUpdate(Struct, omit_defaults=True):
    id: str
    status: _Status
    final: bool
    metadata: Raw = ABSENT


class _ArtifactUpdate(Struct, omit_defaults=True):
    id: str
    artifact: _Artifact
    metadata: Raw = ABSENT


class _Authentication(Struct, omit_defaults=True):
    schemes: list[str] | None = None
    credentials: str | None = None


class _Push(Struct, omit_defaults=True):
    url: Annotated[str, Meta(min_length=1)]
    token: str | None = None
    authentication: _Authentication | None = None


class _TaskPush(Struct):
    id: str
    pushNotificationConfig: _Push


_MESSAGE = msgspec.json.Decoder(_Message)
_MODES = msgspec.json.Decoder(list[str])
_PUSH = msgspec.json.Decoder(_Push)
_encode = msgspec.json.Encoder().encode


# What is asked.


def read(method: str, params: Members) -> Operation | A2aProblem:
    """What a request asks for. Messages have no ids; theirs are empty until somebody gives them one."""
    return read_with(_READERS, method, params)


def _read_send(params: Members, *, is_stream: bool) -> SendMessage:
    push = optional(_PUSH, params, "pushNotification")
    modes: list[str] | None = optional(_MODES, params, "acceptedOutputModes")
    return SendMessage(
        _read_message(required(_MESSAGE, params, "message")),
        required(ID, params, "id"),
        optional_id(params, "sessionId"),
        is_stream=is_stream,
        # What is not asked for is not told: its first server had no other default.
        history_length=optional(COUNT, params, "historyLength") or 0,
        output_modes=tuple(modes or ()),
        push=None if push is None else _target_of(push),
        metadata=optional_object(params, "metadata"),
    )


def _read_message(wire: _Message) -> Message:
    check_parts(wire.parts, "message.parts")
    for role in ROLES:
        if role == wire.role:
            return Message("", role, tuple(_part_of(part) for part in wire.parts), null_as_absent(wire.metadata))
    raise Unreadable(invalid("message.role", f"must be one of {', '.join(ROLES)}"))


def _part_of(wire: _Part) -> Part:
    metadata = null_as_absent(wire.metadata)
    match wire:
        case _Text():
            return TextPart(wire.text, metadata=metadata)
        case _Data():
            data, metadata = restore_data(wire.data, metadata)
            return DataPart(data, metadata=metadata)
        case _File():
            file = wire.file
            return FilePart(file.bytes, file.uri, file.name, file.mimeType, metadata)


def _target_of(push: _Push) -> PushConfig:
    proof = push.authentication or _Authentication()
    scheme = proof.schemes[0] if proof.schemes else None
    return PushConfig(push.url, "", push.token or None, scheme, proof.credentials or None)


def _read_get(params: Members) -> GetTask:
    return GetTask(required(ID, params, "id"), optional(COUNT, params, "historyLength") or 0)


def _read_cancel(params: Members) -> CancelTask:
    return CancelTask(required(ID, params, "id"), optional_object(params, "metadata"))


def _read_subscribe(params: Members) -> SubscribeToTask:
    return SubscribeToTask(required(ID, params, "id"))


def _read_set_push(params: Members) -> CreatePushConfig:
    return CreatePushConfig(required(ID, params, "id"), _target_of(required(_PUSH, params, "pushNotificationConfig")))


def _read_get_push(params: Members) -> GetPushConfig:
    return GetPushConfig(required(ID, params, "id"))


_READERS: dict[str, Reader] = {
    "tasks/send": partial(_read_send, is_stream=False),
    "tasks/sendSubscribe": partial(_read_send, is_stream=True),
    "tasks/get": _read_get,
    "tasks/cancel": _read_cancel,
    "tasks/resubscribe": _read_subscribe,
    "tasks/pushNotification/set": _read_set_push,
    "tasks/pushNotification/get": _read_get_push,
}
METHODS = frozenset(_READERS)


# What is answered.


def write_sent(sent: Task | Message, history_length: int | None) -> Payload:
    """The result of a `SendMessage`, which is always a task here: a message alone is one that has ended."""
    if isinstance(sent, Message):
        sent = Task(sent.id, sent.context or "", TaskStatus("completed", 0.0, sent), 0.0)
    return write_task(sent, history_length)


def write_task(task: Task, history_length: int | None) -> Payload:
    """The result of `GetTask`, and what is pushed."""
    return _encode(_task(task, history_length))


def _task(task: Task, history_length: int | None) -> _Task:
    return _Task(
        task.id,
        task.context,
        _status(task.status),
        [_message(message) for message in last_messages(task.history, history_length or 0)],
        [_artifact(artifact, index) for index, artifact in enumerate(task.artifacts)] or None,
        task.metadata,
    )


def _status(status: TaskStatus) -> _Status:
    message = None if status.message is None else _message(status.message)
    return _Status(STATES[status.state], message, format_timestamp(status.at))


def _message(message: Message) -> _Message:
    return _Message(message.role, _parts(message.parts), message.metadata)


def _parts(parts: Iterable[Part]) -> list[_Part]:
    return [_part(part) for part in parts]


def _part(part: Part) -> _Part:
    match part:
        case TextPart():
            return _Text(part.text, part.metadata)
        case DataPart():
            return _Data(data_as_object(part.data), data_metadata(part.data, part.metadata))
        case FilePart():
            url = part.url if part.content is None else None
            content = None if url is not None else part.content or ""
            return _File(_FileContent(part.name, part.media_type, content, url), part.metadata)


def _artifact(artifact: Artifact, index: int) -> _Artifact:
    return _Artifact(_parts(artifact.parts), index, artifact.name, artifact.description, metadata=artifact.metadata)


def write_cancelled(task: Task) -> Payload:
    """The result of `CancelTask`."""
    return write_task(task, None)


def unfold(update: Update) -> tuple[Update, ...]:
    """What a stream tells of a task as a whole, for which it has no item: its artifacts, and how it stands."""
    if not isinstance(update, Task):
        return (update,)
    artifacts = [
        TaskArtifactUpdate(update.id, update.context, artifact, index=index)
        for index, artifact in enumerate(update.artifacts)
    ]
    return (*artifacts, TaskStatusUpdate(update.id, update.context, update.status, _is_last(update)))


def _is_last(task: Task) -> bool:
    """Whether a stream has no more to tell after a task as a whole: it has ended, or waits for its caller."""
    return task.status.state in ENDED or task.status.state in WAITING


def write_update(update: Update) -> Payload:
    """One item of a stream; of a task as a whole only how it stands (see `unfold`)."""
    match update:
        case Task():
            return _encode(_StatusUpdate(update.id, _status(update.status), _is_last(update)))
        case Message():
            return _encode(_StatusUpdate(update.id, _status(TaskStatus("completed", 0.0, update)), True))
        case TaskStatusUpdate():
            return _encode(_StatusUpdate(update.task, _status(update.status), update.is_last, update.metadata))
        case TaskArtifactUpdate():
            artifact = _artifact(update.artifact, update.index)
            artifact.append, artifact.lastChunk = update.is_more, update.is_complete
            return _encode(_ArtifactUpdate(update.task, artifact, update.metadata))


def write_tasks(page: TaskPage, asked: ListTasks) -> Payload:
    """A list of tasks, for which this generation has no method."""
    return _encode([_task(task, asked.history_length) for task in page.tasks])


def _push(task: str, target: PushConfig) -> _TaskPush:
    proof = None if target.scheme is None else _Authentication([target.scheme], target.credentials)
    return _TaskPush(task, _Push(target.url, target.token, proof))


def write_push(task: str, target: PushConfig) -> Payload:
    """One place where updates are sent."""
    return _encode(_push(task, target))


def write_pushes(page: PushConfigPage) -> Payload:
    """All of them, for which this generation has no method."""
    return _encode([_push(page.task, target) for target in page.targets])


def write_deleted() -> Payload:
    """What is left of one that was deleted."""
    return b"null"


def write_problem(problem: A2aProblem) -> tuple[int, str, Payload | None]:
    """Code, message and data of an error."""
    return plain_error(PROBLEMS[problem.kind].code_0_1, problem)
