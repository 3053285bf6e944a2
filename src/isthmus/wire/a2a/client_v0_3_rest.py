"""A2A 0.3 over plain HTTP towards agents: requests written, and their answers read, in the JSON form of its protobuf.

Its shapes are those of `v0_3_rest`, which says the same from the other side. Members may be spelt with underscores too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from isthmus.model.conversation import (
    ABSENT,
    ENDED,
    Artifact,
    ArtifactUpdate,
    Message,
    Role,
    Status,
    StatusUpdate,
    Task,
    TaskState,
    Update,
)
from isthmus.wire.a2a import v0_3_rest
from isthmus.wire.a2a.client import Asked, read_as, target_of, unfit
from isthmus.wire.a2a.operations import Cancel, Get, Problem, Send, Subscribe
from isthmus.wire.a2a.parts import moment, said
from isthmus.wire.jsonrpc import Payload, render

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode

STATE_OF: Mapping[str, TaskState] = {
    **{word: state for state, word in v0_3_rest.STATES.items()},
    "TASK_STATE_CANCELED": "canceled",
}


class _Status(Struct):
    state: str = ""
    message: Raw = ABSENT
    update: Raw = ABSENT
    """What the protobuf calls the message."""
    timestamp: str | None = None


class _Artifact(Struct):
    artifactId: str = ""
    artifact_id: str = ""
    parts: list[Raw] = []
    name: str | None = None
    description: str | None = None
    metadata: Raw = ABSENT


class _Task(Struct):
    id: str
    status: _Status
    contextId: str = ""
    context_id: str = ""
    artifacts: list[_Artifact] | None = None
    history: list[Raw] | None = None
    metadata: Raw = ABSENT


class _StatusUpdate(Struct):
    status: _Status
    taskId: str = ""
    task_id: str = ""
    contextId: str = ""
    context_id: str = ""
    final: bool = False
    metadata: Raw = ABSENT


class _ArtifactUpdate(Struct):
    artifact: _Artifact
    taskId: str = ""
    task_id: str = ""
    contextId: str = ""
    context_id: str = ""
    append: bool = False
    lastChunk: bool = False
    last_chunk: bool = False
    metadata: Raw = ABSENT


class _Update(Struct):
    task: _Task | None = None
    message: Raw = ABSENT
    msg: Raw = ABSENT
    """What the protobuf calls the message."""
    statusUpdate: _StatusUpdate | None = None
    status_update: _StatusUpdate | None = None
    artifactUpdate: _ArtifactUpdate | None = None
    artifact_update: _ArtifactUpdate | None = None


_UPDATE = msgspec.json.Decoder(_Update)
_TASK = msgspec.json.Decoder(_Task)


class EarlierPlainClient:
    """0.3, by verbs and paths."""

    version = "0.3"
    card_method = ""
    card_path = "/v1/card"

    def locate(self, asked: Asked) -> tuple[str, str]:
        """The verb and the target of a request, whose body, if any, are the parameters."""
        match asked:
            case Send():
                return "POST", "/v1/message:stream" if asked.is_stream else "/v1/message:send"
            case Get():
                length = asked.history_length
                query = "" if length is None else f"?historyLength={length}"
                return "GET", f"/v1{target_of(asked.task)}{query}"
            case Cancel():
                return "POST", f"/v1{target_of(asked.task, ':cancel')}"
            case Subscribe():
                return "GET", f"/v1{target_of(asked.task, ':subscribe')}"

    def write(self, asked: Asked) -> tuple[str, bytes]:
        """The body of a request, for which there is no method."""
        if not isinstance(asked, Send):
            return "", b"{}"
        configuration: dict[str, Any] = {"blocking": asked.waits}
        if asked.output_modes:
            configuration["acceptedOutputModes"] = list(asked.output_modes)
        if asked.history_length is not None:
            configuration["historyLength"] = asked.history_length
        message = v0_3_rest.write_message(asked.message, asked.context, asked.task)
        members: dict[str, Payload] = {"message": message, "configuration": _encode(configuration)}
        return "", render({**members, "metadata": asked.metadata} if asked.metadata else members)

    def read_sent(self, result: Payload) -> Task | Message | Problem:
        """What a `Send` was answered with."""
        update = self.read_update(result)
        return update if isinstance(update, Task | Message | Problem) else unfit("it is neither task nor message")

    def read_task(self, result: Payload) -> Task | Problem:
        """What `Get` and `Cancel` were answered with."""
        return read_as(_TASK, result, _task_of)

    def read_update(self, result: Payload) -> Update | Problem:
        """One item of a stream."""
        return read_as(_UPDATE, result, _update_of)


def _update_of(wire: _Update) -> Update | Problem:
    message = said(wire.message) or said(wire.msg)
    status = wire.statusUpdate or wire.status_update
    artifact = wire.artifactUpdate or wire.artifact_update
    if wire.task is not None:
        return _task_of(wire.task)
    if message:
        return _heard(message, is_alone=True)
    if status is not None:
        return _status_update_of(status)
    return unfit("it holds nothing") if artifact is None else _artifact_update_of(artifact)


def _task_of(wire: _Task) -> Task:
    status = _status_of(wire.status)
    return Task(
        wire.id,
        wire.contextId or wire.context_id,
        status,
        status.at,
        tuple(_artifact_of(artifact) for artifact in wire.artifacts or ()),
        tuple(_heard(message) for message in wire.history or ()),
        said(wire.metadata),
    )


def _status_of(wire: _Status) -> Status:
    message = said(wire.message) or said(wire.update)
    heard = _heard(message) if message else None
    return Status(STATE_OF.get(wire.state, "working"), moment(wire.timestamp) or 0.0, heard)


def _heard(raw: Raw, *, is_alone: bool = False) -> Message:
    wire = v0_3_rest.decode_message(raw)
    role: Role = v0_3_rest.ROLE_OF.get(wire.role, "agent")
    context = (wire.contextId or wire.context_id or None) if is_alone else None
    parts = tuple(v0_3_rest.part_of(part) for part in wire.content or ())
    id = wire.messageId or wire.message_id
    return Message(id, role, parts, said(wire.metadata), tuple(wire.extensions or ()), context=context)


def _artifact_of(wire: _Artifact) -> Artifact:
    parts = tuple(v0_3_rest.part_of(v0_3_rest.decode_part(part)) for part in wire.parts)
    id = wire.artifactId or wire.artifact_id
    return Artifact(id, parts, wire.name or None, wire.description or None, said(wire.metadata))


def _status_update_of(wire: _StatusUpdate) -> StatusUpdate:
    status = _status_of(wire.status)
    task, context = wire.taskId or wire.task_id, wire.contextId or wire.context_id
    return StatusUpdate(task, context, status, wire.final or status.state in ENDED, said(wire.metadata))


def _artifact_update_of(wire: _ArtifactUpdate) -> ArtifactUpdate:
    return ArtifactUpdate(
        wire.taskId or wire.task_id,
        wire.contextId or wire.context_id,
        _artifact_of(wire.artifact),
        wire.append,
        wire.lastChunk or wire.last_chunk,
        said(wire.metadata),
    )
