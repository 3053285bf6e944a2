"""What an instruction's outcome is told as, in the words that the instruction was given in."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.core.tasks.record import Ending
from isthmus.frontends.a2a.contents import parts_of
from isthmus.frontends.a2a.instructions import Form
from isthmus.model.conversation import ABSENT, DataPart, Part, TextPart
from isthmus.model.faults import FAULTS, INVALID_PARAMS, NOT_CONNECTED, FaultRow, is_unsent
from isthmus.wire.jsonrpc import Payload, render
from isthmus.wire.mcp.results import plain

ErrorKind: TypeAlias = Literal["request", "network", "mcp", "internal"]

AGENTVAULT_CODES = {"bad_instruction": "INVALID_INPUT", "unknown_server": "MCP_SERVER_NOT_FOUND"}
"""AgentVault's codes for instructions that this frontend refuses before they are a call."""

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
            return (DataPart(Raw(_execute_output(ending, brief)), JSON_TYPE),)
        case "command":
            return (DataPart(Raw(_command_output(ending, brief)), JSON_TYPE),)


def _tool_parts(ending: Ending) -> tuple[Part, ...]:
    if ending.result:
        return parts_of(ending.result)
    if ending.reason not in INSTRUCTION_REASONS:
        return (TextPart(ending.message),)
    error = {"kind": kind_of(ending), "message": ending.message, "reason": ending.reason, "executed": ending.executed}
    return (DataPart(Raw(msgspec.json.encode({"error": error})), JSON_TYPE),)


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
    code = AGENTVAULT_CODES.get(ending.reason) or _row(ending).agentvault
    return "A2A_PROXY", code, ending.message


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
    """The code that the same failure has over MCP."""
    if ending.code is not None:
        return ending.code
    if ending.reason in AGENTVAULT_CODES:
        return INVALID_PARAMS
    return NOT_CONNECTED if is_unsent(ending.reason, ending.executed) else _row(ending).mcp


def kind_of(ending: Ending) -> ErrorKind:
    """Where a failure comes from."""
    return "request" if ending.reason in AGENTVAULT_CODES else _row(ending).a2a_kind


def _row(ending: Ending) -> FaultRow:
    # Another version of the hub may have stored a reason that this one does not know.
    return FAULTS.get(ending.reason, FAULTS["internal"])


def _member(payload: Raw, key: str) -> Raw:
    try:
        return msgspec.json.decode(payload, type=dict[str, Raw]).get(key, ABSENT)
    except msgspec.MsgspecError:
        return ABSENT


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)
