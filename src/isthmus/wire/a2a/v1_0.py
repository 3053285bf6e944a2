"""A2A 1.0, and what all generations share: reading fields, the JSON objects, requests and results.

`Dialect` is the model: it reads and writes 1.0, and a subclass for each other generation (`v0_3`, `v0_3_rest`, `v0_1`,
`agentvault`) replaces what differs there. JSON-RPC and HTTP+JSON use the same objects; `rest` maps verbs and paths to
the methods here, and `protobuf` converts them for gRPC. 1.0 follows the JSON form of protobuf: no empty fields, states
and roles as names of enumerations. The same structs serve both directions, because the hub is an agent to its callers
and a client of other agents (`client`).

`required` and `optional` raise `Unreadable`, which names the field; `Dialect.read` turns that into an `A2aProblem`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Annotated, Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus.model.tasks import (
    ABSENT,
    ENDED,
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
    A2aProblem,
    CancelTask,
    CreatePushConfig,
    DeletePushConfig,
    DialectName,
    GetExtendedCard,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    ListTasks,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
    SubscribeToTask,
    TaskPage,
    error_1_0,
)
from isthmus.wire.jsonrpc import Payload, object_members, render

encode = msgspec.json.Encoder().encode

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


# The objects of 1.0. Other generations derive theirs from these.

PartT = TypeVar("PartT")
MessageT = TypeVar("MessageT", bound="MessageObject[Any]")
StatusT = TypeVar("StatusT", bound="StatusObject[Any]")
ArtifactT = TypeVar("ArtifactT", bound="ArtifactObject[Any]")


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


MessageV10: TypeAlias = MessageObject[PartV10]
StatusV10: TypeAlias = StatusObject[MessageV10]
ArtifactV10: TypeAlias = ArtifactObject[PartV10]
TaskV10: TypeAlias = TaskObject[StatusV10, ArtifactV10, MessageV10]


class UpdateV10(Struct, omit_defaults=True):
    """The result of `SendMessage`, or a stream event. It has one of these fields."""

    task: TaskV10 | None = None
    message: MessageV10 | None = None
    statusUpdate: StatusUpdateObject[StatusV10] | None = None
    artifactUpdate: ArtifactUpdateObject[ArtifactV10] | None = None


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


class _TaskPageV10(Struct):
    tasks: list[TaskV10]
    nextPageToken: str
    pageSize: int
    totalSize: int


_CONFIGURATION = msgspec.json.Decoder(_SendConfigurationV10)
_AUTHENTICATION = msgspec.json.Decoder(_PushAuthenticationV10)
_URL = msgspec.json.Decoder(Annotated[str, Meta(min_length=1)])

PAGE_SIZE_MAX = 100
PAGE_SIZE = 50
_PAGE_SIZE = msgspec.json.Decoder(Annotated[int, Meta(ge=1, le=PAGE_SIZE_MAX)])

STATE_UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
"""The protobuf name for no state."""


class SendConfiguration(NamedTuple):
    """How the caller of `SendMessage` wants its response."""

    waits: bool
    history_length: int | None
    output_modes: Sequence[str] | None
    push: PushConfig | None


class Dialect:
    """How one generation reads requests and writes results; this one is 1.0.

    The attributes are the table of differences. A generation replaces methods only where its objects have another
    structure. A dialect has no state.
    """

    name: DialectName = "1.0"
    states: Mapping[TaskState, str] = {
        "submitted": "TASK_STATE_SUBMITTED",
        "working": "TASK_STATE_WORKING",
        "completed": "TASK_STATE_COMPLETED",
        "failed": "TASK_STATE_FAILED",
        "canceled": "TASK_STATE_CANCELED",
        "input_required": "TASK_STATE_INPUT_REQUIRED",
        "rejected": "TASK_STATE_REJECTED",
        "auth_required": "TASK_STATE_AUTH_REQUIRED",
    }
    other_states: Mapping[str, TaskState] = {}
    """Names of states that the hub reads, but never writes."""
    roles: Mapping[Role, str] = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
    message_type: type[MessageObject[Any]] = MessageObject
    status_type: type[StatusObject[Any]] = StatusObject
    artifact_type: type[ArtifactObject[Any]] = ArtifactObject
    task_type: type[TaskObject[Any, Any, Any]] = TaskObject
    status_update_type: type[Struct] = StatusUpdateObject
    artifact_update_type: type[Struct] = ArtifactUpdateObject
    message_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(MessageV10)
    task_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(TaskV10)
    update_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(UpdateV10)
    parts_name = "parts"
    is_wrapped = True
    """Results, lists and stream events are members of an object that are named after their type."""
    has_final = False
    """A status update says whether it is the last one."""
    omits_false = True
    """Flags that are false are left out, as in the JSON form of protobuf."""
    has_references = True
    has_snake_case = True
    """Parameters may have snake_case names, as in the JSON form of protobuf."""

    def __init__(self) -> None:
        self.state_of = {**{word: state for state, word in self.states.items()}, **self.other_states}
        self.role_of = {word: role for role, word in self.roles.items()}
        self.readers = self.make_readers()

    def __reduce__(self) -> str:
        # Each module has one dialect: another process, which reads a long message, has the same one.
        return "DIALECT"

    # -- requests ------------------------------------------------------------------------------------------------------

    def read(self, method: str, params: Members) -> Operation | A2aProblem:
        """Read a request."""
        reader = self.readers.get(method)
        if reader is None:
            return unknown_method(method)
        try:
            return reader(camel_members(params) if self.has_snake_case else params)
        except Unreadable as unreadable:
            return unreadable.problem

    def make_readers(self) -> Mapping[str, Reader]:
        """The reader of each method."""

        def read_list_tasks(params: Members) -> ListTasks:
            state = optional(STRING, params, "status") or STATE_UNSPECIFIED
            if state != STATE_UNSPECIFIED and state not in self.state_of:
                raise Unreadable(invalid("status", f"must be one of {', '.join(self.state_of)}"))
            after = optional(STRING, params, "statusTimestampAfter")
            if after is not None and parse_timestamp(after) is None:
                raise Unreadable(invalid("statusTimestampAfter", "must be a timestamp like 2026-01-31T12:00:00Z"))
            return ListTasks(
                optional_id(params, "contextId"),
                self.state_of.get(state),
                parse_timestamp(after),
                optional(_PAGE_SIZE, params, "pageSize") or PAGE_SIZE,
                optional(STRING, params, "pageToken") or "",
                optional(COUNT, params, "historyLength"),
                optional(FLAG, params, "includeArtifacts") or False,
            )

        def read_create_push(params: Members) -> CreatePushConfig:
            task = required(ID, params, "taskId")
            auth = optional(_AUTHENTICATION, params, "authentication")
            token = optional(STRING, params, "token")
            push = _PushConfigV10(required(_URL, params, "url"), optional_id(params, "id"), task, token, auth)
            return CreatePushConfig(task, _read_push_config(push))

        readers: dict[str, Reader] = {
            "SendMessage": partial(self.read_send, is_stream=False),
            "SendStreamingMessage": partial(self.read_send, is_stream=True),
            "GetTask": read_get_task,
            "ListTasks": read_list_tasks,
            "CancelTask": read_cancel_task,
            "SubscribeToTask": read_subscribe,
            "CreateTaskPushNotificationConfig": read_create_push,
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
        return readers

    def read_send(self, params: Members, *, is_stream: bool) -> Operation:
        """Read `SendMessage`."""
        wire = required(self.message_decoder, params, "message")
        if not bounded_id(wire.messageId, "message.messageId"):
            raise Unreadable(invalid("message.messageId", "is required"))
        self.check_message(wire)
        wanted = self.read_configuration(params)
        return SendMessage(
            self.read_message(wire),
            bounded_id(wire.taskId, "message.taskId"),
            bounded_id(wire.contextId, "message.contextId"),
            waits=wanted.waits,
            is_stream=is_stream,
            history_length=wanted.history_length,
            output_modes=tuple(wanted.output_modes or ()),
            push=wanted.push,
            metadata=optional_object(params, "metadata"),
        )

    def check_message(self, wire: Any) -> None:
        """Check the role and the number of parts of a caller's message.

        Raises:
            Unreadable: one of them is invalid.
        """
        if wire.role not in self.role_of:
            raise Unreadable(invalid("message.role", f"must be one of {', '.join(self.role_of)}"))
        if not 1 <= len(wire.parts or ()) <= PARTS_MAX:
            raise Unreadable(invalid(f"message.{self.parts_name}", f"must have between 1 and {PARTS_MAX} elements"))

    def read_configuration(self, params: Members) -> SendConfiguration:
        """Read the configuration of `SendMessage`."""
        wire = optional(_CONFIGURATION, params, "configuration") or _SendConfigurationV10()
        push = wire.taskPushNotificationConfig
        return SendConfiguration(
            not wire.returnImmediately,
            wire.historyLength,
            wire.acceptedOutputModes,
            None if push is None else _read_push_config(push),
        )

    # -- objects of agents ---------------------------------------------------------------------------------------------

    def read_part(self, wire: Any) -> Part:
        """Read a part."""
        metadata = null_as_absent(wire.metadata)
        if wire.text is not None:
            return TextPart(wire.text, wire.mediaType or None, metadata)
        if wire.data:
            return DataPart(wire.data, wire.mediaType or None, metadata)
        return FilePart(wire.raw, wire.url, wire.filename or None, wire.mediaType or None, metadata)

    def read_message(self, wire: MessageObject[Any], *, is_alone: bool = False) -> Message:
        """Read a message. One of an agent that is outside a task names its own context."""
        return Message(
            wire.messageId,
            self.role_of.get(wire.role, "agent"),
            tuple([self.read_part(part) for part in wire.parts or ()]),
            null_as_absent(wire.metadata),
            tuple(wire.extensions or ()),
            tuple(wire.referenceTaskIds or ()),
            (wire.contextId or None) if is_alone else None,
        )

    def read_status(self, wire: StatusObject[Any]) -> TaskStatus:
        """Read a status of an agent's task. An unknown state counts as `working`, because it is no known end."""
        message = None if wire.message is None else self.read_message(wire.message)
        return TaskStatus(self.state_of.get(wire.state, "working"), parse_timestamp(wire.timestamp) or 0.0, message)

    def read_artifact(self, wire: ArtifactObject[Any]) -> Artifact:
        """Read an artifact of an agent."""
        return Artifact(
            wire.artifactId,
            tuple([self.read_part(part) for part in wire.parts or ()]),
            wire.name,
            wire.description,
            null_as_absent(wire.metadata),
            tuple(wire.extensions or ()),
        )

    def read_task(self, wire: TaskObject[Any, Any, Any]) -> Task:
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

    def read_status_update(self, wire: StatusUpdateObject[Any]) -> TaskStatusUpdate:
        """Read a status update of an agent. The update of an ended task is the last one."""
        status, metadata = self.read_status(wire.status), null_as_absent(wire.metadata)
        return TaskStatusUpdate(wire.taskId, wire.contextId, status, status.state in ENDED, metadata)

    def read_artifact_update(self, wire: ArtifactUpdateObject[Any], *, is_complete: bool) -> TaskArtifactUpdate:
        """Read an artifact update of an agent."""
        artifact, metadata = self.read_artifact(wire.artifact), null_as_absent(wire.metadata)
        return TaskArtifactUpdate(wire.taskId, wire.contextId, artifact, bool(wire.append), is_complete, metadata)

    def read_update(self, wire: Any) -> Update | None:
        """Read a stream event of an agent; None if it is empty."""
        if wire.task is not None:
            return self.read_task(wire.task)
        if wire.message is not None:
            return self.read_message(wire.message, is_alone=True)
        if wire.statusUpdate is not None:
            return self.read_status_update(wire.statusUpdate)
        if wire.artifactUpdate is not None:
            return self.read_artifact_update(wire.artifactUpdate, is_complete=bool(wire.artifactUpdate.lastChunk))
        return None

    # -- objects for others --------------------------------------------------------------------------------------------

    def part_object(self, part: Part) -> Any:
        """The JSON object of a part."""
        match part:
            case TextPart():
                return PartV10(text=part.text, mediaType=part.media_type, metadata=part.metadata)
            case DataPart():
                return PartV10(data=part.data, mediaType=part.media_type, metadata=part.metadata)
            case FilePart():
                url = part.url if part.content is None else None
                raw = None if url is not None else part.content or ""
                return PartV10(None, raw, url, ABSENT, part.name, part.media_type, part.metadata)

    def message_object(self, message: Message, context: str | None, task: str | None) -> Any:
        """The JSON object of a message that belongs to this context and task."""
        return self.message_type(
            messageId=message.id,
            role=self.roles[message.role],
            parts=[self.part_object(part) for part in message.parts],
            contextId=context or None,
            taskId=task,
            metadata=message.metadata,
            extensions=list(message.extensions) or None,
            referenceTaskIds=(list(message.references) or None) if self.has_references else None,
        )

    def status_object(self, status: TaskStatus, context: str, task: str) -> Any:
        """The JSON object of a task's status."""
        message = None if status.message is None else self.message_object(status.message, context, task)
        return self.status_type(state=self.states[status.state], message=message, timestamp=format_timestamp(status.at))

    def artifact_object(self, artifact: Artifact) -> Any:
        """The JSON object of an artifact."""
        return self.artifact_type(
            artifactId=artifact.id,
            parts=[self.part_object(part) for part in artifact.parts],
            name=artifact.name,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=list(artifact.extensions) or None,
        )

    def task_object(
        self, task: Task, history_length: int | None, *, with_empty_artifacts: bool = False
    ) -> TaskObject[Any, Any, Any]:
        """The JSON object of a task with the last messages of its history."""
        artifacts = [self.artifact_object(artifact) for artifact in task.artifacts]
        messages = last_messages(task.history, history_length)
        return self.task_type(
            id=task.id,
            contextId=task.context,
            status=self.status_object(task.status, task.context, task.id),
            artifacts=artifacts if artifacts or with_empty_artifacts else None,
            history=[self.message_object(message, task.context, task.id) for message in messages] or None,
            metadata=task.metadata,
        )

    def push_object(self, task: str, target: PushConfig) -> Any:
        """The JSON object of a push notification config."""
        auth = None if target.scheme is None else _PushAuthenticationV10(target.scheme, target.credentials)
        return _PushConfigV10(target.url, target.id or None, task, target.token, auth)

    # -- results -------------------------------------------------------------------------------------------------------

    def write_sent(self, sent: Task | Message, history_length: int | None) -> Payload:
        """The result of a `SendMessage` without a stream."""
        if isinstance(sent, Message):
            message = self.message_object(sent, sent.context, None)
            return encode({"message": message} if self.is_wrapped else message)
        task = self.task_object(sent, history_length)
        return encode({"task": task} if self.is_wrapped else task)

    def write_task(self, task: Task, history_length: int | None) -> Payload:
        """The result of `GetTask`, which is also the body of a push notification before 1.0."""
        return encode(self.task_object(task, history_length))

    def write_cancelled(self, task: Task) -> Payload:
        """The result of `CancelTask`."""
        return self.write_task(task, None)

    def write_update(self, update: Update) -> Payload:
        """One stream event, without its frame."""
        match update:
            case Task() | Message():
                return self.write_sent(update, None)
            case TaskStatusUpdate():
                status = self.status_update_type(
                    taskId=update.task,
                    contextId=update.context,
                    status=self.status_object(update.status, update.context, update.task),
                    metadata=update.metadata,
                    **({"final": update.is_last} if self.has_final else {}),
                )
                return encode({"statusUpdate": status} if self.is_wrapped else status)
            case TaskArtifactUpdate():
                chunk = self.artifact_update_type(
                    taskId=update.task,
                    contextId=update.context,
                    artifact=self.artifact_object(update.artifact),
                    append=update.is_more or (None if self.omits_false else False),
                    lastChunk=update.is_complete or (None if self.omits_false else False),
                    metadata=update.metadata,
                )
                return encode({"artifactUpdate": chunk} if self.is_wrapped else chunk)

    def write_tasks(self, page: TaskPage, asked: ListTasks) -> Payload:
        """The result of `ListTasks`, which only 1.0 has. If artifacts were requested, an empty list is written, too."""
        with_artifacts = asked.has_artifacts
        tasks = [
            self.task_object(task, asked.history_length, with_empty_artifacts=with_artifacts) for task in page.tasks
        ]
        if not with_artifacts:
            for task in tasks:
                task.artifacts = None
        return encode(_TaskPageV10(tasks, page.next_token, page.page_size, page.total))

    def write_push(self, task: str, target: PushConfig) -> Payload:
        """One push notification config."""
        return encode(self.push_object(task, target))

    def write_pushes(self, page: PushConfigPage) -> Payload:
        """The result of `ListPushConfigs`."""
        configs = [self.push_object(page.task, target) for target in page.targets]
        if not self.is_wrapped:
            return encode(configs)
        return encode({"configs": configs, **({"nextPageToken": page.next_token} if page.next_token else {})})

    def write_deleted(self) -> Payload:
        """The result of `DeletePushConfig`."""
        return b"{}" if self.is_wrapped else b"null"

    def write_problem(self, problem: A2aProblem) -> tuple[int, str, Payload | None]:
        """Code, message and data of a JSON-RPC error."""
        return error_1_0(problem)


def _read_push_config(push: _PushConfigV10) -> PushConfig:
    id = bounded_id(push.id, "id of a push notification config") or ""
    auth = push.authentication or _PushAuthenticationV10("")
    return PushConfig(push.url, id, push.token or None, auth.scheme or None, auth.credentials or None)


def read_get_task(params: Members) -> GetTask:
    """Read `GetTask`."""
    return GetTask(required(ID, params, "id"), optional(COUNT, params, "historyLength"))


def read_cancel_task(params: Members) -> CancelTask:
    """Read `CancelTask`."""
    return CancelTask(required(ID, params, "id"), optional_object(params, "metadata"))


def read_subscribe(params: Members) -> SubscribeToTask:
    """Read `SubscribeToTask`."""
    return SubscribeToTask(required(ID, params, "id"))


DIALECT = Dialect()
