"""Arguments that a modern server wants repeated in `Mcp-Param-*` headers, so that a middleman can route on them.

A tool says so by `x-mcp-header` on a property of its input schema. Only what is reached through `properties` alone
counts, and only strings, integers and booleans can be written; an absent or null argument has no header. Links call
this for calls over HTTP; a server refuses a call whose headers and arguments differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from isthmus.wire.jsonrpc import Payload, object_members
from isthmus.wire.mcp.modern import encode_header

Places: TypeAlias = tuple[tuple[tuple[str, ...], str], ...]
"""Where an argument is found, and the header that repeats it."""

ANNOTATION = "x-mcp-header"
PREFIX = "mcp-param-"
DEPTH_MAX = 16
"""How deep an annotated property may lie; a schema is a server's word and not trusted."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_INTEGER = re.compile(rb"-?[0-9]+")


def annotated(schema: Payload | None) -> Places:
    """The places that a tool's input schema marks; none for nearly every tool, and that is found out cheaply."""
    if schema is None or ANNOTATION.encode() not in bytes(schema):
        return ()
    try:
        decoded = msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        return ()
    return tuple(_found(decoded, ()))


def _found(schema: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if not isinstance(schema, dict) or len(path) > DEPTH_MAX:
        return
    token = schema.get(ANNOTATION)
    if path and isinstance(token, str) and _TOKEN.fullmatch(token):
        yield path, PREFIX + token.lower()
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, part in properties.items():
            yield from _found(part, (*path, name))


def param_headers(places: Places, arguments: Payload) -> dict[str, str]:
    """The headers that repeat these arguments."""
    headers: dict[str, str] = {}
    for path, header in places:
        text = _text_at(path, arguments)
        if text is not None:
            headers[header] = encode_header(text)
    return headers


def _text_at(path: tuple[str, ...], arguments: Payload) -> str | None:
    value: Payload = arguments
    for step in path:
        members = object_members(value)
        if members is None or step not in members:
            return None
        value = members[step]
    return _text_of(bytes(value))


def _text_of(value: bytes) -> str | None:
    """A scalar as a header repeats it. Numbers keep their text, so that no size of integer is changed."""
    if value in (b"true", b"false") or _INTEGER.fullmatch(value):
        return value.decode()
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.MsgspecError:
        return None
