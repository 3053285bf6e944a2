"""Hub outcomes as `ToolResult`s: one table of statuses for every fault.

Servers' replies are parsed here for the first time; nothing in them is trusted. Called by the service and its streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from isthmus.library.errors import (
    ToolDeniedError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolUnreachableError,
)
from isthmus.library.public_types import (
    ErrorCode,
    ErrorPayload,
    ToolRequest,
    ToolResult,
    ToolStatus,
    text_of,
)
from isthmus.library.request_checks import check_numbers, session_of
from isthmus.model.calls import Kind, Outcome, Result
from isthmus.model.fault_table import FAULTS, BadArguments, CallerFault, Fault, ServerError, UnknownTool
from isthmus.model.location_redaction import without_locations
from isthmus.wire.mcp.forwarded_methods import wrap_bare_result

INVALID_PARAMS = -32602
"""The JSON-RPC code for invalid arguments."""

STATUSES = {reason: ToolStatus(row.library) for reason, row in FAULTS.items()}
"""The status of an execution, by the reason of its fault."""

CODES: dict[ToolStatus, ErrorCode] = {
    ToolStatus.ERROR: ErrorCode.TOOL_EXECUTION,
    ToolStatus.TIMEOUT: ErrorCode.TOOL_TIMEOUT,
    ToolStatus.UNAUTHORIZED: ErrorCode.TOOL_UNAUTHORIZED,
    ToolStatus.NOT_FOUND: ErrorCode.TOOL_NOT_DECLARED,
    ToolStatus.INVALID_PARAMETERS: ErrorCode.TOOL_INVALID_PARAMETERS,
    ToolStatus.UNAVAILABLE: ErrorCode.TOOL_UNAVAILABLE,
    ToolStatus.CANCELLED: ErrorCode.TOOL_CANCELLED,
}


class FailedResult(Result, frozen=True):
    """The failed result of a program's own `Tool`, with the status that the tool chose.

    A fault would count against all other tools of the program. Servers cannot choose a status: their failures are
    always `error`.
    """

    status: ToolStatus = ToolStatus.ERROR
    error: ErrorPayload | None = None


class _ToolResultBody(msgspec.Struct):
    content: list[dict[str, Any]] = []
    structuredContent: Any = msgspec.UNSET  # noqa: N815 - as the protocol spells it
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_decode_body = msgspec.json.Decoder(_ToolResultBody).decode

_MEMBERS = frozenset({"content", "structuredContent", "isError", "resultType", "ttlMs", "cacheScope", "_meta"})
"""The members of a tool result in MCP."""


def result_from(
    request: ToolRequest,
    outcome: Outcome,
    name: str,
    namespace: str | None,
    seconds: float,
    *,
    is_of_hub: bool = False,
) -> ToolResult:
    """The result of an execution. `is_of_hub`: the outcome comes from a remote hub."""
    if isinstance(outcome, Fault):
        return _failed(request, payload_of(outcome, is_of_hub=is_of_hub), name, namespace, seconds)
    try:
        body = _decode_body((wrap_bare_result(outcome) if outcome.is_bare else outcome).payload)
        is_value = outcome.is_bare
        if not is_value and not body.content and body.structuredContent is msgspec.UNSET:
            # Some servers return an object of their own instead of content.
            is_value = not _MEMBERS.issuperset(msgspec.json.decode(outcome.payload, type=dict[str, msgspec.Raw]))
        if is_value:
            body.structuredContent = msgspec.json.decode(outcome.payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        why = ErrorPayload(ErrorCode.TOOL_EXECUTION, f"{name} returned an invalid result: {error}", "yes", "bad_reply")
        return _failed(request, why, name, namespace, seconds)
    return _completed(request, outcome, body, name, namespace, seconds)


def _completed(
    request: ToolRequest, outcome: Result, body: _ToolResultBody, name: str, namespace: str | None, seconds: float
) -> ToolResult:
    content = body.content
    is_structured = body.structuredContent is not msgspec.UNSET
    metadata: dict[str, Any] = {"content": content, "structured": is_structured}
    if body.meta:
        metadata["meta"] = body.meta
    if is_structured:
        data = body.structuredContent
    elif len(content) == 1 and content[0].get("type") == "text":  # nearly every result
        data = str(content[0].get("text", ""))
    else:
        is_text = all(block.get("type") == "text" for block in content)
        data = text_of(content) if is_text else content
    result = ToolResult(
        name,
        ToolStatus.SUCCESS,
        namespace,
        data,
        execution_time=seconds,
        metadata=metadata,
        session_id=session_of(request),
    )
    if outcome.is_error:
        status, error = (
            (outcome.status, outcome.error) if isinstance(outcome, FailedResult) else (ToolStatus.ERROR, None)
        )
        result.status = status
        result.error_message = text_of(content) or f"{name} failed without a message"
        result.error = error or ErrorPayload(CODES[status], result.error_message, "yes", "tool_error", namespace)
    return result


def refused_result(request: ToolRequest, error: ToolError) -> ToolResult:
    """The result for a tool that is unknown, unreachable or denied: nothing was sent."""
    server = None
    if isinstance(error, ToolDeniedError):
        status, reason = ToolStatus.UNAUTHORIZED, "denied"
    elif isinstance(error, ToolUnreachableError):
        status, reason, server = ToolStatus.UNAVAILABLE, "not_connected", error.server
        # Users and models do not see addresses and paths.
        error = ToolUnreachableError(error.name, error.server, without_locations(error.why))
    else:
        status, reason = ToolStatus.NOT_FOUND, "unknown_tool" if isinstance(error, ToolNotFoundError) else "ambiguous"
    details = {key: list(getattr(error, key)) for key in ("suggestions", "candidates") if getattr(error, key, None)}
    payload = ErrorPayload(CODES[status], str(error), "no", reason, server, details=details)
    return _failed(request, payload, request.tool_name, request.tool_namespace, 0.0, status)


def invalid_request(request: ToolRequest, message: str) -> ToolResult:
    """The result for a request with a wrong type, or with arguments that cannot be encoded."""
    payload = ErrorPayload(ErrorCode.TOOL_INVALID_PARAMETERS, message, "no", "bad_arguments")
    name: object = request.tool_name
    return _failed(request, payload, name if isinstance(name, str) else "", request.tool_namespace, 0.0)


def unavailable_result(request: ToolRequest, message: str) -> ToolResult:
    """The result for a call while tools cannot be listed: nothing was sent."""
    payload = ErrorPayload(ErrorCode.TOOL_UNAVAILABLE, message, "no", "not_connected")
    return _failed(request, payload, request.tool_name, request.tool_namespace, 0.0)


UNKNOWN = frozenset({"unknown_tool", "ambiguous", "denied", "not_connected"})
"""Reasons of `refused_result`. For a hub, a tool that the caller may not see does not exist."""


def fault_of(refusal: ToolResult) -> Fault:
    """The fault that the hub would have used for a call refused here, for the audit log.

    A call that a person did not approve has no such fault, and keeps its own reason.
    """
    reason = refusal.error.reason if refusal.error is not None else ""
    message = refusal.error_message or ""
    if reason in UNKNOWN:
        return UnknownTool(refusal.tool_name)
    if reason == "bad_arguments":
        return BadArguments(refusal.tool_name, message)
    fault = CallerFault(message)
    fault.reason = reason
    return fault


def payload_of(fault: Fault, *, is_of_hub: bool = False) -> ErrorPayload:
    """The error payload of a fault. A remote hub's own reason is used; other servers cannot set one."""
    remote = _HubErrorData()
    if is_of_hub and isinstance(fault, ServerError) and fault.data is not None:
        with suppress(msgspec.MsgspecError):
            data = msgspec.json.decode(fault.data, type=_HubErrorData)
            if data.reason in STATUSES and data.executed in ("no", "yes", "unknown"):
                remote = data
    reason = remote.reason or fault.reason
    if isinstance(fault, ServerError) and remote.reason is None and fault.code == INVALID_PARAMS:
        reason = "bad_arguments"
    details: dict[str, Any] = {"code": fault.code} if isinstance(fault, ServerError) else {}
    if fault.approval is not None:
        details["approval"] = fault.approval
    return ErrorPayload(
        CODES[STATUSES[reason]],
        str(fault),
        remote.executed or fault.executed,
        reason,
        remote.server or fault.server,
        fault.retry_after,
        details,
    )


