"""References of a tool's schemas that lead out of them: to an address, a file, or a document that is not there.

The protocol forbids following them unasked (2026-07-28, `$ref` Resolution), and wants a schema that cannot be used
without them rejected rather than taken for one that allows everything. So such a tool is left out: nobody here knows
what it takes, and some caller's program would fetch it. `core.catalog.review` asks for whatever a server lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urldefrag, urljoin

import msgspec

from isthmus.model.features import Tool

SCHEMAS: Final = ("inputSchema", "outputSchema")
SHOWN_LENGTH_MAX: Final = 100
"""Of a reference, which may be as long as a definition."""

PARTS_MAX: Final = 10_000
"""Tables and lists of a schema that is looked through one by one; large real ones have a few thousand. More would hold
up every call."""

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_DEFINITIONS: Final = ("$defs", "definitions")

_ESCAPES: Final = (rb"\\", rb"\"", rb"\n", rb"\t", rb"\r", rb"\/")
"""What writes no letter that is looked for; the first of them first, as in what is read from left to right."""

_POINTING = re.compile(rb'"\$(?:ref|dynamicRef|recursiveRef|schema)"\s*:\s*(?:"([^"]*)")?')

_KNOWN = re.compile(
    r"https?://json-schema\.org/(?:draft-0\d/|draft/[\w-]+/)?(?:(?:hyper-)?schema|meta/[\w-]+)(?:#[!-~]*)?"
    r"|https?://spec\.openapis\.org/oas/3\.\d/[a-z]+/[\w.-]+"
)
"""The drafts themselves, which every program has at hand, under spellings with and without `s` and `#`."""

_ADDRESS = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")

_Kind: TypeAlias = Literal["schema", "definitions", "other"]
"""Only what is a schema for certain, itself or by way of definitions, can be referred to by its own address."""

_Place: TypeAlias = tuple[Any, str, _Kind]
"""A part of a schema, and the address from which its references are read."""


def outside_reference(tool: Tool) -> str | None:
    """Where a schema of the tool refers to outside of itself, in words; None if nowhere."""
    for member in SCHEMAS:
        raw = tool.definition.get(member)
        if raw is not None and (why := _way_out_of(bytes(raw))) is not None:
            return f"its {member} {why}"
    return None


def _way_out_of(text: bytes) -> str | None:
    if _is_within_itself(text):
        return None
    if text.count(b"{") + text.count(b"[") > PARTS_MAX:
        return f"has over {PARTS_MAX} parts, and may refer to what is not in it"
    try:
        return _first_outside(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        # Other programs may read what this one cannot, a number of a thousand digits say, and follow what is beside it.
        return "cannot be read, and may refer to what is not in it"


def _is_within_itself(text: bytes) -> bool:
    """Whether that can be told at a glance, as of nearly every schema."""
    if b"\\" in text:
        for escape in _ESCAPES:
            text = text.replace(escape, b"?")
        if b"\\" in text:  # it may write any letter
            return False
    values = (value.decode("utf-8", "replace") for value in _POINTING.findall(text))
    return all(not value or value.startswith("#") or _KNOWN.fullmatch(value) for value in values)


def _first_outside(schema: Any) -> str | None:
    own: set[str] = {""}
    found: list[tuple[str, str]] = []
    for node, base, kind in _tables(schema):
        if kind == "schema":
            own.add(base)
        found += [(node[key], base) for key in _REFERENCES if isinstance(node.get(key), str)]
        dialect = node.get("$schema") if node is schema or "$id" in node else None
        if isinstance(dialect, str) and _ADDRESS.match(dialect) and not _KNOWN.fullmatch(dialect):
            return f"is written in {dialect[:SHOWN_LENGTH_MAX]}, which is not fetched"
    for reference, base in found:
        if not (reference.startswith("#") or _document(base, reference) in own or _KNOWN.fullmatch(reference)):
            return f"refers to {reference[:SHOWN_LENGTH_MAX]}, which is not in it and not fetched"
    return None


def _tables(schema: Any) -> Iterator[_Place]:
    """Every table of a schema, examples and defaults included: some programs follow what is written there, too."""
    waiting: list[_Place] = [(schema, "", "schema")]
    while waiting:
        node, base, kind = waiting.pop()
        if isinstance(node, list):
            waiting += [(each, base, "other") for each in node if isinstance(each, dict | list)]
        elif isinstance(node, dict):
            if isinstance(id := node.get("$id"), str):
                base = _document(base, id)
            yield node, base, kind
            members = ((key, each) for key, each in node.items() if isinstance(each, dict | list))
            waiting += [(each, base, _kind_of(key, kind)) for key, each in members]


def _kind_of(key: str, around: _Kind) -> _Kind:
    if around == "definitions":
        return "schema"
    return "definitions" if around == "schema" and key in _DEFINITIONS else "other"


def _document(base: str, reference: str) -> str:
    """The document that a reference is into. Raises `ValueError` if it is no address at all."""
    return urldefrag(urljoin(base, reference)).url
