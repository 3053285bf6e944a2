"""What 0.3 calls things, and 0.2 before it: its objects as they are on the wire, each of which says its `kind`.

The same shapes are read and written, since the hub is an agent to some and a client of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Raw, Struct

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
from isthmus.wire.a2a.parts import (
    as_object,
    check_object,
    is_object,
    latest,
    marked,
    moment,
    said,
    timestamp,
    unmarked,
)

STATES: Mapping[TaskState, str] = {
    "submitted": "submitted",
    "working": "working",
    "input_required": "input-required",
    "auth_required": "auth-required",
    "completed": "completed",
    "failed": "failed",
    "canceled": "canceled",
    "rejected": "rejected",
}
STATE_OF: Mapping[str, TaskState] = {word: state for state, word in STATES.items()}
ROLES: tuple[Role, ...] = ("user", "agent")


class WireText(Struct, tag_field="kind", tag="text", omit_defaults=True):
    """Text."""

    text: str
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class WireFileContent(Struct, omit_defaults=True):
    """A file: its bytes, or where they are."""

    bytes: str | None = None
    uri: str | None = None
    name: str | None = None
    mimeType: str | None = None

    def __post_init__(self) -> None:
        if self.bytes is None and self.uri is None:
            raise ValueError("must have bytes or a uri")


class WireFile(Struct, tag_field="kind", tag="file", omit_defaults=True):
    """A part that is a file."""

    file: WireFileContent
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class WireData(Struct, tag_field="kind", tag="data", omit_defaults=True):
    """JSON, of which it allows objects."""

    data: Raw
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")
        if not is_object(self.data):
            raise ValueError("data must be an object")


WirePart: TypeAlias = WireText | WireFile | WireData


class WireMessage(Struct, tag_field="kind", tag="message", omit_defaults=True):
    """What was said."""

    messageId: str
    role: str
    parts: list[WirePart]
    contextId: str | None = None
    taskId: str | None = None
    metadata: Raw = ABSENT
    extensions: list[str] | None = None
    referenceTaskIds: list[str] | None = None

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class WireStatus(Struct, omit_defaults=True):
    """How a task stands."""

    state: str
    message: WireMessage | None = None
    timestamp: str | None = None


class WireArtifact(Struct, omit_defaults=True):
    """What came of it."""

    artifactId: str
    parts: list[WirePart]
    name: str | None = None
    description: str | None = None
    metadata: Raw = ABSENT
    extensions: list[str] | None = None

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class WireTask(Struct, tag_field="kind", tag="task", omit_defaults=True):
    """A task."""

    id: str
    contextId: str
    status: WireStatus
    artifacts: list[WireArtifact] | None = None
    history: list[WireMessage] | None = None
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class WireStatusUpdate(Struct, tag_field="kind", tag="status-update", omit_defaults=True):
    """A task stands differently."""

    taskId: str
    contextId: str
    status: WireStatus
    final: bool
    metadata: Raw = ABSENT


class WireArtifactUpdate(Struct, tag_field="kind", tag="artifact-update", omit_defaults=True):
    """An artifact, or more of one."""

    taskId: str
    contextId: str
    artifact: WireArtifact
    append: bool | None = None
    lastChunk: bool | None = None
    metadata: Raw = ABSENT


WireUpdate: TypeAlias = WireTask | WireMessage | WireStatusUpdate | WireArtifactUpdate


# Reading.


def part_of(wire: WirePart) -> Part:
    """A part as it is meant."""
    metadata = said(wire.metadata)
    match wire:
        case WireText():
            return Text(wire.text, metadata=metadata)
        case WireData():
            data, metadata = unmarked(wire.data, metadata)
            return Data(data, metadata=metadata)
        case WireFile():
            file = wire.file
            return File(file.bytes, file.uri, file.name, file.mimeType, metadata)


def message_of(wire: WireMessage, role: Role, context: str | None = None) -> Message:
    """A message as it is meant; whether the role is one was asked before."""
    return Message(
        wire.messageId,
        role,
        tuple(part_of(part) for part in wire.parts),
        said(wire.metadata),
        tuple(wire.extensions or ()),
        tuple(wire.referenceTaskIds or ()),
        context,
    )


def heard(wire: WireMessage, *, is_alone: bool = False) -> Message:
    """A message that an agent sent or repeats; one that stands alone says itself where it belongs."""
    context = wire.contextId if is_alone else None
    return message_of(wire, "user" if wire.role == "user" else "agent", context or None)


def status_of(wire: WireStatus) -> Status:
    """An agent's word on how a task stands; a state that nobody knows is not an end."""
    message = None if wire.message is None else heard(wire.message)
    return Status(STATE_OF.get(wire.state, "working"), moment(wire.timestamp) or 0.0, message)


