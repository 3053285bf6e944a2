"""How a fault is told to an MCP caller: one code per leaf, and `executed` always in the data."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from isthmus.model.faults import (
    BadArguments,
    BadReply,
    BadState,
    BreakerOpen,
    Bug,
    Cancelled,
    Draining,
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
from isthmus.wire.jsonrpc import Payload, object_members, render

Era: TypeAlias = Literal["legacy", "modern"]

RESOURCE_NOT_FOUND = -32002
"""What the earlier era answers where the modern one says that a parameter is wrong."""

REFUSED = -32010
NOT_CONNECTED = -32011
SENT_AND_LOST = -32012

CODES: dict[type[Fault], int] = {
    BadArguments: jsonrpc.INVALID_PARAMS,
    UnknownTool: jsonrpc.INVALID_PARAMS,
    UnknownPrompt: jsonrpc.INVALID_PARAMS,
    UnknownResource: jsonrpc.INVALID_PARAMS,
    UnknownTask: jsonrpc.INVALID_PARAMS,
    TaskEnded: jsonrpc.INVALID_PARAMS,
    TargetRefused: jsonrpc.INVALID_PARAMS,
    TooManySubscriptions: REFUSED,
    TooManyBytes: REFUSED,
    TooManyCalls: REFUSED,
    TooManyTargets: REFUSED,
    Overloaded: REFUSED,
    BreakerOpen: REFUSED,
    Draining: REFUSED,
    NotConnected: NOT_CONNECTED,
    Unanswered: SENT_AND_LOST,
    BadState: jsonrpc.INVALID_PARAMS,
    Cancelled: SENT_AND_LOST,
    Lost: SENT_AND_LOST,
    TimedOut: SENT_AND_LOST,
    BadReply: SENT_AND_LOST,
    ServerError: 0,
    NotWritten: jsonrpc.INTERNAL_ERROR,
    Bug: jsonrpc.INTERNAL_ERROR,
}
"""Every leaf has a row; a server's own error keeps its own code."""


OURS = frozenset({"executed", "reason", "server", "retryAfter"})
"""Members of an error's data that are the hub's word; a server cannot speak for it."""


def code_of(fault: Fault, era: Era = "modern") -> int:
    """The JSON-RPC code of a fault; what was lost before it was sent found no server."""
    if isinstance(fault, ServerError):
        return fault.code
    if era == "legacy" and isinstance(fault, UnknownResource):
        return RESOURCE_NOT_FOUND
    if fault.executed == "no" and isinstance(fault, Lost | TimedOut):
        return NOT_CONNECTED
    return CODES[type(fault)]


def data_of(fault: Fault) -> bytes:
    """What a program may want to know: whether the tool ran, on which server, why, and when to try again."""
    told: dict[str, object] = {"executed": fault.executed, "reason": fault.reason}
    if fault.server is not None:
        told["server"] = fault.server
    if fault.retry_after is not None:
        told["retryAfter"] = round(fault.retry_after, 3)
    if isinstance(fault, UnknownResource):
        told["uri"] = fault.uri
    own = fault.data if isinstance(fault, ServerError) else None
    return msgspec.json.encode(told) if own is None else _beside(own, told)


def _beside(own: msgspec.Raw, told: dict[str, object]) -> bytes:
    """A server's own data is kept and ours added; beside it where it is no object, or says what only we may."""
    found = object_members(own)
    if found is None or not found.keys().isdisjoint(OURS):
        found = {"data": own}
    members: dict[str, Payload] = {**found}
    members.update((key, msgspec.json.encode(value)) for key, value in told.items())
    return render(members)


def error_reply(id: Payload | None, fault: Fault, era: Era) -> bytes:
    """The whole JSON-RPC error for a call that ended in a fault."""
    return jsonrpc.error(id, code_of(fault, era), fault.message, data_of(fault))
