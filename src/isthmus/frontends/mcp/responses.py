"""JSON-RPC messages for MCP callers in both eras: results, errors and the notifications of a running call.

An error always has `executed` in its data. The codes of faults are in `model.faults`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from isthmus.model.calls import Event, Kind, Outcome, Progress
from isthmus.model.faults import FAULTS, NOT_CONNECTED, Cancelled, Fault, ServerError, UnknownResource, is_unsent
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.calls import wrap_bare_result
from isthmus.wire.mcp.messages import LOGGED, PROGRESS, UPDATED, progress_params

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


class JsonRpcReply(msgspec.Struct, frozen=True):
    """A rendered JSON-RPC response; `code` is its error code, or None for a result."""

    body: bytes
    code: int | None = None


def refuse(id: Payload | None, code: int, message: str, data: Payload | None = None) -> JsonRpcReply:
    """An error response."""
    return JsonRpcReply(jsonrpc.error(id, code, message, data), code)


def cancelled_reply(id: Payload) -> JsonRpcReply:
    """The response to a call that its caller cancelled before it was started."""
    return call_reply(id, Cancelled("by the caller", executed="no"), "legacy")


def call_reply(id: Payload, outcome: Outcome, era: Era, kind: Kind = "tool") -> JsonRpcReply:
    """The response to a call with this outcome, in the caller's era."""
    if isinstance(outcome, Fault):
        code = code_of(outcome, era)
        return JsonRpcReply(jsonrpc.error(id, code, outcome.message, data_of(outcome)), code)
    if outcome.is_bare:
        outcome = wrap_bare_result(outcome)
    payload: Payload = outcome.payload
    # Results are always objects here, so translation cannot fail.
    if era == "modern" and not outcome.is_typed:
        if outcome.is_untyped and kind != "resource":
            payload = modern.typed(payload)
        else:
            payload = modern.as_modern(payload, is_cacheable=kind == "resource") or payload
    elif era == "legacy" and outcome.is_typed:
        payload = modern.as_legacy(payload) or payload
    return JsonRpcReply(jsonrpc.result(id, payload))


def event_notification(event: Event, token: Payload | None) -> bytes | None:
    """The notification for an event of a call. Progress needs the caller's progress token; without one it is None."""
    if isinstance(event, Progress):
        return None if token is None else jsonrpc.notification(PROGRESS, progress_params(token, event.members))
    return jsonrpc.notification(LOGGED, render(event.members))


def updated_params(uri: str) -> dict[str, Payload]:
    """The parameters of `notifications/resources/updated`."""
    return {"uri": msgspec.json.encode(uri)}


def updated_notification(uri: str) -> bytes:
    """`notifications/resources/updated` for one resource."""
    return jsonrpc.notification(UPDATED, render(updated_params(uri)))
