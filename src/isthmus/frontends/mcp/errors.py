"""Faults as JSON-RPC errors: their code in the caller's era, and their `data`. `model.fault_table` has the codes."""

from __future__ import annotations

import msgspec

from isthmus.model.fault_table import Fault, ServerError, UnknownResource, code_row
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.messages import Era

HUB_MEMBERS = frozenset({"executed", "reason", "server", "retryAfter", "approval"})
"""Members of an error's data that only the hub may set."""


def code_of(fault: Fault, era: Era = "modern") -> int:
    """The JSON-RPC code of a fault. A server's own error keeps its own code."""
    if isinstance(fault, ServerError):
        return fault.code
    row = code_row(fault.reason, fault.executed)
    return row.mcp if era == "modern" or row.mcp_legacy is None else row.mcp_legacy


def data_of(fault: Fault) -> bytes:
    """The fault's details for programs, beside a server's own."""
    details = fault.details()
    if isinstance(fault, UnknownResource):
        details["uri"] = fault.uri
    if not isinstance(fault, ServerError) or fault.data is None:
        return msgspec.json.encode(details)
    own = object_members(fault.data)
    if own is not None and fault.is_of_hub:
        own = {key: value for key, value in own.items() if key not in HUB_MEMBERS}
    if own is None or not own.keys().isdisjoint(HUB_MEMBERS):
        own = {"data": fault.data}
    members: dict[str, Payload] = {**own}
    members.update((key, msgspec.json.encode(value)) for key, value in details.items())
    return render(members)
