"""What 1.0 calls things: its objects as they are on the wire, and how they become tasks, messages and parts.

The same shapes are read and written, since the hub is an agent to some and a client of others. They follow the
protobuf's JSON form: no empty members, states and roles as the names of its enumerations.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw, Struct

from isthmus.model.conversation import (
    ABSENT,
    ENDED,
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
from isthmus.wire.a2a.parts import check_object, is_null, latest, moment, said, timestamp

STATES: Mapping[TaskState, str] = {
    "submitted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "completed": "TASK_STATE_COMPLETED",
    "failed": "TASK_STATE_FAILED",
    "canceled": "TASK_STATE_CANCELED",
    "input_required": "TASK_STATE_INPUT_REQUIRED",
    "rejected": "TASK_STATE_REJECTED",
    "auth_required": "TASK_STATE_AUTH_REQUIRED",
}
STATE_OF: Mapping[str, TaskState] = {word: state for state, word in STATES.items()}
ROLES: Mapping[Role, str] = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
ROLE_OF: Mapping[str, Role] = {word: role for role, word in ROLES.items()}


class WirePart(Struct, omit_defaults=True):
    """A part is what it has: text, the bytes of a file, a file's address, or JSON."""

    text: str | None = None
    raw: str | None = None
    url: str | None = None
    data: Raw = ABSENT
    filename: str | None = None
    mediaType: str | None = None
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")
        given = (self.text is not None) + (self.raw is not None) + (self.url is not None)
        if given and is_null(self.data):
            self.data = ABSENT  # null is a value of its own only where there is no other
        if given + bool(self.data) != 1:
            raise ValueError("must have one of text, raw, url and data")


class WireMessage(Struct, omit_defaults=True):
    """What was said."""

    messageId: str
    role: str
    parts: list[WirePart] | None = None
    """Written even where there are none; agents that write Protocol Buffers as JSON leave out what is empty."""
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
    parts: list[WirePart] | None = None
    name: str | None = None
    description: str | None = None
    metadata: Raw = ABSENT
    extensions: list[str] | None = None

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class WireTask(Struct, omit_defaults=True):
    """A task."""

    id: str
    status: WireStatus
    contextId: str | None = None
    artifacts: list[WireArtifact] | None = None
    history: list[WireMessage] | None = None
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class WireStatusUpdate(Struct, omit_defaults=True):
    """A task stands differently."""

    taskId: str
    contextId: str
    status: WireStatus
    metadata: Raw = ABSENT


class WireArtifactUpdate(Struct, omit_defaults=True):
    """An artifact, or more of one."""

    taskId: str
    contextId: str
    artifact: WireArtifact
    append: bool = False
    lastChunk: bool = False
    metadata: Raw = ABSENT


class WireUpdate(Struct, omit_defaults=True):
    """An answer to a message, or an item of a stream: one of these."""

    task: WireTask | None = None
    message: WireMessage | None = None
    statusUpdate: WireStatusUpdate | None = None
    artifactUpdate: WireArtifactUpdate | None = None


# Reading.


def part_of(wire: WirePart) -> Part:
    """A part as it is meant."""
    metadata = said(wire.metadata)
    if wire.text is not None:
        return Text(wire.text, wire.mediaType or None, metadata)
    if wire.data:
        return Data(wire.data, wire.mediaType or None, metadata)
    return File(wire.raw, wire.url, wire.filename or None, wire.mediaType or None, metadata)


def message_of(wire: WireMessage, role: Role, context: str | None = None) -> Message:
    """A message as it is meant; whether the role is one was asked before."""
    return Message(
        wire.messageId,
        role,
        tuple(part_of(part) for part in wire.parts or ()),
        said(wire.metadata),
        tuple(wire.extensions or ()),
        tuple(wire.referenceTaskIds or ()),
        context,
    )


