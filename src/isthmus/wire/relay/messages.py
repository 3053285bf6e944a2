"""What devices send: JSON-RPC, with one habit of theirs forgiven. Called by `faces.relay`."""

from __future__ import annotations

from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Malformed, Message


def decode(body: bytes, *, max_depth: int) -> Message:
    """Read one message, as `jsonrpc.decode` does; `"params": null` counts as no params at all, as managers write it."""
    message = jsonrpc.decode(body, max_depth=max_depth)
    if isinstance(message, Malformed) and message.code == jsonrpc.INVALID_PARAMS:
        members = jsonrpc.object_members(body) or {}
        if bytes(members.pop("params", b"")) == b"null":
            return jsonrpc.decode(jsonrpc.render(members), max_depth=max_depth)
    return message
