"""A2A 0.3 over REST: the operations of `v0_3` with the objects of its protobuf in JSON.

A message has `content`, data is nested in another object, states and roles are names of enumerations as in 1.0, and
field names may be in snake_case as well. Routes and errors are in `rest`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus.model.tasks import ABSENT, DataPart, FilePart, Part, TaskState, TaskStatusUpdate, TextPart, Update
from isthmus.wire.a2a.operations import CreatePushConfig, PushConfig
from isthmus.wire.a2a.v0_3 import DialectV03, PushConfigObject, push_config_object, read_push_config
from isthmus.wire.a2a.v1_0 import (
    ID,
    ArtifactObject,
    ArtifactUpdateObject,
    Dialect,
    Members,
    MessageObject,
    Reader,
    SendConfiguration,
    StatusObject,
    StatusUpdateObject,
    TaskObject,
    Unreadable,
    check_object,
    data_as_object,
    data_metadata,
    decoded,
    invalid,
    is_object,
    null_as_absent,
    optional,
    required,
    restore_data,
)
from isthmus.wire.jsonrpc import Payload, render

_T = TypeVar("_T")


# Parts.


class _FileRest(Struct, omit_defaults=True):
    fileWithUri: str | None = None
    fileWithBytes: str | None = None
    mimeType: str | None = None
    name: str | None = None
    file_with_uri: str | None = None
    file_with_bytes: str | None = None
    mime_type: str | None = None


class _DataRest(Struct):
    data: Raw

    def __post_init__(self) -> None:
        if not is_object(self.data):
            raise ValueError("data must be an object")


class PartRest(Struct, omit_defaults=True):
    """A part. Its one content field says what it is."""

    text: str | None = None
    file: _FileRest | None = None
    data: _DataRest | None = None
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")
        if (self.text is not None) + (self.file is not None) + (self.data is not None) != 1:
            raise ValueError("must have one of text, file and data")


_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def _decode_twice_encoded(content: str | None) -> str | None:
    """A file's base64, whether it is encoded once or twice."""
    try:
        inner = base64.b64decode(content or "", validate=True)
    except (binascii.Error, ValueError):
        return content
    return inner.decode() if inner and _BASE64.fullmatch(inner) else content


# Objects. Protobuf leaves out empty fields, and its readers accept snake_case names: `__post_init__` moves those.


class MessageRest(MessageObject[PartRest], rename={"parts": "content"}, kw_only=True):
    """A message."""

    messageId: str = ""
    role: str = ""
    parts: list[PartRest] | None = None
    message_id: str = ""
    context_id: str | None = None
    task_id: str | None = None

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")
        self.messageId, self.message_id = self.messageId or self.message_id, ""
        self.contextId, self.context_id = self.contextId or self.context_id, None
        self.taskId, self.task_id = self.taskId or self.task_id, None


class StatusRest(StatusObject[MessageRest], kw_only=True):
    """The status of a task."""

    state: str = ""
    update: MessageRest | None = None
    """The protobuf name of `message`."""

    def __post_init__(self) -> None:
        self.message, self.update = self.message or self.update, None


class ArtifactRest(ArtifactObject[PartRest], kw_only=True):
    """An artifact."""

    artifactId: str = ""
    artifact_id: str = ""

    def __post_init__(self) -> None:
        self.artifactId, self.artifact_id = self.artifactId or self.artifact_id, ""
        self.name, self.description = self.name or None, self.description or None


class TaskRest(TaskObject[StatusRest, ArtifactRest, MessageRest], kw_only=True):
    """A task."""

    context_id: str = ""

    def __post_init__(self) -> None:
        self.contextId, self.context_id = self.contextId or self.context_id, ""


class StatusUpdateRest(StatusUpdateObject[StatusRest], kw_only=True):
    """A stream event: the task has a new status."""

    taskId: str = ""
    contextId: str = ""
    final: bool = False
    task_id: str = ""
    context_id: str = ""

    def __post_init__(self) -> None:
        self.taskId, self.task_id = self.taskId or self.task_id, ""
        self.contextId, self.context_id = self.contextId or self.context_id, ""


class ArtifactUpdateRest(ArtifactUpdateObject[ArtifactRest], kw_only=True):
    """A stream event: an artifact, or the next chunk of one."""

    taskId: str = ""
    contextId: str = ""
    task_id: str = ""
    context_id: str = ""
    last_chunk: bool | None = None

    def __post_init__(self) -> None:
        self.taskId, self.task_id = self.taskId or self.task_id, ""
        self.contextId, self.context_id = self.contextId or self.context_id, ""
        self.lastChunk, self.last_chunk = self.lastChunk or self.last_chunk, None


class UpdateRest(Struct):
    """The result of `message:send`, or a stream event. It has one of these fields."""

    task: TaskRest | None = None
    message: MessageRest | None = None
    msg: MessageRest | None = None
    """The protobuf name of `message`."""
    statusUpdate: StatusUpdateRest | None = None
    status_update: StatusUpdateRest | None = None
    artifactUpdate: ArtifactUpdateRest | None = None
    artifact_update: ArtifactUpdateRest | None = None

    def __post_init__(self) -> None:
        self.message = self.message or self.msg
        self.statusUpdate = self.statusUpdate or self.status_update
        self.artifactUpdate = self.artifactUpdate or self.artifact_update


