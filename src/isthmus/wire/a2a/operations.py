"""The operations of A2A, their results and their problems, independent of the generation, and the codes of problems.

Each dialect (`v1_0`, `v0_3`, `v0_3_rest`, `v0_1`, `agentvault`) reads its requests into these and writes their results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.model.tasks import ABSENT, Message, Task, TaskState
from isthmus.wire.jsonrpc import Payload

_encode = msgspec.json.Encoder().encode

DialectName: TypeAlias = Literal["1.0", "0.3", "0.1", "agentvault"]


class PushConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where push notifications of a task go, and how the hub authenticates itself there."""

    url: str
    id: str = ""
    token: str | None = None
    scheme: str | None = None
    credentials: str | None = None


class SendMessage(msgspec.Struct, frozen=True):
    """Send a message: it begins a task, or continues one."""

    message: Message
    task: str | None = None
    """The task to continue. In 0.1 also the task to begin, because callers choose its id."""
    context: str | None = None
    waits: bool = True
    """The response may wait for the work; otherwise it is sent as soon as the task is stored."""
    is_stream: bool = False
    history_length: int | None = None
    output_modes: tuple[str, ...] = ()
    push: PushConfig | None = None
    metadata: Raw = ABSENT


class GetTask(msgspec.Struct, frozen=True):
    """Get a task."""

    task: str
    history_length: int | None = None


class ListTasks(msgspec.Struct, frozen=True):
    """List tasks, the last updated first."""

    context: str | None = None
    state: TaskState | None = None
    updated_after: float | None = None
    page_size: int = 50
    page_token: str = ""
    history_length: int | None = None
    has_artifacts: bool = False
    """Whether the tasks include their artifacts."""


class CancelTask(msgspec.Struct, frozen=True):
    """Cancel a task."""

    task: str
    metadata: Raw = ABSENT


class SubscribeToTask(msgspec.Struct, frozen=True):
    """Follow a task by a stream."""

    task: str


class CreatePushConfig(msgspec.Struct, frozen=True):
    """Send push notifications of a task to a URL."""

    task: str
    target: PushConfig


class GetPushConfig(msgspec.Struct, frozen=True):
    """Get a push notification config; without an id, the first one."""

    task: str
    id: str | None = None


class ListPushConfigs(msgspec.Struct, frozen=True):
    """List the push notification configs of a task."""

    task: str
    page_size: int = 50
    page_token: str = ""


class DeletePushConfig(msgspec.Struct, frozen=True):
    """Delete a push notification config."""

    task: str
    id: str


class GetExtendedCard(msgspec.Struct, frozen=True):
    """Get the card for authenticated callers."""


PushOperation: TypeAlias = CreatePushConfig | GetPushConfig | ListPushConfigs | DeletePushConfig
Operation: TypeAlias = (
    SendMessage | GetTask | ListTasks | CancelTask | SubscribeToTask | PushOperation | GetExtendedCard
)

ProblemKind: TypeAlias = Literal[
    "parse",
    "invalid_request",
    "unknown_method",
    "key_reused",
    "invalid_params",
    "internal",
    "task_not_found",
    "task_not_cancelable",
    "push_not_supported",
    "unsupported_operation",
    "not_json",
    "content_type_not_supported",
    "invalid_agent_response",
    "card_not_configured",
    "extension_required",
    "version_not_supported",
]


class A2aProblem(msgspec.Struct, frozen=True):
    """Why an operation failed; `details` are for programs."""

    kind: ProblemKind
    message: str
    details: dict[str, str] = {}


class TaskPage(msgspec.Struct, frozen=True):
    """A page of a list of tasks."""

    tasks: tuple[Task, ...]
    total: int
    next_token: str = ""
    page_size: int = 50


class PushConfigPage(msgspec.Struct, frozen=True):
    """A page of a list of push notification configs."""

    task: str
    targets: tuple[PushConfig, ...]
    next_token: str = ""


# Errors: one table with the codes of each kind of problem in every generation. Programs compare the specification's
# names; people read the problem's message.

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
DOMAIN = "a2a-protocol.org"
FIELD = "field"
"""The key of `A2aProblem.details` that names the wrong member."""


class ProblemRow(NamedTuple):
    """The codes of one kind of problem in every generation and binding."""

    code: int
    """JSON-RPC, 1.0."""
    http: int
    """HTTP status, 1.0."""
    status: str
    """Name of the `google.rpc.Code`, 1.0 over HTTP+JSON and gRPC."""
    reason: str
    """`ErrorInfo.reason`, 1.0."""
    code_0_3: int
    http_0_3: int
    """The statuses of the official SDK, as the 0.3 specification has none."""
    name_0_3: str
    code_0_1: int
    code_agentvault: int


