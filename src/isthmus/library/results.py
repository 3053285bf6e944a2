"""What the hub's outcomes are in the library's words: one table of statuses, for every fault.

Called by the service and its streams. What a server answered is read here for the first time, and trusted in nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

import msgspec

from isthmus.library.contracts import (
    ErrorCode,
    ErrorPayload,
    SessionContext,
    ToolRequest,
    ToolResult,
    ToolStatus,
    UserContext,
    text_of,
)
from isthmus.library.errors import ToolDeniedError, ToolError, ToolNotFoundError, ToolUnreachableError
from isthmus.model.faults import BadArguments, CallerFault, Fault, ServerError, UnknownTool
from isthmus.model.outcomes import Outcome, Result
from isthmus.wire.mcp.results import as_tool_result

INVALID_PARAMS = -32602
"""What a server answers to arguments that it does not want."""

STATUSES: dict[str, ToolStatus] = {
    "bad_arguments": ToolStatus.INVALID_PARAMETERS,
    "unknown_tool": ToolStatus.NOT_FOUND,
    "unknown_prompt": ToolStatus.NOT_FOUND,
    "unknown_resource": ToolStatus.NOT_FOUND,
    "unknown_task": ToolStatus.NOT_FOUND,
    "task_ended": ToolStatus.ERROR,
    "too_many_subscriptions": ToolStatus.ERROR,
    "target_refused": ToolStatus.UNAUTHORIZED,
    "cancelled": ToolStatus.CANCELLED,
    "unanswered": ToolStatus.ERROR,
    "bad_state": ToolStatus.ERROR,
    "not_connected": ToolStatus.UNAVAILABLE,
    "overloaded": ToolStatus.UNAVAILABLE,
    "too_many_bytes": ToolStatus.UNAVAILABLE,
    "too_many_calls": ToolStatus.UNAVAILABLE,
    "too_many_targets": ToolStatus.UNAVAILABLE,
    "breaker_open": ToolStatus.UNAVAILABLE,
    "server_error": ToolStatus.ERROR,
    "bad_reply": ToolStatus.ERROR,
    "lost": ToolStatus.UNAVAILABLE,
    "timed_out": ToolStatus.TIMEOUT,
    "draining": ToolStatus.UNAVAILABLE,
    "not_written": ToolStatus.UNAVAILABLE,
    "internal": ToolStatus.ERROR,
}
"""By the hub's word for a fault."""

CODES: dict[ToolStatus, ErrorCode] = {
    ToolStatus.ERROR: ErrorCode.TOOL_EXECUTION,
    ToolStatus.TIMEOUT: ErrorCode.TOOL_TIMEOUT,
    ToolStatus.UNAUTHORIZED: ErrorCode.TOOL_UNAUTHORIZED,
    ToolStatus.NOT_FOUND: ErrorCode.TOOL_NOT_DECLARED,
    ToolStatus.INVALID_PARAMETERS: ErrorCode.TOOL_INVALID_PARAMETERS,
    ToolStatus.UNAVAILABLE: ErrorCode.TOOL_UNAVAILABLE,
    ToolStatus.CANCELLED: ErrorCode.TOOL_CANCELLED,
}


class NotDone(Result, frozen=True):
    """What a `Tool` of the program's own gave that failed: it says itself in which of the ways.

    It is no fault, which would count against everything that is served beside it. A server cannot say this: what it
    answers is text, and of that a failure is but an error.
    """

    status: ToolStatus = ToolStatus.ERROR
    error: ErrorPayload | None = None


class _Answer(msgspec.Struct):
    content: list[dict[str, Any]] = []
    structuredContent: Any = msgspec.UNSET  # noqa: N815 - as the protocol spells it
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_ANSWER = msgspec.json.Decoder(_Answer)

_MEMBERS = frozenset({"content", "structuredContent", "isError", "resultType", "ttlMs", "cacheScope", "_meta"})
"""What a tool's result may have in MCP."""


def _has_other_members(answer: _Answer, outcome: Result) -> bool:
    """Whether a server of MCP returned an object of its own in the place of content."""
    if answer.structuredContent is not msgspec.UNSET:
        return False
    return not _MEMBERS.issuperset(msgspec.json.decode(outcome.payload, type=dict[str, msgspec.Raw]))


