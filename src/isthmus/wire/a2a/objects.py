"""The JSON that the generations of A2A share: single fields, and the objects of 1.0, 0.3 and 0.3 over REST.

`required` and `optional` raise `Unreadable`, which names the field; `read_with` turns that into an `A2aProblem`. Each
generation derives its structs from the objects here, and describes its other differences in one `ObjectForm`: the names
of states and roles, and the form of parts and results. The same structs serve both directions, because the hub is an
agent to its callers and a client of other agents. Called by the modules of the generations and `client`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus.model.tasks import (
    ABSENT,
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdate,
    TaskState,
    TaskStatus,
    TaskStatusUpdate,
    Update,
)
from isthmus.wire.a2a.operations import A2aProblem, CancelTask, GetTask, Operation, SubscribeToTask
from isthmus.wire.jsonrpc import Payload, object_members, render

_encode = msgspec.json.Encoder().encode

Members: TypeAlias = Mapping[str, Raw]
Reader: TypeAlias = Callable[[Members], Operation]

ID_LENGTH_MAX = 256
"""Ids chosen by callers are stored unchanged. No known client makes ids a quarter as long."""

PARTS_MAX = 1_000
"""Parts of one message. Each is stored and repeated in every response about the task."""

WORDS_MAX = 300
"""Length of an error message: it may quote a bad value, which may be the whole body."""

_T = TypeVar("_T")
_NOT_READABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

STRING = msgspec.json.Decoder(str)
ID = msgspec.json.Decoder(Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)])
COUNT = msgspec.json.Decoder(Annotated[int, Meta(ge=0, le=2**31 - 1)])
FLAG = msgspec.json.Decoder(bool)


class Unreadable(Exception):
    """The request cannot be read. Raised and caught inside this package only."""

    def __init__(self, problem: A2aProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_with(readers: Mapping[str, Reader], method: str, params: Members) -> Operation | A2aProblem:
    """Read a request with the reader of its method."""
    reader = readers.get(method)
    if reader is None:
        return unknown_method(method)
    try:
        return reader(params)
    except Unreadable as unreadable:
        return unreadable.problem


def camel_members(params: Members) -> Members:
    """Members under their camelCase names: the JSON form of protobuf allows the snake_case names as well."""
    if not any("_" in name for name in params):
        return params
    return {**{_CAMEL.sub(lambda found: found[1].upper(), name): value for name, value in params.items()}, **params}


_CAMEL = re.compile(r"_([a-z])")


def unknown_method(method: str) -> A2aProblem:
    """The problem of a method that no generation has."""
    return A2aProblem("unknown_method", f"unknown method {method[:WORDS_MAX]!r}")


def invalid(field: str, why: str) -> A2aProblem:
    """The problem of a field with an invalid value."""
    return A2aProblem("invalid_params", f"{field} {why}"[:WORDS_MAX], {"field": field})


def required(decoder: msgspec.json.Decoder[_T], params: Members, name: str) -> _T:
    """Read a field that must be present."""
    found = optional(decoder, params, name)
    if found is None:
        raise Unreadable(invalid(name, "is required"))
    return found


def optional(decoder: msgspec.json.Decoder[_T], params: Members, name: str) -> _T | None:
    """Read a field that may be absent or null."""
    raw = params.get(name)
    return None if raw is None or is_null(raw) else decoded(decoder, raw, name)


_MISREAD = re.compile(r"(?P<why>.*?)(?: - at `\$(?P<place>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>\w+)`")


def decoded(decoder: msgspec.json.Decoder[_T], raw: Payload, name: str) -> _T:
    """Decode the value of a field. The problem has the decoder's message, and the path of the bad value in front."""
    try:
        return decoder.decode(raw)
    except _NOT_READABLE as error:
        found = _MISREAD.fullmatch(str(error))
        why, place = (found["why"], found["place"] or "") if found else (str(error), "")
        if missing := _MISSING.fullmatch(why):
            raise Unreadable(invalid(f"{name}{place}.{missing['field']}", "is required")) from error
        raise Unreadable(invalid(f"{name}{place}", f"cannot be read: {why}")) from error


def optional_id(params: Members, name: str) -> str | None:
    """Read an id that may be absent. An empty id counts as absent, as in the protobuf form of A2A."""
    text = optional(STRING, params, name)
    return bounded_id(text, name) if text else None


def bounded_id(text: str | None, name: str) -> str | None:
    """Check the length of an id that may be absent or empty."""
    if text and len(text) > ID_LENGTH_MAX:
        raise Unreadable(invalid(name, f"is longer than {ID_LENGTH_MAX}"))
    return text or None