def heard(wire: WireMessage, *, is_alone: bool = False) -> Message:
    """A message that an agent sent or repeats; one that stands alone says itself where it belongs."""
    context = wire.contextId if is_alone else None
    return message_of(wire, ROLE_OF.get(wire.role, "agent"), context or None)


def status_of(wire: WireStatus) -> Status:
    """An agent's word on how a task stands; a state that nobody knows is not an end."""
    message = None if wire.message is None else heard(wire.message)
    return Status(STATE_OF.get(wire.state, "working"), moment(wire.timestamp) or 0.0, message)


def artifact_of(wire: WireArtifact) -> Artifact:
    """An agent's artifact."""
    return Artifact(
        wire.artifactId,
        tuple(part_of(part) for part in wire.parts or ()),
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
        wire.contextId or "",
        status,
        status.at,
        tuple(artifact_of(artifact) for artifact in wire.artifacts or ()),
        tuple(heard(message) for message in wire.history or ()),
        said(wire.metadata),
    )


def update_of(wire: WireUpdate) -> Update | None:
    """An item of an agent's stream; None if it is empty."""
    if wire.task is not None:
        return task_of(wire.task)
    if wire.message is not None:
        return heard(wire.message, is_alone=True)
    if wire.statusUpdate is not None:
        return _status_update_of(wire.statusUpdate)
    return None if wire.artifactUpdate is None else _artifact_update_of(wire.artifactUpdate)


def _status_update_of(wire: WireStatusUpdate) -> StatusUpdate:
    """It does not say that it is the last one; where a task has ended, nothing can follow."""
    status = status_of(wire.status)
    return StatusUpdate(wire.taskId, wire.contextId, status, status.state in ENDED, said(wire.metadata))


def _artifact_update_of(wire: WireArtifactUpdate) -> ArtifactUpdate:
    artifact = artifact_of(wire.artifact)
    return ArtifactUpdate(wire.taskId, wire.contextId, artifact, wire.append, wire.lastChunk, said(wire.metadata))


# Writing.


def wire_part(part: Part) -> WirePart:
    """A part as it is written."""
    match part:
        case Text():
            return WirePart(text=part.text, mediaType=part.media_type, metadata=part.metadata)
        case Data():
            return WirePart(data=part.data, mediaType=part.media_type, metadata=part.metadata)
        case File():
            url = part.url if part.content is None else None
            raw = None if url is not None else part.content or ""
            return WirePart(None, raw, url, ABSENT, part.name, part.media_type, part.metadata)


def wire_message(message: Message, context: str | None, task: str | None) -> WireMessage:
    """A message as it is written, with the task and the conversation that it belongs to."""
    return WireMessage(
        message.id,
        ROLES[message.role],
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


def wire_task(task: Task, history_length: int | None, *, shows_none: bool = False) -> WireTask:
    """A task as it is written; `shows_none` writes that there are no artifacts, which is else left out."""
    artifacts = [wire_artifact(artifact) for artifact in task.artifacts]
    history = [wire_message(message, task.context, task.id) for message in latest(task.history, history_length)]
    return WireTask(
        task.id,
        wire_status(task.status, task.context, task.id),
        task.context,
        artifacts if artifacts or shows_none else None,
        history or None,
        task.metadata,
    )


def wire_update(update: Update) -> WireUpdate:
    """An item of a stream as it is written."""
    match update:
        case Task():
            return WireUpdate(task=wire_task(update, None))
        case Message():
            return WireUpdate(message=wire_message(update, update.context, None))
        case StatusUpdate():
            status = wire_status(update.status, update.context, update.task)
            return WireUpdate(statusUpdate=WireStatusUpdate(update.task, update.context, status, update.metadata))
        case ArtifactUpdate():
            artifact = wire_artifact(update.artifact)
            written = WireArtifactUpdate(
                update.task, update.context, artifact, update.is_more, update.is_complete, update.metadata
            )
            return WireUpdate(artifactUpdate=written)
