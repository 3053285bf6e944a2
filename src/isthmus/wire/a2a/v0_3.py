"""A2A 0.3 over JSON-RPC: what differs from 1.0. 0.2 has fewer methods.

Each object names its `kind`. The REST binding of 0.3 has other objects: `v0_3_rest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus.model.tasks import ABSENT, DataPart, FilePart, Part, Role, TaskState, TextPart, Update
from isthmus.wire.a2a.operations import (
    PROBLEMS,
    A2aProblem,
    CreatePushConfig,
    DeletePushConfig,
    DialectName,
    GetExtendedCard,
    GetPushConfig,
    ListPushConfigs,
    PushConfig,
    plain_error,
)
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
    bounded_id,
    check_object,
    data_as_object,
    data_metadata,
    is_object,
    null_as_absent,
    optional,
    optional_id,
    read_cancel_task,
    read_get_task,
    read_subscribe,
    required,
    restore_data,
)
from isthmus.wire.jsonrpc import Payload

# Parts. 0.1 has the same ones; there the tag is called `type`.


class TextObject(Struct, omit_defaults=True):
    """A text part."""

    text: str
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class FileContentObject(Struct, omit_defaults=True):
    """The bytes of a file in base64, or its URI."""

    bytes: str | None = None
    uri: str | None = None
    name: str | None = None
    mimeType: str | None = None

    def __post_init__(self) -> None:
        if self.bytes is None and self.uri is None:
            raise ValueError("must have bytes or a uri")


class FileObject(Struct, omit_defaults=True):
    """A file part."""

    file: FileContentObject
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")


class DataObject(Struct, omit_defaults=True):
    """A data part. Its data must be an object."""

    data: Raw
    metadata: Raw = ABSENT

    def __post_init__(self) -> None:
        check_object(self.metadata, "metadata")
        if not is_object(self.data):
            raise ValueError("data must be an object")


class TextV03(TextObject, tag_field="kind", tag="text"):
    """A text part of 0.3."""


class FileV03(FileObject, tag_field="kind", tag="file"):
    """A file part of 0.3."""


class DataV03(DataObject, tag_field="kind", tag="data"):
    """A data part of 0.3."""


PartV03: TypeAlias = TextV03 | FileV03 | DataV03


# Objects.


class MessageV03(MessageObject[PartV03], tag_field="kind", tag="message", kw_only=True):
    """A message."""

    parts: list[PartV03]


class ArtifactV03(ArtifactObject[PartV03], kw_only=True):
    """An artifact."""

    parts: list[PartV03]


StatusV03: TypeAlias = StatusObject[MessageV03]


class TaskV03(TaskObject[StatusV03, ArtifactV03, MessageV03], tag_field="kind", tag="task", kw_only=True):
    """A task."""

    contextId: str


class StatusUpdateV03(StatusUpdateObject[StatusV03], tag_field="kind", tag="status-update", kw_only=True):
    """A stream event: the task has a new status."""

    final: bool


class ArtifactUpdateV03(ArtifactUpdateObject[ArtifactV03], tag_field="kind", tag="artifact-update", kw_only=True):
    """A stream event: an artifact, or the next chunk of one."""


UpdateV03: TypeAlias = TaskV03 | MessageV03 | StatusUpdateV03 | ArtifactUpdateV03


class PushAuthenticationObject(Struct, omit_defaults=True):
    """How the hub authenticates itself to the receiver of push notifications."""

    schemes: list[str] | None = None
    credentials: str | None = None


class PushConfigObject(Struct, omit_defaults=True):
    """A push notification config of 0.3 or 0.1."""

    url: Annotated[str, Meta(min_length=1)]
    id: str | None = None
    token: str | None = None
    authentication: PushAuthenticationObject | None = None


class _PushAuthenticationV03(PushAuthenticationObject, kw_only=True):
    schemes: list[str]


class _PushConfigV03(PushConfigObject, kw_only=True):
    authentication: _PushAuthenticationV03 | None = None


class _TaskPushConfigV03(Struct, omit_defaults=True):
    taskId: str
    pushNotificationConfig: PushConfigObject


class _SendConfigurationV03(Struct):
    acceptedOutputModes: list[str] | None = None
    blocking: bool | None = None
    historyLength: Annotated[int, Meta(ge=0)] | None = None
    pushNotificationConfig: _PushConfigV03 | None = None


_CONFIGURATION = msgspec.json.Decoder(_SendConfigurationV03)
_PUSH_CONFIG = msgspec.json.Decoder(_PushConfigV03)


class DialectV03(Dialect):
    """The differences of 0.3."""

    name: DialectName = "0.3"
    states: Mapping[TaskState, str] = {
        "submitted": "submitted",
        "working": "working",
        "input_required": "input-required",
        "auth_required": "auth-required",
        "completed": "completed",
        "failed": "failed",
        "canceled": "canceled",
        "rejected": "rejected",
    }
    roles: Mapping[Role, str] = {"user": "user", "agent": "agent"}
    message_type: type[MessageObject[Any]] = MessageV03
    artifact_type: type[ArtifactObject[Any]] = ArtifactV03
    task_type: type[TaskObject[Any, Any, Any]] = TaskV03
    status_update_type: type[Struct] = StatusUpdateV03
    artifact_update_type: type[Struct] = ArtifactUpdateV03
    message_decoder = msgspec.json.Decoder(MessageV03)
    task_decoder = msgspec.json.Decoder(TaskV03)
    update_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(UpdateV03)
    text_type: type[TextObject] = TextV03
    data_type: type[DataObject] = DataV03
    file_type: type[FileObject] = FileV03
    is_wrapped = False
    has_final = True
    omits_false = False
    has_snake_case = False

    def make_readers(self) -> Mapping[str, Reader]:
        """The reader of each method."""
        return {
            "message/send": partial(self.read_send, is_stream=False),
            "message/stream": partial(self.read_send, is_stream=True),
            "tasks/get": read_get_task,
            "tasks/cancel": read_cancel_task,
            "tasks/resubscribe": read_subscribe,
            "tasks/pushNotificationConfig/set": lambda params: CreatePushConfig(
                required(ID, params, "taskId"),
                read_push_config(required(_PUSH_CONFIG, params, "pushNotificationConfig")),
            ),
            "tasks/pushNotificationConfig/get": lambda params: GetPushConfig(
                required(ID, params, "id"), optional_id(params, "pushNotificationConfigId")
            ),
            "tasks/pushNotificationConfig/list": lambda params: ListPushConfigs(required(ID, params, "id")),
            "tasks/pushNotificationConfig/delete": lambda params: DeletePushConfig(
                required(ID, params, "id"), required(ID, params, "pushNotificationConfigId")
            ),
            "agent/getAuthenticatedExtendedCard": lambda params: GetExtendedCard(),
        }

    def read_configuration(self, params: Members) -> SendConfiguration:
        """Read the configuration of a message."""
        wire = optional(_CONFIGURATION, params, "configuration") or _SendConfigurationV03()
        push = wire.pushNotificationConfig
        return SendConfiguration(
            # The specification gives `blocking` no default. Both reference servers wait, and their clients rely on it.
            wire.blocking is not False,
            wire.historyLength,
            wire.acceptedOutputModes,
            None if push is None else read_push_config(push),
        )

    def read_part(self, wire: TextObject | FileObject | DataObject) -> Part:
        """Read a part. 0.1 has the same ones."""
        metadata = null_as_absent(wire.metadata)
        match wire:
            case TextObject():
                return TextPart(wire.text, metadata=metadata)
            case DataObject():
                data, metadata = restore_data(wire.data, metadata)
                return DataPart(data, metadata=metadata)
            case FileObject():
                file = wire.file
                return FilePart(file.bytes, file.uri, file.name, file.mimeType, metadata)

    def read_update(self, wire: UpdateV03) -> Update | None:
        """Read a stream event of an agent."""
        match wire:
            case TaskV03():
                return self.read_task(wire)
            case MessageV03():
                return self.read_message(wire, is_alone=True)
            case StatusUpdateV03():
                return msgspec.structs.replace(self.read_status_update(wire), is_last=wire.final)
            case ArtifactUpdateV03():
                # Agents that leave `lastChunk` out send whole artifacts.
                return self.read_artifact_update(wire, is_complete=wire.lastChunk is not False)

    def part_object(self, part: Part) -> Any:
        """The JSON object of a part."""
        match part:
            case TextPart():
                return self.text_type(part.text, part.metadata)
            case DataPart():
                return self.data_type(data_as_object(part.data), data_metadata(part.data, part.metadata))
            case FilePart():
                # Its bytes if the hub has them, else its URI.
                uri = part.url if part.content is None else None
                content = None if uri is not None else part.content or ""
                return self.file_type(FileContentObject(content, uri, part.name, part.media_type), part.metadata)

    def push_object(self, task: str, target: PushConfig) -> Any:
        """The JSON object of a push notification config."""
        return _TaskPushConfigV03(task, push_config_object(target))

    def write_problem(self, problem: A2aProblem) -> tuple[int, str, Payload | None]:
        """Code, message and data of a JSON-RPC error."""
        return plain_error(PROBLEMS[problem.kind].code_0_3, problem)


def read_push_config(push: PushConfigObject) -> PushConfig:
    """Read a push notification config. The hub uses the first of its authentication schemes."""
    id = bounded_id(push.id, "id of a push notification config") or ""
    auth = push.authentication or PushAuthenticationObject()
    scheme = auth.schemes[0] if auth.schemes else None
    return PushConfig(push.url, id, push.token or None, scheme, auth.credentials or None)


def push_config_object(target: PushConfig) -> PushConfigObject:
    """The JSON object of a push notification config, without its task."""
    auth = None if target.scheme is None else PushAuthenticationObject([target.scheme], target.credentials)
    return PushConfigObject(target.url, target.id or None, target.token, auth)


DIALECT = DialectV03()
