"""Arguments that a modern server wants repeated in `Mcp-Param-*` headers, so that a middleman can route on them.

A tool says so by `x-mcp-header` on a property of its input schema. Only what is reached through `properties` alone
counts, and only strings, integers and booleans can be written; an absent or null argument has no header. Links write
these headers for calls over HTTP, and faces hold those of a caller against its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.messages import read_string
from isthmus.wire.mcp.modern import decode_header, encode_header

Places: TypeAlias = tuple[tuple[tuple[str, ...], str], ...]
"""Where an argument is found, and the header that repeats it."""

ANNOTATION = "x-mcp-header"
PREFIX = "mcp-param-"
DEPTH_MAX = 16
"""How deep an annotated property may lie; a schema is a server's word and not trusted."""

KINDS = frozenset({"string", "integer", "boolean"})
"""What may be annotated: how any other kind is written differs from one program to the next."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_KEY = re.compile(rb'"x-mcp-header"\s*:')
_INTEGER = re.compile(r"(-?[0-9]+)(?:\.0+)?")


class _Mark(NamedTuple):
    """An annotated property: where it is, its header, and the kind of its values."""

    path: tuple[str, ...]
    header: str
    kind: object


def annotated(schema: Payload | None) -> Places:
    """The places that a tool's input schema marks; none for nearly every tool, and that is found out cheaply."""
    return _places(_marks(schema))


def demanded(schema: Payload | None) -> Places:
    """The places that a caller must repeat: those marked, if all is well with every mark.

    Where it is not, clients know nothing of the headers, as they do not even offer the tool.
    """
    return annotated(schema) if is_well_marked(schema) else ()


def is_well_marked(schema: Payload | None) -> bool:
    """Whether every mark is on its own header, of a kind that can be written, and in a place that counts."""
    if schema is None or ANNOTATION.encode() not in bytes(schema):
        return True
    marks = _marks(schema)
    is_unique = len(marks) == len({mark.header for mark in marks})
    is_scalar = all(isinstance(mark.kind, str) and mark.kind in KINDS for mark in marks)
    # A mark too many is one in a place that does not count, or one that names no header.
    return is_unique and is_scalar and len(_KEY.findall(bytes(schema))) == len(marks)


def _places(marks: list[_Mark]) -> Places:
    return tuple((mark.path, mark.header) for mark in marks)


def _marks(schema: Payload | None) -> list[_Mark]:
    if schema is None or ANNOTATION.encode() not in bytes(schema):
        return []
    try:
        decoded = msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        return []
    return list(_found(decoded, ()))


def _found(schema: Any, path: tuple[str, ...]) -> Iterator[_Mark]:
    if not isinstance(schema, dict) or len(path) > DEPTH_MAX:
        return
    token = schema.get(ANNOTATION)
    if path and isinstance(token, str) and _TOKEN.fullmatch(token):
        yield _Mark(path, PREFIX + token.lower(), schema.get("type"))
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, part in properties.items():
            yield from _found(part, (*path, name))


def param_headers(places: Places, arguments: Payload) -> dict[str, str]:
    """The headers that repeat these arguments."""
    headers: dict[str, str] = {}
    for path, header in places:
        text = _text_of(_value_at(path, arguments))
        if text is not None:
            headers[header] = encode_header(text)
    return headers


def contradiction(places: Places, arguments: Payload, headers: Mapping[bytes, bytes]) -> str | None:
    """How a caller's headers contradict its arguments, in words; None if they say the same."""
    for path, header in places:
        claimed = headers.get(header.encode())
        value = _value_at(path, arguments)
        if claimed is None and _text_of(value) is not None:
            return f"the header {header} is missing, and the argument that it repeats is there"
        if claimed is not None and not _is_same(decode_header(claimed.decode("latin-1")), value):
            return f"the header {header} and the argument that it repeats differ"
    return None


def _is_same(claimed: str | None, value: bytes) -> bool:
    """Whether a header's text is that of an argument; `42` and `42.0` are one number."""
    text = _text_of(value)
    if claimed is None or text is None or value[:1] == b'"':
        return claimed is not None and claimed == text
    number = _INTEGER.fullmatch(claimed)
    return text == (claimed if number is None else number[1])


def _value_at(path: tuple[str, ...], arguments: Payload) -> bytes:
    """The JSON text of an argument; that of null if it is absent, which is the same here."""
    value: Payload = arguments
    for step in path:
        try:
            value = _MEMBERS.decode(value)[step]
        except (KeyError, msgspec.MsgspecError):
            return b"null"
    return bytes(value)


def _text_of(value: bytes) -> str | None:
    """A scalar as a header repeats it. Integers keep their digits, so that no size of them is changed."""
    if value in (b"true", b"false"):
        return value.decode()
    if value[:1] == b'"':
        return read_string(msgspec.Raw(value))
    integer = _INTEGER.fullmatch(value.decode())
    return None if integer is None else integer[1]
