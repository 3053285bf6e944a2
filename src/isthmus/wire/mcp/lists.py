"""The lists of MCP, which both eras write alike: tools, prompts, resources and templates of resources.

A server's list is read leniently: a bad entry is skipped and reported, the others are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from isthmus.wire.jsonrpc import MEMBERS_MAX, Passes, Payload, is_crowded, object_members, render
from isthmus.wire.mcp.messages import Members, is_object, read_missing, read_seconds, read_string

PROBLEMS_MAX = 100
"""After so many bad entries the rest of a page is skipped: a page may have millions."""

PAGE_MAX = 10_000
"""Entries read of one page, ten times what a server may have."""

NAME_LENGTH_MAX = 256
"""Twice what the specification asks for; longer ones are not names."""

URI_LENGTH_MAX = 2048
"""Longer than any address that works elsewhere."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class ListShape(msgspec.Struct, frozen=True):
    """The method, members and limits of one kind of list."""

    method: str
    member: str
    """The member of the result that holds the entries."""
    key: str
    """The member of an entry that names it."""
    length_max: int
    noun: str


TOOLS = ListShape("tools/list", "tools", "name", NAME_LENGTH_MAX, "tool")
PROMPTS = ListShape("prompts/list", "prompts", "name", NAME_LENGTH_MAX, "prompt")
RESOURCES = ListShape("resources/list", "resources", "uri", URI_LENGTH_MAX, "resource")
TEMPLATES = ListShape("resources/templates/list", "resourceTemplates", "uriTemplate", URI_LENGTH_MAX, "template")
SHAPES = {shape.method: shape for shape in (TOOLS, PROMPTS, RESOURCES, TEMPLATES)}


class ListPage(msgspec.Struct, frozen=True):
    """One page of a server's list, with the problems of the entries that were skipped.

    `ttl_seconds` is how long the list may be cached, None if the server does not say. If the server is a hub,
    `missing` are the disconnected servers behind it, with reasons.
    """

    entries: list[tuple[str, Members]]
    next_cursor: str | None
    problems: list[str]
    ttl_seconds: float | None = None
    missing: Mapping[str, str] = {}


class _ListResult(msgspec.Struct):
    nextCursor: str | None = None
    ttlMs: msgspec.Raw = msgspec.Raw(b"null")
    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b"{}"))


_LIST_RESULT = msgspec.json.Decoder(_ListResult)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])


def read_list(shape: ListShape, result: Payload) -> ListPage | str:
    """Read a list's result, or return what is wrong with it."""
    try:
        page = _LIST_RESULT.decode(result)
        raws = _ENTRIES.decode(_MEMBERS.decode(result)[shape.member])
    except (msgspec.MsgspecError, KeyError) as error:
        return f"{shape.method} returned an invalid result ({error})"
    entries: list[tuple[str, Members]] = []
    problems: list[str] = []
    if len(raws) > PAGE_MAX:
        problems.append(f"a page of its list has over {PAGE_MAX} entries; the rest was left out")
    for position, raw in enumerate(raws[:PAGE_MAX]):
        read = _read_entry(shape, raw)
        if not isinstance(read, str):
            entries.append(read)
        elif len(problems) < PROBLEMS_MAX:
            problems.append(f"{shape.noun} {position} left out: {read}")
        else:
            problems.append("more was wrong with its list, and the rest of it was left out")
            break
    return ListPage(entries, page.nextCursor or None, problems, read_seconds(page.ttlMs), read_missing(page.meta))


def _read_entry(shape: ListShape, raw: msgspec.Raw) -> tuple[str, Members] | str:
    members = None if is_crowded(raw) else object_members(raw)
    if members is None:
        return f"it is not an object, has repeated members or over {MEMBERS_MAX}"
    name = read_string(members.get(shape.key))
    if not name:
        return f"it has no {shape.key}"
    if len(name) > shape.length_max or _UNPRINTABLE.search(name):
        return f"its {shape.key} is too long or has control characters ({name[:40]!r})"
    # The page it came on may be large; a copy keeps only this entry's bytes.
    kept = {key: value.copy() for key, value in members.items() if _is_of_kind(value, _KINDS.get(key))}
    if "inputSchema" in members:
        schema = _read_schema(members["inputSchema"])
        if schema is None:
            return f"the schema of {name!r} is not that of an object"
        kept["inputSchema"] = schema
    return name, kept


_KINDS = {"title": b'"', "description": b'"', "annotations": b"{", "outputSchema": b"{", "_meta": b"{", "icons": b"["}
_SCHEMA_KINDS = {"properties": b"{", "required": b"["}
"""The first byte of the only type that clients accept for a member. They reject the whole list for another type, so
such a member is left out."""


def _is_of_kind(value: msgspec.Raw, begin: bytes | None) -> bool:
    return begin is None or bytes(memoryview(value)[:1]) == begin


def _read_schema(raw: msgspec.Raw) -> msgspec.Raw | None:
    """A schema of arguments, repaired if clients would reject it; None if it is not the schema of an object."""
    if not is_object(raw):
        return None
    schema = object_members(raw)
    if schema is None:  # a repeated member, which the check of arguments reports
        return raw.copy()
    if "type" in schema and read_string(schema["type"]) != "object":
        return None
    kept: dict[str, Payload] = {k: v for k, v in schema.items() if _is_of_kind(v, _SCHEMA_KINDS.get(k))}
    if len(kept) == len(schema) and "type" in schema:
        return raw.copy()
    return msgspec.Raw(render({"type": b'"object"', **kept}))


def write_entry(shape: ListShape, exposed: str, definition: Members) -> bytes:
    """One entry of a list for the caller: the server's definition under the exposed name."""
    shown: dict[str, Payload] = {shape.key: msgspec.json.encode(exposed)}
    shown.update((key, value) for key, value in definition.items() if key != shape.key)
    # Both are required; clients reject the whole list without them.
    if shape is TOOLS and "inputSchema" not in shown:
        shown["inputSchema"] = b'{"type":"object"}'
    if "name" not in shown:
        shown["name"] = shown[shape.key]
    return render(shown)


def array_of(entries: Iterable[bytes]) -> bytes:
    """The entries of a list as a JSON array."""
    return b"".join((b"[", b",".join(entries), b"]"))


def array_passes(entries: Iterable[bytes]) -> Passes[bytes]:
    """The same in passes: a list may have megabytes."""
    written: list[bytes] = []
    size = 0
    for entry in entries:
        written.append(entry)
        if (size := size + len(entry)) > ENTRIES_BYTES:
            size = 0
            yield
    return array_of(written)


ENTRIES_BYTES = 64 * 1024
"""Entries that one pass writes: about 200 µs."""
