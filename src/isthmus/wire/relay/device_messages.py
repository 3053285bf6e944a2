"""Messages between the relay and devices: JSON-RPC, with the extra members that devices of the original relay expect.

The writers keep payloads as raw JSON. Called by the relay frontend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Malformed, Message, Payload, object_members, render

SERVER_ID = "server_id"

LIST_MEMBERS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
"""Methods that return lists, and the member with the list. The lists of several servers are merged."""

_encode = msgspec.json.encode


class MissingServer(msgspec.Struct, frozen=True):
    """A server that is missing from a response, with the reason."""

    server_id: str
    reason: str


def server_counts(responded: int, absent: Sequence[MissingServer]) -> dict[str, Payload]:
    """The members with the number of servers, the number of responses, and the missing servers."""
    members: dict[str, Payload] = {
        "total_servers": b"%d" % (responded + len(absent)),
        "responded_servers": b"%d" % responded,
    }
    if absent:
        members["missing"] = _encode(absent)
    return members


def add_server_id(entry: Payload, server_id: str) -> bytes | None:
    """Add the id of its server to a JSON object; None if it is not an object, or repeats a member."""
    members = object_members(entry)
    return None if members is None else render_with_server_id(members, server_id)


def render_with_server_id(members: Mapping[str, Payload], server_id: str) -> bytes:
    """Write an object with the id of its server."""
    return render({**members, SERVER_ID: _encode(server_id)})


def list_result(member: str, entries: Iterable[bytes], rest: Mapping[str, Payload]) -> bytes:
    """A result with a list, and further members."""
    return render({member: b"".join((b"[", b",".join(entries), b"]")), **rest})


def broadcast_result(responses: Iterable[bytes], rest: Mapping[str, Payload]) -> bytes:
    """A result with one response of each server."""
    return list_result("responses", responses, rest)


def error_entry(code: int, message: str, data: Payload | None, server_id: str) -> bytes:
    """The response of a server that returned an error, as an entry of `broadcast_result`."""
    error: dict[str, Payload] = {"code": b"%d" % code, "message": _encode(message)}
    if data is not None:
        error["data"] = data
    return render({"error": render(error), SERVER_ID: _encode(server_id)})


class _ContentPart(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Content(msgspec.Struct):
    content: list[msgspec.Raw] = []


_CONTENT = msgspec.json.Decoder(_Content)
_PART = msgspec.json.Decoder(_ContentPart)

PARTS_MAX = 100
"""How many parts of a result are searched for a text. There may be a hundred thousand, and devices show the first."""


def with_error_text(result: Payload) -> Payload:
    """Add the first text of a tool's error result as `error`: devices show that instead of the content."""
    try:
        parts = [_PART.decode(part) for part in _CONTENT.decode(result).content[:PARTS_MAX]]
    except msgspec.MsgspecError:
        return result
    text = next((part.text for part in parts if part.type == "text" and part.text is not None), None)
    members = None if text is None else object_members(result)
    if members is None or "error" in members:
        return result
    return render({**members, "error": _encode(text)})


class _Page(msgspec.Struct):
    nextCursor: str | None = None


_PAGE = msgspec.json.Decoder(_Page)
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])


ENTRIES_MAX = 10_000
"""Entries of one page. Each is rewritten, and a message to a device has room for hundreds of thousands."""


def read_entries(result: Payload, member: str) -> tuple[list[Payload], str | None] | None:
    """The entries of one page of a server's list, and the cursor of the next page; None if invalid or too long."""
    members = object_members(result)
    if members is None or member not in members:
        return None
    try:
        entries = _ENTRIES.decode(members[member])
        return None if len(entries) > ENTRIES_MAX else ([*entries], _PAGE.decode(result).nextCursor or None)
    except msgspec.MsgspecError:
        return None


def decode(body: bytes, *, max_depth: int) -> Message:
    """Read a message of a device like `jsonrpc.decode`, but accept `"params": null`, which some devices send."""
    message = jsonrpc.decode(body, max_depth=max_depth)
    if isinstance(message, Malformed) and message.code == jsonrpc.INVALID_PARAMS:
        members = jsonrpc.object_members(body) or {}
        if bytes(members.pop("params", b"")) == b"null":
            return jsonrpc.decode(jsonrpc.render(members), max_depth=max_depth)
    return message
