"""A2A 0.1 over JSON-RPC: what differs from 0.3 and 1.0.

Callers name their tasks themselves, and messages have no ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from isthmus.model.tasks import (
    ABSENT,
    ENDED,
    WAITING,
    Artifact,
    Message,
    Task,
    TaskArtifactUpdate,
    TaskState,
    TaskStatus,
    TaskStatusUpdate,
    Update,
)
from isthmus.wire.a2a.operations import (
    PROBLEMS,
    A2aProblem,
    CreatePushConfig,
    DialectName,
    GetPushConfig,
    GetTask,
    PushConfig,
    SendMessage,
    plain_error,
)
from isthmus.wire.a2a.v0_3 import (
    DataObject,
    DialectV03,
    FileObject,
    PushConfigObject,
    TextObject,
    push_config_object,
    read_push_config,
)
from isthmus.wire.a2a.v1_0 import (
    COUNT,
    ID,
    ArtifactObject,
    Members,
    MessageObject,
    Reader,
    StatusObject,
    TaskObject,
    encode,
    last_messages,
    optional,
    optional_id,
    optional_object,
    read_cancel_task,
    read_subscribe,
    required,
)
from isthmus.wire.jsonrpc import Payload


class TextV01(TextObject, tag_field="type", tag="text"):
    """A text part of 0.1."""


class FileV01(FileObject, tag_field="type", tag="file"):
    """A file part of 0.1."""


class DataV01(DataObject, tag_field="type", tag="data"):
    """A data part of 0.1."""


PartV01: TypeAlias = TextV01 | FileV01 | DataV01


class MessageV01(MessageObject[PartV01], kw_only=True):
    """A message. It is never written with an id."""

    messageId: str = ""
    parts: list[PartV01]


class ArtifactV01(ArtifactObject[PartV01], kw_only=True):
    """An artifact, which has a number instead of an id. A chunk says here which part of the whole it is."""

    artifactId: str = ""
    index: int
    append: bool | None = None
    lastChunk: bool | None = None


StatusV01: TypeAlias = StatusObject[MessageV01]


class TaskV01(TaskObject[StatusV01, ArtifactV01, MessageV01], rename={"contextId": "sessionId"}, kw_only=True):
    """A task."""

    contextId: str
    history: list[MessageV01]


class _StatusUpdateV01(Struct, omit_defaults=True):
    id: str
    status: StatusV01
    final: bool
    metadata: Raw = ABSENT


class _ArtifactUpdateV01(Struct, omit_defaults=True):
    id: str
    artifact: ArtifactV01
    metadata: Raw = ABSENT


class _TaskPushConfigV01(Struct):
    id: str
    pushNotificationConfig: PushConfigObject


_MODES = msgspec.json.Decoder(list[str])
_PUSH_CONFIG = msgspec.json.Decoder(PushConfigObject)


class DialectV01(DialectV03):
    """The differences of 0.1 from 0.3."""

    name: DialectName = "0.1"
    # States of later generations are mapped to those that make a client do the same.
    states: Mapping[TaskState, str] = {**DialectV03.states, "auth_required": "input-required", "rejected": "failed"}
    message_decoder = msgspec.json.Decoder(MessageV01)
    text_type = TextV01
    data_type = DataV01
    file_type = FileV01

    def make_readers(self) -> Mapping[str, Reader]:
        """The reader of each method."""
        return {
            "tasks/send": partial(self.read_send, is_stream=False),
            "tasks/sendSubscribe": partial(self.read_send, is_stream=True),
            "tasks/get": lambda params: GetTask(
                required(ID, params, "id"), optional(COUNT, params, "historyLength") or 0
            ),
            "tasks/cancel": read_cancel_task,
            "tasks/resubscribe": read_subscribe,
            "tasks/pushNotification/set": lambda params: CreatePushConfig(
                required(ID, params, "id"),
                _read_push_config(required(_PUSH_CONFIG, params, "pushNotificationConfig")),
            ),
            "tasks/pushNotification/get": lambda params: GetPushConfig(required(ID, params, "id")),
        }

    def read_send(self, params: Members, *, is_stream: bool) -> SendMessage:
        """Read a message. Its id is empty; the service assigns one."""
        push = optional(_PUSH_CONFIG, params, "pushNotification")
        modes: list[str] | None = optional(_MODES, params, "acceptedOutputModes")
        wire = required(self.message_decoder, params, "message")
        self.check_message(wire)
        return SendMessage(
            replace(self.read_message(wire), id="", extensions=(), references=()),
            required(ID, params, "id"),
            optional_id(params, "sessionId"),
            is_stream=is_stream,
            # By default there is no history: the first server of this generation had no other default.
            history_length=optional(COUNT, params, "historyLength") or 0,
            output_modes=tuple(modes or ()),
            push=None if push is None else _read_push_config(push),
            metadata=optional_object(params, "metadata"),
        )

    def message_object(self, message: Message, context: str | None, task: str | None) -> Any:
        """The JSON object of a message."""
        parts = [self.part_object(part) for part in message.parts]
        return MessageV01(role=self.roles[message.role], parts=parts, metadata=message.metadata)

    def artifact_object(self, artifact: Artifact, index: int = 0) -> ArtifactV01:
        """The JSON object of a task's artifact with this number."""
        return ArtifactV01(
            parts=[self.part_object(part) for part in artifact.parts],
            index=index,
            name=artifact.name,
            description=artifact.description,
            metadata=artifact.metadata,
        )

    def task_object(self, task: Task, history_length: int | None, *, with_empty_artifacts: bool = False) -> TaskV01:
        """The JSON object of a task; without a length, it has no history."""
        messages = last_messages(task.history, history_length or 0)
        return TaskV01(
            id=task.id,
            contextId=task.context,
            status=self.status_object(task.status, task.context, task.id),
            artifacts=[self.artifact_object(each, index) for index, each in enumerate(task.artifacts)] or None,
            history=[self.message_object(message, None, None) for message in messages],
            metadata=task.metadata,
        )

    def push_object(self, task: str, target: PushConfig) -> Any:
        """The JSON object of a push notification config, which has no id."""
        return _TaskPushConfigV01(task, push_config_object(replace(target, id="")))

    def write_sent(self, sent: Task | Message, history_length: int | None) -> Payload:
        """The result of `SendMessage`. It is always a task: a message alone becomes a completed one."""
        if isinstance(sent, Message):
            sent = Task(sent.id, sent.context or "", TaskStatus("completed", 0.0, sent), 0.0)
        return self.write_task(sent, history_length)

    def write_update(self, update: Update) -> Payload:
        """A stream event. For a whole task it is only the status; see `split_task`."""
        if isinstance(update, TaskArtifactUpdate):
            artifact = self.artifact_object(update.artifact, update.index)
            artifact.append, artifact.lastChunk = update.is_more, update.is_complete
            return encode(_ArtifactUpdateV01(update.task, artifact, update.metadata))
        if isinstance(update, Task):
            update = TaskStatusUpdate(update.id, "", update.status, _is_last(update))
        elif isinstance(update, Message):
            update = TaskStatusUpdate(update.id, "", TaskStatus("completed", 0.0, update), True)
        status = self.status_object(update.status, "", "")
        return encode(_StatusUpdateV01(update.task, status, update.is_last, update.metadata))

    def write_problem(self, problem: A2aProblem) -> tuple[int, str, Payload | None]:
        """Code, message and data of a JSON-RPC error."""
        return plain_error(PROBLEMS[problem.kind].code_0_1, problem)


def _read_push_config(push: PushConfigObject) -> PushConfig:
    return replace(read_push_config(push), id="")


def split_task(update: Update) -> tuple[Update, ...]:
    """The stream events of a task, because its streams have no event for a whole task: its artifacts and its status."""
    if not isinstance(update, Task):
        return (update,)
    artifacts = [
        TaskArtifactUpdate(update.id, update.context, artifact, index=index)
        for index, artifact in enumerate(update.artifacts)
    ]
    return (*artifacts, TaskStatusUpdate(update.id, update.context, update.status, _is_last(update)))


def _is_last(task: Task) -> bool:
    """Whether the stream ends after this state of the task."""
    return task.status.state in ENDED or task.status.state in WAITING


DIALECT = DialectV01()
