"""The JSON objects that A2A 1.0, 0.3 and 0.3 over REST share: messages, tasks, artifacts and updates.

Each generation derives its structs from these, and describes the rest of its differences in one `ObjectForm`: the names
of states and roles, and the form of a part. The same structs serve both directions, because the hub is an agent to
its callers and a client of other agents. Called by `v1_0`, `v0_3`, `v0_3_rest` and `client`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct

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
)
from isthmus.wire.a2a.fields import (
    COUNT,
    ID,
    Members,
    Unreadable,
    bounded_id,
    check_object,
    check_parts,
    format_timestamp,
    invalid,
    last_messages,
    null_as_absent,
    optional,
    optional_object,
    parse_timestamp,
    required,
)
from isthmus.wire.a2a.operations import CancelTask, GetTask, SubscribeToTask

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
    parts_name: str = "parts"
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
