"""Arguments that a modern server wants repeated in `Mcp-Param-*` headers, so that proxies can route on them.

A tool annotates a property of its input schema with `x-mcp-header`. That is an annotation only as a keyword of a
schema, not as a property's name or inside a default. Only schemas reached through `properties` alone count, and only
strings, integers and booleans; an absent or null argument has no header. Links write these headers for calls over
HTTP, and frontends check a caller's headers against its arguments.
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
"""The paths of arguments, each with the header that repeats it."""

ANNOTATION = "x-mcp-header"
PREFIX = "mcp-param-"
DEPTH_MAX = 16
"""The deepest annotated property; schemas of servers are not trusted."""

KINDS = frozenset({"string", "integer", "boolean"})
"""Types that may be annotated; programs write other types in different ways."""

BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
"""Keywords of JSON Schema, old ones too, that contain schemas by name. The names are not keywords."""

OF_ITEMS = frozenset({"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"})
OF_MEMBERS = frozenset({"additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"})
OF_THE_SAME = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
UNNAMED = OF_ITEMS | OF_MEMBERS | OF_THE_SAME
"""Keywords that contain one schema or a list of schemas."""

_Schema: TypeAlias = dict[str, Any]
_Path: TypeAlias = tuple[str, ...] | None

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER = re.compile(r"(-?[0-9]+)(?:\.0+)?")


class _Annotation(NamedTuple):
    """An annotated schema: the path of its values if that counts, the header if it is valid, and their type."""

    path: _Path
    header: str | None
    kind: object


_UNREADABLE = _Annotation(None, None, None)


def annotated_params(schema: Payload | None) -> HeaderParams:
    """The annotated arguments of an input schema; empty for nearly every tool, which is found out cheaply."""
    return tuple((mark.path, mark.header) for mark in _marks(schema) if mark.path and mark.header)


def required_params(schema: Payload | None) -> HeaderParams:
    """The arguments that a caller must repeat; none if an annotation is invalid, because clients drop such a tool."""
    return annotated_params(schema) if is_annotation_valid(schema) else ()


def is_annotation_valid(schema: Payload | None) -> bool:
    """Whether every annotation has its own header, an allowed type, and a path that counts."""
    marks = _marks(schema)
    return len(marks) == len({mark.header for mark in marks}) and all(
        mark.path and mark.header and isinstance(mark.kind, str) and mark.kind in KINDS for mark in marks
    )


def _marks(schema: Payload | None) -> list[_Annotation]:
    if schema is None or ANNOTATION.encode() not in bytes(schema):
        return []
    try:
        root = msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        return [_UNREADABLE]
    found: list[_Annotation] = []
    for part, path in _schemas(root):
        if ANNOTATION in part:
            token = part[ANNOTATION]
            is_token = isinstance(token, str) and _TOKEN.fullmatch(token)
            found.append(_Annotation(path, PREFIX + token.lower() if is_token else None, part.get("type")))
    return found


def _schemas(root: Any) -> list[tuple[_Schema, _Path]]:
    """Every schema within a schema and the path of its values; None if not reached through `properties` alone.

    Values of other keywords, such as `default` or `enum`, are data.
    """
    found: list[tuple[_Schema, _Path]] = [(root, ())] if isinstance(root, dict) else []
    for schema, path in found:  # it grows meanwhile; recursion could be too deep for a server's schema
        for keyword, value in schema.items():
            found += [(part, below) for part, below in _parts(keyword, value, path) if isinstance(part, dict)]
    return found


def _parts(keyword: str, value: Any, path: _Path) -> list[tuple[Any, _Path]]:
    """The values of a keyword that may be schemas."""
    if keyword in BY_NAME and isinstance(value, dict):
        if keyword == "properties" and path is not None and len(path) < DEPTH_MAX:
            return [(part, (*path, name)) for name, part in value.items()]
        return [(part, None) for part in value.values()]
    if keyword in UNNAMED:
        return [(part, None) for part in (value if isinstance(value, list) else [value])]
    return []


def param_headers(params: HeaderParams, arguments: Payload) -> dict[str, str]:
    """The headers that repeat these arguments."""
    headers: dict[str, str] = {}
    for path, header in params:
        value = _value_at(path, arguments)
        # A repeated argument gets no header: servers refuse the call then, instead of being misrouted.
        text = None if value is None else _text_of(value)
        if text is not None:
            headers[header] = encode_header(text)
    return headers


def find_mismatch(params: HeaderParams, arguments: Payload, headers: Mapping[bytes, bytes]) -> str | None:
    """How a caller's headers contradict its arguments; None if they agree."""
    for path, header in params:
        claimed = headers.get(header.encode())
        value = _value_at(path, arguments)
        if value is None:
            return f"the argument of the header {header} is given twice"
        if claimed is None and _text_of(value) is not None:
            return f"the header {header} is missing, but its argument is given"
        if claimed is not None and not _is_same(decode_header(claimed.decode("latin-1")), value):
            return f"the header {header} and its argument differ"
    return None


def _is_same(claimed: str | None, value: bytes) -> bool:
    """Whether a header's text is that of an argument; `42` and `42.0` are one number."""
    text = _text_of(value)
    if claimed is None or text is None or value[:1] == b'"':
        return claimed is not None and claimed == text
    number = _INTEGER.fullmatch(claimed)
    return text == (claimed if number is None else number[1])


def _value_at(path: tuple[str, ...], arguments: Payload) -> bytes | None:
    """The JSON text of an argument; `null` if it is absent.

    None if a member on the path is repeated: a proxy and the server could then read different values.
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
    """A scalar as a header's text. Integers keep their digits, whatever their size."""
    if value in (b"true", b"false"):
        return value.decode()
    if value[:1] == b'"':
        return read_string(msgspec.Raw(value))
    integer = _INTEGER.fullmatch(value.decode())
    return None if integer is None else integer[1]
