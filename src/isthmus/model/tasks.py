"""Tasks: work that lasts longer than the request that started it.

`Task` and its parts follow A2A, independent of its generations: `wire.a2a` encodes them, `core.tasks` runs and stores
them. `ServerTaskState` is the state of a task that an MCP server runs. JSON from callers stays text, so that its
numbers and the order of its keys survive.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

TaskState: TypeAlias = Literal[
    "submitted", "working", "input_required", "auth_required", "completed", "failed", "canceled", "rejected"
]
ENDED: frozenset[TaskState] = frozenset({"completed", "failed", "canceled", "rejected"})
"""Final states."""

WAITING: frozenset[TaskState] = frozenset({"input_required", "auth_required"})
"""States in which the task waits for a message from its caller."""

Role: TypeAlias = Literal["user", "agent"]

ABSENT = Raw()
"""A JSON value that is missing; `null` is a value."""


class TextPart(msgspec.Struct, frozen=True, tag="text", tag_field="kind", omit_defaults=True):
    """A part that is text."""

    text: str
    media_type: str | None = None
    metadata: Raw = ABSENT


class DataPart(msgspec.Struct, frozen=True, tag="data", tag_field="kind", omit_defaults=True):
    """A part that is JSON."""

    data: Raw
    media_type: str | None = None
    metadata: Raw = ABSENT


class FilePart(msgspec.Struct, frozen=True, tag="file", tag_field="kind", omit_defaults=True):
    """A part that is a file: its bytes in base64, as received, or its URL."""

    content: str | None = None
    url: str | None = None
    name: str | None = None
    media_type: str | None = None
    metadata: Raw = ABSENT


Part: TypeAlias = TextPart | DataPart | FilePart


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of one side. `references` are the tasks that it mentions."""

    id: str
    role: Role
    parts: tuple[Part, ...]
    metadata: Raw = ABSENT
    extensions: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    context: str | None = None
    """Its context, if it is not part of a task: a response that created no task."""


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result of the work."""

    id: str
    parts: tuple[Part, ...]
    name: str | None = None
    description: str | None = None
    metadata: Raw = ABSENT
    extensions: tuple[str, ...] = ()


class TaskStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a task, and since when, in seconds of the epoch."""

    state: TaskState
    at: float
    message: Message | None = None


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task as its caller sees it. `history` holds the messages before the status's own."""

    id: str
    context: str
    status: TaskStatus
    created: float
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: Raw = ABSENT


class TaskStatusUpdate(msgspec.Struct, frozen=True):
    """The status of a task changed. Nothing follows the last update of a stream."""

    task: str
    context: str
    status: TaskStatus
    is_last: bool = False
    metadata: Raw = ABSENT


class TaskArtifactUpdate(msgspec.Struct, frozen=True):
    """An artifact, or the next chunk of one."""

    task: str
    context: str
    artifact: Artifact
    is_more: bool = False
    """It is appended to earlier chunks of the same artifact."""
    is_complete: bool = True
    metadata: Raw = ABSENT
    index: int = 0
    """The artifact's position in its task, from 0; the first generation has no other id."""
    at: float = 0.0
    """Its time; only AgentVault sends it."""


Update: TypeAlias = Task | Message | TaskStatusUpdate | TaskArtifactUpdate
"""What a stream consists of."""


class ServerTaskState(msgspec.Struct, frozen=True):
    """The state of an MCP server's task as the server last reported it, with the server's own id."""

    id: str
    status: str
    is_terminal: bool
    """Whether the task has ended, in any way."""
    ttl_seconds: float | None
    """How long its server keeps it after its creation; None if the server does not say, or for ever."""
    members: dict[str, msgspec.Raw]
