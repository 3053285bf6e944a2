"""The meaning of errors from other hubs, which say whether the tool ran: configured ones, nodes, and our own client.

Links call it before they report an error to its waiter.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from isthmus.model.fault_table import FAULTS, Executed, Fault, Lost, NotConnected, ServerError, restored_fault
from isthmus.model.names import ServerName
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply

HUBS_OWN = frozenset({"executed", "reason"})
HUBS_WORDS = HUBS_OWN | {"server", "retryAfter"}
"""Members that a hub adds to the data of an error; the first two are always present."""

DECISIONS = frozenset(
    {"approval_pending", "approval_denied", "approval_expired", "too_many_approvals", "budget_exceeded"}
)
"""Reasons for which a hub behind our client, or behind another node, did not make a call although it could."""


class _HubError(msgspec.Struct):
    executed: Executed
    reason: str
    retry_after: Annotated[float, msgspec.Meta(ge=0)] | None = msgspec.field(name="retryAfter", default=None)
    approval: Annotated[str, msgspec.Meta(pattern=r"\Aap_[0-9a-f]{1,64}\Z")] | None = None


def _read(reply: ErrorReply) -> _HubError | None:
    try:
        return None if reply.data is None else msgspec.json.decode(reply.data, type=_HubError)
    except msgspec.MsgspecError:
        return None


def read_hub_error(server: ServerName, reply: ErrorReply) -> ServerError | None:
    """The error of a hub that is a server of this one: with its code, and what it says became of the call.

    None if it says nothing about that. The reason of a newer hub may be unknown here.
    """
    found = _read(reply)
    if found is None:
        return None
    fault = ServerError(server, reply.code, reply.message, reply.data)
    fault.is_of_hub = True
    fault.executed, fault.retry_after, fault.approval = found.executed, found.retry_after, found.approval
    if found.reason in FAULTS:
        fault.reason = found.reason
    return fault


def read_node_error(server: ServerName, reply: ErrorReply) -> Fault | ErrorReply:
    """The meaning of an error from another node of the cluster: the fault that the call had there."""
    found = _read(reply)
    row = None if found is None else FAULTS.get(found.reason)
    if found is None or row is None or not row.crosses_nodes:
        return read_error(server, reply)
    return restored_fault(
        found.reason, reply.message, server=server, executed=found.executed, retry_after=found.retry_after
    )


def read_error(server: ServerName, reply: ErrorReply) -> Fault | ErrorReply:
    """The meaning of an error from our own client, for one of its servers.

    It knows whether its server ran. If the server did not answer, this returns the fault that this hub would
    have found itself; an error of the server itself is returned as the server sent it. A server that is a hub may
    have decided not to make the call: callers need its reason, and the id of the approval.
    """
    members = None if reply.data is None else jsonrpc.object_members(reply.data)
    if members is None or not members.keys() >= HUBS_OWN:
        return reply
    try:
        fault = msgspec.json.decode(jsonrpc.render(members), type=_HubError)
    except msgspec.MsgspecError:
        return reply
    if fault.reason in DECISIONS and (decided := read_hub_error(server, reply)) is not None:
        return decided
    if fault.executed == "yes":
        own = {name: value for name, value in members.items() if name not in HUBS_WORDS}
        return msgspec.structs.replace(reply, data=msgspec.Raw(jsonrpc.render(own)) if own else None)
    detail = reply.message.partition(": ")[2] or reply.message
    if fault.executed == "no":
        return NotConnected(server, detail)
    return Lost(server, detail, executed="unknown", is_behind=True)
