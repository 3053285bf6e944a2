"""What an instruction's outcome is told as, in the words that the instruction was given in."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.core.tasks.record import Ending
from isthmus.faces.a2a.contents import parts_of
from isthmus.faces.a2a.instructions import Form
from isthmus.model.conversation import ABSENT, Data, Part, Text
from isthmus.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, Payload, render
from isthmus.wire.mcp.results import plain

ErrorKind: TypeAlias = Literal["request", "network", "mcp", "internal"]

REQUEST_REASONS = frozenset(
    {
        "bad_instruction",
        "bad_arguments",
        "unknown_tool",
        "unknown_prompt",
        "unknown_resource",
        "unknown_server",
        "target_refused",
        "cancelled",
        "unanswered",
        "bad_state",
        "unknown_task",
        "task_ended",
        "too_many_subscriptions",
    }
)
NETWORK_REASONS = frozenset(
    {
        "not_connected",
        "overloaded",
        "too_many_bytes",
        "too_many_calls",
        "too_many_targets",
        "breaker_open",
        "lost",
        "timed_out",
        "draining",
    }
)
MCP_REASONS = frozenset({"server_error", "bad_reply"})

INSTRUCTION_REASONS = frozenset({"bad_instruction", "unknown_tool", "bad_arguments"})
"""What is wrong with the instruction itself, so that another one would help."""

JSON_TYPE = "application/json"


class Brief(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the face remembers of an instruction."""

    form: Form = "tool"
    tool: str = ""
    id: Raw = ABSENT
    """What a command's answer repeats."""


def answer_parts(ending: Ending, brief: Brief) -> tuple[Part, ...]:
    """The parts of a task's answer."""
    match brief.form:
        case "tool":
            return _tool_parts(ending)
        case "execute":
            return (Data(Raw(_execute_output(ending, brief)), JSON_TYPE),)
        case "command":
            return (Data(Raw(_command_output(ending, brief)), JSON_TYPE),)


def _tool_parts(ending: Ending) -> tuple[Part, ...]:
    if ending.result:
        return parts_of(ending.result)
    if ending.reason not in INSTRUCTION_REASONS:
        return (Text(ending.message),)
    error = {"kind": kind_of(ending), "message": ending.message, "reason": ending.reason, "executed": ending.executed}
    return (Data(Raw(msgspec.json.encode({"error": error})), JSON_TYPE),)


def summary(ending: Ending, brief: Brief) -> str | None:
    """A sentence for people about what went wrong; None if nothing did."""
    if ending.result and not ending.is_error:
        return None
    if brief.form == "execute":
        source, code, message = _blame(ending, brief)
        return f"[{source}/{code}] {message}"
    return ending.message or f"{brief.tool or 'The tool'} reported an error"


# -- {success, mcp_result | error} ---------------------------------------------------------------------------------


def _execute_output(ending: Ending, brief: Brief) -> bytes:
    if ending.result and not ending.is_error:
        # `mcp_result` is an object there: any other value is told as a tool of MCP would.
        is_object = bytes(memoryview(ending.result)[:1]) == b"{"
        told = ending.result if is_object else plain(ending.result).payload
        return render({"success": b"true", "mcp_result": told})
    source, code, message = _blame(ending, brief)
    error: dict[str, Payload] = {"source": _json(source), "code": _json(code), "message": _json(message)}
    if details := _details(ending):
        error["details"] = render(details)
    return render({"success": b"false", "error": render(error)})


def _blame(ending: Ending, brief: Brief) -> tuple[str, str, str]:
    if ending.result:
        return "MCP_TOOL", "TOOL_EXECUTION_FAILED", f"Execution failed for tool '{brief.tool}'"
    if ending.code is not None:
        return "MCP_PROTOCOL", str(ending.code), ending.message
    return "A2A_PROXY", _PROXY_CODES.get(ending.reason, "PROXY_INTERNAL_ERROR"), ending.message


_PROXY_CODES = {
    "timed_out": "MCP_TIMEOUT",
    "not_connected": "MCP_CONNECTION_ERROR",
    "lost": "MCP_CONNECTION_ERROR",
    "overloaded": "MCP_CONNECTION_ERROR",
    "too_many_bytes": "MCP_CONNECTION_ERROR",
    "too_many_calls": "MCP_CONNECTION_ERROR",
    "breaker_open": "MCP_CONNECTION_ERROR",
    "bad_reply": "MCP_INVALID_RESPONSE",
    "unknown_tool": "-32601",
    "unknown_server": "MCP_SERVER_NOT_FOUND",
    "bad_arguments": "INVALID_ARGUMENTS",
    "bad_instruction": "INVALID_INPUT",
    "cancelled": "CANCELED",
}


def _details(ending: Ending) -> dict[str, Payload]:
    if ending.result:
        content = _member(ending.result, "content")
        return {"mcp_tool_error_content": content} if content else {}
    details: dict[str, Payload] = {"executed": _json(ending.executed), "reason": _json(ending.reason)}
    if ending.data:
        details["mcp_protocol_error_data"] = ending.data
    return details


# -- {mcp_request_id_echo, mcp_response_id, mcp_result | mcp_error} ----------------------------------------------------


def _command_output(ending: Ending, brief: Brief) -> bytes:
    output: dict[str, Payload] = {"mcp_request_id_echo": brief.id, "mcp_response_id": brief.id}
    if ending.result:
        output["mcp_result"] = ending.result
    else:
        output["mcp_error"] = _command_error(ending)
    return render(output)


def _command_error(ending: Ending) -> bytes:
    data: dict[str, Payload] = {
        "kind": _json(kind_of(ending)),
        "executed": _json(ending.executed),
        "reason": _json(ending.reason),
    }
    if ending.server is not None:
        data["server"] = _json(ending.server)
    if ending.retry_after is not None:
        data["retryAfter"] = msgspec.json.encode(round(ending.retry_after, 3))
    if ending.data:
        data["mcp_data"] = ending.data
    return render({"code": b"%d" % _code(ending), "message": _json(ending.message), "data": render(data)})


def _code(ending: Ending) -> int:
    """The code that the same failure has for callers over MCP; what was lost before it was sent found no server."""
    if ending.code is not None:
        return ending.code
    if ending.executed == "no" and ending.reason in ("lost", "timed_out"):
        return NOT_CONNECTED
    return _CODES.get(ending.reason) or (INVALID_PARAMS if kind_of(ending) == "request" else INTERNAL_ERROR)


REFUSED, NOT_CONNECTED, SENT_AND_LOST = -32010, -32011, -32012

_CODES = {
    **dict.fromkeys(
        ("overloaded", "too_many_bytes", "too_many_calls", "too_many_targets", "too_many_subscriptions"), REFUSED
    ),
    **dict.fromkeys(("breaker_open", "draining"), REFUSED),
    "not_connected": NOT_CONNECTED,
    **dict.fromkeys(("lost", "timed_out", "cancelled", "unanswered", "bad_reply"), SENT_AND_LOST),
}


def kind_of(ending: Ending) -> ErrorKind:
    """Where a failure comes from."""
    if ending.reason in REQUEST_REASONS:
        return "request"
    if ending.reason in NETWORK_REASONS:
        return "network"
    return "mcp" if ending.reason in MCP_REASONS else "internal"


def _member(payload: Raw, key: str) -> Raw:
    try:
        return msgspec.json.decode(payload, type=dict[str, Raw]).get(key, ABSENT)
    except msgspec.MsgspecError:
        return ABSENT


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)
