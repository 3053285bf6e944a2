"""How a failure is told to a device: one code per leaf, the original's words, and `executed` in the data.

There is never a `result` beside an error: devices look for that first, and would take a failure for a success.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from isthmus.model.faults import (
    BadArguments,
    BadReply,
    BadState,
    BreakerOpen,
    Bug,
    Cancelled,
    Draining,
    Executed,
    Fault,
    Lost,
    NotConnected,
    NotWritten,
    Overloaded,
    ServerError,
    TargetRefused,
    TaskEnded,
    TimedOut,
    TooManyBytes,
    TooManyCalls,
    TooManySubscriptions,
    TooManyTargets,
    Unanswered,
    UnknownPrompt,
    UnknownResource,
    UnknownTask,
    UnknownTool,
)
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.relay.answers import Absent

NOT_CONNECTED = -32001
NOT_FORWARDED = -32002

CODES: dict[type[Fault], int] = {
    BadArguments: jsonrpc.INVALID_PARAMS,
    UnknownTool: jsonrpc.METHOD_NOT_FOUND,
    UnknownPrompt: jsonrpc.INVALID_PARAMS,
    UnknownResource: jsonrpc.INVALID_PARAMS,
    UnknownTask: jsonrpc.INVALID_PARAMS,
    TaskEnded: jsonrpc.INVALID_PARAMS,
    TargetRefused: jsonrpc.INVALID_PARAMS,
    BadState: jsonrpc.INVALID_PARAMS,
    TooManySubscriptions: NOT_FORWARDED,
    TooManyBytes: NOT_FORWARDED,
    TooManyCalls: NOT_FORWARDED,
    TooManyTargets: NOT_FORWARDED,
    Overloaded: NOT_FORWARDED,
    BreakerOpen: NOT_FORWARDED,
    Draining: NOT_FORWARDED,
    NotConnected: NOT_CONNECTED,
    Unanswered: NOT_FORWARDED,
    Cancelled: NOT_FORWARDED,
    Lost: NOT_FORWARDED,
    TimedOut: NOT_FORWARDED,
    BadReply: NOT_FORWARDED,
    ServerError: 0,
    NotWritten: jsonrpc.INTERNAL_ERROR,
    Bug: jsonrpc.INTERNAL_ERROR,
}
"""Every leaf has a row; a server's own error keeps its own code."""

WORDS = {
    NOT_CONNECTED: "工具端未连接",
    NOT_FORWARDED: "转发工具调用请求失败",
    jsonrpc.INTERNAL_ERROR: "处理工具调用请求时发生错误",
}
"""What the original says with these codes; what happened is in the data."""

BROADCAST_WORDS = "转发消息失败"
"""The same for what was put to every server."""

NO_NAME = "缺少工具名称"

NAME_LENGTH_MAX = 256
"""How much of an unknown name is repeated, which is as long as any tool's may be."""


def code_of(fault: Fault) -> int:
    """The JSON-RPC code of a fault that is no server's error; what was lost before it was sent found no server."""
    if fault.executed == "no" and isinstance(fault, Lost | TimedOut):
        return NOT_CONNECTED
    return CODES[type(fault)]


def no_such_tool(id: Payload, name: str) -> bytes:
    """The answer to a call of a tool that is not there or that the device may not see: the two are told alike."""
    return jsonrpc.error(id, jsonrpc.METHOD_NOT_FOUND, f"工具 '{name[:NAME_LENGTH_MAX]}' 不存在")


def no_such_method(id: Payload, method: str) -> bytes:
    """The answer to a method that is not spoken here."""
    return jsonrpc.error(id, jsonrpc.METHOD_NOT_FOUND, f"Method not found: {method[:NAME_LENGTH_MAX]}")


def refusal(id: Payload, agent: str, details: str, *, executed: Executed = "no") -> bytes:
    """The answer to what the face itself does not do; `details` say why and what to do."""
    return jsonrpc.error(id, NOT_FORWARDED, WORDS[NOT_FORWARDED], _data(agent, details, executed))


def not_connected(id: Payload, agent: str, details: str) -> bytes:
    """The answer to what is asked of servers when none is there."""
    return jsonrpc.error(id, NOT_CONNECTED, WORDS[NOT_CONNECTED], _data(agent, details, "no"))


def fault_reply(
    id: Payload, fault: Fault, agent: str, name: str, words: str | None = None, missing: Sequence[Absent] = ()
) -> bytes:
    """The whole error for a call of the tool that the device calls `name`; `words` replace the usual ones.

    `missing` did not answer. What a server says in its own error's data is left as it is.
    """
    if isinstance(fault, ServerError):
        beside = msgspec.json.encode({"missing": missing}) if missing else None
        return jsonrpc.error(id, fault.code, fault.message, beside if fault.data is None else fault.data)
    if isinstance(fault, UnknownTool):
        return no_such_tool(id, name)
    code = code_of(fault)
    message = (words if code == NOT_FORWARDED else None) or WORDS.get(code, fault.message)
    return jsonrpc.error(id, code, message, _data(agent, fault.message, fault.executed, fault, missing))


def _data(
    agent: str, details: str, executed: Executed, fault: Fault | None = None, missing: Sequence[Absent] = ()
) -> bytes:
    told: dict[str, object] = {"agent_id": agent, "details": details, "executed": executed}
    if fault is not None:
        told["reason"] = fault.reason
        if fault.server is not None:
            told["server"] = fault.server
        if fault.retry_after is not None:
            told["retryAfter"] = round(fault.retry_after, 3)
        if isinstance(fault, Bug):
            told["incident"] = fault.incident
    if missing:
        told["missing"] = missing
    return msgspec.json.encode(told)