class _CreatePushConfigRest(Struct):
    pushNotificationConfig: PushConfigObject | None = None
    push_notification_config: PushConfigObject | None = None


class _NamedPushConfigRest(Struct):
    name: str
    pushNotificationConfig: PushConfigObject


class _SendConfigurationRest(Struct):
    acceptedOutputModes: list[str] | None = None
    accepted_output_modes: list[str] | None = None
    pushNotification: PushConfigObject | None = None
    push_notification: PushConfigObject | None = None
    historyLength: Annotated[int, Meta(ge=0)] | None = None
    history_length: Annotated[int, Meta(ge=0)] | None = None
    blocking: bool | None = None


_CONFIGURATION = msgspec.json.Decoder(_SendConfigurationRest)
_CREATE_PUSH_CONFIG = msgspec.json.Decoder(_CreatePushConfigRest)


def _either(one: _T | None, other: _T | None) -> _T | None:
    return other if one is None else one


class DialectV03Rest(DialectV03):
    """The differences of 0.3 over REST: requests without a body are those of 0.3, words and results those of 1.0."""

    states: Mapping[TaskState, str] = {**Dialect.states, "canceled": "TASK_STATE_CANCELLED"}
    other_states: Mapping[str, TaskState] = {"TASK_STATE_CANCELED": "canceled"}
    roles = Dialect.roles
    message_type = MessageRest
    status_type = StatusRest
    artifact_type = ArtifactRest
    task_type = TaskRest
    status_update_type = StatusUpdateRest
    artifact_update_type = ArtifactUpdateRest
    message_decoder = msgspec.json.Decoder(MessageRest)
    task_decoder = msgspec.json.Decoder(TaskRest)
    update_decoder = msgspec.json.Decoder(UpdateRest)
    parts_name = "content"
    is_wrapped = True
    omits_false = True
    has_references = False
    has_snake_case = True

    def make_readers(self) -> Mapping[str, Reader]:
        """The reader of each method."""
        return {**super().make_readers(), "tasks/pushNotificationConfig/set": self._read_create_push}

    def _read_create_push(self, params: Members) -> CreatePushConfig:
        # The specification's route takes the config alone, the route of the official SDK the request around it.
        body: Payload = params["config"] if "config" in params else render(params)
        request = decoded(_CREATE_PUSH_CONFIG, body, "config")
        push = _either(request.pushNotificationConfig, request.push_notification_config)
        if push is None:
            raise Unreadable(invalid("config.pushNotificationConfig", "is required"))
        return CreatePushConfig(required(ID, params, "taskId"), read_push_config(push))

    def read_configuration(self, params: Members) -> SendConfiguration:
        """Read the configuration of a message."""
        # Protobuf leaves out fields that are false: in a configuration, an absent `blocking` is false.
        wire = optional(_CONFIGURATION, params, "configuration") or _SendConfigurationRest(blocking=True)
        push = _either(wire.pushNotification, wire.push_notification)
        return SendConfiguration(
            wire.blocking is True,
            _either(wire.historyLength, wire.history_length),
            _either(wire.acceptedOutputModes, wire.accepted_output_modes),
            None if push is None else read_push_config(push),
        )

    def read_part(self, wire: Any) -> Part:
        """Read a part."""
        metadata = null_as_absent(wire.metadata)
        if wire.text is not None:
            return TextPart(wire.text, metadata=metadata)
        if wire.data is not None:
            data, metadata = restore_data(wire.data.data, metadata)
            return DataPart(data, metadata=metadata)
        file = wire.file or _FileRest()
        content = _decode_twice_encoded(file.fileWithBytes or file.file_with_bytes) or None
        url = file.fileWithUri or file.file_with_uri or None
        return FilePart(content, url, file.name or None, file.mimeType or file.mime_type or None, metadata)

    def read_status_update(self, wire: Any) -> TaskStatusUpdate:
        """Read a status update of an agent, which is the last one if the task has ended or it says so."""
        update = super().read_status_update(wire)
        return msgspec.structs.replace(update, is_last=True) if wire.final else update

    def read_update(self, wire: Any) -> Update | None:
        """Read a stream event of an agent; None if it is empty."""
        return Dialect.read_update(self, wire)

    def part_object(self, part: Part) -> Any:
        """The JSON object of a part."""
        match part:
            case TextPart():
                return PartRest(text=part.text, metadata=part.metadata)
            case DataPart():
                data = _DataRest(data_as_object(part.data))
                return PartRest(data=data, metadata=data_metadata(part.data, part.metadata))
            case FilePart():
                url = part.url if part.content is None else None
                # The official SDK takes the base64 text of a file for its bytes, and so encodes it twice. It reads
                # files that are encoded once only if they are text.
                content = None if url is not None else base64.b64encode((part.content or "").encode()).decode()
                return PartRest(file=_FileRest(url, content, part.media_type, part.name), metadata=part.metadata)

    def push_object(self, task: str, target: PushConfig) -> Any:
        """The JSON object of a push notification config."""
        return _NamedPushConfigRest(f"tasks/{task}/pushNotificationConfigs/{target.id}", push_config_object(target))


DIALECT = DialectV03Rest()