def result_from(
    request: ToolRequest,
    outcome: Outcome,
    name: str,
    namespace: str | None,
    seconds: float,
    *,
    is_of_hub: bool = False,
) -> ToolResult:
    """How an execution ended, whatever the outcome; `is_of_hub` if it is that of a hub elsewhere."""
    if isinstance(outcome, Fault):
        return _failed(request, payload_of(outcome, is_of_hub=is_of_hub), name, namespace, seconds)
    try:
        is_bare = outcome.is_bare
        answer = _ANSWER.decode((as_tool_result(outcome) if is_bare else outcome).payload)
        if is_bare or (not answer.content and _has_other_members(answer, outcome)):  # the value itself, whatever it is
            answer.structuredContent = msgspec.json.decode(outcome.payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        why = ErrorPayload(ErrorCode.TOOL_EXECUTION, f"{name} gave an unusable answer: {error}", "yes", "bad_reply")
        return _failed(request, why, name, namespace, seconds)
    return _answered(request, outcome, answer, name, namespace, seconds)


def _answered(
    request: ToolRequest, outcome: Result, answer: _Answer, name: str, namespace: str | None, seconds: float
) -> ToolResult:
    is_structured = answer.structuredContent is not msgspec.UNSET
    metadata: dict[str, Any] = {"content": answer.content, "structured": is_structured}
    if answer.meta:
        metadata["meta"] = answer.meta
    data = answer.structuredContent if is_structured else _plainest(answer.content)
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
        status, error = (outcome.status, outcome.error) if isinstance(outcome, NotDone) else (ToolStatus.ERROR, None)
        result.status = status
        result.error_message = text_of(answer.content) or f"{name} failed without saying why"
        result.error = error or ErrorPayload(CODES[status], result.error_message, "yes", "tool_error", namespace)
    return result


def _plainest(content: list[dict[str, Any]]) -> Any:
    """Text, if there is nothing else; otherwise the blocks."""
    if len(content) == 1 and content[0].get("type") == "text":  # as nearly every answer is
        return str(content[0].get("text", ""))
    is_text = all(block.get("type") == "text" for block in content)
    return text_of(content) if is_text else content


def refused(request: ToolRequest, error: ToolError) -> ToolResult:
    """A request whose tool cannot be found or reached, or is not the user's to use: nothing was sent."""
    server = None
    if isinstance(error, ToolDeniedError):
        status, reason = ToolStatus.UNAUTHORIZED, "denied"
    elif isinstance(error, ToolUnreachableError):
        status, reason, server = ToolStatus.UNAVAILABLE, "not_connected", error.server
        error = error.without_places()
    else:
        status, reason = ToolStatus.NOT_FOUND, "unknown_tool" if isinstance(error, ToolNotFoundError) else "ambiguous"
    details = {key: list(getattr(error, key)) for key in ("suggestions", "candidates") if getattr(error, key, None)}
    payload = ErrorPayload(CODES[status], str(error), "no", reason, server, details=details)
    return _failed(request, payload, request.tool_name, request.tool_namespace, 0.0, status)


def unusable(request: ToolRequest, message: str) -> ToolResult:
    """A request that has something in it of the wrong type, or arguments that cannot even be written down."""
    payload = ErrorPayload(ErrorCode.TOOL_INVALID_PARAMETERS, message, "no", "bad_arguments")
    name: object = request.tool_name
    return _failed(request, payload, name if isinstance(name, str) else "", request.tool_namespace, 0.0)


def unavailable(request: ToolRequest, message: str) -> ToolResult:
    """A request of what cannot be reached, since nobody can tell what there is: nothing was sent."""
    payload = ErrorPayload(ErrorCode.TOOL_UNAVAILABLE, message, "no", "not_connected")
    return _failed(request, payload, request.tool_name, request.tool_namespace, 0.0)


UNKNOWN = frozenset({"unknown_tool", "ambiguous", "denied", "not_connected"})
"""Reasons of `refused`: on a hub, a tool that a caller may not see is one that there is not."""


def fault_of(refusal: ToolResult) -> Fault:
    """What the hub itself would have said to a call that was refused here, as its audit log is to have it.

    A person's no is nothing that a hub hears of, and keeps its own word.
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
    """A fault for programs; what a hub that this one is attached to said of it counts as if said here.

    No other server can speak for the hub, whatever words it uses.
    """
    said = _said_behind(fault) if is_of_hub else _Said()
    reason = said.reason or fault.reason
    if isinstance(fault, ServerError) and said.reason is None and fault.code == INVALID_PARAMS:
        reason = "bad_arguments"
    details = {"code": fault.code} if isinstance(fault, ServerError) else {}
    return ErrorPayload(
        CODES[STATUSES[reason]],
        str(fault),
        said.executed or fault.executed,
        reason,
        said.server or fault.server,
        fault.retry_after,
        details,
    )


class _Said(msgspec.Struct):
    reason: str | None = None
    executed: Any = None
    server: str | None = None


def _said_behind(fault: Fault) -> _Said:
    if not isinstance(fault, ServerError) or fault.data is None:
        return _Said()
    try:
        said = msgspec.json.decode(fault.data, type=_Said)
    except msgspec.MsgspecError:
        return _Said()
    is_known = said.reason in STATUSES and said.executed in ("no", "yes", "unknown")
    return said if is_known else _Said()


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


def trouble_with(request: ToolRequest) -> str | None:
    """Why a request cannot be made, whatever tool it is for; None if it can.

    Raises:
        TypeError: it is no request.
    """
    try:
        trouble = _wrong_type_in(request)
    except AttributeError:  # which costs nothing as long as nobody is wrong
        kind = type(request).__name__
        raise TypeError(f'a tool is executed by a ToolRequest("name", parameters={{...}}), not by {kind}') from None
    if trouble is not None:
        return trouble
    session: object = session_of(request)
    if (trouble := trouble_with_timeout(request.timeout)) is not None:
        return trouble
    if session is not None and not (isinstance(session, str) and session.isprintable()):
        return f"session_id must be printable text, not {session!r}"
    if (headers := (request.metadata or {}).get("headers")) is not None and not _are_texts(headers):
        return "metadata['headers'] must be a dictionary of names and texts, not another value"
    return None


def trouble_with_timeout(timeout: object) -> str | None:
    """Why nothing can take so long; None if it can."""
    if timeout is None or (isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0):
        return None
    return f"timeout must be a number of seconds from 0 on, not {timeout!r}"


_TYPES: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
    ("tool_name", str, "text"),
    ("tool_namespace", (str, NoneType), "text"),
    ("user_context", (UserContext, NoneType), "a UserContext"),
    ("session_context", (SessionContext, NoneType), "a SessionContext"),
    ("metadata", (Mapping, NoneType), "a dictionary"),
)
"""What the fields of a request must be: a program that nobody checked for types may have put anything there."""


def _wrong_type_in(request: ToolRequest) -> str | None:
    if _is_bare(request):
        return None
    for name, wanted, word in _TYPES:
        if not isinstance(held := getattr(request, name), wanted):
            # Many give arguments next after the name.
            are_arguments = name == "tool_namespace" and isinstance(held, Mapping)
            advice = "; arguments are given as parameters={...}" if are_arguments else ""
            return f"{name} must be {word}, not {type(held).__name__}{advice}"
    user_id: object = request.user_context.user_id if request.user_context is not None else None
    if not isinstance(user_id, str | None):
        return f"user_context.user_id must be text, not {type(user_id).__name__}"
    if user_id is not None and not _is_writable(user_id):
        return f"user_context.user_id must be whole characters, not {user_id!r}"
    return None


def _is_bare(request: ToolRequest) -> bool:
    """Whether it says but what is wanted, as most do: then there is nobody in it to look at more closely."""
    return (
        type(request.tool_name) is str
        and type(request.metadata) is dict
        and request.tool_namespace is None
        and request.user_context is None
        and request.session_context is None
    )


def _is_writable(text: str) -> bool:
    """Whether it can be put down in UTF-8: who has half a character in their name would be in no audit log."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def whole(text: str) -> str:
    """A text as it can be written: a model, or a program, may have put half a character into it."""
    return text if _is_writable(text) else text.encode(errors="replace").decode()


def check_numbers(written: bytes, given: object) -> None:
    """Refuse numbers that JSON has not: they are written as null, and nobody meant that.

    Raises:
        ValueError: there is one.
    """
    if b"null" in written and (odd := _odd_number_in(given)) is not None:
        raise ValueError(f"{odd} is a number that JSON does not have")


def _odd_number_in(given: object) -> float | None:
    match given:
        case float():
            return None if math.isfinite(given) else given
        case Mapping():
            held: Iterable[object] = given.values()
        case list() | tuple() | set() | frozenset():
            held = given
        case _:
            return None
    return next((odd for each in held if (odd := _odd_number_in(each)) is not None), None)


def _are_texts(headers: object) -> bool:
    return isinstance(headers, Mapping) and all(isinstance(text, str) for pair in headers.items() for text in pair)


def session_of(request: ToolRequest) -> str | None:
    """The conversation that a request belongs to, by whichever of its two fields."""
    context = request.session_context
    return request.session_id or (None if context is None else getattr(context, "session_id", None))
