"""A2A 0.3 towards callers, over JSON-RPC; 0.2 is the same with fewer methods.

Its other binding, over plain HTTP, says the same things in other shapes: `v0_3_rest`. Called by the face.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from isthmus.model.conversation import Message, Task, Update
from isthmus.wire.a2a.operations import (
    CancelTask,
    DeletePushConfig,
    DialectName,
    GetTask,
    GetPushConfig,
    ListTasks,
    ListPushConfigs,
    Operation,
    A2aProblem,
    PushConfigPage,
    PushConfig,
    GetExtendedCard,
    SendMessage,
    CreatePushConfig,
    SubscribeToTask,
    TaskPage,
)
from isthmus.wire.a2a.fields import (
    COUNT,
    ID,
    Members,
    Reader,
    Unreadable,
    bounded_id,
    check_parts,
    invalid,
    optional,
    optional_id,
    optional_object,
    read_with,
    required,
)
from isthmus.wire.a2a.problems import PROBLEMS, plain_error
from isthmus.wire.a2a.shapes_v0_3 import (
    ROLES,
    WireMessage,
    message_of,
    wire_message,
    wire_task,
    wire_update,
)
from isthmus.wire.jsonrpc import Payload

name: DialectName = "0.3"


class Authentication(Struct, omit_defaults=True):
    """What proves at a place that updates come from here."""

    schemes: list[str]
    credentials: str | None = None


class Push(Struct, omit_defaults=True):
    """A place where updates are sent."""

    url: Annotated[str, Meta(min_length=1)]
    id: str | None = None
    token: str | None = None
    authentication: Authentication | None = None


class TaskPush(Struct, omit_defaults=True):
    """The same with its task."""

    taskId: str
    pushNotificationConfig: Push


class _Configuration(Struct):
    acceptedOutputModes: list[str] | None = None
    blocking: bool | None = None
    historyLength: Annotated[int, Meta(ge=0)] | None = None
    pushNotificationConfig: Push | None = None


_MESSAGE = msgspec.json.Decoder(WireMessage)
_CONFIGURATION = msgspec.json.Decoder(_Configuration)
_PUSH = msgspec.json.Decoder(Push)
_encode = msgspec.json.Encoder().encode


# What is asked.


def read(method: str, params: Members) -> Operation | A2aProblem:
    """What a request asks for."""
    return read_with(_READERS, method, params)


def _read_send(params: Members, *, is_stream: bool) -> SendMessage:
    wire = required(_MESSAGE, params, "message")
    configuration = optional(_CONFIGURATION, params, "configuration") or _Configuration()
    push = configuration.pushNotificationConfig
    return SendMessage(
        _read_message(wire),
        bounded_id(wire.taskId, "message.taskId"),
        bounded_id(wire.contextId, "message.contextId"),
        # The specification does not say what a message without `blocking` means. Both reference servers wait,
        # and their clients rely on it.
        waits=configuration.blocking is not False,
        is_stream=is_stream,
        history_length=configuration.historyLength,
        output_modes=tuple(configuration.acceptedOutputModes or ()),
        push=None if push is None else target_of(push),
        metadata=optional_object(params, "metadata"),
    )


def _read_message(wire: WireMessage) -> Message:
    if not bounded_id(wire.messageId, "message.messageId"):
        raise Unreadable(invalid("message.messageId", "is required"))
    check_parts(wire.parts, "message.parts")
    for role in ROLES:
        if role == wire.role:
            return message_of(wire, role)
    raise Unreadable(invalid("message.role", f"must be one of {', '.join(ROLES)}"))


def target_of(push: Push) -> PushConfig:
    """A place as it is meant; of several schemes the first is used."""
    id = bounded_id(push.id, "id of a push notification config") or ""
    proof = push.authentication or Authentication([])
    scheme = proof.schemes[0] if proof.schemes else None
    return PushConfig(push.url, id, push.token or None, scheme, proof.credentials or None)


def _read_get(params: Members) -> GetTask:
    return GetTask(required(ID, params, "id"), optional(COUNT, params, "historyLength"))


def _read_cancel(params: Members) -> CancelTask:
    return CancelTask(required(ID, params, "id"), optional_object(params, "metadata"))


def _read_subscribe(params: Members) -> SubscribeToTask:
    return SubscribeToTask(required(ID, params, "id"))


def _read_set_push(params: Members) -> CreatePushConfig:
    return CreatePushConfig(required(ID, params, "taskId"), target_of(required(_PUSH, params, "pushNotificationConfig")))


def _read_get_push(params: Members) -> GetPushConfig:
    return GetPushConfig(required(ID, params, "id"), optional_id(params, "pushNotificationConfigId"))


def _read_list_push(params: Members) -> ListPushConfigs:
    return ListPushConfigs(required(ID, params, "id"))


def _read_delete_push(params: Members) -> DeletePushConfig:
    return DeletePushConfig(required(ID, params, "id"), required(ID, params, "pushNotificationConfigId"))


def _read_card(params: Members) -> GetExtendedCard:
    return GetExtendedCard()


_READERS: dict[str, Reader] = {
    "message/send": partial(_read_send, is_stream=False),
    "message/stream": partial(_read_send, is_stream=True),
    "tasks/get": _read_get,
    "tasks/cancel": _read_cancel,
    "tasks/resubscribe": _read_subscribe,
    "tasks/pushNotificationConfig/set": _read_set_push,
    "tasks/pushNotificationConfig/get": _read_get_push,
    "tasks/pushNotificationConfig/list": _read_list_push,
    "tasks/pushNotificationConfig/delete": _read_delete_push,
    "agent/getAuthenticatedExtendedCard": _read_card,
}
METHODS = frozenset(_READERS)


# What is answered.


def write_sent(sent: Task | Message, history_length: int | None) -> Payload:
    """The result of a `SendMessage` that is answered whole."""
    if isinstance(sent, Message):
        return _encode(wire_message(sent, sent.context, None))
    return _encode(wire_task(sent, history_length))


def write_task(task: Task, history_length: int | None) -> Payload:
    """The result of `GetTask`, and what is pushed."""
    return _encode(wire_task(task, history_length))


def write_cancelled(task: Task) -> Payload:
    """The result of `CancelTask`."""
    return _encode(wire_task(task, None))


def write_update(update: Update) -> Payload:
    """One item of a stream."""
    return _encode(wire_update(update))


def write_tasks(page: TaskPage, asked: ListTasks) -> Payload:
    """A list of tasks, for which this generation has no method."""
    return _encode([wire_task(task, asked.history_length) for task in page.tasks])


def push_of(target: PushConfig) -> Push:
    """A place as it is written."""
    proof = None if target.scheme is None else Authentication([target.scheme], target.credentials)
    return Push(target.url, target.id or None, target.token, proof)


def write_push(task: str, target: PushConfig) -> Payload:
    """One place where updates are sent."""
    return _encode(TaskPush(task, push_of(target)))


def write_pushes(page: PushConfigPage) -> Payload:
    """All of them."""
    return _encode([TaskPush(page.task, push_of(target)) for target in page.targets])


def write_deleted() -> Payload:
    """What is left of one that was deleted."""
    return b"null"


def write_problem(problem: A2aProblem) -> tuple[int, str, Payload | None]:
    """Code, message and data of an error."""
    return plain_error(PROBLEMS[problem.kind].code_0_3, problem)
