"""Faults as JSON-RPC errors for MCP callers, always with `executed` in the data. The codes are in `model.faults`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from isthmus.model.faults import FAULTS, NOT_CONNECTED, Fault, ServerError, UnknownResource, is_unsent
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, object_members, render

Era: TypeAlias = Literal["legacy", "modern"]

RESOURCE_NOT_FOUND = -32002
"""Legacy code for an unknown resource; the modern era uses "invalid params"."""

HUB_MEMBERS = frozenset({"executed", "reason", "server", "retryAfter"})
"""Members of an error's data that only the hub may set."""


def code_of(fault: Fault, era: Era = "modern") -> int:
    """The JSON-RPC code of a fault. A server's own error keeps its own code."""
    if isinstance(fault, ServerError):
        return fault.code
    if era == "legacy" and isinstance(fault, UnknownResource):
        return RESOURCE_NOT_FOUND
    return NOT_CONNECTED if is_unsent(fault.reason, fault.executed) else FAULTS[fault.reason].mcp


def data_of(fault: Fault) -> bytes:
    """Details for programs: whether the tool ran, on which server, the reason, and when to retry."""
    details: dict[str, object] = {"executed": fault.executed, "reason": fault.reason}
    if fault.server is not None:
        details["server"] = fault.server
    if fault.retry_after is not None:
        details["retryAfter"] = round(fault.retry_after, 3)
    if isinstance(fault, UnknownResource):
        details["uri"] = fault.uri
    if not isinstance(fault, ServerError) or fault.data is None:
        return msgspec.json.encode(details)
    own = object_members(fault.data)
    if own is None or not own.keys().isdisjoint(HUB_MEMBERS):
        own = {"data": fault.data}
    members: dict[str, Payload] = {**own}
    members.update((key, msgspec.json.encode(value)) for key, value in details.items())
    return render(members)


def error_reply(id: Payload | None, fault: Fault, era: Era) -> bytes:
    """The whole JSON-RPC error response for a call that ended in a fault."""
    return jsonrpc.error(id, code_of(fault, era), fault.message, data_of(fault))
