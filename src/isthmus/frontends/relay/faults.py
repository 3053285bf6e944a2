"""Failures as JSON-RPC errors for relay devices: the original relay's messages, and `executed` in the data.

The codes are in `model.fault_table`. An error never has a `result` beside it: devices look for that first and would
read the failure as success.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from isthmus.model.fault_table import (
    FAULTS,
    RELAY_NOT_CONNECTED,
    RELAY_NOT_FORWARDED,
    Bug,
    Executed,
    Fault,
    ServerError,
    UnknownTool,
    code_row,
)
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.relay.device_messages import MissingServer

MESSAGES = {
    RELAY_NOT_CONNECTED: "工具端未连接",
    RELAY_NOT_FORWARDED: "转发工具调用请求失败",
    jsonrpc.INTERNAL_ERROR: "处理工具调用请求时发生错误",
}
"""The original relay's message for each code; the fault's own message is in the data."""

BROADCAST_WORDS = "转发消息失败"
"""The original's message for a failed broadcast to all servers."""

NO_NAME = "缺少工具名称"

NAME_LENGTH_MAX = 256
"""How much of an unknown name an error repeats: the longest name that a tool may have."""


def no_such_tool(id: Payload, name: str) -> bytes:
    """The error for a tool that does not exist or that the device may not see."""
    return jsonrpc.error(id, FAULTS["unknown_tool"].relay, f"工具 '{name[:NAME_LENGTH_MAX]}' 不存在")


def no_such_method(id: Payload, method: str) -> bytes:
    """The error for an unknown method."""
    return jsonrpc.error(id, jsonrpc.METHOD_NOT_FOUND, f"Method not found: {method[:NAME_LENGTH_MAX]}")


def refusal(id: Payload, agent: str, details: str, *, executed: Executed = "no") -> bytes:
    """The error for a request that the frontend refuses; `details` say why and what to do."""
    return jsonrpc.error(id, RELAY_NOT_FORWARDED, MESSAGES[RELAY_NOT_FORWARDED], _data(agent, details, executed))


def not_connected(id: Payload, agent: str, details: str) -> bytes:
    """The error for a request to servers when no server is connected."""
    return jsonrpc.error(id, RELAY_NOT_CONNECTED, MESSAGES[RELAY_NOT_CONNECTED], _data(agent, details, "no"))


def fault_reply(
    id: Payload, fault: Fault, agent: str, name: str, words: str | None = None, missing: Sequence[MissingServer] = ()
) -> bytes:
    """The whole error for a call of the tool that the device calls `name`.

    `words` replace the message of calls that were not forwarded; `missing` are servers that did not respond. The data
    of a server's own error stays unchanged.
    """
    if isinstance(fault, ServerError):
        beside = msgspec.json.encode({"missing": missing}) if missing else None
        return jsonrpc.error(id, fault.code, fault.message, beside if fault.data is None else fault.data)
    if isinstance(fault, UnknownTool):
        return no_such_tool(id, name)
    code = code_row(fault.reason, fault.executed).relay
    message = (words if code == RELAY_NOT_FORWARDED else None) or MESSAGES.get(code, fault.message)
    return jsonrpc.error(id, code, message, _data(agent, fault.message, fault.executed, fault, missing))


def _data(
    agent: str, details: str, executed: Executed, fault: Fault | None = None, missing: Sequence[MissingServer] = ()
) -> bytes:
    data: dict[str, object] = {"agent_id": agent, "details": details, "executed": executed}
    if fault is not None:
        data |= fault.details()
        if isinstance(fault, Bug):
            data["incident"] = fault.incident
    if missing:
        data["missing"] = missing
    return msgspec.json.encode(data)