def artifact_of(wire: WireArtifact) -> Artifact:
    """An agent's artifact."""
    return Artifact(
        wire.artifactId,
        tuple(part_of(part) for part in wire.parts),
        wire.name,
        wire.description,
        said(wire.metadata),
        tuple(wire.extensions or ()),
    )


def task_of(wire: WireTask) -> Task:
    """An agent's task. When it was made is not told; the latest moment that is known stands for it."""
    status = status_of(wire.status)
    return Task(
        wire.id,
        wire.contextId,
        status,
        status.at,
        tuple(artifact_of(artifact) for artifact in wire.artifacts or ()),
        tuple(heard(message) for message in wire.history or ()),
        said(wire.metadata),
    )


def update_of(wire: WireUpdate) -> Update:
    """An item of an agent's stream."""
    match wire:
        case WireTask():
            return task_of(wire)
        case WireMessage():
            return heard(wire, is_alone=True)
        case WireStatusUpdate():
            status = status_of(wire.status)
            return StatusUpdate(wire.taskId, wire.contextId, status, wire.final, said(wire.metadata))
        case WireArtifactUpdate():
            return ArtifactUpdate(
                wire.taskId,
                wire.contextId,
                artifact_of(wire.artifact),
                bool(wire.append),
                # Who says nothing of chunks sends whole artifacts.
                wire.lastChunk is not False,
                said(wire.metadata),
            )


# Writing.


def wire_part(part: Part) -> WirePart:
    """A part as it is written."""
    match part:
        case Text():
            return WireText(part.text, part.metadata)
        case Data():
            return WireData(as_object(part.data), marked(part.data, part.metadata))
        case File():
            url = part.url if part.content is None else None
            content = None if url is not None else part.content or ""
            return WireFile(WireFileContent(content, url, part.name, part.media_type), part.metadata)


def wire_message(message: Message, context: str | None, task: str | None) -> WireMessage:
    """A message as it is written, with the task and the conversation that it belongs to."""
    return WireMessage(
        message.id,
        message.role,
        [wire_part(part) for part in message.parts],
        context or None,
        task,
        message.metadata,
        list(message.extensions) or None,
        list(message.references) or None,
    )


def wire_status(status: Status, context: str, task: str) -> WireStatus:
    """A status as it is written."""
    message = None if status.message is None else wire_message(status.message, context, task)
    return WireStatus(STATES[status.state], message, timestamp(status.at))


def wire_artifact(artifact: Artifact) -> WireArtifact:
    """An artifact as it is written."""
    return WireArtifact(
        artifact.id,
        [wire_part(part) for part in artifact.parts],
        artifact.name,
        artifact.description,
        artifact.metadata,
        list(artifact.extensions) or None,
    )


def wire_task(task: Task, history_length: int | None) -> WireTask:
    """A task as it is written."""
    history = [wire_message(message, task.context, task.id) for message in latest(task.history, history_length)]
    return WireTask(
        task.id,
        task.context,
        wire_status(task.status, task.context, task.id),
        [wire_artifact(artifact) for artifact in task.artifacts] or None,
        history or None,
        task.metadata,
    )


def wire_update(update: Update) -> WireUpdate:
    """An item of a stream as it is written."""
    match update:
        case Task():
            return wire_task(update, None)
        case Message():
            return wire_message(update, update.context, None)
        case StatusUpdate():
            status = wire_status(update.status, update.context, update.task)
            return WireStatusUpdate(update.task, update.context, status, update.is_last, update.metadata)
        case ArtifactUpdate():
            artifact = wire_artifact(update.artifact)
            return WireArtifactUpdate(
                update.task, update.context, artifact, update.is_more, update.is_complete, update.metadata
            )