def optional_object(params: Members, name: str) -> Raw:
    """Read a field that is an object, null or absent."""
    raw = null_as_absent(params.get(name, ABSENT))
    if raw and not is_object(raw):
        raise Unreadable(invalid(name, "must be an object"))
    return raw


def check_parts(parts: Sequence[object], name: str) -> None:
    """Check that a message has parts, but not too many."""
    if not 1 <= len(parts) <= PARTS_MAX:
        raise Unreadable(invalid(name, f"must have between 1 and {PARTS_MAX} elements"))


# Structs call this while they are decoded, so that the decoder adds the path of the bad value.


def check_object(raw: Raw, name: str) -> None:
    """Check that a field is an object, null or absent.

    Raises:
        ValueError: it is another kind of value.
    """
    if raw and not is_object(raw) and not is_null(raw):
        raise ValueError(f"{name} must be an object")


_BRACE = ord("{")


def is_object(raw: Raw) -> bool:
    """Whether valid JSON is an object."""
    return bool(raw) and memoryview(raw)[0] == _BRACE


def is_null(raw: Raw) -> bool:
    """Whether valid JSON is null."""
    return len(raw) == 4 and bytes(raw) == b"null"


def null_as_absent(raw: Raw) -> Raw:
    """The value of a field where null means the same as absence."""
    return ABSENT if is_null(raw) else raw


# Data parts. Before 1.0 their data must be an object. Like the official SDK, wrap any other value, and mark that.

_MARK = "data_part_compat"


def data_as_object(data: Raw) -> Raw:
    """Wrap data that is not an object."""
    return data if is_object(data) else Raw(b'{"value":%b}' % bytes(data))


def data_metadata(data: Raw, metadata: Raw) -> Raw:
    """The metadata that goes with `data_as_object(data)`: it marks data that was wrapped."""
    if is_object(data):
        return metadata
    members: dict[str, Payload] = dict(object_members(metadata) or {}) if metadata else {}
    return Raw(render({**members, _MARK: b"true"}))


def restore_data(data: Raw, metadata: Raw) -> tuple[Raw, Raw]:
    """Undo `data_as_object` and `data_metadata`."""
    if _MARK.encode() not in bytes(metadata):
        return data, metadata
    members = object_members(metadata) or {}
    value = (object_members(data) or {}).get("value")
    if bytes(members.pop(_MARK, b"")) != b"true" or value is None:
        return data, metadata
    return value, Raw(render(members)) if members else ABSENT


# Timestamps.


def format_timestamp(at: float) -> str:
    """A time in RFC 3339 format, in UTC, with milliseconds."""
    seconds, rest = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(seconds)}.{rest // 1000:03}Z"


def format_timestamp_micros(at: float) -> str:
    """A time in RFC 3339 format, in UTC, with microseconds."""
    seconds, rest = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(seconds)}.{rest:06}Z"


@lru_cache(maxsize=64)
def _second(at: int) -> str:
    # A task has several timestamps within one second, and the calendar is the most expensive part of writing it.
    return datetime.fromtimestamp(at, UTC).isoformat()[:19]


def parse_timestamp(text: str | None) -> float | None:
    """Parse a timestamp, as UTC if it has no zone; None if it is invalid."""
    try:
        when = datetime.fromisoformat(text or "")
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def last_messages(history: tuple[Message, ...], length: int | None) -> tuple[Message, ...]:
    """The last messages of a history; all of them if `length` is None."""
    if length is None:
        return history
    return history[-length:] if length else ()


# Objects.

PartT = TypeVar("PartT")
MessageT = TypeVar("MessageT", bound="MessageObject[Any]")
StatusT = TypeVar("StatusT", bound="StatusObject[Any]")
ArtifactT = TypeVar("ArtifactT", bound="ArtifactObject[Any]")
TaskT = TypeVar("TaskT", bound="TaskObject[Any, Any, Any]")


class MessageObject(Struct, Generic[PartT], omit_defaults=True, kw_only=True):
    """A message."""

    messageId: str
    role: str
    parts: list[PartT] | None = None
    """Always written. Agents that convert protobuf to JSON leave out an empty list."""
    contextId: str | None = None
    taskId: str | None = None
    metadata: Raw = ABSENT
    extensions: list[str] | None = None
    referenceTaskIds: list[str] | None = None

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class StatusObject(Struct, Generic[MessageT], omit_defaults=True, kw_only=True):
    """The status of a task."""

    state: str
    message: MessageT | None = None
    timestamp: str | None = None


