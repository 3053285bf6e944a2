"""A2A 0.3 over JSON-RPC: its JSON objects, its methods, and the results that the hub writes. 0.2 has fewer methods.

Each object names its `kind`. The REST binding of 0.3 has other objects: `v0_3_rest`. Called by the A2A frontend;
`client` uses the objects towards agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from isthmus.model.tasks import (
    ABSENT,
    DataPart,
    FilePart,
    Part,
    Role,
    TaskState,
    TextPart,
    Update,
)
from isthmus.wire.a2a.objects import (
    ID,
    ArtifactObject,
    ArtifactUpdateObject,
    Members,
    MessageObject,
    ObjectForm,
    Reader,
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
    optional_object,
    read_cancel_task,
    read_get_task,
    read_subscribe,
    read_with,
    required,
    restore_data,
)
from isthmus.wire.a2a.operations import (
    PROBLEMS,
    A2aProblem,
    CreatePushConfig,
    DeletePushConfig,
    DialectName,
    GetExtendedCard,
    GetPushConfig,
    ListPushConfigs,
    ListTasks,
    Operation,
    PushConfig,
    PushConfigPage,
    SendMessage,
    TaskPage,
    plain_error,
)
from isthmus.wire.jsonrpc import Payload

name: DialectName = "0.3"

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
ROLES: Mapping[Role, str] = {"user": "user", "agent": "agent"}

_encode = msgspec.json.Encoder().encode


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


def read_part(wire: TextObject | FileObject | DataObject) -> Part:
    """Read a part of 0.3 or 0.1."""
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


def write_file_content(part: FilePart) -> FileContentObject:
    """Write a file: its bytes if the hub has them, else its URI."""
    uri = part.url if part.content is None else None
    return FileContentObject(None if uri is not None else part.content or "", uri, part.name, part.media_type)


def write_part(part: Part) -> PartV03:
    """Write a part."""
    match part:
        case TextPart():
            return TextV03(part.text, part.metadata)
        case DataPart():
            return DataV03(data_as_object(part.data), data_metadata(part.data, part.metadata))
        case FilePart():
            return FileV03(write_file_content(part), part.metadata)


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

FORM: ObjectForm[PartV03, MessageV03, StatusV03, ArtifactV03, TaskV03] = ObjectForm(
    states=STATES,
    roles=ROLES,
    read_part=read_part,
    write_part=write_part,
    message_type=MessageV03,
    status_type=StatusObject,
    artifact_type=ArtifactV03,
    task_type=TaskV03,
    status_update_type=StatusUpdateV03,
    artifact_update_type=ArtifactUpdateV03,
    is_wrapped=False,
    omits_false=False,
)


def read_update(wire: UpdateV03) -> Update:
    """Read a stream event of an agent."""
    match wire:
        case TaskV03():
            return FORM.read_task(wire)
        case MessageV03():
            return FORM.read_message(wire, is_alone=True)
        case StatusUpdateV03():
            return FORM.read_status_update(wire, FORM.read_status(wire.status), is_last=wire.final)
        case ArtifactUpdateV03():
            # Agents that leave `lastChunk` out send whole artifacts.
            return FORM.read_artifact_update(wire, is_complete=wire.lastChunk is not False)


# Requests.


class PushAuthenticationV03(Struct, omit_defaults=True):
    """How the hub authenticates itself to the receiver of push notifications."""

    schemes: list[str]
    credentials: str | None = None


class PushConfigV03(Struct, omit_defaults=True):
    """A push notification config."""

    url: Annotated[str, Meta(min_length=1)]
    id: str | None = None
    token: str | None = None
    authentication: PushAuthenticationV03 | None = None


class _TaskPushConfigV03(Struct, omit_defaults=True):
    taskId: str
    pushNotificationConfig: PushConfigV03


class _SendConfigurationV03(Struct):
    acceptedOutputModes: list[str] | None = None
    blocking: bool | None = None
    historyLength: Annotated[int, Meta(ge=0)] | None = None
    pushNotificationConfig: PushConfigV03 | None = None


_MESSAGE = msgspec.json.Decoder(MessageV03)
_CONFIGURATION = msgspec.json.Decoder(_SendConfigurationV03)
_PUSH_CONFIG = msgspec.json.Decoder(PushConfigV03)


def read(method: str, params: Members) -> Operation | A2aProblem:
    """Read a request."""
    return read_with(_READERS, method, params)


def _read_send(params: Members, *, is_stream: bool) -> SendMessage:
    wire = required(_MESSAGE, params, "message")
    configuration = optional(_CONFIGURATION, params, "configuration") or _SendConfigurationV03()
    push = configuration.pushNotificationConfig
    return SendMessage(
        FORM.read_request_message(wire),
        bounded_id(wire.taskId, "message.taskId"),
        bounded_id(wire.contextId, "message.contextId"),
        # The specification gives `blocking` no default. Both reference servers wait, and their clients rely on it.
        waits=configuration.blocking is not False,
        is_stream=is_stream,
        history_length=configuration.historyLength,
        output_modes=tuple(configuration.acceptedOutputModes or ()),
        push=None if push is None else read_push_config(push),
        metadata=optional_object(params, "metadata"),
    )


def read_push_config(push: PushConfigV03) -> PushConfig:
    """Read a push notification config. The hub uses the first of its authentication schemes."""
    id = bounded_id(push.id, "id of a push notification config") or ""
    auth = push.authentication or PushAuthenticationV03([])
    scheme = auth.schemes[0] if auth.schemes else None
    return PushConfig(push.url, id, push.token or None, scheme, auth.credentials or None)


_READERS: dict[str, Reader] = {
    "message/send": partial(_read_send, is_stream=False),
    "message/stream": partial(_read_send, is_stream=True),
    "tasks/get": read_get_task,
    "tasks/cancel": read_cancel_task,
    "tasks/resubscribe": read_subscribe,
    "tasks/pushNotificationConfig/set": lambda params: CreatePushConfig(
        required(ID, params, "taskId"), read_push_config(required(_PUSH_CONFIG, params, "pushNotificationConfig"))
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
METHODS = frozenset(_READERS)


# Results.


write_sent = FORM.encode_sent
write_task = FORM.encode_task
write_cancelled = FORM.encode_cancelled
write_update = FORM.encode_update


def write_tasks(page: TaskPage, asked: ListTasks) -> Payload:
    """Write a list of tasks. This generation has no method for it."""
    return _encode([FORM.write_task(task, asked.history_length) for task in page.tasks])


def write_push_config(target: PushConfig) -> PushConfigV03:
    """The JSON object of a push notification config."""
    auth = None if target.scheme is None else PushAuthenticationV03([target.scheme], target.credentials)
    return PushConfigV03(target.url, target.id or None, target.token, auth)


def write_push(task: str, target: PushConfig) -> Payload:
    """Write one push notification config."""
    return _encode(_TaskPushConfigV03(task, write_push_config(target)))


def write_pushes(page: PushConfigPage) -> Payload:
    """Write the result of `ListPushConfigs`."""
    return _encode([_TaskPushConfigV03(page.task, write_push_config(target)) for target in page.targets])


def write_deleted() -> Payload:
    """Write the result of `DeletePushConfig`."""
    return b"null"


def write_problem(problem: A2aProblem) -> tuple[int, str, Payload | None]:
    """Code, message and data of a JSON-RPC error."""
    return plain_error(PROBLEMS[problem.kind].code_0_3, problem)
