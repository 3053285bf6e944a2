"""The lists of MCP, which both eras write alike: tools, prompts, resources and templates of resources.

A server's list is read leniently: a bad entry is skipped and reported, the others are used.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

import msgspec

from isthmus.wire.jsonrpc import MEMBERS_MAX, Passes, Payload, is_crowded, object_members, render
from isthmus.wire.mcp.messages import Members, is_object, read_missing, read_seconds, read_string

PROBLEMS_MAX = 100
"""After so many bad entries the rest of a page is skipped: a page may have millions."""

COMMAS_MAX = 2_000_000
"""Commas of one page. Splitting a page of megabytes that are nothing but commas would take gigabytes; a page of 16 MiB
of ordinary definitions has half a million."""

NAME_LENGTH_MAX = 256
"""Twice what the specification asks for; longer ones are not names."""

SHARED_MAX = 2048
SHARED_BYTES_MAX = 4096
"""The entries that are kept once for all servers that list the same, and their length: thousands of devices of one kind
have equal lists. Longer ones are rare, and would make the bound on memory too large."""

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
    """One page of a server's list. Its entries are not read yet: a page may have thousands.

    `ttl_seconds` is how long the list may be cached, None if the server does not say. If the server is a hub,
    `missing` are the disconnected servers behind it, with reasons.
    """

    entries: msgspec.Raw
    """The array of the entries."""
    places: bytes
    """Where each entry begins and ends in it, as pairs of 64-bit numbers: the process that reads long pages sends them
    back in one piece."""
    next_cursor: str | None
    ttl_seconds: float | None = None
    missing: Mapping[str, str] = {}

    def __len__(self) -> int:
        return len(self.places) // 16

    def __iter__(self) -> Iterator[msgspec.Raw]:
        """Each entry, not copied."""
        view = memoryview(self.entries)
        numbers = iter(memoryview(self.places).cast("Q"))
        return (msgspec.Raw(view[begin:end]) for begin, end in zip(numbers, numbers, strict=True))


class _ListResult(msgspec.Struct):
    nextCursor: str | None = None
    ttlMs: msgspec.Raw = msgspec.Raw(b"null")
    meta: msgspec.Raw = msgspec.field(name="_meta", default=msgspec.Raw(b"{}"))


_LIST_RESULT = msgspec.json.Decoder(_ListResult)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])


def read_page(shape: ListShape, result: Payload) -> ListPage | str:
    """Read a list's result up to its entries, or return what is wrong with it."""
    text = bytes(result)
    if len(text) > COMMAS_MAX and text.count(b",") > COMMAS_MAX:
        return f"{shape.method} returned a page with over {COMMAS_MAX} values"
    try:
        page = _LIST_RESULT.decode(text)
        member = _MEMBERS.decode(text)[shape.member]
        raws = _ENTRIES.decode(member)
    except (msgspec.MsgspecError, KeyError) as error:
        return f"{shape.method} returned an invalid result ({error})"
    places, view, end = array("Q"), memoryview(member), 0
    for raw in raws:
        begin = end
        while view[begin] in _BETWEEN:
            begin += 1
        end = begin + len(memoryview(raw))
        places.extend((begin, end))
    meta = read_missing(page.meta)
    return ListPage(member, places.tobytes(), page.nextCursor or None, read_seconds(page.ttlMs), meta)


_BETWEEN = b"[, \t\r\n"
"""What stands before an entry."""


def read_list(shape: ListShape, result: Payload) -> list[tuple[str, Members]]:
    """The good entries of a list that the hub has stored. Raises `ValueError` if it is no list."""
    page = read_page(shape, result)
    if isinstance(page, str):
        raise ValueError(page)
    return [entry for raw in page if not isinstance(entry := read_entry(shape, raw), str)]


def read_entry(shape: ListShape, raw: msgspec.Raw) -> tuple[str, Members] | str:
    """The name and the members of an entry, or what is wrong with it. Short entries that are equal share one copy."""
    is_short = len(memoryview(raw)) <= SHARED_BYTES_MAX
    return _read_shared(shape, bytes(raw)) if is_short else _read_entry(shape, raw)


@lru_cache(SHARED_MAX)
def _read_shared(shape: ListShape, text: bytes) -> tuple[str, Members] | str:
    return _read_entry(shape, msgspec.Raw(text))


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


def next_cursor(cursor: str | None) -> bytes:
    """The member of a list's result that leads to its next page; nothing on the last one."""
    return b"" if cursor is None else b',"nextCursor":' + msgspec.json.encode(cursor)


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
