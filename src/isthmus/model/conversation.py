"""A task: a conversation about one piece of work, which lasts longer than the request that began it.

Values only, in no protocol's terms: `wire.a2a` writes them in each generation's words, `core.tasks` runs and keeps
them. JSON that a caller gave travels as text, so that its numbers and the order of its keys survive.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

TaskState: TypeAlias = Literal[
    "submitted", "working", "input_required", "auth_required", "completed", "failed", "canceled", "rejected"
]
ENDED: frozenset[TaskState] = frozenset({"completed", "failed", "canceled", "rejected"})
"""States that nothing follows."""

WAITING: frozenset[TaskState] = frozenset({"input_required", "auth_required"})
"""States in which the caller has to say something before the work goes on."""

Role: TypeAlias = Literal["user", "agent"]

ABSENT = Raw()
"""A JSON value that is not there; `null` is one that is."""


class Text(msgspec.Struct, frozen=True, tag="text", tag_field="kind", omit_defaults=True):
    """A part that is text."""

    text: str
    media_type: str | None = None
    metadata: Raw = ABSENT


class Data(msgspec.Struct, frozen=True, tag="data", tag_field="kind", omit_defaults=True):
    """A part that is JSON."""

    data: Raw
    media_type: str | None = None
    metadata: Raw = ABSENT


class File(msgspec.Struct, frozen=True, tag="file", tag_field="kind", omit_defaults=True):
    """A part that is a file: its bytes in base64, as they came, or where they are."""

    content: str | None = None
    url: str | None = None
    name: str | None = None
    media_type: str | None = None
    metadata: Raw = ABSENT


Part: TypeAlias = Text | Data | File


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one side said. `references` are tasks that it speaks of."""

    id: str
    role: Role
    parts: tuple[Part, ...]
    metadata: Raw = ABSENT
    extensions: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    context: str | None = None
    """The conversation that it is part of, where no task around it says so: an answer that made no task."""


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that the work brought forth."""

    id: str
    parts: tuple[Part, ...]
    name: str | None = None
    description: str | None = None
    metadata: Raw = ABSENT
    extensions: tuple[str, ...] = ()


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a task stands since a moment, in seconds of the epoch."""

    state: TaskState
    at: float
    message: Message | None = None


class Task(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task as its caller is shown it. `history` is what was said before the status's own message."""

    id: str
    context: str
    status: Status
    created: float
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: Raw = ABSENT


class StatusUpdate(msgspec.Struct, frozen=True):
    """A task stands differently now. After the last one of a stream nothing comes."""

    task: str
    context: str
    status: Status
    is_last: bool = False
    metadata: Raw = ABSENT


class ArtifactUpdate(msgspec.Struct, frozen=True):
    """An artifact, or the next piece of one."""

    task: str
    context: str
    artifact: Artifact
    is_more: bool = False
    """It goes behind what was told of the same artifact before."""
    is_complete: bool = True
    metadata: Raw = ABSENT
    index: int = 0
    """Which of its task's artifacts it is, counted from 0; the first generation knows them by nothing else."""
    at: float = 0.0
    """When it came; only AgentVault tells it."""


Update: TypeAlias = Task | Message | StatusUpdate | ArtifactUpdate
"""What a stream is made of."""
