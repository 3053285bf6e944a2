"""Arguments that a modern server wants repeated in `Mcp-Param-*` headers, so that a middleman can route on them.

A tool says so by `x-mcp-header` on a property of its input schema. That is a mark where a schema's keywords stand; a
property of that name, or a default that has one, is none. Only what is reached through `properties` alone counts, and
only strings, integers and booleans can be written; an absent or null argument has no header. Links write these headers
for calls over HTTP, and faces hold those of a caller against its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from isthmus.wire.jsonrpc import Payload, object_members
from isthmus.wire.mcp.messages import read_string
from isthmus.wire.mcp.modern import decode_header, encode_header

HeaderParams: TypeAlias = tuple[tuple[tuple[str, ...], str], ...]
"""Where an argument is found, and the header that repeats it."""

ANNOTATION = "x-mcp-header"
PREFIX = "mcp-param-"
DEPTH_MAX = 16
"""How deep an annotated property may lie; a schema is a server's word and not trusted."""

KINDS = frozenset({"string", "integer", "boolean"})
"""What may be annotated: how any other kind is written differs from one program to the next."""

BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
"""Keywords of JSON Schema, old ones too, that hold schemas by names; these are the server's own, and none is a mark."""

OF_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"})
OF_MEMBERS = frozenset({"additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"})
OF_THE_SAME = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
UNNAMED = OF_ITEMS | OF_MEMBERS | OF_THE_SAME
"""Those that hold one schema or a list of them."""

_Schema: TypeAlias = dict[str, Any]
_Path: TypeAlias = tuple[str, ...] | None

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER = re.compile(r"(-?[0-9]+)(?:\.0+)?")


class _Annotation(NamedTuple):
    """An annotated schema: where its values are, if the place counts, the header, if it names one, and their kind."""

    path: _Path
    header: str | None
    kind: object


_UNREADABLE = _Annotation(None, None, None)


def annotated_params(schema: Payload | None) -> HeaderParams:
    """The places that a tool's input schema marks; none for nearly every tool, and that is found out cheaply."""
    return tuple((mark.path, mark.header) for mark in _marks(schema) if mark.path and mark.header)


def required_params(schema: Payload | None) -> HeaderParams:
    """The places that a caller must repeat: those marked, if all is well with every mark.

    Where it is not, clients know nothing of the headers, as they do not even offer the tool.
    """
    return annotated_params(schema) if is_annotation_valid(schema) else ()


def is_annotation_valid(schema: Payload | None) -> bool:
    """Whether every mark is on its own header, of a kind that can be written, and in a place that counts."""
    marks = _marks(schema)
    return all(map(_is_writable, marks)) and len(marks) == len({mark.header for mark in marks})


def _is_writable(mark: _Annotation) -> bool:
    return bool(mark.path and mark.header) and isinstance(mark.kind, str) and mark.kind in KINDS


def _marks(schema: Payload | None) -> list[_Annotation]:
    if schema is None or ANNOTATION.encode() not in bytes(schema):
        return []
    try:
        root = msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        return [_UNREADABLE]
    return [_mark_of(part, path) for part, path in _schemas(root) if ANNOTATION in part]


def _mark_of(schema: _Schema, path: _Path) -> _Annotation:
    token = schema[ANNOTATION]
    is_token = isinstance(token, str) and _TOKEN.fullmatch(token)
    return _Annotation(path, PREFIX + token.lower() if is_token else None, schema.get("type"))


def _schemas(root: Any) -> list[tuple[_Schema, _Path]]:
    """Every schema within a schema and where its values are; None for those not reached through `properties` alone.

    What stands under any other keyword, such as `default` or `enum`, is data.
    """
    found: list[tuple[_Schema, _Path]] = [(root, ())] if isinstance(root, dict) else []
    for schema, path in found:  # which grows meanwhile: a schema is a server's word, and too deep to recurse
        for keyword, value in schema.items():
            found += [(part, below) for part, below in _parts(keyword, value, path) if isinstance(part, dict)]
    return found


def _parts(keyword: str, value: Any, path: _Path) -> list[tuple[Any, _Path]]:
    """What may be schemas under a keyword."""
    if keyword in BY_NAME and isinstance(value, dict):
        if keyword == "properties" and path is not None and len(path) < DEPTH_MAX:
            return [(part, (*path, name)) for name, part in value.items()]
        return [(part, None) for part in value.values()]
    if keyword in UNNAMED:
        return [(part, None) for part in (value if isinstance(value, list) else [value])]
    return []


def param_headers(places: HeaderParams, arguments: Payload) -> dict[str, str]:
    """The headers that repeat these arguments."""
    headers: dict[str, str] = {}
    for path, header in places:
        value = _value_at(path, arguments)
        # Of what is said twice nothing is repeated: servers refuse a call that lacks a header, and take none by it.
        text = None if value is None else _text_of(value)
        if text is not None:
            headers[header] = encode_header(text)
    return headers


def find_mismatch(places: HeaderParams, arguments: Payload, headers: Mapping[bytes, bytes]) -> str | None:
    """How a caller's headers contradict its arguments, in words; None if they say the same."""
    for path, header in places:
        claimed = headers.get(header.encode())
        value = _value_at(path, arguments)
        if value is None:
            return f"the argument that the header {header} repeats is there twice"
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


def _value_at(path: tuple[str, ...], arguments: Payload) -> bytes | None:
    """The JSON text of an argument; that of null if it is absent, which is the same here.

    None if something is there twice on the way to it: who routes by a header and who reads the body could go by two.
    """
    value: Payload = arguments
    for step in path:
        if bytes(value)[:1] != b"{":
            return b"null"
        members = object_members(value)
        if members is None:
            return None
        if step not in members:
            return b"null"
        value = members[step]
    return bytes(value)


def _text_of(value: bytes) -> str | None:
    """A scalar as a header repeats it. Integers keep their digits, so that no size of them is changed."""
    if value in (b"true", b"false"):
        return value.decode()
    if value[:1] == b'"':
        return read_string(msgspec.Raw(value))
    integer = _INTEGER.fullmatch(value.decode())
    return None if integer is None else integer[1]