class ArtifactObject(Struct, Generic[PartT], omit_defaults=True, kw_only=True):
    """An artifact of a task."""

    artifactId: str
    parts: list[PartT] | None = None
    name: str | None = None
    description: str | None = None
    metadata: Raw = ABSENT
    extensions: list[str] | None = None

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class TaskObject(Struct, Generic[StatusT, ArtifactT, MessageT], omit_defaults=True, kw_only=True):
    """A task."""

    id: str
    contextId: str | None = None
    status: StatusT
    artifacts: list[ArtifactT] | None = None
    history: list[MessageT] | None = None
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class StatusUpdateObject(Struct, Generic[StatusT], omit_defaults=True, kw_only=True):
    """A stream event: the task has a new status."""

    taskId: str
    contextId: str
    status: StatusT
    metadata: Raw = ABSENT


class ArtifactUpdateObject(Struct, Generic[ArtifactT], omit_defaults=True, kw_only=True):
    """A stream event: an artifact, or the next chunk of one."""

    taskId: str
    contextId: str
    artifact: ArtifactT
    append: bool | None = None
    lastChunk: bool | None = None
    metadata: Raw = ABSENT


@dataclass(slots=True)
class ObjectForm(Generic[PartT, MessageT, StatusT, ArtifactT, TaskT]):
    """How one generation writes the shared objects. Each field is a difference between generations."""

    states: Mapping[TaskState, str]
    roles: Mapping[Role, str]
    read_part: Callable[[PartT], Part]
    write_part: Callable[[Part], PartT]
    message_type: type[MessageT]
    status_type: type[StatusT]
    artifact_type: type[ArtifactT]
    task_type: type[TaskT]
    status_update_type: Callable[..., Struct]
    artifact_update_type: Callable[..., Struct]
    parts_name: str = "parts"
    is_wrapped: bool = True
    """Results and stream events are members of an object that are named after their type."""
    has_final: bool = True
    """A status update says whether it is the last one."""
    omits_false: bool = True
    """Flags that are false are left out, as in the JSON form of protobuf."""
    has_references: bool = True
    other_states: Mapping[str, TaskState] = field(default_factory=dict)
    """Names of states that the hub reads, but never writes."""
    state_of: Mapping[str, TaskState] = field(init=False)
    role_of: Mapping[str, Role] = field(init=False)

    def __post_init__(self) -> None:
        self.state_of = {**{word: state for state, word in self.states.items()}, **self.other_states}
        self.role_of = {word: role for role, word in self.roles.items()}

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_request_message(self, wire: MessageT) -> Message:
        """Read the message of a caller.

        Raises:
            Unreadable: a field is missing or invalid.
        """
        if not bounded_id(wire.messageId, "message.messageId"):
            raise Unreadable(invalid("message.messageId", "is required"))
        if wire.role not in self.role_of:
            raise Unreadable(invalid("message.role", f"must be one of {', '.join(self.role_of)}"))
        check_parts(wire.parts or (), f"message.{self.parts_name}")
        return self._message(wire, None)

    def read_message(self, wire: MessageT, *, is_alone: bool = False) -> Message:
        """Read a message of an agent. A message outside a task names its own context."""
        return self._message(wire, (wire.contextId or None) if is_alone else None)

    def _message(self, wire: MessageT, context: str | None) -> Message:
        return Message(
            wire.messageId,
            self.role_of.get(wire.role, "agent"),
            tuple([self.read_part(part) for part in wire.parts or ()]),
            null_as_absent(wire.metadata),
            tuple(wire.extensions or ()),
            tuple(wire.referenceTaskIds or ()),
            context,
        )

    def read_status(self, wire: StatusT) -> TaskStatus:
        """Read a status of an agent's task. An unknown state counts as `working`, because it is no known end."""
        message = None if wire.message is None else self.read_message(wire.message)
        return TaskStatus(self.state_of.get(wire.state, "working"), parse_timestamp(wire.timestamp) or 0.0, message)

    def read_artifact(self, wire: ArtifactT) -> Artifact:
        """Read an artifact of an agent."""
        return Artifact(
            wire.artifactId,
            tuple([self.read_part(part) for part in wire.parts or ()]),
            wire.name,
            wire.description,
            null_as_absent(wire.metadata),
            tuple(wire.extensions or ()),
        )

    def read_task(self, wire: TaskT) -> Task:
        """Read an agent's task. It has no creation time; the time of its status stands in."""
        status = self.read_status(wire.status)
        return Task(
            wire.id,
            wire.contextId or "",
            status,
            status.at,
            tuple([self.read_artifact(artifact) for artifact in wire.artifacts or ()]),
            tuple([self.read_message(message) for message in wire.history or ()]),
            null_as_absent(wire.metadata),
        )

    def read_status_update(
        self, wire: StatusUpdateObject[StatusT], status: TaskStatus, *, is_last: bool
    ) -> TaskStatusUpdate:
        """Read a status update of an agent; `status` is its status, already read."""
        return TaskStatusUpdate(wire.taskId, wire.contextId, status, is_last, null_as_absent(wire.metadata))

    def read_artifact_update(self, wire: ArtifactUpdateObject[ArtifactT], *, is_complete: bool) -> TaskArtifactUpdate:
        """Read an artifact update of an agent."""
        artifact, metadata = self.read_artifact(wire.artifact), null_as_absent(wire.metadata)
        return TaskArtifactUpdate(wire.taskId, wire.contextId, artifact, bool(wire.append), is_complete, metadata)

    # -- writing -------------------------------------------------------------------------------------------------------

    def write_message(self, message: Message, context: str | None, task: str | None) -> MessageT:
        """Write a message that belongs to this context and task."""
        return self.message_type(
            messageId=message.id,
            role=self.roles[message.role],
            parts=[self.write_part(part) for part in message.parts],
            contextId=context or None,
            taskId=task,
            metadata=message.metadata,
            extensions=list(message.extensions) or None,
            referenceTaskIds=(list(message.references) or None) if self.has_references else None,
        )

    def write_status(self, status: TaskStatus, context: str, task: str) -> StatusT:
        """Write the status of a task."""
        message = None if status.message is None else self.write_message(status.message, context, task)
        return self.status_type(state=self.states[status.state], message=message, timestamp=format_timestamp(status.at))

    def write_artifact(self, artifact: Artifact) -> ArtifactT:
        """Write an artifact."""
        return self.artifact_type(
            artifactId=artifact.id,
            parts=[self.write_part(part) for part in artifact.parts],
            name=artifact.name,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=list(artifact.extensions) or None,
        )

    def write_task(self, task: Task, history_length: int | None, *, with_empty_artifacts: bool = False) -> TaskT:
        """Write a task with the last messages of its history."""
        artifacts = [self.write_artifact(artifact) for artifact in task.artifacts]
        messages = last_messages(task.history, history_length)
        return self.task_type(
            id=task.id,
            contextId=task.context,
            status=self.write_status(task.status, task.context, task.id),
            artifacts=artifacts if artifacts or with_empty_artifacts else None,
            history=[self.write_message(message, task.context, task.id) for message in messages] or None,
            metadata=task.metadata,
        )

    # -- results -------------------------------------------------------------------------------------------------------

    def encode_sent(self, sent: Task | Message, history_length: int | None) -> Payload:
        """Write the result of `SendMessage`."""
        if isinstance(sent, Message):
            message = self.write_message(sent, sent.context, None)
            return _encode({"message": message} if self.is_wrapped else message)
        task = self.write_task(sent, history_length)
        return _encode({"task": task} if self.is_wrapped else task)

    def encode_task(self, task: Task, history_length: int | None) -> Payload:
        """Write the result of `GetTask`, which is also the body of a push notification before 1.0."""
        return _encode(self.write_task(task, history_length))

    def encode_cancelled(self, task: Task) -> Payload:
        """Write the result of `CancelTask`."""
        return _encode(self.write_task(task, None))

    def encode_update(self, update: Update) -> Payload:
        """Write a stream event."""
        match update:
            case Task() | Message():
                return self.encode_sent(update, None)
            case TaskStatusUpdate():
                status = self.status_update_type(
                    taskId=update.task,
                    contextId=update.context,
                    status=self.write_status(update.status, update.context, update.task),
                    metadata=update.metadata,
                    **({"final": update.is_last} if self.has_final else {}),
                )
                return _encode({"statusUpdate": status} if self.is_wrapped else status)
            case TaskArtifactUpdate():
                chunk = self.artifact_update_type(
                    taskId=update.task,
                    contextId=update.context,
                    artifact=self.write_artifact(update.artifact),
                    append=update.is_more or (None if self.omits_false else False),
                    lastChunk=update.is_complete or (None if self.omits_false else False),
                    metadata=update.metadata,
                )
                return _encode({"artifactUpdate": chunk} if self.is_wrapped else chunk)


# Parameters that most generations have in the same form.


def read_get_task(params: Members) -> GetTask:
    """Read `GetTask`."""
    return GetTask(required(ID, params, "id"), optional(COUNT, params, "historyLength"))


def read_cancel_task(params: Members) -> CancelTask:
    """Read `CancelTask`."""
    return CancelTask(required(ID, params, "id"), optional_object(params, "metadata"))


def read_subscribe(params: Members) -> SubscribeToTask:
    """Read `SubscribeToTask`."""
    return SubscribeToTask(required(ID, params, "id"))