# fmt: off
PROBLEMS: Mapping[ProblemKind, ProblemRow] = {
    "parse": ProblemRow(
        -32700, 400, "INVALID_ARGUMENT", "PARSE_ERROR",
        -32700, 400, "JSONParseError", -32700, -32700),
    "invalid_request": ProblemRow(
        -32600, 400, "INVALID_ARGUMENT", "INVALID_REQUEST",
        -32600, 400, "InvalidRequestError", -32600, -32600),
    "unknown_method": ProblemRow(
        -32601, 404, "NOT_FOUND", "METHOD_NOT_FOUND",
        -32601, 404, "MethodNotFoundError", -32601, -32601),
    # A status of HTTP, not of A2A. It stands before `invalid_params`, which its code means in an agent's error.
    "key_reused": ProblemRow(
        -32602, 409, "ALREADY_EXISTS", "IDEMPOTENCY_KEY_REUSED",
        -32602, 409, "InvalidParamsError", -32602, -32602),
    "invalid_params": ProblemRow(
        -32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS",
        -32602, 422, "InvalidParamsError", -32602, -32602),
    "internal": ProblemRow(
        -32603, 500, "INTERNAL", "INTERNAL_ERROR",
        -32603, 500, "InternalError", -32603, -32603),
    "task_not_found": ProblemRow(
        -32001, 404, "NOT_FOUND", "TASK_NOT_FOUND",
        -32001, 404, "TaskNotFoundError", -32001, -32001),
    # For AgentVault's clients, -32002 and -32003 mean failed authentication.
    "task_not_cancelable": ProblemRow(
        -32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE",
        -32002, 409, "TaskNotCancelableError", -32002, -32004),
    "push_not_supported": ProblemRow(
        -32003, 400, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED",
        -32003, 501, "PushNotificationNotSupportedError", -32003, -32000),
    "unsupported_operation": ProblemRow(
        -32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION",
        -32004, 501, "UnsupportedOperationError", -32004, -32004),
    # `not_json` is about the type of the body, the next about the parts of a message.
    "not_json": ProblemRow(
        -32005, 415, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED",
        -32005, 415, "ContentTypeNotSupportedError", -32005, -32600),
    "content_type_not_supported": ProblemRow(
        -32005, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED",
        -32005, 415, "ContentTypeNotSupportedError", -32005, -32602),
    "invalid_agent_response": ProblemRow(
        -32006, 500, "INTERNAL", "INVALID_AGENT_RESPONSE",
        -32006, 502, "InvalidAgentResponseError", -32603, -32000),
    "card_not_configured": ProblemRow(
        -32007, 400, "FAILED_PRECONDITION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
        -32007, 404, "AuthenticatedExtendedCardNotConfiguredError", -32004, -32000),
    # Clients before 1.0 know neither of these two.
    "extension_required": ProblemRow(
        -32008, 400, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED",
        -32600, 400, "InvalidRequestError", -32600, -32600),
    "version_not_supported": ProblemRow(
        -32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED",
        -32600, 400, "InvalidRequestError", -32600, -32600),
}
# fmt: on

KINDS_1_0: Mapping[int, ProblemKind] = {row.code: kind for kind, row in PROBLEMS.items()}
"""The meaning of a code in an agent's error; all generations that agents use share these codes."""

REASONS_1_0: Mapping[str, ProblemKind] = {row.reason: kind for kind, row in PROBLEMS.items()}
"""The meaning of an `ErrorInfo.reason` in an agent's error."""


def details_1_0(problem: A2aProblem) -> list[dict[str, Any]]:
    """The details for programs in 1.0: objects with a `@type`."""
    info = {
        "@type": ERROR_INFO,
        "reason": PROBLEMS[problem.kind].reason,
        "domain": DOMAIN,
        "metadata": problem.details,
    }
    if FIELD not in problem.details:
        return [info]
    violation = {"field": problem.details[FIELD], "description": problem.message}
    return [info, {"@type": BAD_REQUEST, "fieldViolations": [violation]}]


def error_1_0(problem: A2aProblem) -> tuple[int, str, Payload | None]:
    """Code, message and data of a JSON-RPC error in 1.0."""
    return PROBLEMS[problem.kind].code, problem.message, _encode(details_1_0(problem))


def plain_error(code: int, problem: A2aProblem) -> tuple[int, str, Payload | None]:
    """Code, message and data of a JSON-RPC error before 1.0, when the data could be any object."""
    return code, problem.message, _encode(problem.details) if problem.details else None


def status_1_0(problem: A2aProblem) -> tuple[int, bytes]:
    """HTTP status and body of a problem over HTTP+JSON in 1.0: a `google.rpc.Status`."""
    row = PROBLEMS[problem.kind]
    error = {"code": row.http, "status": row.status, "message": problem.message, "details": details_1_0(problem)}
    return row.http, _encode({"error": error})


def status_0_3(problem: A2aProblem) -> tuple[int, bytes]:
    """HTTP status and body of a problem over HTTP+JSON in 0.3."""
    row = PROBLEMS[problem.kind]
    body = {"error": row.name_0_3, "code": row.code_0_3, "message": problem.message, "data": problem.details}
    return row.http_0_3, _encode(body)
