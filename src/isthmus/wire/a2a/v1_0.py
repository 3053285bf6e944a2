"""A2A 1.0 towards callers: what its methods ask for, and what is answered to them.

Both of its JSON bindings say the same objects, so HTTP+JSON comes here too (see `rest`). Called by the face.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from isthmus.model.conversation import Message, Task, TaskState, Update
from isthmus.wire.a2a.operations import (
    Cancel,
    DeletePush,
    DialectName,
    Get,
    GetPush,
    List,
    ListPush,
    Operation,
    Problem,
    PushPage,
    PushTarget,
    ReadCard,
    Send,
    SetPush,
    Subscribe,
    TaskPage,
)
from isthmus.wire.a2a.parts import (
    COUNT,
    FLAG,
    ID,
    STRING,
    Members,
    Reader,
    Unreadable,
    bounded_id,
    camel_members,
    check_parts,
    invalid,
    moment,
    optional,
    optional_id,
    optional_object,
    read_by,
    required,
)
from isthmus.wire.a2a.problems import error_1_0
from isthmus.wire.a2a.shapes_v1_0 import (
    ROLE_OF,
    STATE_OF,
    WireMessage,
    WireTask,
    message_of,
    wire_message,
    wire_task,
    wire_update,
)
from isthmus.wire.jsonrpc import Payload

name: DialectName = "1.0"

PAGE_SIZE_MAX = 100
PAGE_SIZE = 50
UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
"""What the protobuf form calls no state at all."""


class _Authentication(Struct, omit_defaults=True):
    scheme: str
    credentials: str | None = None


class _Push(Struct, omit_defaults=True):
    url: Annotated[str, Meta(min_length=1)]
    id: str | None = None
    taskId: str | None = None
    token: str | None = None
    authentication: _Authentication | None = None


class _Configuration(Struct):
    acceptedOutputModes: list[str] | None = None
    taskPushNotificationConfig: _Push | None = None
    historyLength: Annotated[int, Meta(ge=0)] | None = None
    returnImmediately: bool | None = None


class _TaskPage(Struct):
    tasks: list[WireTask]
    nextPageToken: str
    pageSize: int
    totalSize: int


class _PushPage(Struct, omit_defaults=True):
    configs: list[_Push]
    nextPageToken: str = ""


_MESSAGE = msgspec.json.Decoder(WireMessage)
_CONFIGURATION = msgspec.json.Decoder(_Configuration)
_AUTHENTICATION = msgspec.json.Decoder(_Authentication)
_URL = msgspec.json.Decoder(Annotated[str, Meta(min_length=1)])
_PAGE_SIZE = msgspec.json.Decoder(Annotated[int, Meta(ge=1, le=PAGE_SIZE_MAX)])
_encode = msgspec.json.Encoder().encode


# What is asked.


def read(method: str, params: Members) -> Operation | Problem:
    """What a request asks for."""
    return read_by(_READERS, method, camel_members(params))


def _read_send(params: Members, *, is_stream: bool) -> Send:
    wire = required(_MESSAGE, params, "message")
    configuration = optional(_CONFIGURATION, params, "configuration") or _Configuration()
    push = configuration.taskPushNotificationConfig
    return Send(
        _read_message(wire),
        bounded_id(wire.taskId, "message.taskId"),
        bounded_id(wire.contextId, "message.contextId"),
        waits=not configuration.returnImmediately,
        is_stream=is_stream,
        history_length=configuration.historyLength,
        output_modes=tuple(configuration.acceptedOutputModes or ()),
        push=None if push is None else _target_of(push),
        metadata=optional_object(params, "metadata"),
    )


def _read_message(wire: WireMessage) -> Message:
    if not bounded_id(wire.messageId, "message.messageId"):
        raise Unreadable(invalid("message.messageId", "is required"))
    if wire.role not in ROLE_OF:
        raise Unreadable(invalid("message.role", f"must be one of {', '.join(ROLE_OF)}"))
    check_parts(wire.parts or (), "message.parts")
    return message_of(wire, ROLE_OF[wire.role])


def _target_of(push: _Push) -> PushTarget:
    id = bounded_id(push.id, "id of a push notification config") or ""
    proof = push.authentication or _Authentication("")
    return PushTarget(push.url, id, push.token or None, proof.scheme or None, proof.credentials or None)


def _read_get(params: Members) -> Get:
    return Get(required(ID, params, "id"), optional(COUNT, params, "historyLength"))


def _read_list(params: Members) -> List:
    return List(
        optional_id(params, "contextId"),
        _read_state(params),
        _read_moment(params, "statusTimestampAfter"),
        optional(_PAGE_SIZE, params, "pageSize") or PAGE_SIZE,
        optional(STRING, params, "pageToken") or "",
        optional(COUNT, params, "historyLength"),
        optional(FLAG, params, "includeArtifacts") or False,
    )


def _read_state(params: Members) -> TaskState | None:
    word = optional(STRING, params, "status") or UNSPECIFIED
    if word != UNSPECIFIED and word not in STATE_OF:
        raise Unreadable(invalid("status", f"must be one of {', '.join(STATE_OF)}"))
    return STATE_OF.get(word)


def _read_moment(params: Members, name: str) -> float | None:
    text = optional(STRING, params, name)
    if text is not None and moment(text) is None:
        raise Unreadable(invalid(name, "must be a timestamp as 2026-01-31T12:00:00Z"))
    return moment(text)


def _read_cancel(params: Members) -> Cancel:
    return Cancel(required(ID, params, "id"), optional_object(params, "metadata"))


def _read_subscribe(params: Members) -> Subscribe:
    return Subscribe(required(ID, params, "id"))


def _read_set_push(params: Members) -> SetPush:
    task = required(ID, params, "taskId")
    proof = optional(_AUTHENTICATION, params, "authentication")
    token = optional(STRING, params, "token")
    push = _Push(required(_URL, params, "url"), optional_id(params, "id"), task, token, proof)
    return SetPush(task, _target_of(push))


def _read_get_push(params: Members) -> GetPush:
    return GetPush(required(ID, params, "taskId"), required(ID, params, "id"))


def _read_list_push(params: Members) -> ListPush:
    size = optional(COUNT, params, "pageSize") or PAGE_SIZE
    return ListPush(required(ID, params, "taskId"), size, optional(STRING, params, "pageToken") or "")


def _read_delete_push(params: Members) -> DeletePush:
    return DeletePush(required(ID, params, "taskId"), required(ID, params, "id"))


def _read_card(params: Members) -> ReadCard:
    return ReadCard()


_READERS: dict[str, Reader] = {
    "SendMessage": partial(_read_send, is_stream=False),
    "SendStreamingMessage": partial(_read_send, is_stream=True),
    "GetTask": _read_get,
    "ListTasks": _read_list,
    "CancelTask": _read_cancel,
    "SubscribeToTask": _read_subscribe,
    "CreateTaskPushNotificationConfig": _read_set_push,
    "GetTaskPushNotificationConfig": _read_get_push,
    "ListTaskPushNotificationConfigs": _read_list_push,
    "DeleteTaskPushNotificationConfig": _read_delete_push,
    "GetExtendedAgentCard": _read_card,
}
METHODS = frozenset(_READERS)


# What is answered.


def write_sent(sent: Task | Message, history_length: int | None) -> Payload:
    """The result of a `Send` that is answered whole."""
    if isinstance(sent, Message):
        return _encode({"message": wire_message(sent, sent.context, None)})
    return _encode({"task": wire_task(sent, history_length)})


def write_task(task: Task, history_length: int | None) -> Payload:
    """The result of `Get`."""
    return _encode(wire_task(task, history_length))


def write_cancelled(task: Task) -> Payload:
    """The result of `Cancel`."""
    return _encode(wire_task(task, None))


def write_update(update: Update) -> Payload:
    """One item of a stream, and what is pushed."""
    return _encode(wire_update(update))


def write_tasks(page: TaskPage, asked: List) -> Payload:
    """The result of `List`; where artifacts are wanted, it is also said that there are none."""
    wants = asked.has_artifacts
    tasks = [wire_task(task, asked.history_length, shows_none=wants) for task in page.tasks]
    if not wants:
        for task in tasks:
            task.artifacts = None
    return _encode(_TaskPage(tasks, page.next_token, page.page_size, page.total))


def write_push(task: str, target: PushTarget) -> Payload:
    """One place where updates are sent."""
    return _encode(_push(task, target))


def _push(task: str, target: PushTarget) -> _Push:
    proof = None if target.scheme is None else _Authentication(target.scheme, target.credentials)
    return _Push(target.url, target.id or None, task, target.token, proof)


def write_pushes(page: PushPage) -> Payload:
    """All of them."""
    return _encode(_PushPage([_push(page.task, target) for target in page.targets], page.next_token))


def write_deleted() -> Payload:
    """What is left of one that was deleted."""
    return b"{}"


def write_problem(problem: Problem) -> tuple[int, str, Payload | None]:
    """Code, message and data of an error."""
    return error_1_0(problem)