class _HubErrorData(msgspec.Struct):
    reason: str | None = None
    executed: Any = None
    server: str | None = None


def _failed(
    request: ToolRequest,
    error: ErrorPayload,
    name: str,
    namespace: str | None,
    seconds: float,
    status: ToolStatus | None = None,
) -> ToolResult:
    return ToolResult(
        name,
        status or STATUSES.get(error.reason, ToolStatus.ERROR),
        namespace,
        error_message=error.message,
        error=error,
        execution_time=seconds,
        session_id=session_of(request),
    )


# -- resources and prompts ---------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode


def decode_definition(definition: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """A definition without its unreadable members: one server's mistake must not fail the whole list."""
    found: dict[str, Any] = {}
    for name, raw in definition.items():
        with suppress(msgspec.MsgspecError, RecursionError):
            found[name] = msgspec.json.decode(raw)
    return found


def encode_arguments(kind: Kind, name: object, arguments: object) -> msgspec.Raw:
    """Encode the arguments of a prompt or resource.

    Raises:
        TypeError: the name is not a string, or the arguments are not a dictionary.
        ToolExecutionError: the arguments cannot be written as JSON.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a {kind} must be a string, not {type(name).__name__}")
    if not isinstance(arguments, Mapping):
        raise TypeError(f"the arguments of a {kind} must be a dictionary, not {type(arguments).__name__}")
    try:
        written = _encode(dict(arguments))
        check_numbers(written, arguments)
        return msgspec.Raw(written)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ToolExecutionError(name, f"Invalid arguments for {name}: {error}") from error


def decode_contents(name: str, outcome: Outcome, *, is_attached: bool) -> dict[str, Any]:
    """Decode the reply for a prompt or resource.

    Raises:
        ToolExecutionError: the request failed, or the reply is invalid.
    """
    if isinstance(outcome, Fault):
        payload = payload_of(outcome, is_of_hub=is_attached)
        result = result_from(ToolRequest(name), outcome, name, payload.server, 0.0, is_of_hub=is_attached)
        raise ToolExecutionError(name, payload.message, result)
    try:
        return msgspec.json.decode(outcome.payload, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ToolExecutionError(name, f"The reply for {name} is invalid: {error}") from error
