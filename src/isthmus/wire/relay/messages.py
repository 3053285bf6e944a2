"""What the relay says to devices beside plain JSON-RPC: members that the readers of the original's answers look for.

Pure writers around payloads that stay raw text; `faces.relay` calls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from isthmus.wire.jsonrpc import Payload, object_members, render

SERVER_ID = "server_id"

MERGED = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
"""Methods whose answers are lists, and the member that holds them: those of several servers become one list."""

_encode = msgspec.json.encode


class Absent(msgspec.Struct, frozen=True):
    """A server that an answer lacks, and why."""

    server_id: str
    reason: str


def totals(responded: int, absent: Sequence[Absent]) -> dict[str, Payload]:
    """The members that say how many servers there are, how many answered, and who did not."""
    members: dict[str, Payload] = {
        "total_servers": b"%d" % (responded + len(absent)),
        "responded_servers": b"%d" % responded,
    }
    if absent:
        members["missing"] = _encode(absent)
    return members


def tagged(entry: Payload, server_id: str) -> bytes | None:
    """An object with the id of the server whose it is; None if it is no object, or has a member twice."""
    members = object_members(entry)
    return None if members is None else tagged_members(members, server_id)


def tagged_members(members: Mapping[str, Payload], server_id: str) -> bytes:
    """The same of an object's members."""
    return render({**members, SERVER_ID: _encode(server_id)})


def listing(member: str, entries: Iterable[bytes], rest: Mapping[str, Payload]) -> bytes:
    """A result that is a list, with what else is said of it."""
    return render({member: b"".join((b"[", b",".join(entries), b"]")), **rest})


def aggregated(responses: Iterable[bytes], rest: Mapping[str, Payload]) -> bytes:
    """A result that holds one answer of each server."""
    return listing("responses", responses, rest)


def error_entry(code: int, message: str, data: Payload | None, server_id: str) -> bytes:
    """What stands among the answers for a server that answered with an error."""
    error: dict[str, Payload] = {"code": b"%d" % code, "message": _encode(message)}
    if data is not None:
        error["data"] = data
    return render({"error": render(error), SERVER_ID: _encode(server_id)})


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Content(msgspec.Struct):
    content: list[msgspec.Raw] = []


_CONTENT = msgspec.json.Decoder(_Content)
_PART = msgspec.json.Decoder(_Part)

PARTS_MAX = 100
"""How many parts of a result are looked at for a text: there may be a hundred thousand, and devices show the first."""


def with_error_text(result: Payload) -> Payload:
    """The result of a tool that said no, with its first text as `error`: devices show that, and not the content."""
    text = _first_text(result)
    members = None if text is None else object_members(result)
    if members is None or "error" in members:
        return result
    return render({**members, "error": _encode(text)})


def _first_text(result: Payload) -> str | None:
    try:
        parts = [_PART.decode(part) for part in _CONTENT.decode(result).content[:PARTS_MAX]]
    except msgspec.MsgspecError:
        return None
    return next((part.text for part in parts if part.type == "text" and part.text is not None), None)


class _Page(msgspec.Struct):
    nextCursor: str | None = None


_PAGE = msgspec.json.Decoder(_Page)
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])


ENTRIES_MAX = 10_000
"""Entries of one page: each is written anew, and there may be hundreds of thousands in what a device can be sent."""


def read_entries(result: Payload, member: str) -> tuple[list[Payload], str | None] | None:
    """One page of a server's list and the cursor of the next; None if the result is no such thing, or far too long."""
    members = object_members(result)
    if members is None or member not in members:
        return None
    try:
        entries = _ENTRIES.decode(members[member])
        return None if len(entries) > ENTRIES_MAX else ([*entries], _PAGE.decode(result).nextCursor or None)
    except msgspec.MsgspecError:
        return None
