"""Why something was not done, as each generation says it: codes, statuses, reasons.

One table a binding, and each has a row for every kind of problem. The specification's own words for a kind are used
where a program compares them; what a person reads is the problem's own message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from isthmus.wire.a2a.operations import Problem, ProblemKind
from isthmus.wire.jsonrpc import Payload

_encode = msgspec.json.Encoder().encode

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
DOMAIN = "a2a-protocol.org"
FIELD = "field"
"""The detail that names the member which is wrong."""


class Ruling(NamedTuple):
    """What 1.0 says of a kind of problem, in each of its bindings."""

    code: int
    http: int
    status: str
    reason: str


V1_0: Mapping[ProblemKind, Ruling] = {
    "parse": Ruling(-32700, 400, "INVALID_ARGUMENT", "PARSE_ERROR"),
    "invalid_request": Ruling(-32600, 400, "INVALID_ARGUMENT", "INVALID_REQUEST"),
    "unknown_method": Ruling(-32601, 404, "NOT_FOUND", "METHOD_NOT_FOUND"),
    # A word of HTTP's, not of A2A. It stands before `invalid_params`, which its code means when an agent says it.
    "key_reused": Ruling(-32602, 409, "ALREADY_EXISTS", "IDEMPOTENCY_KEY_REUSED"),
    "invalid_params": Ruling(-32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS"),
    "internal": Ruling(-32603, 500, "INTERNAL", "INTERNAL_ERROR"),
    "task_not_found": Ruling(-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
    "task_not_cancelable": Ruling(-32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE"),
    "push_not_supported": Ruling(-32003, 400, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    "unsupported_operation": Ruling(-32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION"),
    # The body itself is of another type, for which HTTP has a word; the next is about what a message holds.
    "not_json": Ruling(-32005, 415, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED"),
    "content_type_not_supported": Ruling(-32005, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED"),
    "invalid_agent_response": Ruling(-32006, 500, "INTERNAL", "INVALID_AGENT_RESPONSE"),
    "card_not_configured": Ruling(-32007, 400, "FAILED_PRECONDITION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED"),
    "extension_required": Ruling(-32008, 400, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED"),
    "version_not_supported": Ruling(-32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED"),
}

V0_3: Mapping[ProblemKind, tuple[int, int, str]] = {
    "parse": (-32700, 400, "JSONParseError"),
    "invalid_request": (-32600, 400, "InvalidRequestError"),
    "unknown_method": (-32601, 404, "MethodNotFoundError"),
    "key_reused": (-32602, 409, "InvalidParamsError"),
    "invalid_params": (-32602, 422, "InvalidParamsError"),
    "internal": (-32603, 500, "InternalError"),
    "task_not_found": (-32001, 404, "TaskNotFoundError"),
    "task_not_cancelable": (-32002, 409, "TaskNotCancelableError"),
    "push_not_supported": (-32003, 501, "PushNotificationNotSupportedError"),
    "unsupported_operation": (-32004, 501, "UnsupportedOperationError"),
    "not_json": (-32005, 415, "ContentTypeNotSupportedError"),
    "content_type_not_supported": (-32005, 415, "ContentTypeNotSupportedError"),
    "invalid_agent_response": (-32006, 502, "InvalidAgentResponseError"),
    "card_not_configured": (-32007, 404, "AuthenticatedExtendedCardNotConfiguredError"),
    # Its clients know neither; that the request was not right they understand.
    "extension_required": (-32600, 400, "InvalidRequestError"),
    "version_not_supported": (-32600, 400, "InvalidRequestError"),
}
"""Code, HTTP status and name; the statuses are those of the official SDK, as the specification had none."""

V0_1: Mapping[ProblemKind, int] = {
    **{kind: row[0] for kind, row in V0_3.items()},
    "invalid_agent_response": -32603,
    "card_not_configured": -32004,
}

AGENTVAULT: Mapping[ProblemKind, int] = {
    "parse": -32700,
    "invalid_request": -32600,
    "unknown_method": -32601,
    "key_reused": -32602,
    "invalid_params": -32602,
    "internal": -32603,
    "task_not_found": -32001,
    # What is -32002 and -32003 elsewhere is for its clients a question of who they are.
    "task_not_cancelable": -32004,
    "push_not_supported": -32000,
    "unsupported_operation": -32004,
    "not_json": -32600,
    "content_type_not_supported": -32602,
    "invalid_agent_response": -32000,
    "card_not_configured": -32000,
    "extension_required": -32600,
    "version_not_supported": -32600,
}

KINDS_1_0: Mapping[int, ProblemKind] = {row.code: kind for kind, row in V1_0.items()}
"""What a code of an agent's answer means; all generations up to 1.0 that have agents use the same."""

REASONS_1_0: Mapping[str, ProblemKind] = {row.reason: kind for kind, row in V1_0.items()}
"""What a reason of an agent's answer means."""


def details_1_0(problem: Problem) -> list[dict[str, Any]]:
    """What programs are told, as 1.0 wants it: objects that say their type."""
    ruling = V1_0[problem.kind]
    metadata = problem.details
    told: list[dict[str, Any]] = [
        {"@type": ERROR_INFO, "reason": ruling.reason, "domain": DOMAIN, "metadata": metadata}
    ]
    if FIELD in problem.details:
        violation = {"field": problem.details[FIELD], "description": problem.message}
        told.append({"@type": BAD_REQUEST, "fieldViolations": [violation]})
    return told


def error_1_0(problem: Problem) -> tuple[int, str, Payload | None]:
    """Code, message and data of a JSON-RPC error of 1.0."""
    return V1_0[problem.kind].code, problem.message, _encode(details_1_0(problem))


def plain_error(code: int, problem: Problem) -> tuple[int, str, Payload | None]:
    """The same as earlier generations have it, whose data is any object."""
    return code, problem.message, _encode(problem.details) if problem.details else None


def status_1_0(problem: Problem) -> tuple[int, bytes]:
    """HTTP status and body of a problem over HTTP+JSON in 1.0.1: a `google.rpc.Status`."""
    ruling = V1_0[problem.kind]
    error = {
        "code": ruling.http,
        "status": ruling.status,
        "message": problem.message,
        "details": details_1_0(problem),
    }
    return ruling.http, _encode({"error": error})


def status_0_3(problem: Problem) -> tuple[int, bytes]:
    """HTTP status and body of a problem over HTTP+JSON in 0.3."""
    code, http, name = V0_3[problem.kind]
    return http, _encode({"error": name, "code": code, "message": problem.message, "data": problem.details})
