"""A tool's result as parts: every block of MCP's content as the kind of part that it is."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Raw

from isthmus.model.conversation import ABSENT, Data, File, Part, Text
from isthmus.wire.jsonrpc import Payload, object_members, render

UNREADABLE = (msgspec.MsgspecError, RecursionError)
"""The second for JSON that is nested too deeply, which depends on who reads it from where."""


class _Resource(msgspec.Struct):
    uri: str = ""
    mimeType: str | None = None  # noqa: N815 - as it is spelt on the wire
    text: str | None = None
    blob: str | None = None
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    data: str | None = None
    mimeType: str | None = None  # noqa: N815
    uri: str | None = None
    name: str | None = None
    title: Raw = ABSENT
    description: Raw = ABSENT
    size: Raw = ABSENT
    annotations: Raw = ABSENT
    resource: _Resource | None = None
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    content: list[Raw] = []
    structuredContent: Raw = ABSENT  # noqa: N815
    isError: Raw = ABSENT  # noqa: N815
    resultType: Raw = ABSENT  # noqa: N815
    ttlMs: Raw = ABSENT  # noqa: N815
    cacheScope: Raw = ABSENT  # noqa: N815
    meta: Raw = msgspec.field(default=ABSENT, name="_meta")


_result = msgspec.json.Decoder(_Result).decode
_block = msgspec.json.Decoder(_Block).decode
_exactly = msgspec.json.Decoder(float_hook=Raw).decode
"""JSON with its fractions as they are spelt."""


def parts_of(result: Raw) -> tuple[Part, ...]:
    """The parts that a result is made of; whatever cannot be read is there as the JSON that it is."""
    try:
        read, rest = _result(result), ABSENT
    except UNREADABLE:
        read, rest = _beside(result)
    parts = tuple(_parts(read))
    if parts and rest:
        return *parts, Data(rest, "application/json")
    return parts or (_value(result),)


def _beside(result: Raw) -> tuple[_Result, Raw]:
    """Of a result that has more members than MCP's, what MCP knows of it, and the others; nothing if it is another."""
    members = object_members(result) or {}
    known = {name: value for name, value in members.items() if name in _MEMBERS}
    try:
        return _result(render(known)), Raw(render({name: members[name] for name in members if name not in known}))
    except UNREADABLE:
        return _Result(), ABSENT


_MEMBERS = frozenset(_Result.__struct_encode_fields__)


def _value(result: Raw) -> Part:
    """What a server returned that is no result of MCP: a text as such, anything else as the JSON that it is."""
    try:
        return Text(msgspec.json.decode(result, type=str))
    except UNREADABLE:
        return Data(result, "application/json")


def _parts(read: _Result) -> Iterator[Part]:
    structured = ABSENT if bytes(read.structuredContent) == b"null" else read.structuredContent
    if structured:
        yield Data(structured, "application/json")
    for raw in read.content:
        part = _part(raw)
        if not (structured and _repeats(part, structured)):
            yield part


def _repeats(part: Part, structured: Raw) -> bool:
    """Whether a part is the text as which servers repeat structured content, for those who know nothing else."""
    return isinstance(part, Text) and not part.metadata and _says(part.text, structured)


def _says(text: str, value: Raw) -> bool:
    """Whether a text is the same JSON as a value, whatever the order and the spaces."""
    if text[:1] not in ("{", "["):
        return False
    try:
        return _ordered(text) == _ordered(value)
    except UNREADABLE:
        return False


def _ordered(text: str | Raw) -> bytes:
    """JSON in one spelling; as values `1` and `true` would be the same."""
    return msgspec.json.encode(_exactly(text), order="sorted")


def _part(raw: Raw) -> Part:
    try:
        block = _block(raw)
    except UNREADABLE:
        return Data(raw, "application/json")
    about: dict[str, Payload] = {"annotations": block.annotations, "_meta": block.meta}
    if block.type == "text" and block.text is not None:
        return Text(block.text, metadata=_metadata(about))
    if block.type in ("image", "audio") and block.data is not None:
        return File(block.data, name=block.name, media_type=block.mimeType, metadata=_metadata(about))
    if block.type == "resource_link" and block.uri is not None:
        about |= {"title": block.title, "description": block.description, "size": block.size}
        return File(url=block.uri, name=block.name, media_type=block.mimeType, metadata=_metadata(about))
    if block.type == "resource" and block.resource is not None:
        return _embedded(block.resource, about, raw)
    return Data(raw, "application/json")


def _metadata(about: dict[str, Payload]) -> Raw:
    """What is said of a part beside what it is."""
    told = {name: value for name, value in about.items() if value and bytes(value) != b"null"}
    return Raw(render(told)) if told else ABSENT


def _merged(outer: Payload, inner: Payload) -> Payload:
    """What is said of a block and of the resource in it; of both at once, what the resource says counts."""
    of_block, of_resource = object_members(outer), object_members(inner)
    if not of_block or not of_resource:
        return inner if of_resource else outer
    return render({**of_block, **of_resource})


def _embedded(resource: _Resource, about: dict[str, Payload], raw: Raw) -> Part:
    """A resource as it is; where it is from is told beside it, and its type too, for which a text may have no place."""
    about = {**about, "uri": msgspec.json.encode(resource.uri), "_meta": _merged(about["_meta"], resource.meta)}
    name = posixpath.basename(unquote(urlsplit(resource.uri).path)) or None
    if resource.blob is not None:
        return File(resource.blob, name=name, media_type=resource.mimeType, metadata=_metadata(about))
    if resource.text is not None:
        about["mimeType"] = ABSENT if resource.mimeType is None else msgspec.json.encode(resource.mimeType)
        return Text(resource.text, resource.mimeType, _metadata(about))
    return Data(raw, "application/json")
